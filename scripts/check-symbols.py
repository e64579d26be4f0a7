#!/usr/bin/env python3
"""check-symbols.py BUILD_DIR: the functions that the public headers declare, those that src/wherry.map names, and those
that the shared library exports are the same."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def declared():
    names = set()
    for header in (ROOT / "include/wherry").glob("*.h"):
        text = re.sub(r"/\*.*?\*/", "", header.read_text(encoding="utf-8"), flags=re.S)
        text = re.sub(r"^#.*$", "", text, flags=re.M)
        names.update(re.findall(r"\bWHERRY_API\b[^;]*?\b(\w+)\s*\(", text))
    return names


def mapped():
    text = (ROOT / "src/wherry.map").read_text(encoding="utf-8")
    return set(re.findall(r"^ +(\w+);$", text, flags=re.M))


def exported(library):
    if not library.exists():
        raise SystemExit(f"{library}: not there; build it first")
    nm = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    symbols = (line.split() for line in nm.stdout.splitlines())
    return {name.split("@")[0] for _, kind, name in symbols if kind != "A"}


def main(build):
    lists = {
        "declared in include/wherry/": declared(),
        "named in src/wherry.map": mapped(),
        "exported by libwherry.so": exported(Path(build) / "src/libwherry.so"),
    }
    wrong = False
    for name in sorted(set().union(*lists.values())):
        absent = [place for place, names in lists.items() if name not in names]
        if absent:
            print(f"{name}: not {', not '.join(absent)}", file=sys.stderr)
            wrong = True
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
