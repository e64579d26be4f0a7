"""Transports that come and go, forks, groups that are made again, many threads; nothing leaks."""

import gc
import os
import threading
import time

import launch
import pytest
import torch
import torch.distributed as dist
import wherry
from torch_states import exchange, finish, plain_state, start
from wherry._transfer import Deadline
from wherry.torch import PGTransport, _rendezvous


def transports_body():
    """One transport per transfer, on both sides, either closed or just dropped."""
    rank, _ = start()
    for turn in range(12):
        transport = PGTransport(dist.group.WORLD, 20, "cpu")
        exchange(rank, turn % 2, 1 - turn % 2, transport, {"turn": turn})
        exchange(rank, turn % 2, 1 - turn % 2, transport, {"again": turn})
        if turn % 3:
            transport.close()
            with pytest.raises(wherry.errors.Closed):
                transport.recv_checkpoint(1 - rank)
        del transport
    finish()


def test_a_transport_for_each_transfer():
    with launch.job(2) as job:
        job.run(transports_body)


def reopened_body(who, address):
    """One side asks or offers while the other side closes its transport and opens another."""
    rank, _ = start()
    first = PGTransport(dist.group.WORLD, 20, "cpu", address=address)
    exchange(rank, 0, 1, first, {"turn": 1})
    if rank != who:
        launch.say("waiting", os.getpid())
        exchange(rank, 0, 1, first, {"turn": 2})
        first.close()
    else:
        other = launch.wait_for("waiting")
        launch.wait_until_asleep(other)
        first.close()
        launch.wait_until_asleep(other)
        with PGTransport(dist.group.WORLD, 20, "cpu", address=address) as second:
            exchange(rank, 0, 1, second, {"turn": 2})
    finish()


@pytest.mark.parametrize("at_address", [False, True])
@pytest.mark.parametrize("who", [0, 1])
def test_a_transport_that_is_closed_while_the_other_side_waits(who, at_address, tmp_path):
    with launch.job(2) as job:
        job.run(reopened_body, who, f"unix://{tmp_path}/s" if at_address else None)


def nothing_left_body(how):
    rank, _ = start()
    dist.barrier()
    before = launch.held()
    one, two = PGTransport(dist.group.WORLD, 20, "cpu"), PGTransport(dist.group.WORLD, 20, "cpu")
    launch.settles(before)  # Nothing is opened before it is needed.
    exchange(rank, 0, 1, one)
    exchange(rank, 1, 0, two)
    assert one._current.rendezvous is two._current.rendezvous
    dist.barrier()
    assert launch.held() != before
    if how == "close":
        one.close()
        assert launch.held() != before
        two.close()
        two.close()
    elif how == "with":
        with one, two:
            pass
    else:
        del one, two
    gc.collect()
    launch.settles(before)
    dist.barrier()
    if how == "exit":
        kept = PGTransport(dist.group.WORLD, 20, "cpu")
        exchange(rank, 0, 1, kept)
        nothing_left_body.kept = kept  # This transport is still open when the interpreter ends.
        dist.barrier()
    finish()


@pytest.mark.parametrize("how", ["close", "with", "collect", "exit"])
def test_nothing_is_left(how):
    with launch.job(2) as job:
        job.run(nothing_left_body, how)
        outputs = [launch.without_notes_of_gloo(rank.output) for rank in job.ranks.values()]
        assert outputs == ["", ""]


def made_again_body(closed):
    """A group that was destroyed and made again, with or without transports of the old one."""
    rank, kept = launch.rank(), []
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False)
    for life in range(4):
        dist.init_process_group(
            "gloo", store=dist.PrefixStore(f"life {life}", store), rank=rank, world_size=2
        )
        kept.append(PGTransport(dist.group.WORLD, 20, "cpu"))
        for turn in range(3):
            exchange(
                rank,
                (life + turn) % 2,
                (life + turn + 1) % 2,
                kept[-1],
                {"life": life, "turn": turn},
            )
        if closed:
            kept.pop().close()
        # There is no barrier here, so the other rank may already be in its next life.
        dist.destroy_process_group()


@pytest.mark.parametrize("closed", [False, True])
def test_a_group_that_was_destroyed_and_made_again(closed):
    with launch.job(2) as job:
        job.run(made_again_body, closed)


