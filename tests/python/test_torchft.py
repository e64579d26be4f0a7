"""Tests wherry.torchft.Transport: how torchft recovers, with torchft installed and without it."""

import functools
import gc
import importlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import types
import unittest
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import launch
import pytest
import torch
import wherry
from torch_states import assert_same, plain_state
from wherry import _rendezvous, torchft
from wherry._rendezvous import Ticket
from wherry.torchft import Transport

TIMEOUT_TEXT = re.compile("[Tt]imed? ?out")
WRONG_STEP = (
    r"^replica 3, step 8: .*step 7.*step 8.* \(rank 0 is the replica, rank \d+ is this process\)$"
)
LIMIT = timedelta(seconds=10)


@pytest.fixture
def make():
    """Makes transports, which are shut down at the end."""
    made = []

    def one(*arguments, **options):
        made.append(Transport(*(arguments or (LIMIT,)), **options))
        return made[-1]

    yield one
    for transport in made:
        transport.shutdown()


def await_receivers(source, count):
    """Waits until this many receivers have connected to the source."""
    link = source._resources.listener().connection
    until = time.monotonic() + 20
    while sum(map(link.alive, range(2, link.size))) < count:
        assert time.monotonic() < until
        time.sleep(0.005)


def fetch(source, step, receiver=None, timeout=LIMIT):
    receiver = receiver or Transport(LIMIT)
    return receiver.recv_checkpoint(0, source.metadata(), step, timeout)


def test_the_first_connection_is_made_before_a_heal(make, monkeypatch):
    slots = []

    def counted(ticket, slot, *limit):
        slots.append(slot)
        return _rendezvous.connect(ticket, slot, *limit)

    monkeypatch.setattr(torchft, "connect", counted)
    source = make()
    assert source.metadata() == source.metadata() and slots == [1]
    source.send_checkpoint([1], 1, {"w": 1}, LIMIT)
    assert fetch(source, 1) == {"w": 1} and len(slots) == 2 and slots[1] > 1


# ---- recovery ----


def test_the_recovery_conversation(make):
    """Rank 0 sends to 1 and 2, then only to 2. Then a receive times out, and a send has no
    receiver."""
    barrier, states = threading.Barrier(3, timeout=20), [plain_state(step) for step in range(3)]
    transports = [make() for _ in range(3)]
    metadata = transports[0].metadata()

    def replica(rank):
        transport = transports[rank]
        for step, destinations in ((1, [1, 2]), (2, [2])):
            if rank == 0:
                transport.send_checkpoint(destinations, step, states[step], LIMIT)
            elif rank in destinations:
                assert_same(states[step], transport.recv_checkpoint(0, metadata, step, LIMIT))
            barrier.wait()
            transport.disallow_checkpoint()
            barrier.wait()  # Before this, a receiver of the next step would get an error.
        if rank == 2:
            with pytest.raises(wherry.errors.Timeout) as caught:
                transport.recv_checkpoint(0, metadata, 3, timedelta(milliseconds=10))
            assert TIMEOUT_TEXT.search(str(caught.value)) and caught.value.rank == 0
            began = time.monotonic()
            transport.send_checkpoint([0], 4, states[0], LIMIT)
            assert time.monotonic() - began < 5
            transport.disallow_checkpoint()
            assert time.monotonic() - began < 5
        return True

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(replica, range(3))) == [True] * 3


class Ours(Transport[torchft.T]):
    """Takes the arguments of torchft's transports, too."""

    def __init__(self, pg=None, *, timeout, device="cpu", num_chunks=0, state_dict=None):
        super().__init__(timeout, device=device, state_dict=state_dict)


