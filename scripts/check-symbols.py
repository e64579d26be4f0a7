#!/usr/bin/env python3
"""check-symbols.py BUILD_DIR: checks that, for each shared library, the public headers declare the
same functions as its map names and as it exports.

The libraries in COMPANIONS have their own headers; all other headers belong to the core. Names in
the section WHERRY_PRIVATE_<version> of the core's map are for the companions: no public header
declares them, and the version must be the current one."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# The core: its map and the built library.
CORE = ("src/wherry.map", "src/libwherry.so")
# The companion libraries: {header: (map, built libraries)}. libwherry-mpi is built once per MPI.
COMPANIONS = {
    "file.h": ("src/file/wherry-file.map", "src/file/libwherry-file.so"),
    "mpi.h": ("mpi/wherry-mpi.map", "mpi/libwherry-mpi-openmpi.so", "mpi/libwherry-mpi-mpich.so"),
}


def declared(headers):
    names = set()
    for header in headers:
        text = re.sub(r"/\*.*?\*/", "", header.read_text(encoding="utf-8"), flags=re.S)
        text = re.sub(r"^#.*$", "", text, flags=re.M)
        names.update(re.findall(r"\bWHERRY_API\b[^;]*?\b(\w+)\s*\(", text))
    return names


def mapped(path):
    """The public and the private names in a map."""
    names = {False: set(), True: set()}
    version = re.search(r"version: '([^']+)'", (ROOT / "meson.build").read_text(encoding="utf-8"))[
        1
    ]
    for node, body in re.findall(
        r"^(\S+) \{(.*?)^\};", path.read_text(encoding="utf-8"), flags=re.M | re.S
    ):
        private = node.startswith("WHERRY_PRIVATE_")
        if private and node != f"WHERRY_PRIVATE_{version}":
            raise SystemExit(f"{path}: {node} is not of version {version}")
        names[private].update(re.findall(r"^ +(\w+);$", body, flags=re.M))
    return names[False], names[True]


def exported(library):
    if not library.exists():
        raise SystemExit(f"{library}: not there; build it first")
    nm = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    )
    symbols = (line.split() for line in nm.stdout.splitlines())
    return {name.split("@")[0] for _, kind, name in symbols if kind != "A"}


def check(build, headers, places):
    symbol_map, *libraries = places
    public, private = mapped(ROOT / symbol_map)
    lists = {
        "declared in " + (headers[0].name if len(headers) == 1 else "include/wherry/"): declared(
            headers
        )
        | private,
        f"named in {symbol_map}": public | private,
    }
    lists |= {
        f"exported by {Path(library).name}": exported(Path(build) / library)
        for library in libraries
    }
    wrong = False
    for name in sorted(set().union(*lists.values())):
        absent = [place for place, names in lists.items() if name not in names]
        if absent:
            print(f"{name}: not {', not '.join(absent)}", file=sys.stderr)
            wrong = True
    return wrong


def main(build):
    headers = sorted((ROOT / "include/wherry").glob("*.h"))
    wrong = check(build, [h for h in headers if h.name not in COMPANIONS], CORE)
    for header in headers:
        if header.name in COMPANIONS:
            wrong |= check(build, [header], COMPANIONS[header.name])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
