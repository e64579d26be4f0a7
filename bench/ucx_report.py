"""Runs bench_ucx, the benchmark of the ucx lane and of plain UCX, and writes its page."""

import json
import os
import pathlib
import statistics
import subprocess

import report

TENSOR = 64 << 20
TENSORS = 16
MANY = 20_000
#: The memory of the tensors of 64 MiB. Those of 4 KiB come from malloc in any case.
PAGES = report.PAGES
#: Repeats per pair of processes. Pairs with large and with small tensors alternate.
TURN = 3
#: UCX_TLS per setting. On one host the lanes cma and ring come first, so only TCP is measured.
SETTINGS = {"TCP loopback": "tcp"}
#: bench_ucx links libucp. The lane needs 1.15 or newer, and uses the one in the process.
FIND_UCX = pathlib.Path(__file__).resolve().parents[1] / "scripts/find-ucx"
TEXT = f"""\
Ours is the whole call of the receiver, in place, without digests. Tensors of 64 MiB are on pages of
4 KiB, as malloc gives them, or on huge pages, as `wherry_storage_allocate` does. The plain program
links libucp and has one context and one worker per thread. It posts all sends and all receives at
once, from and into the same memory, and polls; its fastest mode is the reference. UCX_TLS is the
same for both: {", ".join(f"`{value}` ({key})" for key, value in SETTINGS.items())}.
"""
PLAIN = ("tag 1", "tag 2", "am 1", "am 2")


def measure(build, transports, pages, tensors, nbytes):
    program = [str(build / "bench" / "bench_ucx"), pages, str(tensors), str(nbytes), str(TURN)]
    environment = {**os.environ, "UCX_TLS": transports}
    library = subprocess.run([FIND_UCX], stdout=subprocess.PIPE, text=True, check=True).stdout
    if library.startswith("/"):
        environment["LD_LIBRARY_PATH"] = os.path.dirname(library)
    output = subprocess.run(
        program, check=True, stdout=subprocess.PIPE, text=True, env=environment
    ).stdout
    return json.loads(output.strip().splitlines()[-1])


def join(results):
    """Combines several runs into one."""
    return {
        **results[0],
        "steps": {
            step: [one for result in results for one in result["steps"][step]]
            for step in results[0]["steps"]
        },
    }


def rate(result, step):
    return result["bytes"] / statistics.median(result["steps"][step])


def best_plain(result):
    """Returns the fastest mode of the plain program."""
    return max(PLAIN, key=lambda step: rate(result, step))


def rows_of(whole, many):
    """Yields the kind of memory and the row."""
    for (name, kind), result in whole.items():
        best = best_plain(result)
        ours = rate(result, "lane")
        count = result["bytes"]
        label = f"1 GiB in {TENSORS} tensors, {name}"
        yield (
            PAGES[kind],
            report.Row(
                label,
                report.rates(result["steps"]["lane"], count),
                f"{report.rates(result['steps'][best], count)}, plain UCX, {best}",
                ours / rate(result, best),
                0.95,
            ),
        )
        small = many[name]
        yield (
            PAGES[kind],
            report.Row(
                f"{MANY:,} tensors of 4 KiB, {name}, whole call",
                report.rates(small["steps"]["lane"], small["bytes"]),
                f"{ours / 1e9:.2f} GB/s, the same with 1 GiB",
                rate(small, "lane") / ours,
                0.5,
            ),
        )


def all_lines(whole, many):
    results = [(f"1 GiB, {name}, {PAGES[kind]}", result) for (name, kind), result in whole.items()]
    results += [(f"{MANY:,} of 4 KiB, {name}", result) for name, result in many.items()]
    for label, result in results:
        yield [
            label,
            *(f"{rate(result, step) / 1e9:.2f}" for step in ("lane", "checked", *PLAIN)),
            result["detail"],
        ]


def run(build, repeats, machine, results_folder, patience):
    """Runs the benchmark and writes the page, if a folder is given. Returns lines and rows of
    it."""
    whole, many, shares = {}, {}, []
    turns = max(1, repeats // TURN)
    for name, transports in SETTINGS.items():
        large, small = {kind: [] for kind in PAGES}, []
        for _ in range(turns):
            report.wait_for_quiet(patience)
            others = report.Others()
            for kind, results in large.items():
                results.append(measure(build, transports, kind, TENSORS, TENSOR))
            small.append(measure(build, transports, "small", MANY, 4096))
            shares.append(others.share())
        whole |= {(name, kind): join(results) for kind, results in large.items()}
        many[name] = join(small)
    machine += report.others_text(shares)
    rows = list(rows_of(whole, many))
    lines = [
        "# The lane over UCX",
        "",
        "`make bench-ucx`. The lane and plain UCX alternate in one pair of warm processes. Median of",
        f"{turns * TURN} (lowest-highest).",
        report.measured(machine),
        "",
        *report.table(
            ["memory", "case", "ours", "reference", "ratio"],
            [[memory, *row.cells()] for memory, row in rows],
        ),
        "",
        *TEXT.splitlines(),
        "",
        "## All modes",
        "",
        "GB/s. `tag` and `am` are modes of the plain program, with one and with two threads.",
        "",
        *report.table(
            ["case", "lane", "lane, checked", *PLAIN, "what UCX chose for the lane"],
            all_lines(whole, many),
        ),
        "",
    ]
    if results_folder:
        report.write(results_folder / "ucx.md", lines)
    return lines, [row for _, row in rows]
