#!/usr/bin/env python3
"""make-guides.py DIRECTORY: writes docs/*.md into DIRECTORY for Doxygen, which makes pages of them.

Headings get the labels that they have on a Git server, with the name of their file in front. Links
between guides lead to these labels, other links into this tree to the project's repository.
"""

import re
import sys
import tomllib
from pathlib import Path

from package_metadata import LINK, ROOT

DOCS = ROOT / "docs"
MAIN_PAGE = "reference"
#: A link that is not to another site.
LINK_WITHIN = re.compile(LINK.pattern.replace("|#", ""))


def label(name, heading=""):
    """The label of a heading, or of the page."""
    words = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
    return f"guide-{name}" + (f"-{words}" if words else "")


def parts(text):
    """The text outside of code blocks, and the code blocks."""
    return re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)


def labels(name, text):
    """The labels of the headings of a guide."""
    prose = "".join(parts(text)[::2])
    return {label(name)} | {label(name, found) for found in re.findall(r"^#+ (.+)$", prose, re.M)}


def convert(name, text, known, home):
    def target(match):
        image, words, link = match.groups()
        path, _, anchor = link.partition("#")
        file = (DOCS / path).resolve() if path else DOCS / f"{name}.md"
        if file.parent == DOCS and file.suffix == ".md" and file.stem != MAIN_PAGE:
            link = label(file.stem, anchor)
            if link not in known:
                sys.exit(f"docs/{name}.md: there is no {match[3]}")
            return f"{image}[{words}](#{link})"
        if not file.exists():
            sys.exit(f"docs/{name}.md: there is no {path}")
        return f"{image}[{words}]({home}/blob/main/{file.relative_to(ROOT)})"

    def heading(match):
        marks, words = match.groups()
        own = label(name) if match.start() == 0 else label(name, words)
        return f"{marks} {words} {{#{own}}}"

    out = parts(text)
    for at in range(0, len(out), 2):
        prose = out[at] if at else out[at].lstrip()
        prose = re.sub(r"^(#+) (.+)$", heading, prose, flags=re.M)
        out[at] = LINK_WITHIN.sub(target, prose)
    return "".join(out)


def main(directory):
    home = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    guides = {file.stem: file.read_text() for file in DOCS.glob("*.md") if file.stem != MAIN_PAGE}
    known = set().union(*(labels(name, text) for name, text in guides.items()))
    for name, text in guides.items():
        Path(directory, f"{name}.md").write_text(convert(name, text, known, home))


if __name__ == "__main__":
    main(sys.argv[1])
