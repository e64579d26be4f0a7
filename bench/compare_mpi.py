#!/usr/bin/env python3
"""bench/compare_mpi.py BUILD [--quick] [--wait SECONDS]: Wherry between two ranks of MPI, side by side with plain MPI_Send and MPI_Recv; writes bench/results/mpi.md."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys

sys.dont_write_bytecode = True  # the source tree stays as it is
import ferry_report  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
FLAVOURS = ("openmpi", "mpich")
PAGES = ferry_report.PAGES
REPEATS = 9
QUICK_REPEATS = 3


def measure(build: pathlib.Path, flavour: str, pages: str, repeats: int) -> dict:
    """What rank 1 printed, a line of JSON among whatever MPI says."""
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


def rows(result: dict) -> list[list[str]]:
    """The lines of one MPI on one kind of pages."""
    steps = {step["name"]: step for step in result["steps"]}
    plain = rates(steps["plain"])
    head = f"{result['library']}, {PAGES[result['pages']]}"
    lines: list[list[str]] = []

    def add(
        case: str, ours: list[float], limit: list[float], against: str, required: float | None
    ) -> None:
        ratio = ratio_of(ours, limit)
        bar = "" if required is None else f"at least {required:.2f}"
        holds = "" if required is None else "yes" if ratio >= required else "**missed**"
        lines.append(
            [head, case, cell(ours), f"{cell(limit)} {against}", f"{ratio:.2f}", bar, holds]
        )

    default = steps["default"]["lane"]
    add("1 GiB by MPI's messages (`blocks`)", rates(steps["blocks"]), plain, "plain", 0.95)
    add("the same, digests checked", rates(steps["blocks, verify"]), plain, "plain", None)
    add(f"1 GiB, default lane (`{default}`)", rates(steps["default"]), plain, "plain", 1.5)
    for name, lane in (("blocks", "`blocks`"), ("default", f"`{steps['default, small']['lane']}`")):
        small = steps[f"{name}, small"]
        add(
            f"20,000 x 4 KiB, {lane}, moving the bytes",
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="fewer repeats, for development: the results are not kept",
    )
    parser.add_argument(
        "--wait", type=float, default=0, help="before each run, wait so long for a quiet machine"
    )
    arguments = parser.parse_args()
    repeats = QUICK_REPEATS if arguments.quick else REPEATS
    lines_of_all: list[list[str]] = []
    shares = []
    for flavour in FLAVOURS:
        if not (arguments.build / "bench" / f"bench_mpi_{flavour}").exists():
            print(f"{flavour} is not here: scripts/install-deps mpi")
            continue
        for pages in PAGES:
            ferry_report.wait_for_quiet(arguments.wait)
            others = ferry_report.Others()
            lines_of_all += rows(measure(arguments.build.resolve(), flavour, pages, repeats))
            shares.append(others.share())
    lines = [
        "# Between ranks of MPI",
        "",
        f"`make bench-mpi`: two ranks on one host, MPI_THREAD_MULTIPLE, all cases in one run in turn; median of {repeats} (lowest-highest).",
        f"Machine: {os.cpu_count()} cores, {platform.machine()}{ferry_report.others_text(shares)}.",
        "Figures count where that is a few percent.",
        "",
        *ferry_report.table(
            ["MPI, memory", "case", "ours", "against", "ratio", "required", "holds"], lines_of_all
        ),
        "",
        "Plain is `MPI_Send` and `MPI_Recv` of one buffer of 1 GiB. Ours is the whole call of the receiver, in place and with nothing wanted beside it, which begins together with the source's: 16 tensors of",
        '64 MiB, without digests where nothing else is said, or 20,000 of 4 KiB; where it says "moving the bytes", that phase of the call alone, on both sides of the ratio. All of it lies on the same kind of pages: 4 KiB, as malloc gives them, or',
        "huge ones, as `wherry_storage_allocate` does; but for the tensors of 4 KiB, which are malloc's in both.",
        "",
    ]
    print("\n".join(lines))
    if not arguments.quick:
        (HERE / "results" / "mpi.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
