#!/usr/bin/env python3
"""Compares torch's PGTransport over gloo with Wherry's drop-in replacement. Both run in the same
processes and alternate, with the same data, which is checked after each transfer.

compare_torch.py [--only CASE] [--repeats N] [--quick] [--wait SECONDS] prints a table and writes
bench/results/torch.md and torch.svg. It exits with 1 if a result is worse than its bound.
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
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch.distributed.checkpoint._pg_transport import PGTransport as TorchTransport

sys.dont_write_bytecode = True  # keep the source tree clean
import report  # noqa: E402
import torch_chart  # noqa: E402

from wherry.torch import PGTransport  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
GIB, MIB = 1 << 30, 1 << 20
REPEATS, QUICK_REPEATS = 7, 3
TIMEOUT = datetime.timedelta(minutes=5)
SETTLE = 0.05  # Seconds to rest, because torch's threads spin for a while after each operation.
TEXT = """\
`make bench-torch`. Both transports run in the same processes and alternate, with the same data,
which is checked after each transfer. Median of {repeats} (lowest-highest). The time runs from a
common start until the last rank has returned from its call, and includes reading the state dicts.
Before each transfer all ranks rest for {settle:.0f} ms, so that no thread of the previous one still
runs. The check starts when all ranks have returned.
"""
State = dict[str, torch.Tensor]


# ---- states ----


def sixteen() -> State:
    return {f"layers.{i}.weight": torch.empty(GIB // 16 // 4) for i in range(16)}


def seven_b(device: str = "cpu", layers: int = 8) -> State:
    """Layers of a model with 7 billion parameters, in bf16. Eight layers have about 3 GiB."""
    shapes = {
        "q": (4096, 4096), "k": (4096, 4096), "v": (4096, 4096), "o": (4096, 4096),
        "gate": (11008, 4096), "up": (11008, 4096), "down": (4096, 11008), "norm1": (4096,), "norm2": (4096,),
    }  # fmt: skip
    return {
        f"layers.{i}.{name}": torch.empty(shape, dtype=torch.bfloat16, device=device)
        for i in range(layers)
        for name, shape in shapes.items()
    }


def pages(device: str = "cpu") -> State:
    return {f"layers.{i}.bias": torch.empty(1024, device=device) for i in range(20_000)}


def views() -> State:
    """Eight views of one storage of 512 MiB."""
    whole = torch.empty(512 * MIB // 4)
    return {f"view{i}": part for i, part in enumerate(whole.chunk(8))}


@dataclasses.dataclass(frozen=True)
class Case:
    label: str
    make: Callable[[], State]
    bound: float  # the minimum speed-up
    receivers: int = 1
    in_place: bool = True
    lanes: str | None = None


CASES = {
    "gib": Case("1 GiB in 16 tensors, in place", sixteen, 4),
    "layers": Case("3 GiB, 8 layers of a 7B model in bf16, in place", seven_b, 4),
    "new": Case("1 GiB, not in place", sixteen, 4, in_place=False),
    "pages": Case("20,000 tensors of 4 KiB, in place", pages, 20),
    "views": Case("8 views of one 512 MiB storage, in place", views, 20),
    "three": Case("1 GiB to 3 ranks, in place", sixteen, 4, receivers=3),
    "group-pages": Case(
        "over the gloo group only, 20,000 tensors of 4 KiB", pages, 10, lanes="group"
    ),
    "group-gib": Case("over the gloo group only, 1 GiB in 16 tensors", sixteen, 1, lanes="group"),
}


def words(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor as 64-bit integers."""
    return tensor.reshape(-1).view(torch.int64)


def pattern(tensor: torch.Tensor, number: int) -> torch.Tensor:
    """The expected words of a tensor, different for each word and each tensor."""
    return torch.arange(words(tensor).numel(), device=tensor.device).mul_(2 * number + 3)


def sums(state: State) -> list[int]:
    return [int(words(tensor).sum()) for tensor in state.values()]


def parts_are_right(state: State) -> bool:
    return all(
        bool(torch.equal(words(tensor), pattern(tensor, number)))
        for number, tensor in enumerate(state.values())
    )


# ---- a rank ----


