"""Writes the golden checkpoint files: files/bad/NAME with a line in files/bad/expected.tsv (name,
status, path), and files/good/NAME.

make_files.py          writes the files
make_files.py --check  compares them with the existing files, byte for byte
"""

import pathlib
import sys

from cases_files import bad_files, good_files, tensors
from cases_files import about as tensor_about
from make import check, write

FOLDER = pathlib.Path(__file__).resolve().parent / "files"


def golden_files():
    files, lines = {f"good/{name}": data for name, data in good_files().items()}, []
    for name, (data, status, path) in sorted(bad_files().items()):
        files[f"bad/{name}"] = data
        lines.append(f"{name}\t{status}\t{path}\n")
    # The bad indices refer to this shard.
    files["bad/good.safetensors"] = tensors({"a": tensor_about()}, bytes(4))
    files["bad/expected.tsv"] = "".join(lines).encode()
    return files


def main(arguments):
    files = golden_files()
    if arguments == ["--check"]:
        wrong = check(files, FOLDER)
        for path in wrong:
            print(
                f"files/{path}: differs from the output of make_files.py; run it", file=sys.stderr
            )
        return 1 if wrong else 0
    write(files, FOLDER)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
