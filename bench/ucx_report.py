"""Runs bench_ucx, the benchmark of the lane `ucx` and of plain UCX, and writes its page."""

import json
import os
import shutil
import statistics
import subprocess
import time

import report

TENSOR = 64 << 20
TENSORS = 16
MANY = 20_000
#: The memory of the tensors of 64 MiB. Those of 4 KiB come from malloc in any case.
PAGES = report.PAGES
#: Repeats per pair of processes. Pairs with large and with small tensors alternate.
TURN = 3
#: UCX_TLS per setting. UCX needs TCP beside shared memory to connect.
SETTINGS = {"TCP loopback": "tcp", "shared memory": "tcp,sm"}
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
    output = subprocess.run(
        program, check=True, stdout=subprocess.PIPE, text=True, env=environment
    ).stdout
    return json.loads(output.strip().splitlines()[-1])


def perftest(transports):
    """Bytes per second of `ucx_perftest -t tag_bw`, with messages as long as the tensors."""
    environment = {**os.environ, "UCX_TLS": transports}
    port = str(report.free_port())
    server = subprocess.Popen(
        ["ucx_perftest", "-p", port], stdout=subprocess.DEVNULL, env=environment
    )
    try:
        time.sleep(0.5)
        client = ["ucx_perftest", "127.0.0.1", "-p", port, "-t", "tag_bw", "-f", "-v"]
        client += ["-s", str(TENSOR), "-n", str(TENSORS), "-w", "2"]
        output = subprocess.run(
            client, check=True, stdout=subprocess.PIPE, text=True, env=environment, timeout=120
        ).stdout
    finally:
        server.kill()
        server.wait()
    # The last line of the CSV: iterations, three overheads, average and overall bandwidth in MiB/s,
    # message rates.
    return float(output.strip().splitlines()[-1].split(",")[-3]) * (1 << 20)


def join(results):
    """Several runs as one."""
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
    """The fastest mode of the plain program."""
    return max(PLAIN, key=lambda step: rate(result, step))


def rates(values):
    return f"{statistics.median(values) / 1e9:.2f} GB/s ({min(values) / 1e9:.2f}-{max(values) / 1e9:.2f})"


def rows_of(whole, many, perf):
    """The kind of memory and the row."""
    for (name, kind), result in whole.items():
        best = best_plain(result)
        ours = rate(result, "lane")
        count = result["bytes"]
        label = f"1 GiB in {TENSORS} tensors, {name}"
        if name == "TCP loopback":
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
        if name in perf:
            yield (
                PAGES[kind],
                report.Row(
                    label,
                    report.rates(result["steps"]["lane"], count),
                    f"{rates(perf[name])}, ucx_perftest -t tag_bw",
                    ours / statistics.median(perf[name]),
                    1.0,
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
            *(f"{rate(result, step) / 1e9:.2f}" for step in ("lane", "verified", *PLAIN)),
            result["detail"],
        ]


def run(build, repeats, machine, results_folder, patience):
    """Measures, and writes the page if there is a folder for it. Returns its lines and its rows."""
    whole, many, perf, shares = {}, {}, {}, []
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
            if "sm" in transports and shutil.which("ucx_perftest"):
                perf.setdefault(name, []).append(perftest(transports))
        whole |= {(name, kind): join(results) for kind, results in large.items()}
        many[name] = join(small)
    machine += report.others_text(shares)
    rows = list(rows_of(whole, many, perf))
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
            ["case", "lane", "lane, verified", *PLAIN, "what UCX chose for the lane"],
            all_lines(whole, many),
        ),
        "",
    ]
    if results_folder:
        report.write(results_folder / "ucx.md", lines)
    return lines, [row for _, row in rows]