@pytest.fixture
def together(monkeypatch):
    """A class of transports. All three replicas end an offer before any continues, as in a Manager.

    In torchft's tests, a replica may ask for step 2 before the source has ended step 1. That is an
    error with torchft's transports, too, but they are slower.
    """
    theirs = pytest.importorskip(
        "torchft.checkpointing.transport_test",
        reason="torchft is not installed: pip install torchft",
    )
    # They allow 10 s for everything. That is too short on a busy machine, and for the imports that
    # come with the first DTensor.
    first = theirs.as_completed
    monkeypatch.setattr(theirs, "as_completed", lambda found, timeout: first(found, 10 * timeout))
    importlib.import_module("wherry.torch._distributed")
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    theirs.make_state_dict(torch.device("cpu"))
    torch.distributed.destroy_process_group()
    ended = threading.Barrier(3, timeout=20)

    class Together(Ours[torchft.T]):
        def disallow_checkpoint(self):
            super().disallow_checkpoint()
            ended.wait()

    yield Together
    if torch.distributed.is_initialized():  # The test has failed.
        torch.distributed.destroy_process_group()


class parameterized:
    """The parts of the package `parameterized` that torchft's tests use."""

    @staticmethod
    def expand(rows):
        def add(test):
            for number, row in enumerate(rows):
                named = sys._getframe(1).f_locals
                named[f"{test.__name__}_{number}"] = functools.partialmethod(test, *row)

        return add


def run_theirs(monkeypatch, module, case, test, **classes):
    """Runs a test of torchft, unchanged, with our class instead of theirs."""
    stand_in = types.SimpleNamespace(parameterized=parameterized)
    monkeypatch.setitem(sys.modules, "parameterized", stand_in)
    theirs = pytest.importorskip(
        f"torchft.checkpointing.{module}", reason="torchft is not installed: pip install torchft"
    )
    (name,) = classes
    monkeypatch.setattr(theirs, name, classes[name])
    found = unittest.TestResult()
    getattr(theirs, case)(test).run(found)
    assert found.testsRun == 1 and not found.skipped, found.skipped
    assert found.wasSuccessful(), "".join(text for _, text in found.errors + found.failures)


@pytest.mark.parametrize("test", ["test_checkpoint_server_0", "test_checkpoint_server_1"])
def test_torchfts_test_of_its_http_transport(monkeypatch, test):
    """Our errors have other classes and texts: the rest is unchanged. The other two tests,
    test_checkpoint_server_locking and test_benchmark, are about attributes of HTTPTransport."""
    ours = {
        "URLError": (wherry.errors.Timeout, "timed out"),
        "HTTPError": (wherry.errors.Mismatch, "2345.*1234"),
    }

    def raises(self, error, text):
        return original(self, *ours[error.__name__])

    original = unittest.TestCase.assertRaisesRegex
    monkeypatch.setattr(unittest.TestCase, "assertRaisesRegex", raises)
    run_theirs(monkeypatch, "http_transport_test", "TestHTTPTransport", test, HTTPTransport=Ours)


@pytest.mark.parametrize(
    "module, case, test, name",
    [
        (
            "http_transport_test",
            "TestHTTPTransport",
            "test_multi_http_transport_cpu",
            "HTTPTransport",
        ),
        ("pg_transport_test", "PGTransportTest", "test_pg_transport_gloo", "PGTransport"),
    ],
)
def test_torchfts_test_of_several_replicas(monkeypatch, together, module, case, test, name):
    run_theirs(monkeypatch, module, case, test, **{name: together})


def test_torchfts_test_of_several_replicas_in_place(together):
    theirs = pytest.importorskip(
        "torchft.checkpointing.transport_test",
        reason="torchft is not installed: pip install torchft",
    )
    from torchft.checkpointing.transport import CheckpointTransport

    assert issubclass(Transport, CheckpointTransport)
    cpu = torch.device("cpu")
    options = {"timeout": LIMIT, "state_dict": lambda: theirs.make_state_dict(cpu)}
    theirs.run_multi_recovery_test(unittest.TestCase(), lambda *_: together(**options), cpu)


