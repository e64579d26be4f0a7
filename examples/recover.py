#!/usr/bin/env python3
"""A training run that loses a rank inside an all-reduce, heals it, and ends with the right weights.

    python examples/recover.py --ranks 4 --kill 2 --at 7

Each rank trains a copy of a small model on its share of the data, and averages gradients with an
all-reduce. Rank 2 is killed inside the all-reduce after 7 steps, and started again. The survivors
notice (some may have done that step, if they had all gradients already), form the process group
again, and agree on the highest step that was committed. The new rank gets model and optimizer from
a rank that has this step, in place, through wherry.torch.PGTransport. The script also runs the same
training without a kill, and compares the weights bit for bit.

For your own training, copy `train`, `form_group` and `heal`.
"""

import argparse
import hashlib
import multiprocessing
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import wherry
from wherry.torch import PGTransport

TIMEOUT = timedelta(seconds=20)

#: Used instead of a step, and lower than any: this rank has committed nothing yet; this rank's
#: state is a mixture of two steps.
NEW, DAMAGED = -1, -2


# ---- a rank ----


class Worker:
    """One rank: its copy of the model and of the optimizer, and the step that both are at."""

    def __init__(self, rank, size, store, steps, kills):
        self.rank, self.size, self.store, self.steps, self.kills = rank, size, store, steps, kills
        torch.set_num_threads(1)
        torch.manual_seed(
            rank
        )  # each rank starts with other weights, so equal weights were received
        self.model = torch.nn.Sequential(
            torch.nn.Linear(32, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8)
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.step = NEW
        self.generation = -1  # of the process group

    def state(self):
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
        }

    def tell(self, text):
        print(f"  rank {self.rank}: {text}", flush=True)

    def train(self):
        """Trains to the end. If the group fails, forms it again and heals ranks that are behind."""
        while True:
            try:
                self.form_group()
                self.heal()
                while self.step < self.steps:
                    self.train_step()
                dist.barrier()  # stay until all are done: another rank may still need healing
                return
            except (
                RuntimeError,
                wherry.errors.PeerError,
                wherry.errors.Timeout,
            ) as error:  # a peer is gone, or late
                where = (
                    f"after {self.step} steps"
                    if self.step >= 0
                    else "before it had a complete state"
                )
                self.tell(f"lost the group {where}: {str(error).splitlines()[0]}")

    def form_group(self):
        """Joins the process group of the next generation.

        The launcher raises the number of the generation when it starts a rank.
        """
        if dist.is_initialized():
            dist.destroy_process_group()
        give_up = time.monotonic() + 60
        while (newest := int(self.store.get("generation"))) <= self.generation:
            if time.monotonic() > give_up:
                sys.exit(f"rank {self.rank}: the group is lost, and no rank was started again")
            time.sleep(0.02)
        self.generation = newest
        store = dist.PrefixStore(f"generation {newest}", self.store)
        dist.init_process_group(
            "gloo", store=store, rank=self.rank, world_size=self.size, timeout=TIMEOUT
        )

    def heal(self):
        """Brings all ranks to the highest committed step, from the first rank that has it."""
        steps = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(steps, torch.tensor([self.step]))
        steps = [int(step) for step in steps]
        source, behind = (
            steps.index(max(steps)),
            [rank for rank in range(self.size) if steps[rank] < max(steps)],
        )
        beginning = max(steps) < 0
        if beginning and DAMAGED in steps:
            sys.exit(
                f"rank {self.rank}: no rank has a complete state, because the last one died while "
                "it healed the others"
            )
        if beginning:  # take the weights of rank 0
            source, behind = 0, list(range(1, self.size))
            self.step = 0 if self.rank == source else NEW
        with PGTransport(dist.group.WORLD, TIMEOUT, "cpu", state_dict=self.state) as transport:
            if self.rank == source and behind:
                transport.send_checkpoint(behind, self.state())
            elif self.rank in behind:
                # Until all data has arrived, this rank must not heal others.
                self.step = NEW if beginning else DAMAGED
                received = transport.recv_checkpoint(
                    source
                )  # straight into the model's own tensors
                self.optimizer.load_state_dict(received["optimizer"])
                self.step = received["step"]
                stats = transport.last_stats
                moved = f"{stats.bytes_moved / 1e3:.0f} kB over {stats.lane}"
                self.tell(f"healed by rank {source} to step {self.step}: {moved}")

    def train_step(self):
        """One step, with data that depends only on step and rank.

        It is committed when the optimizer has stepped.
        """
        torch.manual_seed(1000 * self.step + self.rank)
        inputs, wanted = torch.randn(16, 32), torch.randn(16, 8)
        self.optimizer.zero_grad()
        torch.nn.functional.mse_loss(self.model(inputs), wanted).backward()
        gradients = torch.cat([parameter.grad.flatten() for parameter in self.model.parameters()])
        work = dist.all_reduce(gradients, async_op=True)
        if (self.rank, self.step) in self.kills and self.store.add(
            f"killed {self.rank} {self.step}", 1
        ) == 1:
            os.kill(os.getpid(), signal.SIGKILL)  # inside the all-reduce, which never ends
        work.wait()
        places = gradients.div_(self.size).split(
            [parameter.numel() for parameter in self.model.parameters()]
        )
        for parameter, place in zip(self.model.parameters(), places):
            parameter.grad.copy_(place.view_as(parameter))
        self.optimizer.step()
        self.step += 1


