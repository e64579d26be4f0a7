"""wherry.Group, wherry.send and wherry.recv, without torch: ranks are threads of this process
unless it takes processes."""

import contextlib
import inspect
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import halting
import launch
import numpy as np
import pytest
import wherry
from wherry import _connection, _core, _transfer
from wherry.group import codec_for


def together(*calls):
    """Runs calls concurrently, each in a thread. Returns the result or the exception of each."""

    def run(call):
        try:
            return call()
        except BaseException as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def must(*calls):
    results = together(*calls)
    for one in results:
        if isinstance(one, BaseException):
            raise one
    return results


@pytest.fixture
def groups(tmp_path_factory):
    """Makes groups of ranks that are threads here."""
    made = []

    def make(size):
        path = tmp_path_factory.mktemp("g") / "s"
        joined = must(
            *(
                lambda r=r: wherry.Group.join(f"unix://{path}?rank={r}&size={size}", 20)
                for r in range(size)
            )
        )
        made.extend(joined)
        return joined

    yield make
    for group in made:
        group.close()


def a_state(seed=0, size=100_000):
    random = np.random.default_rng(seed)
    return {
        "weights": random.standard_normal(size).astype(np.float32),
        "counts": random.integers(0, 100, (3, 5)),
        "step": 7,
        "names": ["a", ("b", None), 2.5],
    }


def same(left, right):
    if isinstance(left, np.ndarray):
        return (
            isinstance(right, np.ndarray)
            and left.dtype == right.dtype
            and np.array_equal(left, right)
        )
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and left == right


# ---- groups ----


def test_ranks_and_messages(groups):
    one, two, three = groups(3)
    assert [(g.rank, g.size) for g in (one, two, three)] == [(0, 3), (1, 3), (2, 3)]
    assert one.alive(1) and not one.alive(3)
    assert one.meeting.startswith("unix:///") and "rank" not in one.meeting
    one.send(1, 5, b"to one")
    three.send(1, 5, b"")
    assert two.recv(0, 5, 5) == (0, b"to one")
    assert two.recv(wherry.ANY_RANK, 5, timedelta(seconds=5)) == (2, b"")
    assert must(*(lambda g=g: g.barrier(1, 5) for g in (one, two, three))) == [None] * 3
    assert repr(two) == "<wherry.Group: rank 1 of 3>"


def test_a_group_is_a_context_manager_and_leaves_nothing(tmp_path):
    before = launch.held()
    addresses = [f"unix://{tmp_path}/s?rank={rank}&size=2" for rank in (0, 1)]
    first, second = must(*(lambda a=a: wherry.Group.join(a, 20) for a in addresses))
    with first, second:
        assert launch.held() != before
        must(lambda: wherry.send(first, 1, a_state()), lambda: wherry.recv(second, 0))
    first.close()
    with pytest.raises(wherry.errors.Closed, match="left"):
        first.send(1, 0, b"")
    launch.settles(before)


def test_a_group_without_references_is_left(tmp_path):
    before = launch.held()
    group = wherry.Group.join(f"unix://{tmp_path}/s?rank=0&size=1", 20)
    assert launch.held() != before
    del group
    launch.settles(before)


def test_join_returns_as_soon_as_wanted(tmp_path):
    with wherry.Group.join(f"unix://{tmp_path}/s?rank=0&size=3", 20, wait_for=1) as group:
        assert group.size == 3 and not group.alive(1)


def test_join_names_the_ranks_that_are_missing(tmp_path):
    began = time.monotonic()
    with pytest.raises(wherry.errors.Timeout, match="1") as caught:
        wherry.Group.join(f"unix://{tmp_path}/s?rank=0&size=2", 0.2)
    assert isinstance(caught.value, TimeoutError) and 0.15 < time.monotonic() - began < 10


