"""Runs the benchmarks of sending and receiving, and makes a page and a chart of them."""

import dataclasses
import json
import os
import pathlib
import resource
import socket
import statistics
import subprocess
import time
import xml.sax.saxutils

MIB = 1 << 20
#: What memory lies on, where a benchmark has both.
PAGES = {"small": "what malloc gives", "huge": "huge pages"}
CASES = (
    "gib",
    "layers",
    "pages",
    "small",
    "new",
    "tcp",
    "three",
    "empty",
    "lanes",
    "lanes-pages",
    "lanes-small",
)
STATES = {
    "gib": "1 GiB in 16 tensors, in place",
    "layers": "3 GiB, 8 layers of a 7B model in bf16, in place",
    "pages": "20,000 tensors of 4 KiB, in place",
    "small": "200,000 tensors of 64 B, in place",
    "new": "1 GiB, new memory",
    "tcp": "1 GiB over TCP loopback",
    "three": "1 GiB to 3 receivers",
    "empty": "empty state",
    "lanes": "1 GiB in 16 tensors",
    "lanes-pages": "20,000 tensors of 4 KiB",
    "lanes-small": "200,000 tensors of 64 B",
}


def median(values):
    return statistics.median(values)


@dataclasses.dataclass
class Row:
    """A line of the table. What is required is the least ratio, or with `at_most` the highest."""

    case: str
    ours: str
    limit: str
    ratio: float
    required: float
    at_most: bool = False
    percent: bool = False

    def holds(self):
        return self.ratio <= self.required if self.at_most else self.ratio >= self.required

    def margin(self):
        """How many times as good as required."""
        if not self.at_most:
            return self.ratio / self.required
        if self.percent:
            return (1 + self.required) / (1 + self.ratio)
        return self.required / self.ratio if self.ratio > 0 else float("inf")

    def number(self, value):
        return f"{value * 100:.0f}%" if self.percent else f"{value:.2f}"

    def bar(self):
        return f"{'at most' if self.at_most else 'at least'} {self.number(self.required)}"

    def cells(self):
        return [
            self.case,
            self.ours,
            self.limit,
            self.number(self.ratio),
            self.bar(),
            "yes" if self.holds() else "**missed**",
        ]


def measure(build, case, repeats):
    program = [str(build / "bench" / "bench_ferry"), case, str(repeats)]
    return json.loads(subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True).stdout)


class Others:
    """How much of the machine other work takes: figures of a busy one are not worth much."""

    def __init__(self):
        self.began = self.now()

    @staticmethod
    def now():
        """Seconds by the clock; of all processors, busy or taken by the host; of this process's children."""
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _, _, irq, softirq, steal = (
                int(field) for field in file.readline().split()[1:9]
            )
        own = resource.getrusage(resource.RUSAGE_CHILDREN)
        busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        return time.monotonic(), busy, own.ru_utime + own.ru_stime

    def share(self):
        seconds, busy, own = (after - before for before, after in zip(self.began, self.now()))
        return max(0.0, (busy - own) / (seconds * os.cpu_count()))


def others_text(shares):
    """What to say of a machine, behind what it is: how much of it other work took, from the share of each run."""
    return f"; other work took {statistics.mean(shares or [0]):.0%} of its time meanwhile, {max(shares, default=0):.0%} at most"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_for_quiet(seconds):
    """Waits until other work takes less than a tenth of the machine, at most so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        others = Others()
        time.sleep(1)
        if others.share() < 0.1:
            return


# ---- figures ----


def rates(seconds, count):
    return f"{count / median(seconds) / 1e9:.2f} GB/s ({count / max(seconds) / 1e9:.2f}-{count / min(seconds) / 1e9:.2f})"


def times(seconds, unit, scale, count=1):
    low, middle, high = (f(seconds) * scale / count for f in (min, median, max))
    return f"{middle:.2f} {unit} ({low:.2f}-{high:.2f})"


def seconds_of(result, step):
    return result["steps"][step]["seconds"]


def rate_row(result, label, required):
    """Bytes a second, of all receivers together, against the limit's, who reads them once."""
    ours, limit = seconds_of(result, "ours"), seconds_of(result, "limit")
    count = result["steps"]["ours"]["bytes"]
    received = count * result["receivers"]
    return Row(
        label,
        rates(ours, received),
        rates(limit, count),
        received / median(ours) / (count / median(limit)),
        required,
    )


