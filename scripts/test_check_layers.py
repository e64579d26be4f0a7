#!/usr/bin/env python3
"""Tests that check-layers.py accepts what the table allows and rejects the rest."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CHECK = Path(__file__).resolve().parent / "check-layers.py"
TABLE = """
| folder | what it is | may include |
| --- | --- | --- |
| `include/wherry/` | public | - |
| `src/base/` | base | include |
| `src/range/` | range | base |
| `src/state/` | state | range |
| `src/group/` | group | base |
| `src/lane/` | lane | group, range |
| `src/api/` | api | all |
| `bench/` | user | include |
| `cli/` | user of a user | include, bench |
"""
FILES = {
    "include/wherry/value.h": "#include <stddef.h>\n",
    "src/base/alloc.h": "#include <wherry/value.h>\n",
    "src/range/box.h": "",
    "src/state/walk.h": "",
    "src/group/group.h": "",
    "src/group/sockets/dial.h": "",
    "src/lane/lane.h": "",
    "src/lane/cma/pull.h": "",
    "bench/bench.h": "",
    "cli/command.h": "",
}


def run(files, table=TABLE):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in {**FILES, "docs/architecture.md": table, **files}.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return subprocess.run([sys.executable, CHECK, folder], capture_output=True, text=True)


class CheckLayers(unittest.TestCase):
    def accepts(self, file, line):
        result = run({file: line + "\n"})
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def refuses(self, file, line, reason):
        result = run({file: "\n" + line + "\n"})
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertIn(f"{file}:2: ", result.stdout)
        self.assertIn(reason, result.stdout)

    def test_accepts_what_is_allowed(self):
        self.accepts("src/range/box.c", '#include "base/alloc.h"')
        self.accepts("src/state/walk.c", '#include "base/alloc.h"')
        self.accepts("src/state/walk.c", '#include "state/walk.h"')
        self.accepts("src/state/walk.c", "#include <wherry/value.h>")
        self.accepts("src/lane/cma/pull.c", '#include "group/group.h"')
        self.accepts("src/lane/cma/pull.c", '#include "lane/cma/pull.h"')
        self.accepts("src/api/join.c", '#include "group/sockets/dial.h"')
        self.accepts("bench/bench.c", '#include "bench.h"')
        self.accepts("cli/main.c", '#include "bench.h"')
        self.accepts("tests/unit/test_box.c", '#include "lane/cma/pull.h"')

    def test_refuses_a_forbidden_arrow(self):
        self.refuses("src/base/alloc.c", '#include "range/box.h"', "not range")
        self.refuses("src/range/box.c", '# include "state/walk.h"', "not state")
        self.refuses("src/range/box.c", "#include <state/walk.h>", "not state")

    def test_refuses_another_backend(self):
        self.refuses("src/lane/ring/push.c", '#include "lane/cma/pull.h"', "to itself")
        self.refuses("src/lane/ring/push.c", '#include "group/sockets/dial.h"', "to itself")
        self.refuses("src/lane/lane.c", '#include "lane/cma/pull.h"', "to itself")

    def test_refuses_other_spellings(self):
        self.refuses("src/base/alloc.c", '#include "alloc.h"', "from src/ on")
        self.refuses("src/base/alloc.c", '#include "../range/box.h"', "from src/ on")
        self.refuses("src/base/alloc.c", '#include "wherry/value.h"', "<wherry/value.h>")
        self.refuses("src/base/alloc.c", "#include <wherry/none.h>", "no such public header")

    def test_users_see_public_headers_only(self):
        self.refuses("cli/main.c", '#include "base/alloc.h"', "public headers only")
        self.refuses("cli/main.c", '#include "../src/base/alloc.h"', "public headers only")
        self.refuses("bench/bench.c", "#include <base/alloc.h>", "public headers only")
        self.refuses("bench/bench.c", '#include "command.h"', "public headers only")
        self.refuses("include/wherry/value.h", '#include "base/alloc.h"', "public headers only")

    def test_refuses_a_folder_without_a_row(self):
        result = run({"src/extra/new.c": ""})
        self.assertEqual(result.returncode, 1)
        self.assertIn("src/extra/ has no row", result.stdout)

    def test_refuses_a_table_that_is_wrong(self):
        circle = run({}, TABLE.replace("| base | include |", "| base | state |"))
        self.assertEqual(circle.returncode, 1)
        self.assertIn("circle", circle.stdout)
        unknown = run({}, TABLE.replace("group, range", "group, nowhere"))
        self.assertIn("nowhere, which has no row", unknown.stdout)
        self.assertNotEqual(run({}, "no table").returncode, 0)


if __name__ == "__main__":
    unittest.main(verbosity=0)