def test_join_refuses_another_secret(tmp_path):
    address = f"unix://{tmp_path}/s?rank={{}}&size=2"
    with wherry.Group.join(address.format(0), 20, "the secret of these ranks", wait_for=1):
        with pytest.raises(wherry.errors.BadSecret):
            wherry.Group.join(address.format(1), 20, b"the secret of others")
        wherry.Group.join(address.format(1), 20, "the secret of these ranks").close()


@pytest.mark.parametrize(
    "address", ["", "nowhere", "tcp://127.0.0.1:1?rank=2&size=2", "unix://relative?rank=0&size=1"]
)
def test_bad_addresses(address):
    with pytest.raises(wherry.errors.InvalidArgument):
        wherry.Group.join(address, 1)


def test_waits_keep_to_their_time(groups):
    one, _ = groups(2)
    for seconds in (0, 0.05, 0.25):
        began = time.monotonic()
        with pytest.raises(wherry.errors.Timeout, match="[Tt]imed? ?out"):
            one.recv(1, 9, seconds)
        with pytest.raises(wherry.errors.Timeout) as caught:
            one.barrier(1, seconds)
        assert caught.value.rank == 1
        assert 2 * seconds <= time.monotonic() - began < 2 * seconds + 5
    with pytest.raises(wherry.errors.InvalidArgument, match="inf"):
        one.recv(1, 9, -1)
    with pytest.raises(wherry.errors.InvalidArgument, match="timedelta"):
        one.recv(1, 9, "soon")


@pytest.mark.parametrize("what", ["message", "barrier", "join", "recv", "send"])
def test_ctrl_c_ends_every_wait(groups, tmp_path, what):
    one, _ = groups(2)
    calls = {
        "message": lambda: one.recv(1, 9),
        "barrier": lambda: one.barrier(1),
        "join": lambda: wherry.Group.join(f"unix://{tmp_path}/s?rank=0&size=2"),
        "recv": lambda: wherry.recv(one, 1),
        "send": lambda: wherry.send(one, 1, a_state()),
    }
    launch.when_asleep(os.kill, os.getpid(), signal.SIGINT)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        calls[what]()
    assert time.monotonic() - began < 5


# ---- encryption ----


def test_everything_is_encrypted(caplog):
    address = f"tcp://127.0.0.1:{launch.free_port()}?size=2&shortcut=0"
    options = {"secret": "a secret that all ranks know", "encrypt": "all"}
    joined = must(
        *(lambda r=r: wherry.Group.join(f"{address}&rank={r}", 20, **options) for r in range(2))
    )
    try:
        state = a_state()
        with caplog.at_level(logging.INFO, logger="wherry"):
            outcomes, received = must(
                lambda: wherry.send(joined[0], 1, state, lanes="stream"),
                lambda: wherry.recv(joined[1], 0, lanes="stream"),
            )
        assert same(state, received) and outcomes[0].stats.lane == "stream"
        assert "over stream, verified" in caplog.text
        refused = together(
            lambda: wherry.send(joined[0], 1, state, timeout=3),
            lambda: wherry.recv(joined[1], 0, lanes="ucx", timeout=3),
        )
        assert isinstance(refused[1], wherry.Error)
    finally:
        for group in joined:
            group.close()


def test_a_lane_that_cannot_encrypt_is_refused(caplog):
    """Both sides say so, in the log and in the statistics, and the next lane is used."""
    address = f"tcp://127.0.0.1:{launch.free_port()}?size=2&shortcut=0"
    options = {"secret": "a secret that all ranks know", "encrypt": "all"}
    joined = must(
        *(lambda r=r: wherry.Group.join(f"{address}&rank={r}", 20, **options) for r in range(2))
    )
    try:
        state = a_state()
        with caplog.at_level(logging.INFO, logger="wherry"):
            outcomes, (received, stats) = must(
                lambda: wherry.send(joined[0], 1, state, lanes="ucx,stream"),
                lambda: _connection.receive_from(
                    [_connection.Source(joined[1]._connection, 0)], [0], None, codec_for(False),
                    {"timeout_ms": 10_000, "lanes": "ucx,stream"},
                ),
            )  # fmt: skip
        assert same(state, received) and stats.lane == "stream"
        told = [line for line in caplog.messages if "it cannot encrypt" in line]
        assert any("ucx is not offered to rank 1" in line for line in told), told
        assert any("ucx from rank 0 does not work" in line for line in told), told
        for one in (outcomes[0].stats, stats):
            (ucx,) = (lane for lane in one.lanes_not_used if lane.name == "ucx")
            assert ucx.reason == "unsupported" and "encrypt=all" in ucx.text
    finally:
        for group in joined:
            group.close()