def verify_row(result):
    plain, checked = seconds_of(result, "ours"), seconds_of(result, "verify")
    count = result["steps"]["ours"]["bytes"]
    cost = median(checked) / median(plain) - 1
    return Row(
        "the same, verify on",
        rates(checked, count),
        rates(plain, count) + " without",
        cost,
        0.25,
        True,
        True,
    )


def small_row(result):
    many, few = seconds_of(result, "ours"), seconds_of(result, "limit")
    tensors = [result["steps"][step]["tensors"] for step in ("ours", "limit")]
    ratio = median(many) / tensors[0] / (median(few) / tensors[1])
    return Row(
        "200,000 tensors of 64 B, in place, whole call",
        times(many, "µs a tensor", 1e6, tensors[0]),
        times(few, "µs a tensor", 1e6, tensors[1]) + f" at {tensors[1]:,}",
        ratio,
        1.5,
        True,
    )


def empty_row(result):
    ours, trip = seconds_of(result, "ours"), seconds_of(result, "limit")
    return Row(
        "empty state, whole call",
        times(ours, "µs", 1e6),
        times(trip, "µs", 1e6) + " a round trip",
        median(ours) / median(trip),
        10,
        True,
    )


def memory_figures(results):
    """(share of what is allowed, case, step, MiB of the source, most MiB of a receiver, MiB allowed) of each transfer."""
    figures = []
    for case, result in results.items():
        for name, step in result["steps"].items():
            if None not in step.get("growth", [None]):
                source, *receivers = (max(0, growth) / MIB for growth in step["growth"])
                allowed = 64 + step["tensors"] / 1024
                figures.append(
                    (max(source, *receivers) / allowed, case, name, source, max(receivers), allowed)
                )
    return figures


def memory_row(results):
    figures = memory_figures(results)
    if not figures:
        return None
    share, case, _, source, receiver, allowed = max(figures)
    return Row(
        f"memory beyond source and destination; the most, {STATES[case]}",
        f"{max(source, receiver):.1f} MiB",
        f"{allowed:.0f} MiB (64 MiB + 1 KiB a tensor)",
        share,
        1,
        True,
    )


def rows_of(results):
    whole = ", whole call"
    rows = [
        rate_row(results["gib"], STATES["gib"], 0.90),
        rate_row(results["layers"], STATES["layers"], 0.90),
        rate_row(results["pages"], STATES["pages"] + whole, 0.50),
        small_row(results["small"]),
        rate_row(results["new"], STATES["new"], 0.90),
        rate_row(
            results["tcp"],
            f"1 GiB over TCP loopback, stream, {results['tcp']['steps']['ours']['workers']} connections, no verify",
            0.95,
        ),
        verify_row(results["tcp"]),
        rate_row(results["three"], "1 GiB to 3 receivers at once, all bytes counted", 0.85),
        memory_row(results),
        empty_row(results["empty"]),
    ]
    return [row for row in rows if row]


# ---- the page ----


def table(head, lines):
    return [
        "| " + " | ".join(head) + " |",
        "| " + " | ".join("---" for _ in head) + " |",
        *("| " + " | ".join(line) + " |" for line in lines),
    ]


def lane_lines(results):
    for case in ("lanes", "lanes-pages", "lanes-small"):
        steps = results[case]["steps"]
        yield [
            STATES[case],
            *(
                f"{s['bytes'] / median(s['seconds']) / 1e9:.2f} GB/s, {median(s['seconds']) * 1e3:.1f} ms"
                for s in steps.values()
            ),
        ]


def phase_lines(results):
    for case in ("gib", "pages", "small", "empty"):
        phases = results[case]["steps"]["ours"]["phases"]
        yield [
            STATES[case],
            *(
                f"{median(phases[name]) * 1e3:.3f}"
                for name in ("prepare", "offer", "plan", "data", "release", "total")
            ),
        ]


def memory_lines(results):
    for _, case, name, source, receiver, allowed in memory_figures(results):
        label = STATES[case]
        if case.startswith("lanes"):
            label += f", {name}"
        elif name == "verify":
            label += ", verify on"
        elif case == "small" and name == "limit":
            label = label.replace("200,000", "20,000")
        yield [label, f"{source:.1f}", f"{receiver:.1f}", f"{allowed:.0f}"]


