#!/usr/bin/env python3
"""Measures how long a replica of torchft takes to heal, and how long the others stall meanwhile.

Two replicas with the real Manager and lighthouse; one is killed again and again, comes back, and is
healed from the other. `wherry.torchft.attach(manager)` against torchft's HTTPTransport.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import pathlib
import platform
import signal
import statistics
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import report  # noqa: E402

GIB = 1 << 30
TENSORS = 16
KILLS = 10
BLOCK = 5  # Kills of one transport before it is the other one's turn.
BOUND = 6.0
LIMIT = timedelta(seconds=60)

#: Number of steps that a healed replica trains before it is killed.
STEPS = 5

TEXT = """\
`make bench-torchft`. Two replicas of one rank train with torchft's Manager, DistributedDataParallel
and an asynchronous quorum. The state that a heal moves has 1 GiB in {tensors} tensors, besides a small
model. One replica is killed with SIGKILL, started again, and healed from the other one, {kills} times
per transport, in turns of {block}. *Heal*: from the call of `recv_checkpoint` until its return, plus the
time of `load_state_dict`. *Stall*: how much longer than its median step the healthy replica took for
the step with the heal. Medians (lowest-highest). The state is compared after each heal.
"""


def replica(number, life, how, lighthouse, last, results):
    """A replica. It counts steps in all tensors of its state, so that a heal can be checked."""
    logging.disable(logging.WARNING)
    import torchft
    import wherry.torchft

    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 8)
    weights = [torch.zeros(GIB // TENSORS // 4) for _ in range(TENSORS)]
    for one in weights:
        one.fill_(-1.0)  # This touches the memory, as initializing a model would.
    took = {"load": 0.0, "receive": 0.0, "sent": False}

    def state():
        return {"model": model.state_dict(), "weights": weights}

    def load(found):
        began = time.monotonic()
        model.load_state_dict(found["model"])
        for own, other in zip(weights, found["weights"], strict=True):
            own.copy_(other)
        took["load"] = time.monotonic() - began

    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=LIMIT),
        state_dict=state,
        load_state_dict=load,
        min_replica_size=1,
        timeout=LIMIT,
        quorum_timeout=LIMIT,
        connect_timeout=LIMIT,
        replica_id=f"replica_{number}",
        lighthouse_addr=lighthouse,
        store_addr="localhost",
        store_port=store.port,
        rank=0,
        world_size=1,
    )
    if how == "wherry":
        wherry.torchft.attach(manager)
    transport = manager._checkpoint_transport
    receive, send = transport.recv_checkpoint, transport.send_checkpoint

    def timed(*arguments, **options):
        began = time.monotonic()
        value = receive(*arguments, **options)
        took["receive"] = time.monotonic() - began
        return value

    def noted(*arguments, **options):
        took["sent"] = True
        send(*arguments, **options)

    transport.recv_checkpoint, transport.send_checkpoint = timed, noted
    wrapped = torchft.DistributedDataParallel(manager, model)
    optimizer = torchft.Optimizer(manager, torch.optim.SGD(model.parameters(), 1e-3))
    steps, stalls, trained = [], [], 0
    while manager.current_step() < last.value:
        took["sent"], before = False, manager.current_step()
        began = time.monotonic()
        optimizer.zero_grad()
        wrapped(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
        seconds = time.monotonic() - began
        if manager.current_step() == before:
            continue
        if took["sent"]:
            stalls.append(seconds)
        else:
            steps.append(seconds)
        if took["receive"]:
            value = weights[0][0].item()
            good = value >= 0 and all(bool((one == value).all()) for one in weights)
            results.put(("heal", took["receive"] + took["load"], good))
            took["receive"] = 0.0
        for one in weights:
            one.fill_(manager.current_step() / 1024)
        trained += 1
        if number == 1 and trained > STEPS:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)
    usual = statistics.median(steps)
    results.put(("stalls", [one - usual for one in stalls], True))
    manager.shutdown(wait=False)


def session(how: str, kills: int) -> tuple[list[float], list[float]]:
    """Kills and heals a replica again and again. Returns the times of heals and stalls."""
    from torchft.coordination import LighthouseServer

    context = multiprocessing.get_context("spawn")
    last, results = context.Value("i", 1 << 30), context.Queue()
    lighthouse = LighthouseServer(
        bind="0.0.0.0:0", min_replicas=1, join_timeout_ms=500, heartbeat_timeout_ms=1000
    )

    def start(number, life):
        process = context.Process(
            target=replica, args=(number, life, how, lighthouse.address(), last, results)
        )
        process.start()
        return process

    survivor = start(0, 1)
    heals: list[float] = []
    try:
        time.sleep(8)  # The survivor has the first state.
        for life in range(1, kills + 1):
            process = start(1, life)
            process.join(120)
            if process.exitcode != -signal.SIGKILL:
                raise SystemExit(f"replica 1 ended with {process.exitcode}")
            _, seconds, good = results.get(timeout=10)
            if not good:
                raise SystemExit("the state that was healed differs")
            heals.append(seconds)
        last.value = 0
        _, stalls, _ = results.get(timeout=60)
        return heals, stalls[-kills:]
    finally:
        survivor.join(10)
        survivor.kill()
        lighthouse.shutdown()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS, help="per transport")
    parser.add_argument("--write", action="store_true", help="write bench/results/torchft.md")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    found = {how: ([], []) for how in ("http", "wherry")}
    others = report.Others()
    left = options.kills
    while left > 0:
        kills = min(left, BLOCK)
        left -= kills
        for how, times in found.items():
            for kept, new in zip(times, session(how, kills)):
                kept += new
    rows = []
    for number, name in enumerate(("heal", "stall")):
        ours, theirs = found["wherry"][number], found["http"][number]
        ratio = statistics.median(theirs) / statistics.median(ours)
        texts = [report.times(one, "s", 1) for one in (ours, theirs)]
        rows.append(report.Row(name, *texts, ratio, BOUND))
    import torchft

    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, "
    machine += f"torch {torch.__version__}, torchft {getattr(torchft, '__version__', '0.2')}"
    machine += report.others_text([others.share()])
    text = TEXT.format(tensors=TENSORS, kills=options.kills, block=BLOCK)
    page = [
        "# Inside torchft",
        "",
        *text.splitlines(),
        report.measured(machine),
        "",
        *report.table(
            ["time", "wherry.torchft", "HTTPTransport", "times shorter"],
            [row.cells() for row in rows],
        ),
        "",
    ]
    print("\n".join(page))
    if options.write:
        report.write(HERE / "results" / "torchft.md", page)
    return report.unmet(rows)


if __name__ == "__main__":
    sys.exit(main())
