"""Receiving from several ranks at once: wherry.recv, and PGTransport with an address."""

import contextlib
import os
import signal
import time
from datetime import timedelta

import launch
import pytest
import torch
import torch.distributed as dist
import wherry
from torch_states import assert_same, clone, plain_state, start
from wherry.torch import PGTransport

LIMIT = timedelta(seconds=30)
STEP = 7
SOURCES = [0, 1, 2]
RECEIVER = 3

#: The lane is slow enough that a source can be killed in the middle.
SLOW = {"lanes": "stream", "threads": 1, "verify": True}


def large_state(seed, tensors=160):
    torch.manual_seed(seed)
    return {f"w{number}": torch.randn(1 << 20) for number in range(tensors)}


class OverGroup:
    """wherry.send and wherry.recv, with the methods of a PGTransport."""

    def __init__(self, into=None, timeout=LIMIT, **options):
        # There is a folder instead of a port: a port next to that of the store may be in use by the
        # time the ranks meet there.
        folder = os.environ["WHERRY_TEST_FOLDER"]
        self.group = wherry.Group.join(f"unix://{folder}/group?rank={launch.rank()}&size=4", 30)
        self.into = into
        self.options = {"timeout": timeout, **options}

    def send_checkpoint(self, ranks, state, step=None):
        return wherry.send(self.group, ranks, state, step=step, **self.options)

    def recv_checkpoint(self, ranks, step=None, timeout=LIMIT):
        into = self.into() if self.into else None
        self.options["timeout"] = timeout
        return wherry.recv(self.group, ranks, into, step=step, **self.options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.group.close()


def opened(kind, into=None, limit=LIMIT, **options):
    """A transport of this kind. Ranks of "store" and "address" have a gloo group."""
    if kind == "group":
        return OverGroup(into, limit, **options)
    start()
    if kind == "address":
        options["address"] = f"unix://{os.environ['WHERRY_TEST_FOLDER']}/meet"
    return PGTransport(dist.group.WORLD, limit, "cpu", into, **options)


def ended():
    """Ends a rank when all ranks are done, so that no rank is lost earlier."""
    launch.say(f"ended {launch.rank()}")
    for rank in range(4):
        launch.wait_for(f"ended {rank}")


KINDS = ["group", "address", "store"]
every_kind = pytest.mark.parametrize("kind", KINDS)


# ---- three send, one receives ----


def three_body(kind, in_place):
    rank, good = launch.rank(), plain_state(1)
    target = clone(plain_state(2))
    with opened(kind, (lambda: target) if in_place else None) as transport:
        for step in (STEP, STEP + 1):
            if rank in SOURCES:
                (outcome,) = transport.send_checkpoint([RECEIVER], good, step=step)
                assert outcome.ok and outcome.rank == RECEIVER
                launch.say(f"needed {step} {rank}", not outcome.not_needed)
            else:
                received = transport.recv_checkpoint(SOURCES, step=step)
                assert_same(good, received)
                assert not in_place or received["big"] is target["big"]
        if kind != "group" and rank == RECEIVER:
            stats = transport.last_stats
            assert [one.rank for one in stats.sources] == SOURCES
            assert sum(one.bytes for one in stats.sources) == stats.bytes_moved
            assert sum(one.chunks for one in stats.sources) == stats.chunks
            used = [one for one in stats.sources if one.bytes]
            assert used and all(one.lane and one.rate > 0 and not one.error for one in used)
            for one in stats.sources:
                # A source may have been asked, and have been too slow to deliver anything.
                assert launch.wait_for(f"needed {STEP + 1} {one.rank}") or not one.bytes
        ended()


@pytest.mark.parametrize("in_place", [False, True])
@every_kind
def test_three_send_and_one_receives(kind, in_place):
    with launch.job(4) as job:
        job.run(three_body, kind, in_place)


def absent_body(kind):
    rank, good = launch.rank(), plain_state(1)
    with opened(kind) as transport:
        if rank == RECEIVER:
            assert_same(good, transport.recv_checkpoint(SOURCES, step=STEP))
            launch.say("received")
        elif rank != 1:
            transport.send_checkpoint([RECEIVER], good, step=STEP)
        elif kind == "group":
            # A send that comes too late is not needed, and returns at once. With another kind, rank
            # 1 would join after the receive, and would not be told.
            launch.wait_for("received")
            began = time.monotonic()
            (outcome,) = transport.send_checkpoint([RECEIVER], good, step=STEP)
            assert outcome.not_needed and time.monotonic() - began < 5
        launch.say(f"first {rank}")
        for one in range(4):
            launch.wait_for(f"first {one}")
        # A later receive from one rank works as usual.
        if rank == 1:
            (outcome,) = transport.send_checkpoint([RECEIVER], good, step=STEP + 1)
            assert not outcome.not_needed
        elif rank == RECEIVER:
            assert_same(good, transport.recv_checkpoint(1, step=STEP + 1))
        ended()


@every_kind
def test_a_source_that_does_not_send(kind):
    with launch.job(4) as job:
        job.run(absent_body, kind)


def required_body(kind):
    rank = launch.rank()
    # With the store, the receiver asks no source before it has reached all of them. With the
    # others, a source that is too slow to answer waits for another receive, until its limit.
    options = {"require": "all"} if rank == RECEIVER else {"limit": 5 if kind == "store" else 15}
    with opened(kind, **options) as transport:
        if rank == RECEIVER:
            with pytest.raises(wherry.errors.Timeout):
                transport.recv_checkpoint(SOURCES, step=STEP, timeout=3)
            launch.say("over")
        elif rank != 1:
            with contextlib.suppress(wherry.Error):
                transport.send_checkpoint([RECEIVER], plain_state(1), step=STEP)
        if rank != RECEIVER and kind == "group":
            launch.wait_for("over")
        ended()


@every_kind
def test_all_sources_are_required(kind):
    with launch.job(4) as job:
        job.run(required_body, kind, timeout=90)


def killed_body(kind, in_place):
    rank, good = launch.rank(), large_state(1)
    target = large_state(2)
    killed = []

    def kill(progress):
        if not killed and 0 < progress.bytes < progress.total:
            killed.append(progress.peer)
            os.kill(launch.wait_for(f"process {progress.peer}"), signal.SIGKILL)

    launch.say(f"process {rank}", os.getpid())
    options = dict(SLOW, progress=kill) if rank == RECEIVER else {}
    with opened(kind, (lambda: target) if in_place else None, **options) as transport:
        if rank == RECEIVER:
            assert_same(good, transport.recv_checkpoint(SOURCES, step=STEP))
            assert killed
            launch.say("killed", killed)
            if kind != "group":
                lost = [one for one in transport.last_stats.sources if one.rank in killed]
                assert [one.error for one in lost] == [wherry.errors.PeerLost] and lost[0].reason
        else:
            transport.send_checkpoint([RECEIVER], good, step=STEP)
            launch.wait_for("killed")


@pytest.mark.parametrize("in_place", [False, True])
@every_kind
def test_a_source_is_killed_in_the_middle(kind, in_place):
    with launch.job(4) as job:
        job.start_all(killed_body, kind, in_place)
        (killed,) = job.wait_for_file("killed")
        job.finish(killed=[killed])
        assert job.ranks[killed].status == -signal.SIGKILL


def all_killed_body(kind):
    rank, target = launch.rank(), large_state(2)

    def kill(progress):
        if not progress.bytes:
            return
        for one in SOURCES:
            with contextlib.suppress(ProcessLookupError):  # The source was killed before.
                os.kill(launch.wait_for(f"process {one}"), signal.SIGKILL)

    launch.say(f"process {rank}", os.getpid())
    options = dict(SLOW, progress=kill) if rank == RECEIVER else {}
    with opened(kind, lambda: target, **options) as transport:
        if rank != RECEIVER:
            transport.send_checkpoint([RECEIVER], large_state(1), step=STEP)
        # The receiver waits for a source that died before it joined.
        known = (
            wherry.errors.PeerLost
            if kind == "group"
            else (wherry.errors.PeerLost, wherry.errors.Timeout)
        )
        with pytest.raises(known) as caught:
            transport.recv_checkpoint(SOURCES, step=STEP, timeout=10)
    report = caught.value.report
    assert sorted(sum(report.values(), [])) == sorted(target) and report["untouched"]
    assert [one.rank for one in caught.value.stats.sources] == SOURCES


@every_kind
def test_all_sources_are_killed(kind):
    with launch.job(4) as job:
        job.start_all(all_killed_body, kind)
        job.finish(killed=SOURCES)


def interrupted_body(kind):
    """A receive that no source serves is interrupted. Another receive that waits for the first one
    is cancelled."""
    rank, good = launch.rank(), plain_state(1)
    with opened(kind) as transport:
        if rank == RECEIVER:
            launch.when_asleep(os.kill, os.getpid(), signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                transport.recv_checkpoint(SOURCES, step=STEP)
            if kind == "group":
                transport.options["cancel"] = cancel = wherry.Cancel()
                launch.when_asleep(cancel.request)
                with pytest.raises(wherry.errors.Cancelled):
                    transport.recv_checkpoint(SOURCES, step=STEP)
                del transport.options["cancel"]
            launch.say("interrupted")
            assert_same(good, transport.recv_checkpoint(SOURCES, step=STEP))
            launch.wait_for("sources interrupted")
        else:
            launch.wait_for("interrupted")
            transport.send_checkpoint([RECEIVER], good, step=STEP)
            launch.when_asleep(os.kill, os.getpid(), signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                transport.send_checkpoint([RECEIVER], good, step=STEP + 1)
            launch.say("sources interrupted")
        ended()


@every_kind
def test_an_interrupt(kind):
    with launch.job(4) as job:
        job.run(interrupted_body, kind)


# ---- sources that differ ----


def differing_body(kind):
    """First the steps differ, then the bytes."""
    rank = launch.rank()
    # A source that the receiver left before it had answered waits for another receive, until this
    # short limit.
    options = {"limit": timedelta(seconds=15)}
    if rank == RECEIVER:  # Without "require", it would not wait for a source that answers late.
        options = {"verify": "all", "require": "all"}
    with opened(kind, **options) as transport:
        if rank == RECEIVER:
            with pytest.raises(wherry.errors.InvalidArgument, match="step"):
                transport.recv_checkpoint(SOURCES)
            with pytest.raises(wherry.errors.InvalidArgument, match="twice"):
                transport.recv_checkpoint([0, 0], step=STEP)
            with pytest.raises(wherry.errors.InvalidArgument, match="empty"):
                transport.recv_checkpoint([], step=STEP)
            for source in (0, 1):  # A send that began later would wait for the next receive.
                launch.wait_until_asleep(launch.wait_for(f"sending {source}"))
            with pytest.raises(wherry.errors.Mismatch, match=f"step {STEP + 1}") as caught:
                transport.recv_checkpoint([0, 1], step=STEP)
            assert caught.value.rank == 1
            for source in (0, 1):
                launch.wait_for(f"sent {source}")
            launch.say("steps")
            with pytest.raises(wherry.errors.Mismatch, match="different bytes") as caught:
                transport.recv_checkpoint([0, 1], step=STEP + 2)
            launch.say("bytes")
        elif rank < 2:
            launch.say(f"sending {rank}", os.getpid())
            with contextlib.suppress(wherry.Error):
                transport.send_checkpoint([RECEIVER], plain_state(1), step=STEP + rank)
            launch.say(f"sent {rank}")
            launch.wait_for("steps")
            with contextlib.suppress(wherry.Error):
                transport.send_checkpoint([RECEIVER], plain_state(rank), step=STEP + 2)
            launch.wait_for("bytes")
        ended()


@every_kind
def test_sources_that_differ(kind):
    with launch.job(4) as job:
        job.run(differing_body, kind, timeout=90)


def test_options_that_are_not_valid():
    for options in ({"verify": "some"}, {"require": "one"}):
        with pytest.raises(wherry.errors.InvalidArgument, match=next(iter(options))):
            PGTransport(None, LIMIT, "cpu", **options)
