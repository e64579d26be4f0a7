#!/usr/bin/env python3
"""The GPU tests of the Python package: python3 tests/gpu/run_gpu_tests.py [--device cpu] [--only
PART] [CASE...]

Two processes on one GPU, or on two GPUs if there are two, with only torch and the package: pytest
is not needed. It prints a line per case. A part is a pair of processes that runs its cases one
after the other. After a case that fails, another pair continues. Without a GPU, the program prints
that and ends. `--device cpu` tests the cases themselves on a machine without a GPU."""

import argparse
import os
import pathlib
import sys
import tempfile
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]

import launch  # noqa: E402

EXPANDABLE = {
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
}


# The cases for two ranks with a GPU each.
PAIR = (
    "new_on_the_device",
    "mixed_in_place",
    "device_to_host_in_place",
    "views",
    "many_small_in_place",
    "ring",
    "every_lane",
    "keep_open",
)


def run_cases(names):
    """A rank: runs cases, and says which one is next, so that the test knows which one failed."""
    import gpu_cases
    import torch
    import torch.distributed as dist

    if gpu_cases.ON_GPU:
        torch.cuda.set_device(gpu_cases.DEVICE)
    dist.init_process_group("gloo")
    for number, name in enumerate(names):
        dist.barrier()
        begin = time.monotonic()
        print(f"-- {name}", flush=True)
        gpu_cases.CASES[name]()
        if launch.rank() == 1:
            launch.say(f"case{number}", time.monotonic() - begin)
    dist.barrier()
    dist.destroy_process_group()


def run_fault(function, victim):
    import gpu_faults

    getattr(gpu_faults, function)(victim)


def run_nccl(function):
    import gpu_nccl

    getattr(gpu_nccl, function)()


class Report:
    """The result of each case."""

    def __init__(self):
        self.rows = []

    def add(self, name, seconds, failure=None):
        self.rows.append((name, failure))
        print(f"{'FAILED' if failure else 'ok':7}{name} ({seconds:.1f} s)", flush=True)
        if failure:
            print("    " + str(failure)[-7000:].replace("\n", "\n    "), flush=True)

    def guard(self, name, body):
        begin = time.monotonic()
        failure = None
        try:
            body()
        except Exception as error:
            failure = error if isinstance(error, launch.Failure) else traceback.format_exc()
        self.add(name, time.monotonic() - begin, failure)


def cases(report, part, env, names):
    """Runs all cases in one pair of processes. After a case that fails, another pair runs the
    rest."""
    while names:
        with launch.job(2, env) as job:
            failure = None
            begin = time.monotonic()
            try:
                job.run(run_cases, names, timeout=150, spawn=True)
            except launch.Failure as error:
                failure = error
            done = 0
            while done < len(names) and (job.folder / f"case{done}").exists():
                report.add(
                    f"{part}: {names[done]}", float((job.folder / f"case{done}").read_text())
                )
                done += 1
            for line in job.ranks[1].output.splitlines() if VERBOSE else ():
                print("       ", line)
            if failure is not None:
                report.add(
                    f"{part}: {names[done] if done < len(names) else 'the end'}",
                    time.monotonic() - begin,
                    failure,
                )
            elif done < len(names):
                report.add(f"{part}: {names[done]}", 0, "not run")
            names = names[done + 1 :] if failure is not None else []


def faults(report, env):
    for victim, name in ((0, "the source is killed"), (1, "the receiver is killed")):

        def body(victim=victim):
            with launch.job(2, env) as job, tempfile.TemporaryDirectory() as place:
                job.start_all(run_fault, "pause_then_kill", victim, spawn=True)
                job.wait_for_file("moving", 60)
                job.ranks[victim].signal(9)
                job.ranks[victim].spawned.wait()
                begin = time.monotonic()
                job.wait_for_file("noticed", 30)
                seconds = time.monotonic() - begin
                job.say("meeting", f"{place}/meeting")
                job.start(victim, run_fault, "newcomer", victim, spawn=True)
                job.finish(60)
                assert seconds < 8, f"noticed only after {seconds:.1f} s"

        report.guard(f"faults: {name}", body)


def nccl(report, env):
    def body():
        with launch.job(2, env) as job:
            job.run(run_nccl, "meets_by_the_store", timeout=60, spawn=True)
            if VERBOSE:
                print("       ", job.ranks[1].output[-1500:].replace("\n", "\n        "))

    report.guard("nccl: ranks meet at the store", body)


VERBOSE = False


def main():
    global VERBOSE
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--only", choices=("plain", "expandable", "pair", "faults", "nccl"))
    parser.add_argument(
        "--verbose", action="store_true", help="print the output of the receiving rank too"
    )
    parser.add_argument("cases", nargs="*")
    arguments = parser.parse_args()
    VERBOSE = arguments.verbose
    import torch

    if arguments.device != "cpu" and not torch.cuda.is_available():
        print(
            "skipped: torch finds no CUDA device here; run it on a machine with one, or try the cases with --device cpu"
        )
        return 0
    os.environ["WHERRY_GPU_TEST_DEVICE"] = arguments.device
    import gpu_cases

    env = {"WHERRY_GPU_TEST_DEVICE": arguments.device, "OMP_NUM_THREADS": 4}
    report = Report()
    names = arguments.cases or list(gpu_cases.CASES)
    if arguments.only in (None, "plain"):
        cases(report, "plain", env, names)
    if arguments.only in (None, "expandable"):
        cases(report, "expandable", {**env, **EXPANDABLE}, names)
    if arguments.only in (None, "pair") and arguments.device != "cpu":
        if torch.cuda.device_count() < 2:
            print("skipped: pair: needs two GPUs, and torch finds one")
        else:
            pair = {**env, "WHERRY_GPU_TEST_DEVICE": "each"}
            cases(report, "pair", pair, [name for name in names if name in PAIR])
            cases(
                report,
                "pair, expandable",
                {**pair, **EXPANDABLE},
                [name for name in names if name in PAIR],
            )
    if arguments.only in (None, "faults") and not arguments.cases:
        faults(report, env)
    if arguments.only in (None, "nccl") and not arguments.cases:
        nccl(report, env)
    failed = [name for name, failure in report.rows if failure]
    print(
        f"\n{len(report.rows) - len(failed)} of {len(report.rows)} cases passed"
        + "".join(f"\n  failed: {name}" for name in failed)
    )
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
