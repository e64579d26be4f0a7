#!/usr/bin/env python3
"""check-layers.py [ROOT]: rejects every #include that the table in docs/architecture.md does not
allow.

The table has one row per folder. Its last column names what the folder may include: `include` for
the public headers, a folder of src/, `all`, or `-` for nothing. The folder may also include
whatever these may include. More rules of that document are checked too:

  - Private headers are named relative to src/, as "base/alloc.h"; public ones are <wherry/...>.
  - A header in a backend's folder (below src/group/ or src/lane/) belongs to that backend. Other
    folders may include it only if their row says `all`.
  - Users (folders outside src/) see public headers, their own files, and those of users and of
    folders of src/ that their row names. Tests see everything.
"""

import re
import sys
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
BACKENDS = ("group", "lane")
TABLE_HEAD = "| folder | what it is | may include |"


def read_table(document):
    """{folder: names that it may include}, as written."""
    text = document.read_text(encoding="utf-8")
    if TABLE_HEAD not in text:
        raise SystemExit(f"{document}: no table that begins with {TABLE_HEAD}")
    table = {}
    for line in text.split(TABLE_HEAD, 1)[1].splitlines()[2:]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = [name for name in re.split(r"[,\s]+", cells[-1]) if name != "-"]
        for folder in re.findall(r"`([^`]+)/`", cells[0]):
            table["include" if folder == "include/wherry" else folder.removeprefix("src/")] = names
    return table


def reachable(table, folder):
    """All that a folder may include: its row, the rows of the folders named there, and so on."""
    found, waiting = set(), list(table[folder])
    while waiting:
        name = waiting.pop()
        if name == "all":
            waiting += [other for other in table if other not in found]
        if name not in found:
            found.add(name)
            waiting += table.get(name, [])
    return found


def backend(path):
    """("lane", "cma") for a path such as lane/cma/cma.h; None outside the backends' folders."""
    parts = Path(path).parts
    return parts[:2] if len(parts) > 2 and parts[0] in BACKENDS else None


def check_private(root, table, file, target):
    """Why a file of src/ must not include `target`, a path relative to src/; None if it may."""
    here = file.relative_to(root / "src")
    source_folder, target_folder = here.parts[0], Path(target).parts[0]
    allowed = reachable(table, source_folder)
    if source_folder != target_folder and target_folder not in allowed:
        row = ", ".join(table[source_folder]) or "nothing"
        return f"{source_folder} may include {row} and what those may, not {target_folder}"
    if backend(target) not in (None, backend(here)) and "all" not in allowed:
        return f"{'/'.join(backend(target))} keeps its headers to itself"
    return None


def check_include(root, table, file, quote, target):
    top = file.relative_to(root).parts[0]
    if top == "tests":
        return None
    if target.startswith("wherry/"):
        if not (root / "include" / target).is_file():
            return "there is no such public header"
        return None if quote == "<" else f"a public header is written <{target}>"
    private = ".." not in Path(target).parts and (root / "src" / target).is_file()
    if top == "src":
        if private:
            return check_private(root, table, file, target)
        return (
            None
            if quote == "<"
            else 'a private header is named from src/ on, such as "base/alloc.h"'
        )
    if quote == "<" and not private:
        return None
    own = (file.parent / target).resolve()
    if top != "include" and (root / top) in own.parents and own.is_file():
        return None
    if ".." not in Path(target).parts and any(
        (root / name / target).is_file() for name in table.get(top, []) if name != "include"
    ):
        return None
    if private and Path(target).parts[0] in reachable(table, top):
        return None
    return f"{top}/ may include public headers only, as <wherry/...>"


def check_file(root, table, file):
    parts = file.relative_to(root).parts
    if parts[0] == "src" and parts[1] not in table:
        yield f"{file.relative_to(root)}: src/{parts[1]}/ has no row in docs/architecture.md"
        return
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if found := INCLUDE.match(line):
            wrong = check_include(root, table, file, *found.groups())
            if wrong:
                yield f"{file.relative_to(root)}:{number}: {found[2]}: {wrong}"


def check_table(table):
    for folder in table:
        for name in table[folder]:
            if name not in table and name != "all":
                yield f"docs/architecture.md: the row of {folder} names {name}, which has no row"
        if folder in reachable(table, folder) and "all" not in table[folder]:
            yield f"docs/architecture.md: {folder} reaches itself: the arrows must not form a circle"


def main(root):
    table = read_table(root / "docs/architecture.md")
    wrong = list(check_table(table))
    if not wrong:
        folders = [
            "src",
            *sorted({folder.split("/")[0] for folder in table if (root / folder).is_dir()}),
        ]
        files = [file for folder in folders for file in sorted((root / folder).rglob("*.[ch]"))]
        if not files:
            wrong = ["no file was found to check"]
        for file in files:
            wrong += check_file(root, table, file)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(
        main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve())
    )
