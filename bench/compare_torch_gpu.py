#!/usr/bin/env python3
"""Compares torch's PGTransport over gloo with Wherry's drop-in replacement, for tensors on one GPU.
Both run in two processes and alternate, with the same data, which is checked.

Torch's class delivers the state to the receiver's host memory, because gloo does not move device
memory. The copy to the GPU that a program then needs is not counted.

compare_torch_gpu.py [--only CASE] [--quick] [--device cpu] prints a table and writes
bench/results/gpu-torch.md. It exits with 1 if a result is worse than its bound.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import platform
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.checkpoint._pg_transport import PGTransport as TorchTransport

sys.dont_write_bytecode = True  # keep the source tree clean
import compare_torch  # noqa: E402
import report  # noqa: E402
from compare_torch import State, pattern, words  # noqa: E402

from wherry.torch import PGTransport  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
TIMEOUT = datetime.timedelta(minutes=2)
OURS, THEIRS = 9, 3  # repeats
TEXT = f"""\
`bench/compare_torch_gpu.py`. Two processes on one GPU. The time runs from a common start until both
have returned and the device is idle, and includes reading the state dicts. The data is checked after
each transfer. Median of {OURS} for Wherry and of {THEIRS} for torch (lowest-highest). The first call of
Wherry, which opens and pins memory, is given separately. "Data phase" counts only the time in which
bytes move, in GB/s. Wherry receives in place on the GPU. Torch's class delivers to the receiver's
host memory; the copy from there to the GPU is not counted.
"""


def seven_b(device: str) -> State:
    return compare_torch.seven_b(device, 8 if device != "cpu" else 1)


@dataclasses.dataclass(frozen=True)
class Case:
    label: str
    make: Callable[[str], State]
    times: float | None = None  # minimum speed-up of the whole call
    rate: float | None = None  # minimum GB/s of the data phase
    in_place: bool = True
    options: dict[str, object] = dataclasses.field(default_factory=dict)


CASES = {
    "layers": Case(
        "3 GiB, 8 layers of a 7B model in bf16, memory kept open",
        seven_b,
        times=300,
        options={"keep_open": True},
    ),
    "layers-opened": Case("the same, memory opened each time", seven_b, times=1),
    "layers-data": Case(
        "the same, memory kept open, data phase", seven_b, rate=1900, options={"keep_open": True}
    ),
    "pages": Case(
        "20,000 tensors of 4 KiB", compare_torch.pages, times=50, options={"keep_open": True}
    ),
    "staged": Case(
        "3 GiB, IPC forbidden: staged through the host, data phase",
        seven_b,
        rate=20,
        options={"lanes": "^cuda_ipc"},
    ),
}


def is_right(state: State, device: str) -> bool:
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for number, tensor in enumerate(state.values()):
        tensor = tensor.to(device)
        wrong += (words(tensor) != pattern(tensor, number)).sum()
    return int(wrong) == 0


class Rank:
    """One process of a case."""

    def __init__(self, case: Case, rank: int, device: str) -> None:
        self.case, self.rank, self.device = case, rank, device
        self.state = case.make(device)
        if rank == 0:
            for number, tensor in enumerate(self.state.values()):
                words(tensor).copy_(pattern(tensor, number))
        group = dist.distributed_c10d._get_default_group()
        self.ours = PGTransport(
            group, TIMEOUT, device, state_dict=lambda: self.state, **case.options
        )
        self.theirs = TorchTransport(group, TIMEOUT, torch.device("cpu"))

    def synchronize(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()

    def transfer(self, transport: PGTransport | TorchTransport) -> float:
        """Seconds from the common start until the last rank has finished."""
        for tensor in self.state.values() if self.rank else ():
            tensor.zero_()
        self.synchronize()
        dist.barrier()
        begin = time.perf_counter()
        received = self.state
        if self.rank:
            received = transport.recv_checkpoint(0)
        else:
            transport.send_checkpoint([1], self.state)
        self.synchronize()
        seconds = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
        if self.rank and not is_right(received, self.device):
            raise SystemExit(
                f"{self.case.label}: {type(transport).__module__} delivered wrong bytes"
            )
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        return float(seconds)

    def run(self, quick: bool) -> dict:
        result: dict = {"first": self.transfer(self.ours), "ours": [], "data": [], "theirs": []}
        for _ in range(3 if quick else OURS):
            result["ours"].append(self.transfer(self.ours))
            stats = self.ours.last_stats
            result["data"].append(stats.data_seconds)
        result.update(lane=stats.lane, bytes=stats.bytes_moved, stats=dataclasses.asdict(stats))
        if self.case.times is not None:
            self.transfer(self.theirs)
            result["theirs"] = [self.transfer(self.theirs) for _ in range(1 if quick else THEIRS)]
        return result


def run_rank(arguments: argparse.Namespace) -> None:
    place = arguments.place
    dist.init_process_group(
        "gloo",
        init_method=f"file://{place}/store",
        rank=arguments.rank,
        world_size=2,
        timeout=TIMEOUT,
    )
    one = Rank(CASES[arguments.only], arguments.rank, arguments.device)
    result = one.run(arguments.quick)
    if arguments.rank == 1:
        pathlib.Path(place, "results").write_text(json.dumps(result))
    dist.barrier()
    del one
    dist.destroy_process_group()


def measure(name: str, arguments: argparse.Namespace) -> dict:
    command = [sys.executable, __file__, "--only", name, "--device", arguments.device]
    return compare_torch.run_ranks(name, command + ["--quick"] * arguments.quick, 2, 120)


def row(case: Case, result: dict) -> report.Row:
    first = f"; the first {result['first'] * 1e3:.0f} ms"
    if case.rate is not None:
        rate = result["bytes"] / statistics.median(result["data"]) / 1e9
        ours = f"{report.times(result['data'], 'ms', 1e3)}, {result['lane']}{first}"
        return report.Row(case.label, ours, "GB/s", rate, case.rate)
    ours = f"{report.times(result['ours'], 'ms', 1e3)}, {result['lane']}{first}"
    ratio = statistics.median(result["theirs"]) / statistics.median(result["ours"])
    return report.Row(
        case.label, ours, report.times(result["theirs"], "ms", 1e3), ratio, case.times
    )


def page(rows: list[report.Row], machine: str) -> list[str]:
    return [
        "# Against PyTorch's PGTransport, on one GPU",
        "",
        *TEXT.splitlines(),
        report.measured(machine),
        "",
        *report.table(
            ["case", "Wherry, its lane", "PGTransport over gloo", "times faster, or GB/s"],
            [one.cells() for one in rows],
        ),
        "",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=CASES, help="run only this case, and write no file")
    parser.add_argument("--quick", action="store_true", help="fewer repeats, and write no file")
    parser.add_argument(
        "--device", default="cuda:0", help="cpu only tests the benchmark, and writes no file"
    )
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--place", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        run_rank(arguments)
        return 0
    if arguments.device != "cpu" and not torch.cuda.is_available():
        print("skipped: torch finds no CUDA device here; run it on a machine with one")
        return 0
    rows = []
    for name, case in CASES.items():
        if arguments.only in (None, name):
            result = measure(name, arguments)
            rows.append(row(case, result))
            print("| " + " | ".join(rows[-1].cells()) + " |", flush=True)
            print(
                "   "
                + ", ".join(f"{key} {value}" for key, value in result["stats"].items() if value),
                flush=True,
            )
    gpu = torch.cuda.get_device_name() if arguments.device != "cpu" else "no GPU"
    machine = f"{gpu}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"
    lines = page(rows, machine)
    print("\n" + "\n".join(lines))
    if not arguments.only and not arguments.quick and arguments.device != "cpu":
        report.write(HERE / "results" / "gpu-torch.md", lines)
    return report.unmet(rows)


if __name__ == "__main__":
    sys.exit(main())
