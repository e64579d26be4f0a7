#!/usr/bin/env python3
"""check-package.py BUILD_DIR: checks the wheel. It is for CPython 3.11 and newer and contains the
modules of python/wherry/, the extension, the command and nothing else. The extension exports only
its init function. Extension and command need neither libwherry nor libpython."""

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTENSION = "wherry/_core.abi3.so"
COMMAND = "wherry/_bin/wherry"


def expected_files():
    package = ROOT / "python/wherry"
    files = [p for p in package.rglob("*") if p.suffix in (".py", ".pyi") or p.name == "py.typed"]
    return {str(p.relative_to(ROOT / "python")) for p in files} | {EXTENSION, COMMAND}


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def check_needs(name, path):
    dynamic = output_of("readelf", "-d", path)
    for library in re.findall(r"NEEDED.*\[(lib(?:wherry|python)[^]]*)\]", dynamic):
        yield f"{name} needs {library}"


def check_exports(path):
    exported = {
        line.split()[-1] for line in output_of("nm", "-D", "--defined-only", path).splitlines()
    }
    if exported != {"PyInit__core"}:
        yield f"{EXTENSION} exports {' '.join(sorted(exported)) or 'nothing'}, not PyInit__core alone"


def check_wheel(wheel, folder):
    if "-cp311-abi3-" not in wheel.name:
        yield f"{wheel.name} is not named cp311-abi3"
    with zipfile.ZipFile(wheel) as archive:
        present = {name for name in archive.namelist() if ".dist-info/" not in name}
        scripts = {name for name in present if name.endswith(".data/scripts/wherry")}
        archive.extractall(folder, present & {EXTENSION, COMMAND})
    if not scripts:
        yield f"{wheel.name} has no script wherry"
    for name in sorted(expected_files() - present):
        yield f"the wheel lacks {name}: list it in python/meson.build"
    for name in sorted(present - scripts - expected_files()):
        yield f"the wheel has {name}, which is no part of the package"
    for name in sorted(present & {EXTENSION, COMMAND}):
        yield from check_needs(name, Path(folder) / name)
    if EXTENSION in present:
        yield from check_exports(Path(folder) / EXTENSION)


def main(build):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([ROOT / "scripts/make-wheel", build, folder], check=True)
        wheels = list(Path(folder).glob("*.whl"))
        wrong = (
            [f"{len(wheels)} wheels were built"]
            if len(wheels) != 1
            else list(check_wheel(wheels[0], folder))
        )
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