def test_options_of_encryption():
    with pytest.raises(ValueError, match="'control' or 'all'"):
        wherry.Group.join("tcp://127.0.0.1:1?rank=0&size=2", 1, encrypt="some")
    with pytest.raises(ValueError, match="/nonexistent/cert.pem"):
        wherry.Group.join(
            "tcp://127.0.0.1:1?rank=0&size=2",
            1,
            tls_certificate="/nonexistent/cert.pem",
            tls_ca="/nonexistent/ca.pem",
        )


# ---- sending and receiving ----


def test_a_state_arrives(groups):
    one, two = groups(2)
    state = a_state()
    outcomes, received = must(lambda: wherry.send(one, 1, state), lambda: wherry.recv(two, 0))
    assert same(state, received)
    assert [outcome.rank for outcome in outcomes] == [1] and outcomes[0].ok
    stats = outcomes[0].stats
    assert (
        stats.bytes_moved >= 400_000
        and stats.lane in ("cma", "ring")
        and stats.rate > 0
        and stats.checked is False
    )


def test_in_place(groups):
    one, two = groups(2)
    state, target = a_state(1), a_state(2)
    weights = target["weights"]
    _, received = must(
        lambda: wherry.send(one, [1], state, verify=True), lambda: wherry.recv(two, 0, into=target)
    )
    assert same(state, received)
    assert received["weights"] is weights and same(weights, state["weights"])


def test_tensors_that_the_target_lacks_are_new(groups):
    one, two = groups(2)
    state, target = a_state(1), {"counts": np.zeros((3, 5), np.int64)}
    _, received = must(
        lambda: wherry.send(one, [1], state), lambda: wherry.recv(two, 0, into=target)
    )
    assert same(state, received) and received["counts"] is target["counts"]


def test_a_mismatch_fails_on_both_sides_and_changes_nothing(groups):
    one, two = groups(2)
    target = {**a_state(2), "counts": np.zeros((3, 6), np.int64)}
    kept = {
        key: np.copy(value) if isinstance(value, np.ndarray) else value
        for key, value in target.items()
    }
    sent, received = together(
        lambda: wherry.send(one, 1, a_state(1)), lambda: wherry.recv(two, 0, into=target)
    )
    assert isinstance(received, wherry.errors.Mismatch) and isinstance(received, ValueError)
    assert "counts" in received.path and "3" in str(received)
    assert isinstance(sent, wherry.errors.Aborted) and sent.rank == 1 and "counts" in str(sent)
    assert same(kept, target)
    _, again = must(lambda: wherry.send(one, 1, a_state(1)), lambda: wherry.recv(two, 0))
    assert same(again, a_state(1))


def test_partial(groups):
    one, two = groups(2)
    target = {"counts": np.zeros((3, 5), np.int64), "only here": np.ones(3)}
    _, received = must(
        lambda: wherry.send(one, 1, a_state(1)),
        lambda: wherry.recv(two, 0, into=target, partial=True),
    )
    assert same(received["counts"], a_state(1)["counts"]) and received["counts"] is target["counts"]
    assert same(target["only here"], np.ones(3))
    sent, refused = together(
        lambda: wherry.send(one, 1, a_state(1)), lambda: wherry.recv(two, 0, into=target)
    )
    assert isinstance(refused, wherry.errors.Mismatch) and "only here" in refused.path