def test_without_torchft():
    script = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torchft":
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Missing())
import numpy as np
from wherry.torchft import Transport
source, receiver = Transport(5), Transport[dict](5)
source.send_checkpoint([1], 1, {"a": np.arange(5), "b": 2}, 5)
got = receiver.recv_checkpoint(0, source.metadata(), 1, 5)
assert got["a"].tolist() == [0, 1, 2, 3, 4] and got["b"] == 2
source.disallow_checkpoint(), source.shutdown(), receiver.shutdown(wait=False)
assert "torchft" not in sys.modules and "torch" not in sys.modules
print("fine")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "fine\n" and done.returncode == 0, done.stderr


# ---- several sources ----


def large_state(seed):
    torch.manual_seed(seed)
    return {f"w{number}": torch.randn(1 << 20) for number in range(100)}


def source_body(life):
    transport = Transport(LIMIT, host="127.0.0.1")
    transport.send_checkpoint([9], 1, large_state(1), LIMIT)
    launch.say(f"metadata {life} {launch.rank()}", transport.metadata())
    launch.wait_for("received")
    transport.shutdown()


def started_sources(job, count, life=1):
    for rank in range(count):
        job.start(rank, source_body, life)
    return [job.wait_for_file(f"metadata {life} {rank}") for rank in range(count)]


@pytest.mark.parametrize("in_place", [False, True])
def test_a_source_of_several_is_killed(make, in_place):
    """The source in use is killed in the middle, and another was dead from the beginning."""
    target, killed = large_state(2), []
    with launch.job(4, store=False) as job:
        metadata = started_sources(job, 4)
        job.ranks[3].signal(signal.SIGKILL)

        def progress(progress):
            used = [rank for rank in range(3) if job.ranks[rank].status is None]
            if not killed and 0 < progress.bytes < progress.total:
                killed.extend(used[:1])
                job.ranks[used[0]].signal(signal.SIGKILL)

        options = {"state_dict": lambda: target} if in_place else {}
        receiver = make(LIMIT, lanes="stream", threads=1, verify=True, progress=progress, **options)
        received = receiver.recv_checkpoint(0, ",".join(metadata), 1, LIMIT)
        assert_same(large_state(1), received)
        assert killed == [0] and (not in_place or received["w0"] is target["w0"])
        stats = receiver.last_stats.sources
        assert [one.rank for one in stats] == [0, 1, 2, 3]
        assert (
            stats[0].error is wherry.errors.PeerLost
            and stats[3].error is not None
            and stats[3].reason
        )
        assert stats[1].error is stats[2].error is None and stats[1].bytes + stats[2].bytes > 0
        job.say("received")
        job.finish(killed=[0, 3])


def test_all_of_several_sources_are_gone(make):
    sources = [make(), make()]
    metadata = ",".join(one.metadata() for one in sources)
    for one in sources:
        one.shutdown()
    began = time.monotonic()
    with pytest.raises(
        wherry.errors.Timeout, match="^replica 4, step 1: timed out after 0.5 s"
    ) as caught:
        make().recv_checkpoint(4, metadata, 1, 0.5)
    assert caught.value.rank == 4 and time.monotonic() - began < 10


def test_several_sources_of_different_steps(make):
    sources = [make(), make()]
    for number, one in enumerate(sources):
        one.send_checkpoint([1], 1 + number, {"w": torch.zeros(10)}, LIMIT)
    with pytest.raises(wherry.errors.Mismatch, match="step 2"):
        make().recv_checkpoint(0, ",".join(one.metadata() for one in sources), 1, LIMIT)


# ---- what is served, and for how long ----


def test_a_receiver_may_come_first(make):
    source = make()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(fetch, source, 7)
        await_receivers(source, 1)
        source.send_checkpoint([1], 7, plain_state(7), LIMIT)
        assert_same(plain_state(7), waiting.result(10))


def test_another_step_is_refused_with_both_numbers(make):
    source = make()
    source.send_checkpoint([1], 7, plain_state(7), LIMIT)
    with pytest.raises(wherry.errors.Mismatch, match=WRONG_STEP) as caught:
        make().recv_checkpoint(3, source.metadata(), 8, LIMIT)
    assert caught.value.rank == 3 and caught.value.message == str(caught.value)
    assert caught.value.stats is not None
    assert_same(plain_state(7), fetch(source, 7))