def fork_body():
    """A fork opens its own listeners. Those of its parent keep working."""
    rank, _ = start()
    transport = PGTransport(dist.group.WORLD, 20, "cpu")
    exchange(rank, 0, 1, transport)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False)
            pg = dist.ProcessGroup(dist.PrefixStore("children", store), rank, 2)
            with PGTransport(pg, 20, "cpu") as own:
                exchange(rank, 1, 0, own, {"child": 1})
            transport.close()
            del transport
            gc.collect()
            status = 0
        finally:
            os._exit(status)
    exchange(rank, 0, 1, transport)
    assert os.waitpid(child, 0)[1] == 0
    exchange(rank, 1, 0, transport)
    transport.close()
    finish()


def test_a_fork():
    with launch.job(2) as job:
        job.run(fork_body)


def spawn_body():
    rank, _ = start()
    with PGTransport(dist.group.WORLD, 20, "cpu") as transport:
        exchange(rank, 0, 1, transport)
    finish()


def test_spawned_processes():
    with launch.job(2) as job:
        job.run(spawn_body, spawn=True)


def closing_body():
    """A close in another thread ends a send, a receive and the search for a source."""
    rank, _ = start()
    for what in ("send", "search", "receive"):
        transport = PGTransport(dist.group.WORLD, 20, "cpu")
        if what == "receive":
            exchange(rank, 1, 0, transport)
        if rank == 0:
            launch.when_asleep(transport.close)
            began = time.monotonic()
            with pytest.raises((wherry.errors.Cancelled, wherry.errors.Closed)):
                transport.send_checkpoint(
                    [1], plain_state(1)
                ) if what == "send" else transport.recv_checkpoint(1)
            assert time.monotonic() - began < 5
            launch.say(what)
        launch.wait_for(what)
    finish()


def test_closing_ends_what_runs():
    with launch.job(2) as job:
        job.run(closing_body)


def several_threads_body():
    """Many threads of one process receive from one source, each from its own send."""
    rank, _ = start()
    failures, seen = [], []
    with PGTransport(dist.group.WORLD, 30, "cpu") as transport:

        def run(number):
            try:
                for turn in range(5):
                    if rank == 0:
                        transport.send_checkpoint(
                            [1], {"x": torch.full((1000,), float(10 * number + turn))}
                        )
                    else:
                        seen.append(int(transport.recv_checkpoint(0)["x"].unique().item()))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures
        assert rank == 0 or sorted(seen) == sorted(
            10 * number + turn for number in range(4) for turn in range(5)
        )
        dist.barrier()
    finish()


def test_several_threads_receive_from_one_source():
    with launch.job(2) as job:
        job.run(several_threads_body)


def test_a_transport_that_is_collected_while_another_opens_the_listener(monkeypatch):
    """The finalizer runs in the thread that is inside the rendezvous. Both use the same
    rendezvous."""
    pg = dist.ProcessGroup(dist.HashStore(), 0, 2)

    class Trainer:
        def __init__(self):
            self.transport = PGTransport(
                pg, 5, "cpu", self.state
            )  # This makes a cycle, which only the collector frees.

        def state(self):
            return {}

    def opened(*arguments):
        gc.collect()
        return listener(*arguments)

    listener = _rendezvous.Listener
    monkeypatch.setattr(_rendezvous, "Listener", opened)
    with PGTransport(pg, 5, "cpu") as transport:
        trainer = Trainer()
        rendezvous = trainer.transport._find_rendezvous()
        assert transport._find_rendezvous() is rendezvous
        del trainer
        failures = []

        def serve():
            try:
                with rendezvous.route([1], Deadline(5), sending=True):
                    pass
                with rendezvous._lock:  # An allocation may start the collector here too.
                    gc.collect()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive() and not failures
        assert rendezvous._users == 1 and rendezvous.usable


def test_a_finalizer_inside_the_lock_of_its_rendezvous():
    pg = dist.ProcessGroup(dist.HashStore(), 0, 2)
    with PGTransport(pg, 5, "cpu") as kept:
        rendezvous = kept._find_rendezvous()
        other = PGTransport(pg, 5, "cpu")
        assert other._find_rendezvous() is rendezvous

        def drop():
            nonlocal other
            with rendezvous._lock:
                other = None

        thread = threading.Thread(target=drop, daemon=True)
        thread.start()
        thread.join(5)
        assert not thread.is_alive() and rendezvous._users == 1