def test_several_destinations_and_one_that_never_asks(groups):
    one, two, three, _ = groups(4)
    sent, second, third = together(
        lambda: wherry.send(one, [3, 1, 2], a_state(), timeout=3),
        lambda: wherry.recv(two, 0),
        lambda: wherry.recv(three, 0),
    )
    assert same(second, a_state()) and same(third, a_state())
    assert isinstance(sent, wherry.errors.Timeout) and sent.rank == 3
    assert [(outcome.rank, outcome.ok) for outcome in sent.outcomes] == [
        (3, False),
        (1, True),
        (2, True),
    ]


@pytest.mark.parametrize(
    "ranks, told", [(0, "is this process"), ([1, 1], "twice"), ([2], "0 to 1"), (-1, "0 to 1")]
)
def test_bad_destinations(groups, ranks, told):
    one, _ = groups(2)
    with pytest.raises(wherry.errors.InvalidArgument, match=told):
        wherry.send(one, ranks, {})


def test_bad_arguments(groups):
    one, _ = groups(2)
    for call, told in [
        (lambda: wherry.recv(one, 0), "is this process"),
        (lambda: wherry.recv(one, 5), "0 to 1"),
        (lambda: wherry.send(one, 1, {}, step=-1), "step"),
        (lambda: wherry.send(one, 1, {}, step=1.5), "step must be an integer, not a float"),
        (lambda: wherry.send(one, 1, {}, step=1 << 63), "step is 9223372036854775808, but"),
        (lambda: wherry.Group.join(wait_for=-1), "wait_for is -1"),
        (lambda: wherry.send(one, "1", {}), "a rank must be an integer, not a str"),
        (lambda: wherry.send(one, 1, {}, threads=-1), "threads"),
        (lambda: wherry.send(one, 1, {}, threads="2"), "threads must be an integer, not a str"),
        (lambda: one.send(1, -1, b""), "tag is -1, but must be from 0 to 4294967295"),
        (lambda: one.recv(1, 1 << 32), "tag is 4294967296"),
        (lambda: one.barrier(-1), "number is -1"),
        (lambda: wherry.send(one, 1, {}, timeout=float("nan")), "timeout"),
        (lambda: wherry.send(one, 1, {}, lanes="bus"), "bus"),
        (lambda: wherry.send(one, 1, {}, progress=3), "progress must be True or a function"),
    ]:
        with pytest.raises(wherry.errors.InvalidArgument, match=told):
            call()
    assert wherry.send(one, [], {}) == []


def test_steps(groups):
    one, two = groups(2)
    sent, received = together(
        lambda: wherry.send(one, 1, a_state(), step=3), lambda: wherry.recv(two, 0, step=4)
    )
    assert isinstance(sent, wherry.errors.Mismatch) and isinstance(received, wherry.errors.Mismatch)
    assert "3" in str(received) and "4" in str(received)
    must(lambda: wherry.send(one, 1, a_state(), step=4), lambda: wherry.recv(two, 0, step=4))


def test_a_state_that_cannot_travel_is_refused_with_its_path(groups):
    one, _ = groups(2)
    with pytest.raises(wherry.errors.Unsupported, match="allow_pickle") as caught:
        wherry.send(one, 1, {"a": [1, threading.Lock()]})
    assert caught.value.path is not None and "a" in caught.value.path


def test_cancel(groups):
    one, two = groups(2)
    cancel = wherry.Cancel()
    launch.when_asleep(cancel.request)
    began = time.monotonic()
    with pytest.raises(wherry.errors.Cancelled):
        wherry.recv(two, 0, cancel=cancel)
    assert time.monotonic() - began < 5 and cancel.requested
    with pytest.raises(wherry.errors.Cancelled):
        wherry.send(one, 1, a_state(), cancel=cancel)


