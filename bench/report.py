"""Code for all benchmark reports: rows and tables, the chart, and how busy the machine was.

A page has figures only. What a benchmark must reach is its exit status: each row may have a bound,
and `unmet` names the rows that do not reach it.
"""

import argparse
import dataclasses
import datetime
import os
import resource
import socket
import statistics
import sys
import textwrap
import time
import xml.sax.saxutils

#: The kinds of memory that several benchmarks compare.
PAGES = {"small": "malloc", "huge": "huge pages"}


# ---- figures ----


def rates(seconds, count):
    """Formats rates in GB/s: median and range."""
    low, middle, high = (count / f(seconds) / 1e9 for f in (max, statistics.median, min))
    return f"{middle:.2f} GB/s ({low:.2f}-{high:.2f})"


def times(seconds, unit, scale, count=1):
    low, middle, high = (f(seconds) * scale / count for f in (min, statistics.median, max))
    return f"{middle:.2f} {unit} ({low:.2f}-{high:.2f})"


# ---- rows ----


@dataclasses.dataclass
class Row:
    """A line of a table. `bound` is the minimum ratio, or the maximum with `at_most`; or None."""

    case: str
    ours: str
    against: str
    ratio: float
    bound: float | None = None
    at_most: bool = False
    percent: bool = False

    def is_met(self):
        if self.bound is None:
            return True
        return self.ratio <= self.bound if self.at_most else self.ratio >= self.bound

    def number(self, value):
        return f"{value * 100:.0f}%" if self.percent else f"{value:.2f}"

    def cells(self):
        return [self.case, self.ours, self.against, self.number(self.ratio)]


def unmet(rows):
    """Prints the rows that do not meet their bound to standard error. Returns the exit status."""
    bad = [row for row in rows if not row.is_met()]
    for row in bad:
        limit = f"at {'most' if row.at_most else 'least'} {row.number(row.bound)}"
        print(f"{row.case}: {row.number(row.ratio)} instead of {limit}", file=sys.stderr)
    return 1 if bad else 0


def table(head, lines):
    return [
        "| " + " | ".join(head) + " |",
        "| " + " | ".join("---" for _ in head) + " |",
        *("| " + " | ".join(line) + " |" for line in lines),
    ]


def write(path, lines):
    """Writes a page. Paragraphs are wrapped at 100 columns."""
    result, block = [], []
    for line in [*lines, ""]:
        if line and line[0] not in "|#!":
            block.append(line)
            continue
        result += textwrap.wrap(" ".join(block), 100, break_on_hyphens=False)
        result.append(line)
        block = []
    path.write_text("\n".join(result[:-1]))


def measured(machine):
    return f"Measured on {datetime.date.today()}. Machine: {machine}."


# ---- options ----


def parser(description, *, quick=None, each="case"):
    """A parser with --quick, unless its help text is missing, and --wait."""
    made = argparse.ArgumentParser(description=description)
    if quick:
        made.add_argument("--quick", action="store_true", help=f"{quick}; write no file")
    made.add_argument(
        "--wait",
        type=float,
        default=0,
        help=f"wait up to this many seconds for a quiet machine before each {each}",
    )
    return made


# ---- the machine ----


class Others:
    """Measures which share of the machine other work takes."""

    def __init__(self):
        self.began = self.now()

    @staticmethod
    def now():
        """Returns seconds of the clock, of all busy processors, and of this process's children."""
        with open("/proc/stat", encoding="ascii") as file:
            fields = [int(field) for field in file.readline().split()[1:9]]
        user, nice, system, _, _, irq, softirq, steal = fields
        own = resource.getrusage(resource.RUSAGE_CHILDREN)
        busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        return time.monotonic(), busy, own.ru_utime + own.ru_stime

    def share(self):
        seconds, busy, own = (after - before for before, after in zip(self.began, self.now()))
        return max(0.0, (busy - own) / (seconds * os.cpu_count()))


def others_text(shares):
    """Text to append to the description of a machine. `shares` has one entry per run."""
    mean, most = statistics.mean(shares or [0]), max(shares, default=0)
    return f"; other work took {mean:.0%} of its time, at most {most:.0%}"


def wait_for_quiet(seconds):
    """Waits until other work takes less than a tenth of the machine, at most this long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        others = Others()
        time.sleep(1)
        if others.share() < 0.1:
            return


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


# ---- the chart ----

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.title { font-size: 15px; font-weight: 600; }
.quiet { fill: #59636e; font-size: 12px; }
.frame { fill: #ffffff; }
.bar { fill: #2f81c7; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .quiet { fill: #9198a1; }
  .frame { fill: #0d1117; }
  .bar { fill: #4c9be0; }
}
"""

WIDTH, LABELS, BARS, TOP, STEP, BAR = 860, 400, 360, 64, 30, 18


def text(x, y, words, kind=None, anchor="start"):
    mark = f' class="{kind}"' if kind else ""
    escaped = xml.sax.saxutils.escape(words)
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{mark}>{escaped}</text>'


def bar_chart(title, subtitle, bars):
    """An SVG with one bar per (label, value)."""
    height = TOP + STEP * len(bars) + 12
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{xml.sax.saxutils.escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="frame" width="{WIDTH}" height="{height}" rx="6"/>',
        text(16, 26, title, "title"),
        text(16, 46, subtitle, "quiet"),
    ]
    most = max(value for _, value in bars)
    for number, (label, value) in enumerate(bars):
        y = TOP + STEP * number
        width = max(2.0, BARS * value / most)
        parts.append(text(LABELS - 10, y + 14, label, anchor="end"))
        shape = f'x="{LABELS}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"'
        parts.append(f'<rect class="bar" {shape}/>')
        parts.append(text(LABELS + width + 8, y + 14, f"{value:.1f}x"))
    return "\n".join([*parts, "</svg>", ""])
