#!/usr/bin/env python3
"""count-tests.py FILE...: prints each failed test case, then "N passed, N failed, N skipped" for
all files.

A file is Meson's testlog.json, in which each case of a TAP program counts, or JUnit XML from
pytest. A file that is missing or has no cases counts as a failure."""

import json
import re
import sys
import xml.etree.ElementTree as ET

PASSED, FAILED, SKIPPED = range(3)
PLAN = re.compile(r"1\.\.(\d+)\s*$")
CASE = re.compile(r"(not )?ok\b\s*(\d*)\s*(?:- )?(.*)$")


def tap_cases(text):
    """The cases of a TAP program. A case that was planned and did not run has failed."""
    cases, planned = [], 0
    for line in text.splitlines():
        if plan := PLAN.match(line):
            planned += int(plan[1])
        elif case := CASE.match(line):
            skipped = "# skip" in line.lower()
            cases.append([SKIPPED if skipped else FAILED if case[1] else PASSED, case[3], []])
        elif line.startswith("#") and cases:
            cases[-1][2].append(line)
    for number in range(len(cases), planned):
        cases.append([FAILED, f"case {number + 1} of {planned} did not finish", []])
    return cases


def meson_cases(path):
    results = {"OK": PASSED, "EXPECTEDFAIL": PASSED, "SKIP": SKIPPED}
    with open(path, encoding="utf-8") as log:
        for test in map(json.loads, log):
            result = results.get(test["result"], FAILED)
            cases = tap_cases(test.get("stdout") or "")
            if result == FAILED and all(case[0] != FAILED for case in cases):
                cases.append([FAILED, test["result"], (test.get("stderr") or "").splitlines()])
            for case in cases or [[result, "", []]]:
                yield case[0], f"{test['name']}: {case[1]}", case[2]


def junit_cases(path):
    for case in ET.parse(path).iter("testcase"):
        kinds = {child.tag for child in case}
        result = (
            FAILED if kinds & {"failure", "error"} else SKIPPED if "skipped" in kinds else PASSED
        )
        yield result, f"{case.get('classname')}: {case.get('name')}", []


def main(paths):
    totals = [0, 0, 0]
    for path in paths:
        try:
            cases = list(meson_cases(path) if path.endswith(".json") else junit_cases(path))
        except (OSError, ET.ParseError, json.JSONDecodeError) as error:
            cases = [(FAILED, str(error), [])]
        for result, name, notes in cases or [(FAILED, f"{path}: no test was executed", [])]:
            totals[result] += 1
            if result == FAILED:
                print(f"FAIL {name}", *notes, sep="\n    ")
    print("{} passed, {} failed, {} skipped".format(*totals))
    return 0 if totals[PASSED] > 0 and totals[FAILED] == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