def test_leaving_ends_what_runs(groups):
    one, two = groups(2)
    launch.when_asleep(two.close)
    began = time.monotonic()
    waiting, receiving = together(lambda: two.recv(0, 1), lambda: wherry.recv(two, 0))
    assert isinstance(waiting, wherry.errors.Closed) and isinstance(
        receiving, (wherry.errors.Cancelled, wherry.errors.Closed)
    )
    assert time.monotonic() - began < 5
    with pytest.raises(wherry.errors.PeerLost) as caught:
        one.recv(1, 1, 5)
    assert caught.value.rank == 1 and isinstance(caught.value, ConnectionError)


def test_leaving_from_inside_a_transfer_is_refused_at_once(groups):
    one, two = groups(2)
    told = []

    def progress(_):
        began = time.monotonic()
        with pytest.raises(wherry.errors.InvalidArgument, match="inside a transfer"):
            two.close()
        told.append(time.monotonic() - began)

    _, received = must(
        lambda: wherry.send(one, 1, a_state()), lambda: wherry.recv(two, 0, progress=progress)
    )
    assert same(received, a_state()) and told and max(told) < 10
    two.close()


@pytest.mark.parametrize("lanes", ["stream", "ring", "^cma", "cma"])
def test_lanes(groups, lanes):
    one, two = groups(2)
    outcomes, received = must(
        lambda: wherry.send(one, 1, a_state()), lambda: wherry.recv(two, 0, lanes=lanes)
    )
    assert same(received, a_state())
    assert outcomes[0].stats.lane == ("ring" if lanes == "^cma" else lanes)


# ---- reports and logs ----


def test_progress_is_reported(groups):
    one, two = groups(2)
    told = []
    must(lambda: wherry.send(one, 1, a_state()), lambda: wherry.recv(two, 0, progress=told.append))
    assert told and all(isinstance(each, wherry.Progress) for each in told)
    assert (
        told[-1].peer == 0
        and told[-1].bytes == told[-1].total >= 400_000
        and told[-1].lane in ("cma", "ring")
    )


def test_a_progress_that_raises_ends_the_transfer(groups):
    one, two = groups(2)

    def fail(_):
        raise RuntimeError("enough")

    sent, received = together(
        lambda: wherry.send(one, 1, a_state(), timeout=10),
        lambda: wherry.recv(two, 0, progress=fail, timeout=10),
    )
    assert isinstance(received, RuntimeError) and str(received) == "enough"


class Closed(Exception):
    """An exception whose attributes cannot be set, so it takes no report and no statistics."""

    def __setattr__(self, name, value):
        if name in ("report", "stats"):
            raise AttributeError(name)
        super().__setattr__(name, value)


SEND_SLOWLY = """
import numpy as np
import wherry

with wherry.Group.join(sys.argv[2], 60) as group:
    wherry.send(group, 1, {"w": np.ones(1 << 23, np.float32)}, timeout=60)
"""


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt, Closed, "Ctrl-C"])
def test_an_exception_in_the_middle_has_the_report(tmp_path, kind):
    """The exception has a report of the target, which is half written, as an Error has."""
    address = f"unix://{tmp_path}/s?rank={{}}&size=2"
    target = {"w": np.zeros(1 << 23, np.float32)}

    def fail(progress):
        while not target["w"][0]:  # Wait until the first chunk has landed.
            time.sleep(0.001)
        if kind == "Ctrl-C":
            signal.raise_signal(signal.SIGINT)
        else:
            raise kind("enough")

    slow = {"lanes": "stream", "threads": 1, "verify": True}
    with (
        halting.source(SEND_SLOWLY, address.format(0)),
        wherry.Group.join(address.format(1), 60) as group,
        pytest.raises(KeyboardInterrupt if kind == "Ctrl-C" else kind) as caught,
    ):
        wherry.recv(group, 0, target, progress=fail, timeout=60, **slow)
    if kind is not Closed:
        report, stats = caught.value.report, caught.value.stats
        assert report["partial"] == ["w"] and not report["complete"] + report["untouched"]
        assert isinstance(stats, wherry.Stats) and stats.bytes_wanted == 4 << 23
        assert [one.rank for one in stats.sources] == [0]


