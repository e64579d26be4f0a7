#!/usr/bin/env python3
"""check-tree.py BUILD_DIR: checks that every folder of src/ has a README.md, that no two C files of
src/, python/ and tests/ have the same name, that git tracks all of them, and that every source in
them is built (except for BUILT_ELSEWHERE)."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILT_ELSEWHERE = ("tests/install/", "tests/mpi/mpi_keep_modules.c")


def main(build):
    wrong = []
    for folder in sorted(p for p in (ROOT / "src").iterdir() if p.is_dir()):
        if not (folder / "README.md").is_file():
            wrong.append(
                f"{folder.relative_to(ROOT)}: no README.md (what it is, what it may include, where to start)"
            )

    database = json.loads((ROOT / build / "compile_commands.json").read_text(encoding="utf-8"))
    built = {
        os.path.realpath(os.path.join(entry["directory"], entry["file"])) for entry in database
    }
    known = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    tracked = set(known.stdout.splitlines()) if known.returncode == 0 else None
    places = defaultdict(list)
    for path in sorted(
        p for folder in ("src", "python", "tests") for p in (ROOT / folder).rglob("*.[ch]")
    ):
        where = str(path.relative_to(ROOT))
        places[path.name].append(where)
        if tracked is not None and where not in tracked:
            wrong.append(f"{where}: not tracked by git")
        if path.suffix == ".c" and str(path) not in built and not where.startswith(BUILT_ELSEWHERE):
            wrong.append(f"{where}: in no meson.build")
    wrong += [f"the same name twice: {' '.join(same)}" for same in places.values() if len(same) > 1]

    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
