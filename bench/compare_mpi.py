#!/usr/bin/env python3
"""compare_mpi.py BUILD [--quick] [--wait SECONDS]: compares Wherry between two ranks of MPI with
plain MPI_Send and MPI_Recv, and writes bench/results/mpi.md. Exits with 1 if a result is worse than
its bound."""

from __future__ import annotations

import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys

sys.dont_write_bytecode = True  # keep the source tree clean
import report  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
FLAVOURS = ("openmpi", "mpich")
PAGES = report.PAGES
REPEATS = 9
QUICK_REPEATS = 3
TEXT = """\
Plain is `MPI_Send` and `MPI_Recv` of one buffer of 1 GiB. Ours is the whole call of the receiver, in
place, which starts together with the source's: 16 tensors of 64 MiB, or 20,000 of 4 KiB; without
digests unless the row says so. "Data phase" counts only the time in which bytes move, on both sides
of the ratio. All buffers are on the same kind of memory: pages of 4 KiB, as malloc gives them, or
huge pages, as `wherry_storage_allocate` gives them. The tensors of 4 KiB come from malloc in both.
"""


def measure(build: pathlib.Path, flavour: str, pages: str, repeats: int) -> dict:
    """Returns the line of JSON that rank 1 prints. MPI may print other lines."""
    launcher = shutil.which(f"mpirun.{flavour}") or "mpirun"
    program = build / "bench" / f"bench_mpi_{flavour}"
    command = [
        HERE.parent / "scripts/run-mpi",
        flavour,
        launcher,
        "2",
        program,
        pages,
        str(repeats),
    ]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(next(line for line in output.splitlines() if line.startswith("{")))


def rates(step: dict, kind: str = "seconds") -> list[float]:
    return [step["bytes"] / seconds / 1e9 for seconds in step[kind]]


def cell(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} GB/s ({min(values):.2f}-{max(values):.2f})"


def ratio_of(one: list[float], other: list[float]) -> float:
    return statistics.median(one) / statistics.median(other)


def rows(result: dict) -> list[report.Row]:
    """The rows of one MPI and one kind of memory."""
    steps = {step["name"]: step for step in result["steps"]}
    plain = rates(steps["plain"])
    head = f"{result['library']}, {PAGES[result['pages']]}"
    lines: list[report.Row] = []

    def add(
        case: str, ours: list[float], other: list[float], against: str, bound: float | None
    ) -> None:
        label = f"{head}: {case}"
        ratio = ratio_of(ours, other)
        lines.append(report.Row(label, cell(ours), f"{cell(other)} {against}", ratio, bound))

    default = steps["default"]["lane"]
    add("1 GiB by MPI's messages (`blocks`)", rates(steps["blocks"]), plain, "plain", 0.95)
    add("the same, digests checked", rates(steps["blocks, verify"]), plain, "plain", None)
    add(f"1 GiB, default lane (`{default}`)", rates(steps["default"]), plain, "plain", 1.5)
    for name, lane in (("blocks", "`blocks`"), ("default", f"`{steps['default, small']['lane']}`")):
        small = steps[f"{name}, small"]
        add(
            f"20,000 x 4 KiB, {lane}, data phase",
            rates(small, "data"),
            rates(steps[name], "data"),
            "for 1 GiB",
            None,
        )
        add(
            f"20,000 x 4 KiB, {lane}, whole call",
            rates(small),
            rates(steps[name]),
            "for 1 GiB",
            0.5,
        )
    return lines


def main() -> int:
    parser = report.parser(__doc__, quick="fewer repeats, for development", each="run")
    parser.add_argument("build", type=pathlib.Path)
    arguments = parser.parse_args()
    repeats = QUICK_REPEATS if arguments.quick else REPEATS
    all_rows: list[report.Row] = []
    shares = []
    for flavour in FLAVOURS:
        if not (arguments.build / "bench" / f"bench_mpi_{flavour}").exists():
            print(f"{flavour} was not found: scripts/install-deps mpi")
            continue
        for pages in PAGES:
            report.wait_for_quiet(arguments.wait)
            others = report.Others()
            all_rows += rows(measure(arguments.build.resolve(), flavour, pages, repeats))
            shares.append(others.share())
    lines = [
        "# Between ranks of MPI",
        "",
        "`make bench-mpi`. Two ranks on one host, MPI_THREAD_MULTIPLE. All cases take turns in one run.",
        f"Median of {repeats} (lowest-highest).",
        report.measured(
            f"{os.cpu_count()} cores, {platform.machine()}{report.others_text(shares)}"
        ),
        "",
        *report.table(
            ["MPI, memory: case", "ours", "against", "ratio"], [row.cells() for row in all_rows]
        ),
        "",
        *TEXT.splitlines(),
        "",
    ]
    print("\n".join(lines))
    if not arguments.quick:
        report.write(HERE / "results" / "mpi.md", lines)
    return report.unmet(all_rows)


if __name__ == "__main__":
    sys.exit(main())
