#!/usr/bin/env python3
"""check-errors.py: checks that docs/errors.md lists the statuses of include/wherry/base.h in the
same order, with the same values, groups and texts."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def in_header():
    text = (ROOT / "include/wherry/base.h").read_text(encoding="utf-8")
    return re.findall(r'X\((\w+), (-?\d+), (\w+), "([^"]*)"\)', text)


def in_document():
    text = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `WHERRY_(\w+)` \| (-?\d+) \| (\w+) \| ([^|]*?) \|", text, flags=re.M)


def main():
    header, document = in_header(), in_document()
    for row in header:
        if row not in document:
            print(
                "docs/errors.md lacks: | `WHERRY_{}` | {} | {} | {} |".format(*row), file=sys.stderr
            )
    for row in document:
        if row not in header:
            print('base.h lacks: X({}, {}, {}, "{}")'.format(*row), file=sys.stderr)
    if sorted(header) == sorted(document) and header != document:
        print("docs/errors.md has another order than base.h", file=sys.stderr)
    return 0 if header and header == document else 1


if __name__ == "__main__":
    sys.exit(main())
