"""Writes the golden checkpoint files: files/bad/NAME with a line in files/bad/expected.tsv (name,
status, path), and files/good/NAME.

make_files.py          writes the files
make_files.py --check  compares them with the existing files, byte for byte
"""

import pathlib
import sys

from cases_files import bad_files, good_files, tensors
from cases_files import about as tensor_about

HERE = pathlib.Path(__file__).resolve().parent / "files"


def golden_files():
    files, lines = {f"good/{name}": data for name, data in good_files().items()}, []
    for name, (data, status, path) in sorted(bad_files().items()):
        files[f"bad/{name}"] = data
        lines.append(f"{name}\t{status}\t{path}\n")
    files["bad/good.safetensors"] = tensors(
        {"a": tensor_about()}, bytes(4)
    )  # the shard of the indices
    files["bad/expected.tsv"] = "".join(lines).encode()
    return files


def check(files):
    """The paths that differ, are missing or are unexpected."""
    there = {
        path.relative_to(HERE).as_posix()
        for part in ("good", "bad")
        for path in (HERE / part).glob("*")
    }
    differing = [
        path for path in files if path in there and (HERE / path).read_bytes() != files[path]
    ]
    return sorted(differing + list(there ^ set(files)))


def main(arguments):
    files = golden_files()
    if arguments == ["--check"]:
        wrong = check(files)
        print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
        return 1 if wrong else 0
    for path in check(files):
        if path not in files:
            (HERE / path).unlink()
    for path, content in files.items():
        (HERE / path).parent.mkdir(parents=True, exist_ok=True)
        (HERE / path).write_bytes(content)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
