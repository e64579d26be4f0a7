"""Ranks that die, are interrupted, are late or have another layout: the other side notices soon,
and continues."""

import os
import signal
import time

import launch
import pytest
import torch
import torch.distributed as dist
import wherry
from torch_states import assert_same, plain_state
from wherry.torch import PGTransport

#: Enough bytes for something to happen while they move. The lane is slow on purpose.
BIG = 1 << 28
SLOW = {"lanes": "stream", "threads": 1, "verify": True}


def group(rank=None, size=3):
    """A process group that has only a store, so that the death of a rank cannot break it."""
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False)
    return dist.ProcessGroup(
        dist.PrefixStore("pg", store), launch.rank() if rank is None else rank, size
    )


def seconds_of(call, *expected):
    """How long a call took until it failed, and its error."""
    began = time.monotonic()
    with pytest.raises(expected) as caught:
        call()
    return time.monotonic() - began, caught.value


class Told:
    """A progress function that calls launch.say when the first bytes move."""

    def __init__(self, name):
        self.name = name

    def __call__(self, progress):
        if self.name and progress.bytes:
            launch.say(self.name, time.time())
            self.name = None


# ---- killed ----


def source_dies_body():
    rank, pg = launch.rank(), group()
    state = {"w": torch.zeros(BIG)}
    with PGTransport(pg, 60, "cpu", **SLOW) as transport:
        if rank == 0:
            transport.send_checkpoint([1], state)
        elif rank == 2:
            launch.wait_for("lost", 60)
            transport.send_checkpoint([1], plain_state(2))
        else:
            target = {"w": torch.ones(BIG)}
            with PGTransport(
                pg, 60, "cpu", lambda: target, progress=Told("moving"), **SLOW
            ) as healing:
                _, error = seconds_of(lambda: healing.recv_checkpoint(0), wherry.errors.PeerLost)
            launch.say("lost", time.time())
            assert error.rank == 0 and isinstance(error, ConnectionError)
            assert (
                error.report["partial"] == ["w"]
                and 0 < error.stats.bytes_moved < 4 * BIG
                and error.stats.lane == "stream"
            )
            assert_same(plain_state(2), transport.recv_checkpoint(2))


def test_a_source_that_is_killed_in_the_middle():
    with launch.job(3) as job:
        job.start_all(source_dies_body)
        job.wait_for_file("moving", 60)
        job.ranks[0].signal(signal.SIGKILL)
        killed = time.time()
        assert job.wait_for_file("lost") - killed < 5
        job.finish(60, killed=[0])


def receiver_dies_body():
    rank, pg = launch.rank(), group()
    with PGTransport(pg, 60, "cpu", **SLOW) as transport:
        if rank == 0:
            _, error = seconds_of(
                lambda: transport.send_checkpoint([1, 2], {"w": torch.zeros(BIG)}),
                wherry.errors.PeerLost,
            )
            assert error.rank == 1 and [(one.rank, one.ok) for one in error.outcomes] == [
                (1, False),
                (2, True),
            ]
            transport.send_checkpoint([2], plain_state(5))
        elif rank == 1:
            with PGTransport(pg, 60, "cpu", progress=Told("moving"), **SLOW) as other:
                other.recv_checkpoint(0)
        else:
            assert not transport.recv_checkpoint(0)["w"].any()
            assert_same(plain_state(5), transport.recv_checkpoint(0))


def test_a_receiver_that_is_killed_does_not_disturb_the_others():
    with launch.job(3) as job:
        job.start_all(receiver_dies_body)
        job.wait_for_file("moving", 60)
        job.ranks[1].signal(signal.SIGKILL)
        job.finish(60, killed=[1])


def dies_waiting_body():
    """Both ranks have met. One dies while no transfer runs, and the other one waits for it."""
    rank, pg = launch.rank(), group(size=2)
    with PGTransport(pg, 30, "cpu") as transport:
        if rank == 0:
            transport.send_checkpoint([1], {})
            launch.say("sent")
            time.sleep(60)
        else:
            transport.recv_checkpoint(0)
            launch.wait_for("sent")
            launch.say("asking")
            _, error = seconds_of(lambda: transport.recv_checkpoint(0), wherry.errors.PeerLost)
            launch.say("lost", time.time())
            assert error.rank == 0
            # The rank is gone now, so the next call looks for it until its timeout.
            seconds, _ = seconds_of(
                lambda: transport.recv_checkpoint(0, timeout=0.5), wherry.errors.Timeout
            )
            assert 0.4 < seconds < 5


def test_a_source_that_is_killed_while_it_is_waited_for():
    with launch.job(2) as job:
        job.start_all(dies_waiting_body)
        job.wait_for_file("asking")
        job.wait_until_asleep(1)
        job.ranks[0].signal(signal.SIGKILL)
        killed = time.time()
        assert job.wait_for_file("lost") - killed < 5
        job.finish(30, killed=[0])


