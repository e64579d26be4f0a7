#!/usr/bin/env python3
"""check-links.py DIRECTORY: every link of the HTML pages in it leads to a page and a label that are
there. Links to other sites are not followed."""

import html.parser
import re
import sys
from pathlib import Path
from urllib.parse import unquote


class Page(html.parser.HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.links, self.labels = set(), set()
        self.feed(path.read_text(encoding="utf-8", errors="replace"))

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.labels |= {attrs.get("id"), attrs.get("name")}
        if tag in ("a", "img", "link") and (link := attrs.get("href") or attrs.get("src")):
            self.links.add(link)


def main(directory):
    directory = Path(directory)
    pages = {path.name: Page(path) for path in directory.glob("*.html")}
    wrong = []
    for name, page in pages.items():
        for link in page.links:
            if re.match(r"[a-z]+:", link):
                continue
            path, _, label = map(unquote, link.partition("#"))
            path = path or name
            if path not in pages:
                wrong += [] if (directory / path).exists() else [f"{name}: there is no {path}"]
            elif label and label not in pages[path].labels:
                wrong.append(f"{name}: {path} has no label {label}")
    for one in sorted(wrong):
        print(f"check-links: {one}", file=sys.stderr)
    return 1 if wrong or not pages else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