def page(results, rows, repeats, machine):
    return [
        "# Sending and receiving",
        "",
        f"`make bench`: each case in one pair of processes, warm, in turn with what it is measured against; median of {repeats} (lowest-highest).",
        f"Machine: {machine}.",
        "",
        *table(
            ["case", "ours", "limit", "ratio", "required", "holds"], [row.cells() for row in rows]
        ),
        "",
        "![How many times as good as required](ferry.svg)",
        "",
        "The limit, on one host, is a loop of two threads that read the same extents from the source's memory by `process_vm_readv`, up to",
        "IOV_MAX extents or 4 MiB a call, into the same memory; for new memory, into fresh huge pages, 2 MiB aligned, that the threads touch",
        "first, from before they are mapped. Over TCP it is plain sockets: a thread a connection on each side, 4 MiB pieces, the same memory.",
        "Ours is always the whole call of the receiver, which begins together with the source's. An empty state is the mean of 20 calls,",
        "a round trip that of 200.",
        "",
        "## Each lane",
        "",
        "In place, between two processes, the stream lane over Unix sockets.",
        "",
        *table(["state", "cma", "ring", "stream"], lane_lines(results)),
        "",
        "## Where the time goes",
        "",
        "Milliseconds. The source prepares while the receiver waits for the offer.",
        "",
        *table(
            [
                "state",
                "source: prepare",
                "receiver: offer",
                "plan",
                "data",
                "release",
                "whole call",
            ],
            phase_lines(results),
        ),
        "",
        "## Memory beyond source and destination",
        "",
        "MiB by which the peak of resident memory grows during the first such call of a pair of processes.",
        "",
        *table(["state", "source", "receiver", "allowed"], memory_lines(results)),
        "",
    ]


# ---- the chart ----

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.title { font-size: 15px; font-weight: 600; }
.quiet { fill: #59636e; font-size: 12px; }
.frame { fill: #ffffff; }
.good { fill: #2f81c7; }
.missed { fill: #c8502b; }
.required { stroke: #1f2328; stroke-width: 1.5; stroke-dasharray: 4 3; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .quiet { fill: #9198a1; }
  .frame { fill: #0d1117; }
  .good { fill: #4c9be0; }
  .missed { fill: #e0734c; }
  .required { stroke: #e6edf3; }
}
"""

WIDTH, LABELS, BARS, TOP, STEP, BAR = 980, 410, 330, 78, 30, 18
MOST = 2.0


def text(x, y, words, kind=None, anchor="start"):
    mark = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{mark}>{xml.sax.saxutils.escape(words)}</text>'


def chart(rows, repeats, machine, subject="Sending and receiving"):
    height = TOP + STEP * len(rows) + 34
    line = LABELS + BARS / MOST
    bottom = TOP + STEP * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
        f"<title>{subject}: how many times as good as required</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="frame" width="{WIDTH}" height="{height}" rx="6"/>',
        text(16, 26, f"{subject}: how many times as good as required", "title"),
        text(16, 46, f"median of {repeats}; {machine}", "quiet"),
    ]
    for number, row in enumerate(rows):
        y = TOP + STEP * number
        margin = row.margin()
        width = BARS * min(margin, MOST) / MOST
        words = f"{row.number(row.ratio)} ({row.bar()})" + ("" if row.holds() else ", missed")
        label = row.case.split(";")[0]
        kind = "good" if row.holds() else "missed"
        parts.append(text(LABELS - 10, y + 14, label, anchor="end"))
        parts.append(
            f'<rect class="{kind}" x="{LABELS}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"/>'
        )
        if margin > MOST:
            tip = LABELS + BARS
            parts.append(f'<path class="{kind}" d="M{tip},{y} l9,{BAR / 2} l-9,{BAR / 2} z"/>')
        parts.append(text(LABELS + BARS + 16, y + 14, words))
    parts += [
        f'<line class="required" x1="{line:.1f}" y1="{TOP - 8}" x2="{line:.1f}" y2="{bottom}"/>',
        text(line, TOP - 13, "required", "quiet", "middle"),
        text(LABELS, bottom + 16, "0", "quiet", "middle"),
        text(line, bottom + 16, "1", "quiet", "middle"),
        text(LABELS + BARS, bottom + 16, f"{MOST:.0f} and more", "quiet", "middle"),
        "</svg>",
        "",
    ]
    return "\n".join(parts)


def run(build, repeats, machine, results_folder, patience):
    """@return the lines of the page; writes it, and the chart, where there is a folder for them."""
    results, shares = {}, []
    for case in CASES:
        wait_for_quiet(patience)
        others = Others()
        results[case] = measure(pathlib.Path(build), case, repeats)
        shares.append(others.share())
    machine += others_text(shares)
    rows = rows_of(results)
    lines = page(results, rows, repeats, machine)
    if results_folder:
        (results_folder / "ferry.md").write_text("\n".join(lines))
        (results_folder / "ferry.svg").write_text(chart(rows, repeats, machine))
    return lines