def digest(worker):
    """A hash of the model and of the optimizer."""
    moments = [value for state in worker.optimizer.state.values() for value in state.values()]
    total = hashlib.sha256()
    for value in [*worker.model.state_dict().values(), *moments]:
        total.update(value.numpy().tobytes())
    return total.hexdigest()[:16]


def run_rank(rank, size, port, steps, kills):
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)
    worker = Worker(rank, size, store, steps, kills)
    worker.train()
    store.set(f"digest {rank}", digest(worker))
    dist.destroy_process_group()


# ---- the launcher ----


def run_training(arguments, kills):
    """Runs all ranks to the end, and restarts those that are killed.

    Returns the digest that all ranks have, or None if they differ.
    """
    store = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )  # in the launcher, so that any rank may die
    generation = 0
    store.set("generation", str(generation))
    context = multiprocessing.get_context("forkserver")  # imports torch once, and forks the ranks
    context.set_forkserver_preload(["wherry.torch", "torch._dynamo"])

    def start(rank):
        process = context.Process(
            target=run_rank, args=(rank, arguments.ranks, store.port, arguments.steps, kills)
        )
        process.start()
        return process

    ranks = [start(rank) for rank in range(arguments.ranks)]
    give_up = time.monotonic() + arguments.limit
    try:
        while any(process.exitcode != 0 for process in ranks):
            if any(process.exitcode == -signal.SIGKILL for process in ranks):
                time.sleep(0.2)  # others may be dying too
            dead = [
                rank for rank, process in enumerate(ranks) if process.exitcode == -signal.SIGKILL
            ]
            if (
                any(process.exitcode not in (None, 0, -signal.SIGKILL) for process in ranks)
                or time.monotonic() > give_up
            ):
                sys.exit("FAILED: a rank failed, or took too long")
            if dead:
                generation += 1
                store.set("generation", str(generation))
            for rank in dead:
                print(f"  rank {rank} was killed and is started again", flush=True)
                ranks[rank] = start(rank)
            time.sleep(0.02)
    finally:
        for process in ranks:
            process.kill()
            process.join()
    digests = [store.get(f"digest {rank}").decode() for rank in range(arguments.ranks)]
    print(f"  after step {arguments.steps}: {', '.join(digests)}", flush=True)
    return digests[0] if len(set(digests)) == 1 else None


def main():
    parser = argparse.ArgumentParser(
        description="Kill ranks of a training run, heal them, and compare with a run without kills."
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument(
        "--kill", type=int, nargs="+", default=[2], help="ranks to kill (default 2)"
    )
    parser.add_argument(
        "--at",
        type=int,
        nargs="+",
        default=[7],
        help="after how many steps each is killed (default 7)",
    )
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument(
        "--limit", type=float, default=120, help="time limit per training run, in seconds"
    )
    arguments = parser.parse_args()
    kills = list(zip(arguments.kill, arguments.at))
    if len(arguments.kill) != len(arguments.at):
        parser.error("--kill and --at need the same number of values")
    if any(
        not (0 <= rank < arguments.ranks and 0 <= step < arguments.steps) for rank, step in kills
    ):
        parser.error(f"ranks are 0 to {arguments.ranks - 1}, and steps 0 to {arguments.steps - 1}")
    print(f"Training with {arguments.ranks} ranks, none killed:")
    undisturbed = run_training(arguments, [])
    print(
        "The same training, with",
        " and ".join(
            f"rank {rank} killed in the all-reduce after {step} steps" for rank, step in kills
        )
        + ":",
    )
    disturbed = run_training(arguments, kills)
    if undisturbed is None or undisturbed != disturbed:
        print("FAILED: the weights differ")
        return 1
    print("OK: the weights are equal, bit for bit")
    return 0


if __name__ == "__main__":
    sys.exit(main())
