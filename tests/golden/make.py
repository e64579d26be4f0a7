"""Writes the golden manifests: good/NAME.bin with good/NAME.json, and bad/NAME.bin with a line in
bad/expected.tsv.

It shares no code with any decoder: it builds the bytes from nested Python lists, and the expected
results are part of the cases.

    make.py          writes the files
    make.py --check  compares them with the existing files, byte for byte
"""

import json
import pathlib
import sys

from cases_bad import bad_cases
from cases_good import good_cases

HERE = pathlib.Path(__file__).resolve().parent


def golden_files():
    """Every file by its path, relative to this folder."""
    files = {}
    for name, (data, description) in good_cases().items():
        files[f"good/{name}.bin"] = data
        lines = ",\n".join(
            f" {json.dumps(key)}: {json.dumps(item)}" for key, item in description.items()
        )
        files[f"good/{name}.json"] = f"{{\n{lines}\n}}\n".encode()
    lines = []
    for name, (data, status) in sorted(bad_cases().items()):
        files[f"bad/{name}.bin"] = data
        lines.append(f"{name}\t{status}\n")
    files["bad/expected.tsv"] = "".join(lines).encode()
    return files


def check(files, folder=HERE):
    """The paths in good/ and bad/ that differ, are missing or are unexpected."""
    there = {
        path.relative_to(folder).as_posix()
        for part in ("good", "bad")
        for path in (folder / part).glob("*")
    }
    differing = [
        path for path in files if path in there and (folder / path).read_bytes() != files[path]
    ]
    return sorted(differing + list(there ^ set(files)))


def write(files, folder=HERE):
    """Writes the files and removes unexpected ones."""
    for path in check(files, folder):
        if path not in files:
            (folder / path).unlink()
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def main(arguments):
    sys.setrecursionlimit(10000)  # The deeply nested cases need this.
    files = golden_files()
    if arguments == ["--check"]:
        wrong = check(files)
        for path in wrong:
            print(f"{path}: differs from the output of make.py; run make.py", file=sys.stderr)
        return 1 if wrong else 0
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    write(files)
    print(f"{len(files)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
