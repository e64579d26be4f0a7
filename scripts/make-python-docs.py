#!/usr/bin/env python3
"""make-python-docs.py FILE: writes the reference of the Python package, from its docstrings.

Nothing is imported: the sources are parsed. Fails if something public is not documented completely:
a function or a method has the sections Args (all parameters), Returns and Raises if it takes,
returns and raises something; what a program calls by name has an Example; a record has a comment
for each field.
"""

import ast
import html
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "python" / "wherry"

#: What is public: module, file that has its __all__, and the names by the file that defines them.
MODULES = [
    (
        "wherry",
        "__init__.py",
        {
            "group.py": ["Group", "send", "recv"],
            "_core.pyi": ["Cancel"],
            "_transfer.py": ["Outcome", "Progress", "Stats"],
        },
    ),
    ("wherry.torch", "torch/__init__.py", {"torch/pg_transport.py": ["PGTransport"]}),
    ("wherry.torchft", "torchft.py", {"torchft.py": ["attach", "use_by_default", "Transport"]}),
    ("wherry.errors", "errors.py", {"errors.py": None}),
]
#: Public names that need no entry of their own.
PLAIN = {"ANY_RANK", "Error", "__version__", "errors"}
#: Fields of public records are of these types, which programs need not name.
RECORDS = {"_transfer.py": ["SourceStats", "SkippedLane"]}
SECTIONS = ("Args", "Returns", "Raises", "Example")
#: These raise nothing that a program could handle.
NEVER_RAISE = {"request", "disallow_checkpoint", "shutdown", "close", "slow_because"}

problems = []


def inline(text):
    text = html.escape(text)
    text = re.sub(r":\w+:`~?([\w.]+)`", r'<a href="#\1"><code>\1</code></a>', text)
    text = re.sub(r"``(.+?)``", r"<code>\1</code>", text)
    text = re.sub(r"\bdocs/([\w-]+)\.md\b", r'<a href="guide-\1.html">docs/\1.md</a>', text)
    return re.sub(
        r"\bwherry\.(?:errors\.([A-Z]\w+)|(Error))", r'<a href="#\1\2"><code>\g<0></code></a>', text
    )


def prose(lines):
    """Paragraphs, lists and, after "::", code."""
    out = []
    for block in re.split(r"\n\s*\n", "\n".join(lines).strip("\n")):
        rows = block.split("\n")
        if not block.strip():
            continue
        if all(row.startswith("    ") for row in rows):
            out.append(f"<pre>{html.escape(block)}</pre>")
        elif re.match(r"(- |\d\. )", rows[0]):
            items = re.split(r"\n(?=- |\d\. )", block)
            out.append("<ul>" + "".join(f"<li>{inline(one[2:])}</li>" for one in items) + "</ul>")
        else:
            out.append(f"<p>{inline(block)}</p>")
    return "\n".join(out)


def entries(lines):
    """The rows "name: text" of Args and Raises."""
    found = {}
    for row in lines:
        match = re.match(r"    ([\w.*, ]+): (.*)", row)
        if match and not row.startswith("     "):
            found[match[1]] = [match[2]]
        elif found and row.strip():
            found[list(found)[-1]].append(row.strip())
    return {name: " ".join(text) for name, text in found.items()}


def document(text, name, parameters, needed=()):
    """The HTML of a docstring. ``needed``: the sections that it must have."""
    sections, current = {"": []}, ""
    for row in text.split("\n"):
        match = re.fullmatch(r"(\w+)::?", row)
        if match and match[1] in SECTIONS:
            current = match[1]
            sections[current] = []
        else:
            sections[current].append(row)
    problems.extend(f"{name}: no section {one}" for one in needed if one not in sections)
    out = [prose(sections.pop(""))]
    for title, rows in sections.items():
        if title in ("Args", "Raises"):
            named = entries(rows)
            every = {one for names in named for one in names.split(", ")}
            if title == "Args" and (wrong := every ^ set(parameters)):
                problems.append(f"{name}: Args and the parameters differ: {sorted(wrong)}")
            body = "".join(
                f"<dt><code>{one}</code></dt><dd>{inline(what)}</dd>" for one, what in named.items()
            )
            out.append(f"<h4>{title}</h4><dl>{body}</dl>")
        else:
            out.append(
                f"<h4>{title}</h4>{prose(rows if title == 'Example' else [r[4:] for r in rows])}"
            )
    return "\n".join(out)


def parameters_of(node):
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    found = [one.arg for one in every if one.arg not in ("self", "cls")]
    return found + [one.arg for one in (arguments.vararg, arguments.kwarg) if one]


def fields_of(node, rows):
    """The fields of a record, with the comments above them. One comment may be for several."""
    found = []
    for one in node.body:
        if not isinstance(one, ast.AnnAssign):
            continue
        first = one.lineno - 1
        while rows[first - 1].strip().startswith("#:"):
            first -= 1
        comment = " ".join(row.strip()[2:].strip() for row in rows[first : one.lineno - 1])
        field = f"{one.target.id}: {ast.unparse(one.annotation)}"
        if comment or not found:
            found.append(([field], comment))
        else:
            found[-1][0].append(field)
    return found


