#!/usr/bin/env python3
"""check-text.py [FILE...]: comments, docstrings and Markdown have at most 100 columns.

Exempt: tables and code blocks in Markdown, lines with a URL, and words that are too long to wrap.
Without arguments it checks all files that git knows.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
COLUMNS = 100
C_TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)


def c_lines(text):
    """The numbers of all lines that a comment is on."""
    found = set()
    for match in C_TOKEN.finditer(text):
        if match[0].startswith("/"):
            first = text.count("\n", 0, match.start()) + 1
            found.update(range(first, first + match[0].count("\n") + 1))
    return found


def python_lines(text):
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found.update(range(node.lineno, node.end_lineno + 1))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            found.add(token.start[0])
    return found


def hash_lines(text):
    """Shell, Meson, Make: whole-line comments."""
    return {number for number, line in enumerate(text.splitlines(), 1) if re.match(r"\s*#", line)}


def markdown_lines(text):
    found, in_code = set(), False
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*(```|~~~)", line):
            in_code = not in_code
        elif not in_code and not line.lstrip().startswith("|") and not line.startswith("    "):
            found.add(number)
    return found


def reader_of(path, text):
    if path.suffix in (".c", ".h"):
        return c_lines
    if path.suffix in (".py", ".pyi") or text.startswith("#!/usr/bin/env python"):
        return python_lines
    if path.suffix == ".md":
        return markdown_lines
    if path.name in ("meson.build", "Makefile") or re.match(r"#!.*\b(ba)?sh\b", text):
        return hash_lines
    return None


def can_be_wrapped(line):
    """False for a URL, and for a line whose last word starts in time."""
    words = re.findall(r"\S+", line)
    return "://" not in line and not (len(words) == 2 and len(words[0]) <= 3) and len(words) > 1


def too_long(path):
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        return []
    reader = reader_of(path, text)
    if reader is None or not any(len(line) > COLUMNS for line in text.splitlines()):
        return []
    checked = reader(text)
    return [
        (number, len(line))
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > COLUMNS and number in checked and can_be_wrapped(line)
    ]


def main():
    names = sys.argv[1:]
    if not names:
        listed = subprocess.run(["git", "ls-files"], cwd=TOP, check=True, capture_output=True)
        names = [name for name in listed.stdout.decode().splitlines() if (TOP / name).is_file()]
    bad = 0
    for name in names:
        for number, length in too_long(TOP / name):
            print(f"{name}:{number}: {length} columns; comments and text have at most {COLUMNS}")
            bad += 1
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
