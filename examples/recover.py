#!/usr/bin/env python3
"""A training that loses a rank in the middle of an all-reduce, and ends with the weights of one that lost none.

    python examples/recover.py --ranks 4 --kill 2 --at 7

Each rank trains a copy of a small model on its share of the data, and averages gradients by all-reduce. Rank 2 is killed
inside the all-reduce of step 7, and started anew. The survivors notice, form the process group again, agree on the highest
step that was committed, and the new rank gets model and optimizer from one that has it, in place, through
wherry.torch.PGTransport. The same training without a kill is run too, and the weights are compared, bit for bit.

What to copy for a training of one's own: `train`, `form_group` and `heal`.
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

#: Instead of a step, and below each of them: nothing was committed here yet; what is here is half of one step and half of another.
NEW, DAMAGED = -1, -2


# ---- a rank ----


class Worker:
    """What a rank has: its copy of the model and of the optimizer, and the step that both are at."""

    def __init__(self, rank, size, store, steps, kills):
        self.rank, self.size, self.store, self.steps, self.kills = rank, size, store, steps, kills
        torch.set_num_threads(1)
        torch.manual_seed(rank)  # every rank begins with other weights: what it has later, it got from another
        self.model = torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.step = NEW
        self.generation = -1  # of the process group

    def state(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}

    def tell(self, text):
        print(f"  rank {self.rank}: {text}", flush=True)

    def train(self):
        """Steps until the end. Whatever goes wrong with the group, it is formed again, and who is behind is healed."""
        while True:
            try:
                self.form_group()
                self.heal()
                while self.step < self.steps:
                    self.train_step()
                dist.barrier()  # who is done stays, for others may have to be healed still
                return
            except (RuntimeError, wherry.PeerError, wherry.Timeout) as error:  # a peer is gone, or late
                where = f"in step {self.step}" if self.step >= 0 else "before it had a whole state"
                self.tell(f"lost the group {where}: {str(error).split('] ', 1)[-1].split('. ')[0]}")

    def form_group(self):
        """Joins the process group of the next generation, whose number the launcher raises whenever it starts a rank."""
        if dist.is_initialized():
            dist.destroy_process_group()
        give_up = time.monotonic() + 60
        while (newest := int(self.store.get("generation"))) <= self.generation:
            if time.monotonic() > give_up:
                sys.exit(f"rank {self.rank}: the group is lost, and nobody was started anew")
            time.sleep(0.02)
        self.generation = newest
        store = dist.PrefixStore(f"generation {newest}", self.store)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.size, timeout=TIMEOUT)

    def heal(self):
        """Brings all ranks to the highest step that was committed, from the first rank that has it."""
        steps = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(steps, torch.tensor([self.step]))
        steps = [int(step) for step in steps]
        source, behind = steps.index(max(steps)), [rank for rank in range(self.size) if steps[rank] < max(steps)]
        beginning = max(steps) < 0
        if beginning and DAMAGED in steps:
            sys.exit(f"rank {self.rank}: no rank is left with a whole state: the last one died while it healed the others")
        if beginning:  # the weights of rank 0 are as good as any
            source, behind = 0, list(range(1, self.size))
            self.step = 0 if self.rank == source else NEW
        with PGTransport(dist.group.WORLD, TIMEOUT, "cpu", state_dict=self.state) as transport:
            if self.rank == source and behind:
                transport.send_checkpoint(behind, self.state())
            elif self.rank in behind:
                # Until all has arrived this rank must not heal others. In the beginning it has nothing that anybody wants.
                self.step = NEW if beginning else DAMAGED
                received = transport.recv_checkpoint(source)  # straight into the model's own tensors
                self.optimizer.load_state_dict(received["optimizer"])
                self.step = received["step"]
                stats = transport.last_stats
                self.tell(f"healed by rank {source} to step {self.step}: {stats.bytes_moved / 1e3:.0f} kB over {stats.lane}")

    def train_step(self):
        """One step, with data that follows from step and rank alone. It counts when the optimizer has stepped."""
        torch.manual_seed(1000 * self.step + self.rank)
        inputs, wanted = torch.randn(16, 32), torch.randn(16, 8)
        self.optimizer.zero_grad()
        torch.nn.functional.mse_loss(self.model(inputs), wanted).backward()
        gradients = torch.cat([parameter.grad.flatten() for parameter in self.model.parameters()])
        work = dist.all_reduce(gradients, async_op=True)
        if (self.rank, self.step) in self.kills and self.store.add(f"killed {self.rank} {self.step}", 1) == 1:
            os.kill(os.getpid(), signal.SIGKILL)  # the all-reduce is under way, and never ends
        work.wait()
        places = gradients.div_(self.size).split([parameter.numel() for parameter in self.model.parameters()])
        for parameter, place in zip(self.model.parameters(), places):
            parameter.grad.copy_(place.view_as(parameter))
        self.optimizer.step()
        self.step += 1


def digest(worker):
    """A number for every bit of the model and of the optimizer."""
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
    """Runs all ranks to the end, and starts those anew that are killed. Returns the digest that all have, else None."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # here, so that any rank may die
    generation = 0
    store.set("generation", str(generation))
    context = multiprocessing.get_context("forkserver")  # a process that has imported torch, once, and forks the ranks
    context.set_forkserver_preload(["wherry.torch", "torch._dynamo"])

    def start(rank):
        process = context.Process(target=run_rank, args=(rank, arguments.ranks, store.port, arguments.steps, kills))
        process.start()
        return process

    ranks = [start(rank) for rank in range(arguments.ranks)]
    give_up = time.monotonic() + arguments.limit
    try:
        while any(process.exitcode != 0 for process in ranks):
            if any(process.exitcode == -signal.SIGKILL for process in ranks):
                time.sleep(0.2)  # should there be more of them
            dead = [rank for rank, process in enumerate(ranks) if process.exitcode == -signal.SIGKILL]
            if any(process.exitcode not in (None, 0, -signal.SIGKILL) for process in ranks) or time.monotonic() > give_up:
                sys.exit("FAILED: a rank failed, or is late")
            if dead:
                generation += 1
                store.set("generation", str(generation))
            for rank in dead:
                print(f"  rank {rank} was killed; it is started anew", flush=True)
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
    parser = argparse.ArgumentParser(description="Kill ranks of a training, heal them, and compare with one that lost none.")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--kill", type=int, nargs="+", default=[2], help="ranks to kill (default 2)")
    parser.add_argument("--at", type=int, nargs="+", default=[7], help="the step of each (default 7)")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--limit", type=float, default=120, help="seconds that a training may take")
    arguments = parser.parse_args()
    kills = list(zip(arguments.kill, arguments.at))
    if len(arguments.kill) != len(arguments.at):
        parser.error("--kill and --at need as many numbers")
    if any(not (0 <= rank < arguments.ranks and 0 <= step < arguments.steps) for rank, step in kills):
        parser.error(f"ranks are 0 to {arguments.ranks - 1}, and steps 0 to {arguments.steps - 1}")
    print(f"Training with {arguments.ranks} ranks, undisturbed:")
    undisturbed = run_training(arguments, [])
    print("The same, with", " and ".join(f"rank {rank} killed in step {step}" for rank, step in kills) + ":")
    disturbed = run_training(arguments, kills)
    if undisturbed is None or undisturbed != disturbed:
        print("FAILED: the weights differ")
        return 1
    print("OK: the weights are the same, bit for bit")
    return 0


if __name__ == "__main__":
    sys.exit(main())