def heading(text, level, anchor):
    text = re.sub(r"\((self|cls)(, )?", "(", text)
    return f'<h{level} id="{anchor}"><code>{html.escape(text)}</code></h{level}>'


def show_function(node, name, level, called):
    is_property = any(getattr(one, "id", "") == "property" for one in node.decorator_list)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    head = name if is_property else f"{name}({ast.unparse(node.args)}){returns}"
    known, needed = parameters_of(node), []
    if not is_property:
        gives = returns not in ("", " -> None")
        raises = node.name not in NEVER_RAISE
        conditions = {"Args": known, "Returns": gives, "Raises": raises, "Example": called}
        needed = [section for section, condition in conditions.items() if condition]
    anchor = ".".join(name.split(".")[-1 if called else -2 :])
    return [heading(head, level, anchor), document(ast.get_docstring(node), name, known, needed)]


def show_class(node, name, level, rows):
    text, known, members = ast.get_docstring(node), [], []
    head = name
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name == "__init__" and "\nArgs:" in text:
            known = parameters_of(one)
            head = f"{name}({ast.unparse(one.args)})"
        elif isinstance(one, ast.FunctionDef) and not one.name.startswith("_"):
            members += show(one, f"{name}.{one.name}", level + 1, rows, False)
    bases = [ast.unparse(one) for one in node.bases if "_" not in ast.unparse(one)]
    fields = fields_of(node, rows)
    if exceptions := [one for one in bases if one != "NamedTuple"]:
        text = f"Also a {', '.join(f'``{one}``' for one in exceptions)}.\n\n{text}"
    needed = [] if fields or name.startswith("wherry.errors.") else ["Example"]
    out = [heading(head, level, name.rpartition(".")[2]), document(text, name, known, needed)]
    for names, comment in fields:
        if not comment:
            problems.append(f"{name}: no comment for {', '.join(names)}")
        shown = ", ".join(f"<code>{html.escape(one)}</code>" for one in names)
        out.append(f"<dl><dt>{shown}</dt><dd>{inline(comment)}</dd></dl>")
    return out + members


def show(node, name, level, rows, called=True):
    """The HTML of a class or a function."""
    if ast.get_docstring(node) is None:
        problems.append(f"{name} has no docstring")
        return []
    if isinstance(node, ast.ClassDef):
        return show_class(node, name, level, rows)
    return show_function(node, name, level, called)


def exported(path):
    """The names in __all__ of a file."""
    found = set()
    for one in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        targets = getattr(one, "targets", [getattr(one, "target", None)])
        if any(getattr(target, "id", "") == "__all__" for target in targets):
            found |= set(ast.literal_eval(one.value))
    return found


def show_names(path, names, prefix, out):
    """Adds the documentation of names that a file defines; None: all classes. Returns the names."""
    source = (ROOT / path).read_text(encoding="utf-8")
    found = {
        one.name: one
        for one in ast.parse(source).body
        if isinstance(one, (ast.ClassDef, ast.FunctionDef))
    }
    names = names or [name for name, one in found.items() if isinstance(one, ast.ClassDef)]
    for name in names:
        out += show(found[name], prefix + name, 3, source.split("\n"))
    return set(names)


def main():
    out = [
        "<!DOCTYPE html><html><head><meta charset='utf-8'><title>wherry: Python</title>",
        "<style>body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
        "pre,code{background:#f4f4f4}pre{padding:.5em;overflow:auto}dt{margin-top:.4em}"
        "h3{margin-top:2em;border-top:1px solid #ccc}</style></head><body>",
        "<h1>wherry: Python reference</h1>",
        "<p>Built from the docstrings. <a href='guide-python.html'>The guide</a> explains how to use "
        "the package. <a href='index.html'>Reference of the C library</a>.</p>",
    ]
    for module, home, files in MODULES:
        out.append(f"<h2>{module}</h2>")
        shown = set()
        for path, names in files.items():
            shown |= show_names(path, names, f"{module}.", out)
        public = exported(home) - (PLAIN if module == "wherry" else set())
        problems.extend(
            f"{module}.{one} is not in both __all__ and MODULES" for one in shown ^ public
        )
    out.append("<h2>Records in other records</h2>")
    for path, names in RECORDS.items():
        show_names(path, names, "", out)
    page = "\n".join(out) + "</body></html>\n"
    anchors = set(re.findall(r'id="([\w.]+)"', page))

    def link(match):
        """A reference may leave out the module, and in a class the class."""
        name = match[1]
        fits = [name, name.rpartition(".")[2], *sorted(anchors)]
        for one in fits:
            if one in anchors and (name.endswith(one) or one.endswith(f".{name}")):
                return f'href="#{one}"'
        problems.append(f"a docstring refers to {name}, which is not public")
        return match[0]

    page = re.sub(r'href="#([\w.]+)"', link, page)
    Path(sys.argv[1]).write_text(page, encoding="utf-8")
    for one in problems:
        print(f"make-python-docs: {one}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