class Rank:
    """One process of a case."""

    def __init__(self, case: Case, rank: int, repeats: int, ours: bool) -> None:
        self.case, self.rank, self.repeats = case, rank, repeats
        self.ranks = list(range(1, case.receivers + 1))
        self.state = case.make()
        for number, tensor in enumerate(self.state.values()):
            words(tensor).copy_(pattern(tensor, number))
        self.expected = sums(self.state)
        if rank and not case.in_place:
            self.state = {}
        group = dist.distributed_c10d._get_default_group()
        target = (lambda: self.state) if case.in_place else None
        device = torch.device("cpu")
        self.transports = (
            {} if ours else {"torch": TorchTransport(group, TIMEOUT, device, state_dict=target)}
        )
        self.transports["wherry"] = PGTransport(
            group, TIMEOUT, device, state_dict=target, lanes=case.lanes
        )

    def transfer(self, name: str, thorough: bool) -> float:
        """Seconds from the common start until the last rank has finished."""
        transport = self.transports[name]
        for tensor in self.state.values() if self.rank else ():
            tensor.zero_()
        time.sleep(SETTLE)
        dist.barrier()
        begin = time.perf_counter()
        received = self.state
        if self.rank:
            received = transport.recv_checkpoint(0)
        else:
            transport.send_checkpoint(self.ranks, self.state)
        seconds = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)  # No rank checks before all have finished.
        if self.rank and (
            sums(received) != self.expected or (thorough and not parts_are_right(received))
        ):
            raise SystemExit(f"{self.case.label}: {name} delivered wrong bytes to rank {self.rank}")
        del received
        return float(seconds)

    def run(self) -> dict[str, list[float]]:
        for name in self.transports:
            self.transfer(name, thorough=True)
        results: dict[str, list[float]] = {name: [] for name in self.transports}
        for number in range(self.repeats):
            order = list(self.transports) if number % 2 else list(self.transports)[::-1]
            for name in order:
                results[name].append(self.transfer(name, thorough=number == self.repeats - 1))
        return results


def run_rank(name: str, rank: int, repeats: int, ours: bool, place: str) -> None:
    case = CASES[name]
    dist.init_process_group(
        "gloo",
        init_method=f"file://{place}/store",
        rank=rank,
        world_size=case.receivers + 1,
        timeout=TIMEOUT,
    )
    one = Rank(case, rank, repeats, ours)
    results: dict[str, object] = dict(one.run())
    if rank == 1:
        results["lane"] = one.transports["wherry"].last_stats.lane
        pathlib.Path(place, "results").write_text(json.dumps(results))
    dist.barrier()
    one.transports.clear()
    dist.destroy_process_group()


# ---- all cases ----


def run_ranks(name: str, command: list[str], count: int, timeout: float) -> dict:
    """Runs a case in `count` processes, in a shared folder. Returns what rank 1 wrote there."""
    with tempfile.TemporaryDirectory(prefix="wherry-bench-") as place:
        ranks = [
            subprocess.Popen([*command, "--place", place, "--rank", str(rank)])
            for rank in range(count)
        ]
        try:
            codes = [rank.wait(timeout=timeout) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        if any(codes):
            raise SystemExit(f"{name}: the ranks ended with {codes}")
        return json.loads(pathlib.Path(place, "results").read_text())


def measure(name: str, repeats: int, ours: bool = False) -> dict:
    command = [
        sys.executable,
        __file__,
        "--only",
        name,
        "--repeats",
        str(repeats),
        *(["--ours"] if ours else []),
    ]
    return run_ranks(name, command, CASES[name].receivers + 1, 1800)


def row(name: str, result: dict) -> report.Row:
    ours, theirs = result["wherry"], result["torch"]
    ratio = statistics.median(theirs) / statistics.median(ours)
    return report.Row(
        CASES[name].label,
        report.times(ours, "ms", 1e3) + f", {result['lane']}",
        report.times(theirs, "ms", 1e3),
        ratio,
        CASES[name].bound,
    )


def page(rows: list[report.Row], repeats: int, machine: str) -> list[str]:
    return [
        "# Against PyTorch's PGTransport",
        "",
        *TEXT.format(repeats=repeats, settle=SETTLE * 1e3).splitlines(),
        report.measured(machine),
        "",
        *report.table(
            ["case", "Wherry, its lane", "PGTransport over gloo", "times faster"],
            [one.cells() for one in rows],
        ),
        "",
        "![Times faster than PGTransport, per case](torch.svg)",
        "",
    ]


def cases(arguments: argparse.Namespace) -> Iterator[str]:
    return (name for name in CASES if arguments.only in (None, name))


def main() -> int:
    parser = report.parser(__doc__, quick="fewer repeats, for development")
    parser.add_argument("--only", choices=CASES, help="run only this case, and write no file")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument(
        "--ours", action="store_true", help="with --only: Wherry alone; prints its seconds as JSON"
    )
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--place", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        run_rank(arguments.only, arguments.rank, arguments.repeats, arguments.ours, arguments.place)
        return 0
    repeats = QUICK_REPEATS if arguments.quick else arguments.repeats
    if arguments.ours:
        print(json.dumps({"seconds": measure(arguments.only, repeats, ours=True)["wherry"]}))
        return 0
    rows, shares = [], []
    for name in cases(arguments):
        report.wait_for_quiet(arguments.wait)
        others = report.Others()
        rows.append(row(name, measure(name, repeats)))
        shares.append(others.share())
        print("| " + " | ".join(rows[-1].cells()) + " |", flush=True)
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, "
    machine += f"torch {torch.__version__}"
    machine += report.others_text(shares)
    lines = page(rows, repeats, machine)
    print("\n" + "\n".join(lines))
    if not arguments.only and not arguments.quick:
        results = HERE / "results"
        report.write(results / "torch.md", lines)
        torch_chart.main()
    return report.unmet(rows)


if __name__ == "__main__":
    sys.exit(main())
