#!/usr/bin/env python3
"""Two torchft replicas train. One is killed, comes back, and is healed through Wherry, in place.

    python examples/torchft_recover.py --at 7

Both replicas train on the same batches, so the average of their gradients is that of one replica.
The script also trains without torchft and without a kill, and compares all losses. They are equal,
except for rounding.

For your own training, add the line `wherry.torchft.attach(manager)`.
"""

import argparse
import multiprocessing
import os
import queue
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=30)

#: The healed replica trains so many more steps.
MORE = 5


class Training:
    """The model, its optimizer, and one step."""

    def __init__(self, seed=0):
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(64, 1024), torch.nn.Tanh(), torch.nn.Linear(1024, 8)
        )
        self.sgd = torch.optim.SGD(self.model.parameters(), 1e-2, momentum=0.9)

    def state(self):
        return {"model": self.model.state_dict(), "sgd": self.sgd.state_dict()}

    def load(self, state):
        self.model.load_state_dict(state["model"])
        self.sgd.load_state_dict(state["sgd"])

    def loss(self, step):
        torch.manual_seed(1000 + step)
        return self.model(torch.randn(16, 64)).square().mean()


def undisturbed(steps):
    """The losses of the same training in one process."""
    training, losses = Training(), []
    for step in range(steps):
        loss = training.loss(step)
        losses.append(loss.item())
        training.sgd.zero_grad()
        loss.backward()
        training.sgd.step()
    return losses


def replica(number, life, lighthouse, at, last, results, asynchronous):
    """One replica group of one rank. Replica 1 kills itself in its first life."""
    import torchft
    import wherry.torchft

    training = Training(life - 1)  # it comes back with other weights, until it is healed
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=TIMEOUT),
        state_dict=training.state,
        load_state_dict=training.load,
        min_replica_size=1,
        use_async_quorum=asynchronous,
        init_sync=False,  # both begin with the same weights
        timeout=TIMEOUT,
        quorum_timeout=TIMEOUT,
        connect_timeout=TIMEOUT,
        replica_id=f"replica_{number}",
        lighthouse_addr=lighthouse,
        store_addr="localhost",
        store_port=store.port,
        rank=0,
        world_size=1,
    )
    transport = wherry.torchft.attach(manager)
    optimizer = torchft.Optimizer(manager, training.sgd)
    losses, healed = {}, None
    while manager.current_step() < last.value:
        optimizer.zero_grad()  # starts the quorum, and with it a heal
        loss = training.loss(manager.current_step())
        loss.backward()
        manager.wait_quorum()
        step, participating = manager.current_step(), manager.is_participating()
        # Not by torchft's DistributedDataParallel, which ends the program if an all-reduce fails.
        for one in training.model.parameters():
            manager.allreduce(one.grad).wait()
            # In the middle of a step. But not while it trains alone: replica 0 may start later, and
            # must keep the state.
            if number == 1 and life == 1 and step >= at and manager.num_participants() == 2:
                os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        if manager.current_step() == step:
            continue  # the other replica was lost in this step, which is repeated
        if life == 2 and healed is None and transport.last_stats:
            healed, last.value = step, step + MORE
        if participating and (life == 1 or healed is not None):
            losses[step] = loss.item()
        time.sleep(0.02)
    stats = transport.last_stats
    results.put((number, healed, losses, stats and stats.lane, stats and stats.bytes_moved))
    manager.shutdown(wait=False)


def disturbed(at, asynchronous):
    """Trains with a kill in step `at`. Returns the results of both replicas."""
    from torchft.coordination import LighthouseServer

    context = multiprocessing.get_context("spawn")
    last, results = context.Value("i", 100000), context.Queue()
    lighthouse = LighthouseServer(bind="0.0.0.0:0", min_replicas=1, join_timeout_ms=2000)
    processes = []

    def start(number, life):
        arguments = (number, life, lighthouse.address(), at, last, results, asynchronous)
        processes.append(context.Process(target=replica, args=arguments))
        processes[-1].start()
        return processes[-1]

    try:
        start(0, 1)
        killed = start(1, 1)
        killed.join(120)
        if killed.exitcode != -signal.SIGKILL:
            sys.exit(f"FAILED: replica 1 ended with {killed.exitcode} before step {at}")
        print("replica 1 was killed; starting it again", flush=True)
        start(1, 2)
        found, until = [], time.monotonic() + 120
        while len(found) < 2:
            failed = [one.exitcode for one in processes if one is not killed and one.exitcode]
            if failed:
                sys.exit(f"FAILED: a replica ended with {failed[0]}")
            if time.monotonic() > until:
                sys.exit("FAILED: a replica has not ended after 120 s")
            try:
                found.append(results.get(timeout=0.5))
            except queue.Empty:
                pass
        return sorted(found, key=lambda one: one[0])
    finally:
        for process in processes:
            process.join(5)
            process.kill()
        lighthouse.shutdown()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--at", type=int, default=7, help="the number of steps before the kill")
    parser.add_argument("--sync", action="store_true", help="use_async_quorum=False")
    options = parser.parse_args()
    survivor, healed = disturbed(options.at, not options.sync)
    _, step, losses, lane, size = healed
    expected = undisturbed(max(survivor[2]) + 1)
    for number, _, found, _, _ in (survivor, healed):
        for at, loss in found.items():
            if loss != expected[at]:
                sys.exit(f"FAILED: replica {number}, step {at}: loss {loss}, not {expected[at]}")
    if not lane or len(losses) < MORE - 1:
        sys.exit("FAILED: replica 1 was not healed")
    print(f"replica 1 was healed in step {step}: {size / 1e6:.1f} MB over {lane}")
    print(f"OK: {len(expected)} losses equal those of an undisturbed run")


if __name__ == "__main__":
    main()
