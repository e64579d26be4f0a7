#!/usr/bin/env python3
"""check-sizes.py: checks that no file has more than 900 lines, no public header more than 600 and
no function more than 100. Lists functions with more than 80."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("include", "src", "tests", "examples", "bench", "cli", "mpi", "python", "scripts")
FILE_MAX, HEADER_MAX, FUNCTION_MAX, FUNCTION_LISTED = 900, 600, 100, 80
NAME = re.compile(r"(\w+)\s*\(")


def functions(lines):
    """(name, first line, length) of each function. In formatted code it ends with a brace in column
    0."""
    start = None
    for number, line in enumerate(lines, 1):
        if start is None or line[:1] not in (" ", "}", ""):
            start = number if re.match(r"\w", line) else None
        if line == "}" and start is not None:
            name = NAME.search(lines[start - 1])
            if name:
                yield name[1], start, number - start + 1
            start = None


def check(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    where = path.relative_to(ROOT)
    most = HEADER_MAX if where.parts[0] == "include" else FILE_MAX
    good = len(lines) <= most
    if not good:
        print(f"{where}: {len(lines)} lines, more than {most}: split it")
    if path.suffix == ".py":
        return good
    for name, start, length in functions(lines):
        if length > FUNCTION_MAX:
            print(f"{where}:{start}: {name} has {length} lines, more than {FUNCTION_MAX}: split it")
            good = False
        elif length > FUNCTION_LISTED:
            print(f"{where}:{start}: {name} has {length} lines (allowed; over {FUNCTION_LISTED})")
    return good


def main():
    files = [
        p
        for folder in FOLDERS
        for p in sorted((ROOT / folder).rglob("*"))
        if p.suffix in (".c", ".h", ".py")
    ]
    return 0 if all([check(path) for path in files]) else 1


if __name__ == "__main__":
    sys.exit(main())
