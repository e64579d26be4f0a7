"""Runs bench_ferry, the benchmark of sending and receiving, and writes its page."""

import json
import pathlib
import subprocess
from statistics import median

import report

MIB = 1 << 20
CASES = (
    *("gib", "layers", "pages", "small", "new", "tcp", "three", "empty"),
    *("lanes", "lanes-pages", "lanes-small"),
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
TEXT = """\
The reference on one host is a loop of two threads that read the same memory with
`process_vm_readv`, up to IOV_MAX extents or 4 MiB per call, into the same target. For new memory,
they read into fresh huge pages, which they touch first; mapping them counts. Over TCP the reference
is plain sockets: one thread per connection on each side, pieces of 4 MiB, the same memory. Ours is
always the whole call of the receiver, which starts together with the source's. The figure for an
empty state is the mean of 20 calls, a round trip that of 200.
"""


def measure(build, case, repeats):
    program = [str(build / "bench" / "bench_ferry"), case, str(repeats)]
    done = subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


# ---- rows ----


def seconds_of(result, step):
    return result["steps"][step]["seconds"]


def rate_row(result, label, bound):
    """Compares the rate of all receivers together with the rate of the reference, which reads
    once."""
    ours, reference = seconds_of(result, "ours"), seconds_of(result, "limit")
    count = result["steps"]["ours"]["bytes"]
    received = count * result["receivers"]
    ratio = received / median(ours) / (count / median(reference))
    return report.Row(
        label, report.rates(ours, received), report.rates(reference, count), ratio, bound
    )


def verify_row(result):
    plain, checked = seconds_of(result, "ours"), seconds_of(result, "verify")
    count = result["steps"]["ours"]["bytes"]
    cost = median(checked) / median(plain) - 1
    return report.Row(
        "the same, verify on: extra time",
        report.rates(checked, count),
        report.rates(plain, count) + " without",
        cost,
        0.25,
        at_most=True,
        percent=True,
    )


def small_row(result):
    many, few = seconds_of(result, "ours"), seconds_of(result, "limit")
    tensors = [result["steps"][step]["tensors"] for step in ("ours", "limit")]
    return report.Row(
        "200,000 tensors of 64 B, in place, whole call: time per tensor",
        report.times(many, "µs", 1e6, tensors[0]),
        report.times(few, "µs", 1e6, tensors[1]) + f" with {tensors[1]:,}",
        median(many) / tensors[0] / (median(few) / tensors[1]),
        1.5,
        at_most=True,
    )


def empty_row(result):
    ours, trip = seconds_of(result, "ours"), seconds_of(result, "limit")
    return report.Row(
        "empty state, whole call: time",
        report.times(ours, "µs", 1e6),
        report.times(trip, "µs", 1e6) + " per round trip",
        median(ours) / median(trip),
        10,
        at_most=True,
    )


def memory_figures(results):
    """Yields for each transfer: its share of the limit, the case, the step, the MiB of the source
    and of the receiver, and the limit."""
    figures = []
    for case, result in results.items():
        for name, step in result["steps"].items():
            if None not in step.get("growth", [None]):
                source, *receivers = (max(0, growth) / MIB for growth in step["growth"])
                limit = 64 + step["tensors"] / 1024
                most = max(source, *receivers)
                figures.append((most / limit, case, name, source, max(receivers), limit))
    return figures


def memory_row(results):
    figures = memory_figures(results)
    if not figures:
        return None
    share, case, _, source, receiver, limit = max(figures)
    return report.Row(
        f"most extra memory: {STATES[case]}",
        f"{max(source, receiver):.1f} MiB",
        f"{limit:.0f} MiB (64 MiB + 1 KiB per tensor)",
        share,
        1,
        at_most=True,
    )


def rows_of(results):
    connections = results["tcp"]["steps"]["ours"]["workers"]
    rows = [
        rate_row(results["gib"], STATES["gib"], 0.90),
        rate_row(results["layers"], STATES["layers"], 0.90),
        rate_row(results["pages"], STATES["pages"] + ", whole call", 0.50),
        small_row(results["small"]),
        rate_row(results["new"], STATES["new"], 0.90),
        rate_row(results["tcp"], f"{STATES['tcp']}, {connections} connections, verify off", 0.95),
        verify_row(results["tcp"]),
        rate_row(results["three"], "1 GiB to 3 receivers at once, all bytes counted", 0.85),
        memory_row(results),
        empty_row(results["empty"]),
    ]
    return [row for row in rows if row]


# ---- the page ----


def lane_lines(results):
    for case in ("lanes", "lanes-pages", "lanes-small"):
        cells = []
        for step in results[case]["steps"].values():
            seconds = median(step["seconds"])
            cells.append(f"{step['bytes'] / seconds / 1e9:.2f} GB/s, {seconds * 1e3:.1f} ms")
        yield [STATES[case], *cells]


def phase_lines(results):
    names = ("prepare", "offer", "plan", "data", "release", "total")
    for case in ("gib", "pages", "small", "empty"):
        phases = results[case]["steps"]["ours"]["phases"]
        yield [STATES[case], *(f"{median(phases[name]) * 1e3:.3f}" for name in names)]


def memory_lines(results):
    for _, case, name, source, receiver, limit in memory_figures(results):
        label = STATES[case]
        if case.startswith("lanes"):
            label += f", {name}"
        elif name == "verify":
            label += ", verify on"
        elif case == "small" and name == "limit":
            label = label.replace("200,000", "20,000")
        yield [label, f"{source:.1f}", f"{receiver:.1f}", f"{limit:.0f}"]


def page(results, rows, repeats, machine):
    phases = ["source: prepare", "receiver: offer", "plan", "data", "release", "whole call"]
    return [
        "# Sending and receiving",
        "",
        "`make bench`. Each case runs in one set of warm processes, alternating with its reference.",
        f"Median of {repeats} (lowest-highest).",
        report.measured(machine),
        "",
        *report.table(["case", "ours", "reference", "ratio"], [row.cells() for row in rows]),
        "",
        *TEXT.splitlines(),
        "",
        "## Per lane",
        "",
        "In place, between two processes; `stream` over Unix sockets.",
        "",
        *report.table(["state", "cma", "ring", "stream"], lane_lines(results)),
        "",
        "## Where the time goes",
        "",
        "Milliseconds. The source prepares while the receiver waits for the offer.",
        "",
        *report.table(["state", *phases], phase_lines(results)),
        "",
        "## Extra memory",
        "",
        "By how many MiB the peak of resident memory grows during the first call of a process.",
        "",
        *report.table(["state", "source", "receiver", "limit"], memory_lines(results)),
        "",
    ]


def run(build, repeats, machine, results_folder, patience):
    """Runs the benchmark and writes the page, if a folder is given. Returns lines and rows of
    it."""
    results, shares = {}, []
    for case in CASES:
        report.wait_for_quiet(patience)
        others = report.Others()
        results[case] = measure(pathlib.Path(build), case, repeats)
        shares.append(others.share())
    rows = rows_of(results)
    lines = page(results, rows, repeats, machine + report.others_text(shares))
    if results_folder:
        report.write(results_folder / "ferry.md", lines)
    return lines, rows
