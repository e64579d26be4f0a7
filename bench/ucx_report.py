"""Runs the benchmarks of the lane over UCX, side by side with UCX itself, and makes a page of them."""

import json
import os
import shutil
import statistics
import subprocess
import time

import ferry_report

TENSOR = 64 << 20
TENSORS = 16
MANY = 20_000
#: What the tensors of 64 MiB lie on; those of 4 KiB are the heap's in any case.
PAGES = ferry_report.PAGES
#: Repeats in one pair of processes; then another has its turn, with the other state, so that both see the same machine, and ucx_perftest.
TURN = 3
#: What UCX may use. TCP beside shared memory is there for what does not go by that.
SETTINGS = {"TCP loopback": "tcp", "shared memory": "tcp,sm"}
PLAIN = ("tag 1", "tag 2", "am 1", "am 2")


def measure(build, transports, pages, tensors, nbytes):
    program = [str(build / "bench" / "bench_ucx"), pages, str(tensors), str(nbytes), str(TURN)]
    environment = {**os.environ, "UCX_TLS": transports}
    output = subprocess.run(
        program, check=True, stdout=subprocess.PIPE, text=True, env=environment
    ).stdout
    return json.loads(output.strip().splitlines()[-1])


def perftest(transports):
    """Bytes a second of `ucx_perftest -t tag_bw`, with messages as long as the tensors."""
    environment = {**os.environ, "UCX_TLS": transports}
    port = str(ferry_report.free_port())
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
    # The last line of the CSV: iterations, three overheads, average and overall bandwidth in MiB/s, message rates.
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
    """Of the plain program: its best way, by the median."""
    return max(PLAIN, key=lambda step: rate(result, step))


def rates(values):
    return f"{statistics.median(values) / 1e9:.2f} GB/s ({min(values) / 1e9:.2f}-{max(values) / 1e9:.2f})"


def rows_of(whole, many, perf):
    """What memory and the row, of each."""
    for (name, kind), result in whole.items():
        best = best_plain(result)
        ours = rate(result, "lane")
        count = result["bytes"]
        label = f"1 GiB in {TENSORS} tensors, {name}"
        if name == "TCP loopback":
            yield (
                PAGES[kind],
                ferry_report.Row(
                    label,
                    ferry_report.rates(result["steps"]["lane"], count),
                    f"{ferry_report.rates(result['steps'][best], count)}, plain UCX, {best}",
                    ours / rate(result, best),
                    0.95,
                ),
            )
        if name in perf:
            yield (
                PAGES[kind],
                ferry_report.Row(
                    label,
                    ferry_report.rates(result["steps"]["lane"], count),
                    f"{rates(perf[name])}, ucx_perftest -t tag_bw",
                    ours / statistics.median(perf[name]),
                    1.0,
                ),
            )
        small = many[name]
        yield (
            PAGES[kind],
            ferry_report.Row(
                f"{MANY:,} tensors of 4 KiB, {name}, whole call",
                ferry_report.rates(small["steps"]["lane"], small["bytes"]),
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
    """@return the lines of the page; writes it where there is a folder for it."""
    whole, many, perf, shares = {}, {}, {}, []
    turns = max(1, repeats // TURN)
    for name, transports in SETTINGS.items():
        large, small = {kind: [] for kind in PAGES}, []
        for _ in range(turns):
            ferry_report.wait_for_quiet(patience)
            others = ferry_report.Others()
            for kind, results in large.items():
                results.append(measure(build, transports, kind, TENSORS, TENSOR))
            small.append(measure(build, transports, "small", MANY, 4096))
            shares.append(others.share())
            if "sm" in transports and shutil.which("ucx_perftest"):
                perf.setdefault(name, []).append(perftest(transports))
        whole |= {(name, kind): join(results) for kind, results in large.items()}
        many[name] = join(small)
    machine += ferry_report.others_text(shares)
    lines = [
        "# The lane over UCX",
        "",
        f"`make bench-ucx`: the lane and plain UCX in one pair of processes, in turn, warm, and pairs with either state in turn; median of {turns * TURN} (lowest-highest).",
        f"Machine: {machine}.",
        "",
        *ferry_report.table(
            ["memory", "case", "ours", "limit", "ratio", "required", "holds"],
            [[memory, *row.cells()] for memory, row in rows_of(whole, many, perf)],
        ),
        "",
        "Ours is the whole call of the receiver, in place and with nothing wanted beside it, from the question to the confirmation, without digests.",
        "Tensors of 64 MiB lie on pages of 4 KiB, as malloc gives them, or on huge ones, as `wherry_storage_allocate` does; those of",
        "4 KiB are the same, from malloc, in both. The plain program links libucp, has a context and a",
        "worker for each thread, posts all sends and all receives at once, from and into the same memory, and polls; its best way counts. UCX_TLS is the same",
        f"for both: {', '.join(f'`{value}` ({key})' for key, value in SETTINGS.items())}.",
        "",
        "## Every way",
        "",
        "GB/s; `tag` and `am` are the plain program's, with one thread and with two.",
        "",
        *ferry_report.table(
            ["case", "lane", "lane, verified", *PLAIN, "what UCX chose for the lane"],
            all_lines(whole, many),
        ),
        "",
    ]
    if results_folder:
        (results_folder / "ucx.md").write_text("\n".join(lines))
    return lines