# ---- interrupted ----


def interrupted_body(who, moment):
    """One side gets Ctrl-C and the other one gets an error. The next transfer works."""
    rank, pg = launch.rank(), group(size=2)
    told = Told("moment") if moment == "moving" and rank == who else None
    size = BIG if moment == "moving" else 10
    mine = rank == who
    with PGTransport(pg, 30, "cpu", progress=told, **SLOW) as transport:

        def first():
            if rank == 0:
                transport.send_checkpoint([1], {"w": torch.zeros(size)})
            else:
                transport.recv_checkpoint(0)

        if moment == "met":  # The ranks know each other already.
            first()
        if mine:
            if moment != "moving":
                launch.say("moment")
            _, error = seconds_of(first, KeyboardInterrupt)
            launch.say("interrupted", time.time())
        elif moment == "moving":
            _, error = seconds_of(first, wherry.errors.Aborted, wherry.errors.Revoked)
            assert error.rank == who
        else:
            launch.wait_for("interrupted")
        if rank == 0:
            transport.send_checkpoint([1], plain_state(3))
        else:
            assert_same(plain_state(3), transport.recv_checkpoint(0))


@pytest.mark.parametrize("moment", ["alone", "met", "moving"])
@pytest.mark.parametrize("who", [0, 1])
def test_ctrl_c(who, moment):
    with launch.job(2) as job:
        job.start_all(interrupted_body, who, moment)
        job.wait_for_file("moment", 60)
        if moment != "moving":
            job.wait_until_asleep(who)
        job.ranks[who].signal(signal.SIGINT)
        sent = time.time()
        assert job.wait_for_file("interrupted") - sent < 5
        job.finish(60)


# ---- late ----


def late_body():
    rank, pg = launch.rank(), group(size=2)
    with PGTransport(pg, 30, "cpu") as transport:
        if rank == 0:
            for limit in (0.05, 0.3, 1):
                seconds, error = seconds_of(
                    lambda: transport.recv_checkpoint(1, timeout=limit), wherry.errors.Timeout
                )
                assert (
                    limit * 0.9 < seconds < limit + 5
                    and error.rank == 1
                    and "timed out" in str(error)
                )
                assert isinstance(error, TimeoutError)
            launch.say("first")
        else:
            launch.wait_for("first")
            for limit in (0.05, 0.3, 1):
                seconds, error = seconds_of(
                    lambda: transport.send_checkpoint([0], {}, timeout=limit), wherry.errors.Timeout
                )
                assert (
                    limit * 0.9 < seconds < limit + 5
                    and error.rank == 0
                    and "timed out" in str(error)
                )
            launch.say("second")
        launch.wait_for("second")
        if rank == 0:  # The ticket exists now, but nobody sends.
            seconds, error = seconds_of(
                lambda: transport.recv_checkpoint(1, timeout=0.3), wherry.errors.Timeout
            )
            assert 0.25 < seconds < 5 and error.rank == 1
            launch.say("third")
        launch.wait_for("third")
        if rank == 1:
            transport.send_checkpoint([0], plain_state(1))
        else:
            assert_same(plain_state(1), transport.recv_checkpoint(1))


def test_timeouts_are_honoured():
    with launch.job(2) as job:
        job.run(late_body)


# ---- states that do not match ----


def mismatch_body():
    rank, pg = launch.rank(), group(size=2)
    good = {
        "a": torch.arange(100.0),
        "b": {"c": torch.ones(3, 4)},
        "d": [torch.zeros(2, dtype=torch.int64)],
    }
    wrong = {
        "dtype": ({**good, "a": torch.arange(100)}, "a", "int64"),
        "shape": ({**good, "b": {"c": torch.ones(4, 3)}}, "b.c", "4"),
        "missing": ({**good, "e": torch.ones(1)}, "e", "use partial=True"),
        "kind": ({**good, "d": [3]}, "d[0]", "d"),
    }
    for target, path, told in wrong.values():
        kept = {
            name: value.clone() if isinstance(value, torch.Tensor) else value
            for name, value in target.items()
        }
        with PGTransport(pg, 20, "cpu", lambda: target) as transport:
            if rank == 0:
                _, error = seconds_of(
                    lambda: transport.send_checkpoint([1], good), wherry.errors.Aborted
                )
                assert error.rank == 1 and path in str(error)
            else:
                _, error = seconds_of(lambda: transport.recv_checkpoint(0), wherry.errors.Mismatch)
                assert (
                    (error.path, error.rank) == (path, 0)
                    and told in str(error)
                    and isinstance(error, ValueError)
                )
                assert_same(kept, target)


def test_a_mismatch_fails_on_both_sides_and_changes_nothing():
    with launch.job(2) as job:
        job.run(mismatch_body)
