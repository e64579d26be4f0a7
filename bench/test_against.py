#!/usr/bin/env python3
"""Tests of against.py: its statistics, its choice of cases and its exit status."""

import contextlib
import io
import sys
import unittest
from unittest import mock

sys.dont_write_bytecode = True  # keep the source tree clean
import against  # noqa: E402


def row(*ratios):
    return against.Row("row", [(2.0, 2.0 * ratio) for ratio in ratios])


class Statistics(unittest.TestCase):
    def test_median_is_that_of_the_ratios_of_pairs(self):
        # The medians of the times alone would give 4 / 2.
        one = against.Row("row", [(1.0, 1.0), (2.0, 8.0), (4.0, 4.0)])
        self.assertEqual(one.median(), 1.0)

    def test_spread_is_the_middle_half(self):
        self.assertEqual(row(1.0, 2.0, 3.0, 4.0, 5.0).spread(), (2.0, 4.0))
        self.assertEqual(row(1.5).spread(), (1.5, 1.5))

    def test_geometric_mean(self):
        self.assertAlmostEqual(against.geometric_mean([row(2.0), row(0.5)]), 1.0)
        self.assertAlmostEqual(against.geometric_mean([row(4.0), row(1.0), row(2.0)]), 2.0)

    def test_slow_rows_are_above_the_limit(self):
        rows = [row(1.1), row(1.2)]
        self.assertEqual(against.slow_rows(rows, against.Limits("1.1")), rows[1:])

    def test_limits_of_some_rows(self):
        rows = [against.Row(name, [(1.0, 1.18)]) for name in ("gib", "20,000 small, ring")]
        self.assertEqual(against.slow_rows(rows, against.Limits("1.15 20,000*=1.20")), rows[:1])
        self.assertEqual(against.slow_rows(rows, against.Limits("gib=1.2")), rows[1:])
        for wrong in ("1.1 1.2", "many", "gib=", "gib=x"):
            self.assertRaises(ValueError, against.Limits, wrong)

    def test_steps_of_one_revision_are_named_and_not_counted(self):
        samples = [({"kept": 1.0, "gone": 1.0}, {"kept": 2.0, "added": 1.0})] * 3
        rows, single = against.rows_of("suite/case", samples)
        self.assertEqual([(one.name, one.median()) for one in rows], [("suite/case kept", 2.0)])
        self.assertEqual(single, {"old": ["suite/case gone"], "new": ["suite/case added"]})

    def test_case_with_one_step_is_named_after_the_case(self):
        rows, _ = against.rows_of("torch/gib", [({"": 1.0}, {"": 1.0})])
        self.assertEqual(rows[0].name, "torch/gib")


class Selection(unittest.TestCase):
    def test_patterns(self):
        self.assertTrue(against.is_selected("bench/gib", []))
        self.assertTrue(against.is_selected("bench/gib", ["torch", "bench"]))
        self.assertTrue(against.is_selected("bench/gib", ["bench/gib"]))
        self.assertTrue(against.is_selected("bench/gib", ["*/g?b"]))
        self.assertFalse(against.is_selected("bench/gib", ["bench/g"]))
        self.assertFalse(against.is_selected("bench/gib", ["torch"]))

    def test_last_object_counts(self):
        self.assertEqual(against.last_json('mpirun: hello\n{"a": 1}\n{"a": 2}\nbye\n'), {"a": 2})


class Comparison(unittest.TestCase):
    """Runs main() with revisions that are not built, and with invented measurements."""

    def compare(self, seconds, *arguments, has=lambda _: True):
        """Returns the exit status and the output. `seconds` gives the measurements of "old" and
        "new"."""
        revisions = {
            "old": against.Revision("old", None, None),
            "new": against.Revision("new", None, None),
        }
        self.order = []

        def measure(revision):
            self.order.append(revision.label)
            found = seconds[revision.label]
            if isinstance(found, Exception):
                raise found
            return {"step": found}

        case = against.Case("suite/case", 1.0, lambda revision: has(revision.label), measure)
        output = io.StringIO()
        with (
            mock.patch.object(against, "check_out", return_value=revisions["old"]),
            mock.patch.object(against, "Revision", return_value=revisions["new"]),
            mock.patch.object(against, "build"),
            mock.patch.object(against, "SUITES", {"suite": [lambda _: [case]]}),
            mock.patch.object(sys, "argv", ["against.py", "REV", *arguments]),
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(output),
        ):
            return against.main(), output.getvalue()

    def test_equal_speed(self):
        status, text = self.compare({"old": 1.0, "new": 1.0})
        self.assertEqual(status, 0)
        self.assertIn("Geometric mean of 1 rows: 1.000", text)

    def test_mean_above_its_limit(self):
        self.assertEqual(self.compare({"old": 1.0, "new": 1.05})[0], 1)
        self.assertEqual(self.compare({"old": 1.0, "new": 1.05}, "--mean", "1.06")[0], 0)

    def test_row_above_its_limit(self):
        status, text = self.compare({"old": 1.0, "new": 1.2}, "--mean", "2")
        self.assertEqual(status, 1)
        self.assertIn("Rows above 1.1: suite/case step", text)
        self.assertEqual(
            self.compare({"old": 1.0, "new": 1.2}, "--mean", "2", "--row", "1.3")[0], 0
        )

    def test_order_alternates(self):
        self.compare({"old": 1.0, "new": 1.0}, "--pairs", "3")
        self.assertEqual(self.order, ["old", "new", "new", "old", "old", "new"])

    def test_15_pairs_unless_told(self):
        self.compare({"old": 1.0, "new": 1.0})
        self.assertEqual(len(self.order), 30)

    def test_fewer_pairs_are_said(self):
        said = "Only 14 pairs per row"
        self.assertIn(said, self.compare({"old": 1.0, "new": 1.0}, "--pairs", "14")[1])
        self.assertNotIn("Only", self.compare({"old": 1.0, "new": 1.0})[1])

    def test_a_repeated_run_is_said(self):
        text = self.compare({"old": 1.0, "new": against.NotMeasured("it crashed")})[1]
        self.assertIn("suite/case: new runs again, since it failed: it crashed", text)

    def test_failure_of_a_program(self):
        status, text = self.compare({"old": 1.0, "new": against.NotMeasured("it crashed")})
        self.assertEqual(status, 2)
        self.assertIn("Not measured: suite/case: it crashed", text)

    def test_case_of_one_revision(self):
        status, text = self.compare({"old": 1.0, "new": 1.0}, has=lambda label: label == "old")
        self.assertEqual(status, 2)  # Nothing is left to compare.
        self.assertIn("Only in old, not counted: suite/case", text)

    def test_unknown_case(self):
        status, text = self.compare({"old": 1.0, "new": 1.0}, "--only", "nothing")
        self.assertEqual(status, 2)
        self.assertIn("there are: suite/case", text)


if __name__ == "__main__":
    unittest.main()