def test_a_receiver_that_cannot_allocate_says_so(groups, monkeypatch):
    """This happens if NumPy is missing there, for example. The error at the source must not be
    about memory."""
    one, two = groups(2)

    def fail(self, nbytes, device):
        raise wherry.errors.Unsupported("NumPy is not installed")

    monkeypatch.setattr(type(codec_for(False)), "allocate", fail)
    sent, received = together(
        lambda: wherry.send(one, 1, a_state(), timeout=10), lambda: wherry.recv(two, 0, timeout=10)
    )
    assert isinstance(received, wherry.errors.Unsupported) and "NumPy" in str(received)
    assert isinstance(sent, wherry.errors.Aborted) and "out of memory" not in str(sent), sent


def test_progress_true_shows_a_bar(groups, capsys):
    pytest.importorskip("tqdm", reason="tqdm is not installed: pip install tqdm")
    one, two = groups(2)
    must(lambda: wherry.send(one, 1, a_state()), lambda: wherry.recv(two, 0, progress=True))
    shown = capsys.readouterr().err
    assert "from rank 0" in shown and "100%" in shown


def test_progress_true_without_tqdm_logs(groups, caplog, monkeypatch, request):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)  # importing it raises ImportError
    _transfer._find_tqdm.cache_clear()
    request.addfinalizer(_transfer._find_tqdm.cache_clear)
    one, two = groups(2)
    with caplog.at_level(logging.INFO, "wherry"):
        for _ in range(2):
            must(lambda: wherry.send(one, 1, a_state()), lambda: wherry.recv(two, 0, progress=True))
    assert sum("from rank 0: 100%" in message for message in caplog.messages) == 2
    (warning,) = [one for one in caplog.records if one.levelno > logging.INFO]
    assert "tqdm is missing: pip install" in warning.getMessage()


def test_the_log_describes_transfers_and_warns_of_slow_ones(groups, caplog):
    one, two = groups(2)
    with caplog.at_level(logging.INFO, "wherry"):
        must(lambda: wherry.send(one, 1, a_state()), lambda: wherry.recv(two, 0))
    (received,) = (message for message in caplog.messages if message.startswith("received"))
    assert received.startswith("received 2 tensors, 400120 bytes from rank 0 over")
    assert "B/s" not in received, "the rate of a small state means nothing"
    assert any(message.startswith("rank 1 has the checkpoint: ") for message in caplog.messages)
    caplog.clear()
    *sources, receiver = groups(3)
    with caplog.at_level(logging.INFO, "wherry"):
        must(
            lambda: wherry.send(sources[0], 2, a_state(), step=1),
            lambda: wherry.send(sources[1], 2, a_state(), step=1),
            lambda: wherry.recv(receiver, [0, 1], step=1),
        )
    (received,) = (message for message in caplog.messages if message.startswith("received"))
    ranks = r"(ranks \d \(0\.4\)|ranks 0 \(0\.\d\), 1 \(0\.\d\))"
    assert re.match(rf"received 0\.4 MiB from {ranks} over \w+.* in \d\.\d+ s \(data ", received)
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
    SkippedLane = _transfer.SkippedLane

    def skipped(reason):
        lanes = (
            SkippedLane("cma", reason, "Operation not permitted"),
            SkippedLane("ring", "failed", "no memory"),
        )
        return wherry.Stats(lane="stream", lanes_not_used=lanes)

    assert skipped("failed").slow_because() == "cma: Operation not permitted; ring: no memory"
    assert skipped("unsupported").slow_because()
    assert not skipped("other host").slow_because() and not skipped("not allowed").slow_because()
    with caplog.at_level(logging.WARNING, "wherry"):
        _transfer.warn_if_slow(7, skipped("failed"))
    assert caplog.messages[-1].startswith(
        "rank 7 is on this host, but 'stream' is used, which is slower, because: cma: "
    )


