#!/usr/bin/env python3
"""package_metadata.py METADATA [LICENSE...]: completes the metadata of a wheel or a source
distribution for a package index. Links of the README to files of this tree become links to the
project's repository, at the version's tag; the licences are listed."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")


def complete(text, licenses=()):
    home = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    version = re.search(r"^Version: (.+)$", text, re.M)[1]
    head, _, description = text.partition("\n\n")

    def absolute(match):
        image, words, target = match.groups()
        if not (ROOT / target.partition("#")[0]).exists():
            sys.exit(f"README.md: there is no {target}")
        kind = "raw" if image else "blob"
        return f"{image}[{words}]({home}/{kind}/v{version}/{target})"

    lines = [f"License-File: {Path(name).name}" for name in licenses]
    head = re.sub(
        r"^License-File: ", "\n".join([*lines, "License-File: "]), head, count=1, flags=re.M
    )
    return f"{head}\n\n{LINK.sub(absolute, description)}"


def main(path, *licenses):
    path = Path(path)
    path.write_text(complete(path.read_text(), licenses))


if __name__ == "__main__":
    main(*sys.argv[1:])