def test_a_second_send_takes_the_place_of_the_first(make):
    source = make()
    for step in (1, 2):
        source.send_checkpoint([1], step, {"step": step}, LIMIT)
        assert [thread.name for thread in threading.enumerate()].count("wherry-serve") == 1
    with pytest.raises(wherry.errors.Mismatch):
        fetch(source, 1)
    assert fetch(source, 2) == {"step": 2}


def test_in_place(make):
    source = make()
    target = {"model": {"w": torch.zeros(1000)}, "optimizer": {}}
    receiver = make(LIMIT, state_dict=lambda: target, device=torch.device("cpu"))
    state = {"model": {"w": torch.randn(1000)}, "optimizer": {"m": torch.randn(10)}}
    source.send_checkpoint([1], 1, state, LIMIT)
    received = fetch(source, 1, receiver)
    assert received["model"]["w"] is target["model"]["w"] and receiver.last_stats.tensors == 2
    assert_same(state, received)


def test_after_disallow_nobody_gets_the_state(make):
    source = make()
    source.send_checkpoint([1], 1, {"w": torch.zeros(10)}, LIMIT)
    source.disallow_checkpoint()
    source.disallow_checkpoint()
    with pytest.raises(wherry.errors.Timeout, match="timed out"):
        fetch(source, 1, timeout=0.3)
    source.send_checkpoint([1], 2, {"w": torch.ones(10)}, LIMIT)
    assert fetch(source, 2)["w"].all()


def test_disallow_lets_what_runs_finish(make):
    """A state that changes right after disallow has returned arrives unchanged."""
    state = {"w": torch.zeros(1 << 26)}
    for lanes in ("stream", "cma", "ring"):
        moving = threading.Event()
        source = make(timedelta(seconds=30))
        receiver = make(LIMIT, lanes=lanes, threads=1, progress=lambda _: moving.set())
        with ThreadPoolExecutor(1) as pool:
            source.send_checkpoint([1], 1, state, 30)
            fetching = pool.submit(fetch, source, 1, receiver, 30)
            assert moving.wait(20)
            source.disallow_checkpoint()
            state["w"].fill_(1)
            assert not fetching.result(30)["w"].any(), lanes
        state["w"].fill_(0)


def test_every_error_names_the_replica_and_keeps_its_report(make):
    """A receive in place that fails in the middle: first by a timeout, then by the source."""
    source = make(0.1)
    target = {"w": torch.zeros(1 << 26)}
    source.send_checkpoint([1], 1, {"w": torch.ones(1 << 26)}, LIMIT)
    metadata = source.metadata()
    ends = {
        wherry.errors.Timeout: lambda: time.sleep(5),
        (wherry.errors.Revoked, wherry.errors.Aborted, wherry.errors.PeerLost): source.shutdown,
    }
    for kinds, end in ends.items():
        began = []

        def progress(_, end=end, began=began):
            if not began:
                began.append(True)
                end()

        receiver = make(
            LIMIT, state_dict=lambda: target, lanes="stream", threads=1, progress=progress
        )
        with pytest.raises(kinds, match="^replica 5, step 1: ") as caught:
            receiver.recv_checkpoint(5, metadata, 1, 4 if kinds is wherry.errors.Timeout else 20)
        error = caught.value
        assert error.rank == 5 and error.stats.bytes_wanted == 4 << 26
        assert error.report["complete"] + error.report["partial"] == ["w"], (
            error.report
        )  # All bytes may have come before the end.


def test_errors_before_the_transfer_are_about_the_replica_too(make):
    receiver = make()
    with pytest.raises(wherry.errors.Malformed, match="^replica 4, step 2: ") as caught:
        receiver.recv_checkpoint(4, "nonsense", 2, LIMIT)
    assert caught.value.rank == 4
    with pytest.raises(
        wherry.errors.Timeout, match="^replica 4, step 2: timed out after 0.3 s"
    ) as caught:
        receiver.recv_checkpoint(4, "wherry-card-1 tcp://127.0.0.1:9 4096 0 " + "0" * 64, 2, 0.3)
    assert caught.value.rank == 4


