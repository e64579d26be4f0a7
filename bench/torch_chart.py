#!/usr/bin/env python3
"""torch_chart.py: draws bench/results/torch.svg, the chart of the README, from the table in
torch.md."""

import pathlib
import re
import sys

sys.dont_write_bytecode = True  # keep the source tree clean
import report  # noqa: E402

RESULTS = pathlib.Path(__file__).resolve().parent / "results"


def bars_of(page):
    """(case, times faster) of each row: the first and the last column of the table."""
    lines = [line for line in page.splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [(row[0], float(row[-1])) for row in cells]


def main():
    page = (RESULTS / "torch.md").read_text()
    machine = re.search(r"Machine: (\d+ cores).*?(torch [\d.]+\d)", page, re.DOTALL)
    subtitle = f"whole calls, reading the state dicts included; {', '.join(machine.groups())}"
    chart = report.bar_chart("Times faster than PGTransport over gloo", subtitle, bars_of(page))
    (RESULTS / "torch.svg").write_text(chart)


if __name__ == "__main__":
    main()