def test_lanes_that_were_not_used(groups):
    one, two = groups(2)
    options = {"timeout_ms": 10_000, "lanes": "stream"}
    _, (_, stats) = must(
        lambda: wherry.send(one, 1, a_state()),
        lambda: _connection.receive_from(
            [_connection.Source(two._connection, 0)], [0], None, codec_for(False), options
        ),
    )
    found = {lane.name: lane for lane in stats.lanes_not_used}
    assert stats.lane == "stream" and {"cma", "ring"} <= found.keys()
    assert (
        found["cma"].reason == found["ring"].reason == "not allowed"
        and found["cma"].text in stats.reasons
    )


# ---- processes ----


def in_a_fork(body):
    """Runs a function in a fork of this process. Returns its output."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.write(writing, repr(body()).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return text


def fork_body(folder):
    """A rank that forks while it has a group: the child must not use that one, and must not disturb
    it."""
    rank = launch.rank()
    address = f"unix://{folder}/s?rank={rank}&size=2"
    with wherry.Group.join(address, 20) as group:

        def child():
            try:
                group.recv(0, 1, 1)
            except wherry.errors.Closed as error:
                group.close()
                with wherry.Group.join(f"unix://{folder}/child{rank}?rank=0&size=1", 5) as own:
                    return str(error), own.size

        told = in_a_fork(child)
        assert "join again here" in told and told.endswith("1)"), told
        if rank == 0:
            wherry.send(group, 1, a_state(), timeout=20)
        else:
            assert same(wherry.recv(group, 0, timeout=20), a_state())


def test_a_fork_joins_again_and_its_parent_continues(tmp_path):
    with launch.job(2, store=False) as job:
        job.run(fork_body, str(tmp_path))


def plain_body():
    """A rank in a process without torch, which finds the others by its environment."""
    with wherry.Group.join(timeout=30) as group:
        if group.rank == 0:
            wherry.send(group, [1, 2], a_state(), timeout=30)
            received = a_state()
        else:
            received = wherry.recv(group, 0, timeout=30)
            assert same(received, a_state())
    return ["torch" in sys.modules, type(received["weights"]).__module__]


def test_without_torch(tmp_path):
    with launch.job(
        3, {"WHERRY_RENDEZVOUS": f"127.0.0.1:{launch.free_port()}"}, store=False
    ) as job:
        assert job.run(plain_body, spawn=True) == [[False, "numpy"]] * 3


# ---- the log of the library ----


def test_lines_of_the_library_go_to_logging(tmp_path):
    """Log lines of any thread arrive with their level. Nothing goes to stderr, even at exit."""
    script = f"""
import logging, os, sys, threading
import wherry
records = []
class Keep(logging.Handler):
    def emit(self, record):
        records.append((record.name, record.levelno, record.getMessage()))
logging.getLogger().addHandler(Keep())
logging.getLogger("wherry").setLevel(logging.INFO)
address = "unix://{tmp_path}/s?rank=%d&size=2"
one = [None]
def other():
    one[0] = wherry.Group.join(address % 0, 20)
    wherry.send(one[0], 1, dict(a=1), timeout=20)
thread = threading.Thread(target=other)
thread.start()
two = wherry.Group.join(address % 1, 20)
assert wherry.recv(two, 0, timeout=20) == dict(a=1)
thread.join()
try:
    wherry.recv(two, 0, timeout=0.1)
except wherry.errors.Timeout as error:
    assert "rank 0, which must call wherry.send" in str(error)
assert {{name for name, _, _ in records}} == {{"wherry"}}, records
assert [level for _, level, text in records if text.startswith("received 0 tensors")] == [20]
assert [level for _, level, text in records if text.startswith("rank 1 has the checkpoint")] == [20]
assert all(level == 20 for _, level, _ in records), records  # what was raised is not a warning
print("fine")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("fine\n", "")