@pytest.mark.parametrize("patiently", [True, False])
def test_a_transport_without_a_time_limit_ends(make, patiently):
    source = make(float("inf"))
    source.send_checkpoint([1], 1, {"a": 1}, float("inf"))
    server = source._resources.server
    assert fetch(source, 1, make(float("inf")), float("inf")) == {"a": 1}
    if patiently:
        source.disallow_checkpoint()
    else:
        source.shutdown(wait=False)
    assert server._cancel.requested and not server._thread.is_alive()


def test_an_interrupted_end_of_an_offer_ends_it(make, monkeypatch):
    """The state may change afterwards, so no transfer may read it."""
    source = make()
    source.send_checkpoint([1], 1, {"a": 1}, LIMIT)
    thread, join = source._resources.server._thread, source._resources.server._thread.join
    limits = []

    def interrupted(timeout=None):
        limits.append(timeout)
        if len(limits) == 1:
            raise KeyboardInterrupt
        join(timeout)

    monkeypatch.setattr(thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        source.disallow_checkpoint()
    assert not thread.is_alive()


def stopped_body(metadata):
    try:
        told = threading.Event()

        def tell(progress):
            if not told.is_set():
                told.set()
                launch.say("moving")
                launch.wait_for("go on")

        Transport(LIMIT, lanes="stream", threads=1, progress=tell).recv_checkpoint(
            0, metadata, 1, LIMIT
        )
    except (wherry.errors.Revoked, wherry.errors.Aborted, wherry.errors.PeerLost) as error:
        return type(error).__name__
    return "received"


def test_disallow_revokes_what_does_not_finish(make):
    """A source gives up a receiver that makes no progress. The receiver learns that its data is not
    valid."""
    source = make(timedelta(seconds=0.5))
    source.send_checkpoint([1], 1, {"w": torch.zeros(1 << 28)}, 30)
    with launch.job(1, store=False) as job:
        job.start(0, stopped_body, source.metadata())
        job.wait_for_file("moving")
        job.ranks[0].signal(signal.SIGSTOP)
        began = time.monotonic()
        source.disallow_checkpoint()
        assert 0.4 < time.monotonic() - began < 5
        job.ranks[0].signal(signal.SIGCONT)
        job.say("go on")
        assert job.finish(30)[0] in ("Revoked", "Aborted", "PeerLost")


def test_one_slow_receiver_does_not_keep_the_others_waiting(make):
    source = make()
    source.send_checkpoint([1, 2], 1, {"w": torch.zeros(1 << 28)}, 30)
    with launch.job(1, store=False) as job:
        job.start(0, stopped_body, source.metadata())
        job.wait_for_file("moving")
        job.ranks[0].signal(signal.SIGSTOP)
        assert not fetch(source, 1)["w"].any()
        job.ranks[0].signal(signal.SIGKILL)
        began = time.monotonic()
        source.disallow_checkpoint()  # The call does not wait for the dead receiver.
        assert time.monotonic() - began < 8  # The limit of the source is 10 s.


def test_receivers_that_take_the_same_slot(make, monkeypatch):
    """The second receiver takes the slot of the first, which then takes another one."""
    source = make()
    given = iter([5, 5, 5, 6, 7, 8, 9])  # slots
    monkeypatch.setattr(torchft.secrets, "randbelow", lambda most: next(given))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(fetch, source, 1)
        await_receivers(source, 1)
        second = pool.submit(fetch, source, 1)
        await_receivers(source, 2)
        source.send_checkpoint([1, 2], 1, {"a": 1}, LIMIT)
        assert first.result(10) == second.result(10) == {"a": 1}


# ---- its ticket ----


def test_a_target_is_a_function(make):
    with pytest.raises(
        wherry.errors.InvalidArgument, match="a function that returns a state dict, not a dict"
    ):
        make(state_dict={})


def test_metadata(make):
    source = make()
    ticket = Ticket.read(source.metadata())
    assert source.metadata() == source.metadata() and ticket.rank == 0 and ticket.size == 4096
    receiver = make()
    for wrong in ("", "http://host:1234/checkpoint/", source.metadata() + "0"):
        with pytest.raises(wherry.errors.Malformed):
            receiver.recv_checkpoint(0, wrong, 1, LIMIT)
    with pytest.raises(wherry.errors.InvalidArgument, match="another kind"):
        receiver.recv_checkpoint(0, ticket._replace(rank=3).text(), 1, LIMIT)
    with pytest.raises(wherry.errors.BadSecret):
        receiver.recv_checkpoint(
            0, ticket._replace(secret=bytes(32)).text(), 1, timedelta(seconds=0.5)
        )


@pytest.mark.parametrize("how", ["WHERRY_SECRET", "WHERRY_SECRET_FILE"])
def test_metadata_has_no_secret_if_the_environment_has_one(make, monkeypatch, tmp_path, how):
    """torchft writes the metadata to its log."""
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_text("a secret of the job\n")
    monkeypatch.setenv(how, "a secret of the job" if how == "WHERRY_SECRET" else str(file))
    source = make()
    source.send_checkpoint([1], 1, {"a": 1}, LIMIT)
    metadata = source.metadata()
    assert metadata.endswith(" 4096 0 -") and Ticket.read(metadata).secret is None
    assert fetch(source, 1) == {"a": 1}
    monkeypatch.delenv(how)
    with pytest.raises(
        wherry.errors.InvalidArgument, match="replica 2, step 1: .*WHERRY_SECRET_FILE"
    ) as caught:
        make().recv_checkpoint(2, metadata, 1, LIMIT)
    assert caught.value.rank == 2
    monkeypatch.setenv("WHERRY_SECRET", "a secret of another job")
    with pytest.raises(wherry.errors.BadSecret):
        make().recv_checkpoint(2, metadata, 1, 0.5)


def test_metadata_without_a_secret_in_the_environment(make, monkeypatch):
    """torchft writes the metadata to its log. A reader of the log must not be able to connect."""
    source = make()
    metadata = source.metadata()
    ticket = Ticket.read(metadata)
    assert ticket.secret is None and ticket.address.startswith("tcp://127.0.0.1:")
    for step in (1, 2):
        source.send_checkpoint([1, 2], step, {"a": step}, LIMIT)
        assert source.metadata() == metadata and fetch(source, step) == {"a": step}
        with pytest.raises(wherry.errors.BadSecret):
            _rendezvous.connect(ticket._replace(secret=bytes(32)), 7, 500)
        source.disallow_checkpoint()
        with pytest.raises(wherry.errors.BadSecret):
            _rendezvous.connect(ticket._replace(secret=bytes(32)), 7, 500)
    monkeypatch.setattr(_rendezvous, "_this_host", lambda: "another")
    with pytest.raises(wherry.errors.InvalidArgument, match="another host.* set WHERRY_SECRET"):
        make().recv_checkpoint(2, metadata, 1, LIMIT)
    monkeypatch.setenv("WHERRY_SECRET", "a secret of the job")
    with pytest.raises(wherry.errors.InvalidArgument, match="rank 0 has none: set the same"):
        make().recv_checkpoint(2, metadata, 1, LIMIT)


def test_an_address_for_others_needs_a_secret(make, monkeypatch):
    source = make(LIMIT, host="192.0.2.1")
    with pytest.raises(wherry.errors.InvalidArgument, match="set WHERRY_SECRET"):
        source.metadata()


def test_a_ticket_with_a_secret_goes_before_the_environment(monkeypatch):
    listener = _rendezvous.Listener("127.0.0.1", 0, 2)
    monkeypatch.setenv("WHERRY_SECRET", "a secret of the job")
    _rendezvous.connect(listener.ticket, 1, 10000).close()
    listener.connection.close()


def test_the_host_is_that_on_the_way_to_the_lighthouse(monkeypatch):
    monkeypatch.setenv("TORCHFT_LIGHTHOUSE", "http://192.0.2.1:29510")
    assert torchft._own_host() == "127.0.0.1"
    monkeypatch.setenv("WHERRY_SECRET", "a secret of the job")
    monkeypatch.setenv("TORCHFT_LIGHTHOUSE", "http://localhost:29510")
    assert torchft._own_host() == "127.0.0.1"
    monkeypatch.setenv("TORCHFT_LIGHTHOUSE", "http://[::1]:29510")
    assert torchft._own_host() == "127.0.0.1"
    monkeypatch.delenv("TORCHFT_LIGHTHOUSE")
    assert re.fullmatch(r"[0-9a-f.:]+", torchft._own_host())


def test_a_name_that_leads_to_loopback_is_no_address_for_others(monkeypatch, caplog):
    ways = {"node7": "127.0.1.1", "lighthouse": "10.0.0.7", "192.0.2.1": "10.0.0.8"}
    monkeypatch.setenv("WHERRY_SECRET", "a secret of the job")
    monkeypatch.setattr(torchft.socket, "gethostname", lambda: "node7")
    monkeypatch.setattr(_rendezvous, "address_towards", ways.get)
    monkeypatch.delenv("WHERRY_INTERFACE", raising=False)
    monkeypatch.setenv("TORCHFT_LIGHTHOUSE", "http://lighthouse:29510")
    assert torchft._own_host() == "10.0.0.7"
    monkeypatch.delenv("TORCHFT_LIGHTHOUSE")
    assert torchft._own_host() == "10.0.0.8" and not caplog.messages
    del ways["192.0.2.1"]
    assert torchft._own_host() == "127.0.0.1"
    assert (
        len(caplog.messages) == 1
        and "node7" in caplog.text
        and "host=" in caplog.text
        and "WHERRY_INTERFACE" in caplog.text
    )


# ---- shutdown, exit and fork ----


@pytest.mark.parametrize("how", ["shutdown", "at once", "collect"])
def test_nothing_is_left(how):
    fetch_once()
    before = launch.held()
    source = fetch_once(close=False)
    assert launch.held() != before
    if how == "collect":
        del source
        gc.collect()
    else:
        source.shutdown(wait=how == "shutdown")
        source.shutdown()
        with pytest.raises(wherry.errors.Closed):
            source.metadata()
    launch.settles(before)


def fetch_once(close=True):
    source = Transport(LIMIT)
    source.send_checkpoint([1], 1, plain_state(1), LIMIT)
    assert_same(plain_state(1), fetch(source, 1))
    if close:
        source.shutdown()
    return source


def test_a_source_that_has_ended_is_a_timeout(make):
    source = make()
    metadata = source.metadata()
    source.shutdown()
    with pytest.raises(wherry.errors.Timeout, match="timed out"):
        make().recv_checkpoint(0, metadata, 1, 0.3)


def test_exit_with_a_transport_that_serves():
    script = """
from wherry.torchft import Transport
import numpy as np
transport = Transport(5, host="127.0.0.1")
transport.send_checkpoint([1], 1, {"a": np.arange(5)}, 5)
print("fine")
"""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30
    )
    assert (done.stdout, done.stderr, done.returncode) == ("fine\n", "", 0)
    assert time.monotonic() - began < 20


def fork_body():
    source = Transport(LIMIT)
    source.send_checkpoint([1], 1, {"who": "parent"}, LIMIT)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            source.disallow_checkpoint()
            source.send_checkpoint([1], 2, {"who": "child"}, LIMIT)
            assert fetch(source, 2) == {"who": "child"}
            source.shutdown()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert fetch(source, 1) == {"who": "parent"}
    source.shutdown()


def test_a_fork():
    with launch.job(1, store=False) as job:
        job.run(fork_body)