def test_a_function_for_the_log_that_fails_is_only_shown(groups, monkeypatch):
    shown = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: shown.append(str(what.exc_value)))

    def fail(level, line):
        raise ValueError("no log")

    one, two = groups(2)
    _core.set_log_function(fail)
    try:
        must(lambda: wherry.send(one, 1, {"a": 1}), lambda: wherry.recv(two, 0))
    finally:
        _core.set_log_function(_transfer._log)
    assert set(shown) == {"no log"}


# ---- the interface itself ----


def test_errors_are_a_hierarchy():
    expected = {
        wherry.errors.Timeout: TimeoutError,
        wherry.errors.PeerLost: ConnectionError,
        wherry.errors.Mismatch: ValueError,
        wherry.errors.InvalidArgument: ValueError,
        wherry.errors.Unsupported: RuntimeError,
        wherry.errors.NoMemory: MemoryError,
        wherry.errors.SystemFailure: OSError,
        wherry.errors.Refused: ConnectionError,
        wherry.errors.NotFound: LookupError,
    }
    for cls, base in expected.items():
        assert issubclass(cls, base) and issubclass(cls, wherry.Error)
    error = wherry.errors.PeerLost("gone", rank=3, path="a.b")
    assert (str(error), error.rank, error.path, error.status, error.outcomes) == (
        "gone",
        3,
        "a.b",
        "PEER_LOST",
        (),
    )


def test_every_status_has_a_class_and_every_class_is_public():
    names = {name for name, value, _, _ in _core.STATUSES if value != 0}
    classes = [
        one
        for _, one in inspect.getmembers(wherry.errors, inspect.isclass)
        if issubclass(one, wherry.Error)
    ]
    assert names <= {one.status for one in classes}
    assert all(issubclass(one, RuntimeError) for one in classes)
    assert sorted(one.__name__ for one in classes) == sorted(wherry.errors.__all__)
    assert "Error" in wherry.__all__ and len(wherry.__all__) == 11


def test_everything_public_is_documented():
    for name in wherry.__all__:
        found = getattr(wherry, name)
        if inspect.isclass(found) or inspect.isfunction(found):
            assert inspect.getdoc(found), name
            for member, value in vars(found).items() if inspect.isclass(found) else ():
                public = not member.startswith("_") and (
                    inspect.isfunction(value) or isinstance(value, property)
                )
                assert not public or inspect.getdoc(value), f"{name}.{member}"
    assert set(wherry.__all__) == {name for name in wherry.__all__ if hasattr(wherry, name)}


def test_the_document_names_every_error_and_every_option():
    import re

    text = (launch.HERE.parents[2] / "docs" / "python.md").read_text()
    table = text.split("| class |")[1].split("\n\n")[0]
    classes = {
        one.__name__
        for _, one in inspect.getmembers(wherry.errors, inspect.isclass)
        if issubclass(one, wherry.Error)
    }
    told = {
        name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    assert told == classes - {"Error"}
    for row in table.splitlines()[2:]:
        names, base = (
            re.findall(r"`(\w+)`", row.split("|")[1]),
            re.findall(r"`(\w+)`", row.split("|")[2]),
        )
        assert all(issubclass(getattr(wherry.errors, name), builtin_of(base)) for name in names), (
            row
        )
    options = text.split("### Options")[1].split("\n\n")[1]
    torch_transport = pytest.importorskip(
        "wherry.torch", reason="torch is not installed: pip install torch"
    ).PGTransport
    taken = set(inspect.signature(torch_transport).parameters) - {"pg"}
    assert {row.split("`")[1] for row in options.splitlines()[2:]} == taken


def builtin_of(names):
    import builtins

    return getattr(builtins, names[0]) if names else wherry.Error
