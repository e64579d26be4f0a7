"""lanes="group": control and bytes over the process group itself."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from datetime import timedelta

import launch
import pytest
import torch
import torch.distributed as dist
import wherry
from torch_states import assert_same, plain_state
from wherry import _core
from wherry.torch import PGTransport, _pg_session
from wherry.torch._process_group import is_gloo
from wherry.torch._pg_session import _PIECE_BYTES, Operation


def start():
    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


def transport_over_group(**options):
    return PGTransport(
        dist.group.WORLD, options.pop("timeout", 30), "cpu", lanes="group", **options
    )


def threads():
    return sorted(one.name for one in threading.enumerate() if one.name.startswith("wherry"))


def ring_body():
    """Each rank sends to the next one in turn; then one rank sends to all others at once."""
    rank, size = start()
    transport = transport_over_group()
    for step in range(2):
        state = {"from": rank, "step": step, **plain_state(rank)}
        before, after = (rank - 1) % size, (rank + 1) % size
        if rank == 0:
            transport.send_checkpoint([after], state)
            received = transport.recv_checkpoint(before)
        else:
            received = transport.recv_checkpoint(before)
            transport.send_checkpoint([after], state)
        assert_same({"from": before, "step": step, **plain_state(before)}, received)
        assert transport.last_stats.lane == "blocks"
        assert threads() == []
    if rank == 2:
        outcomes = transport.send_checkpoint([0, 1, 3], plain_state(9))
        assert [one.rank for one in outcomes] == [0, 1, 3]
    else:
        assert_same(plain_state(9), transport.recv_checkpoint(2))
    tensor = torch.ones(3)
    dist.all_reduce(tensor)  # The group still works.
    assert tensor.tolist() == [size] * 3
    dist.destroy_process_group()


def test_ring_and_fan_out():
    with launch.job(4) as job:
        job.run(ring_body)


def in_place_body(verify):
    """Many small tensors, large tensors and strided tensors, in place."""
    rank, _ = start()
    large = torch.arange(3 << 20).reshape(3, -1)
    state = {
        "small": [torch.full((7, 3), float(i)) for i in range(3000)],
        "large": large,
        "turned": large.t()[::3],
        "name": "x",
    }
    target = {
        "small": [torch.zeros(7, 3) for _ in range(3000)],
        "large": torch.zeros_like(large),
        "turned": None,
        "name": "",
    }
    target["turned"] = target["large"].t()[::3]
    transport = transport_over_group(state_dict=lambda: target, verify=verify)
    if rank == 0:
        transport.send_checkpoint([1], state)
    else:
        received = transport.recv_checkpoint(0)
        assert received["large"] is target["large"]
        assert torch.equal(target["large"], large)
        assert torch.equal(target["turned"], state["turned"])
        assert all(torch.equal(a, b) for a, b in zip(target["small"], state["small"]))
        assert received["name"] == "x"
        assert transport.last_stats.checked == verify
    dist.destroy_process_group()


@pytest.mark.parametrize("verify", [True, False])
def test_in_place(verify):
    with launch.job(2) as job:
        job.run(in_place_body, verify)


def pieces_body():
    """Blocks of one piece and of several, some with a short last piece, and many blocks."""
    rank, _ = start()
    sizes = [_PIECE_BYTES - 1, _PIECE_BYTES, _PIECE_BYTES + 1, (64 << 20) + 3, *[64 << 10] * 40]
    state = {
        f"t{i}": torch.arange(size, dtype=torch.int32).to(torch.uint8) + i
        for i, size in enumerate(sizes)
    }
    target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    transport = transport_over_group(state_dict=lambda: target)
    if rank == 0:
        transport.send_checkpoint([1], state)
    else:
        transport.recv_checkpoint(0)
        assert all(torch.equal(target[name], tensor) for name, tensor in state.items())
    assert transport.last_stats.lane == "blocks"
    dist.destroy_process_group()


def test_blocks_in_pieces():
    with launch.job(2) as job:
        job.run(pieces_body)


class Piece:
    """A stand-in for a piece that is done when its gate is open."""

    def __init__(self):
        self.gate = threading.Event()

    def wait(self, limit):
        if not self.gate.wait(limit.total_seconds()):
            raise RuntimeError("timed out")


def test_an_operation_that_was_given_up_starts_no_more_pieces():
    pieces = [Piece(), Piece(), Piece()]
    begun = []
    operation = Operation(
        [], torch.zeros(3), 1, timedelta(seconds=20), (begun.append(one) or one for one in pieces)
    )
    waiter = threading.Thread(target=operation.wait)
    pieces[0].gate.set()
    waiter.start()
    while len(begun) < 2:
        time.sleep(0.001)
    assert not operation.done(0)
    operation.end()
    assert operation.done(0) and operation.error
    pieces[1].gate.set()
    waiter.join(10)
    assert not waiter.is_alive() and begun == pieces[:2]


def mismatch_body():
    """A mismatch ends in order, and the group can be used afterwards."""
    rank, _ = start()
    target = {"w": torch.full((4,), 7.0)}
    transport = transport_over_group(state_dict=lambda: target)
    if rank == 0:
        with pytest.raises(wherry.errors.Aborted, match="shapes differ"):
            transport.send_checkpoint([1], {"w": torch.zeros(5)})
        transport.send_checkpoint([1], {"w": torch.ones(4)})
    else:
        with pytest.raises(wherry.errors.Mismatch, match="shapes differ") as caught:
            transport.recv_checkpoint(0)
        assert caught.value.path == "w"
        assert target["w"].tolist() == [7.0] * 4
        transport.recv_checkpoint(0)
        assert target["w"].tolist() == [1.0] * 4
    assert threads() == []
    dist.destroy_process_group()


def test_a_mismatch_leaves_the_group_usable():
    with launch.job(2) as job:
        job.run(mismatch_body)


def timeout_body():
    """A timeout breaks gloo. The error says so, and a new group works."""
    rank, _ = start()
    if rank == 1:
        transport = transport_over_group(timeout=0.4)
        began = time.monotonic()
        with pytest.raises(wherry.errors.Timeout, match="[Tt]imed out"):
            transport.recv_checkpoint(0)
        assert time.monotonic() - began < 5
        assert threads() == []
        with pytest.raises(wherry.errors.Closed, match="create a new one"):
            transport.recv_checkpoint(0)
        launch.say("over")
    launch.wait_for("over")
    dist.destroy_process_group()
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False
    )
    dist.init_process_group("gloo", store=dist.PrefixStore("again", store), rank=rank, world_size=2)
    transport = transport_over_group()
    if rank == 0:
        transport.send_checkpoint([1], plain_state(1))
    else:
        assert_same(plain_state(1), transport.recv_checkpoint(0))
    dist.destroy_process_group()


def test_a_timeout_breaks_the_group_and_a_new_one_works():
    with launch.job(2) as job:
        job.run(timeout_body)


def interrupt_body():
    rank, _ = start()
    transport = transport_over_group()
    if rank == 1:
        launch.when_asleep(os.kill, os.getpid(), signal.SIGINT)
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            transport.recv_checkpoint(0)
        assert time.monotonic() - began < 5
        assert threads() == []
        with pytest.raises(wherry.errors.Closed, match="create a new one"):
            transport.recv_checkpoint(0)
        launch.say("over")
    launch.wait_for("over")
    dist.destroy_process_group()


def test_interrupted_while_waiting():
    with launch.job(2) as job:
        job.run(interrupt_body)


def no_beginning_body():
    """The library refuses the group: reader threads end, and the group counts as broken."""
    rank, _ = start()
    if rank == 1:

        def refuse(*_):
            raise wherry.errors.NoMemory("none is left")

        transport = transport_over_group()
        kept, _core.Group = _core.Group, type("Group", (), {"from_table": staticmethod(refuse)})
        with pytest.raises(wherry.errors.NoMemory):
            transport.recv_checkpoint(0)
        _core.Group = kept
        assert threads() == []
        with pytest.raises(wherry.errors.Closed, match="could not start"):
            transport.recv_checkpoint(0)
        launch.say("over")
    launch.wait_for("over")
    dist.destroy_process_group()


def test_a_session_that_cannot_begin():
    with launch.job(2) as job:
        job.run(no_beginning_body)


class Backend:
    """A process group of a backend that this machine may not have."""

    rank, size, send, recv = (lambda self: 0), (lambda self: 2), None, None

    def __init__(self, name):
        self.name = lambda: name


def test_only_gloo_carries_a_transfer():
    """Other backends ignore tags, or write into memory after the operation was abandoned."""
    assert [name for name in ("gloo", "GLOO", "mpi", "nccl", "xccl") if is_gloo(Backend(name))] == [
        "gloo",
        "GLOO",
    ]
    assert not is_gloo(object())
    for name in ("nccl", "xccl", "mpi"):
        with PGTransport(Backend(name), 1, "cpu", lanes="group") as transport:
            with pytest.raises(
                wherry.errors.InvalidArgument,
                match=f"gloo only, but the backend of this process group is {name}",
            ):
                transport.recv_checkpoint(1)


def nonsense_body(before):
    """Bytes that are not a frame are refused, and the group is broken, because it is out of
    step."""
    rank, _ = start()
    if rank == 0:
        frame = torch.full((_pg_session.FRAME_BYTES,), 255, dtype=torch.uint8)
        dist.group.WORLD.send([frame], 1, _pg_session._TAG).wait()
        launch.wait_for("noticed")
        return
    send = _pg_session.PgSession.send

    def send_late(self, *arguments):
        while before and not self.broken:
            time.sleep(0.01)
        return send(self, *arguments)

    _pg_session.PgSession.send = send_late
    transport = transport_over_group(timeout=20)
    with pytest.raises(wherry.errors.PeerError, match="not a valid frame") as caught:
        transport.recv_checkpoint(0)
    assert caught.value.rank == 0
    with pytest.raises(wherry.errors.Closed, match="create a new one"):
        transport.recv_checkpoint(0)
    launch.say("noticed")


@pytest.mark.parametrize("before", [False, True])
def test_nonsense(before):
    """`before`: the block arrives before this rank has sent anything."""
    with launch.job(2) as job:
        job.run(nonsense_body, before)


def dying_body(dies):
    """One side is killed during a transfer. The other side notices at once, and survives."""
    rank, _ = start()
    state = {f"w{i}": torch.zeros(4 << 20) for i in range(64)}  # 1 GiB

    def stop(progress):
        if rank == dies and progress.bytes > 64 << 20:
            os.kill(os.getpid(), signal.SIGKILL)

    transport = transport_over_group(progress=stop, state_dict=lambda: state)
    began = time.monotonic()
    with pytest.raises(wherry.errors.PeerError) as caught:
        transport.send_checkpoint([1], state) if rank == 0 else transport.recv_checkpoint(0)
    assert caught.value.rank == dies
    assert time.monotonic() - began < 20
    with pytest.raises(wherry.errors.Closed, match="create a new one"):
        transport.recv_checkpoint(dies)
    return "lives"


@pytest.mark.parametrize("dies", [0, 1])
def test_a_side_that_dies(dies):
    with launch.job(2) as job:
        job.start_all(dying_body, dies)
        assert job.finish(killed=(dies,))[1 - dies] == "lives"


# ---- the end of the process ----


PAIR = """
    import ctypes, os, signal, sys, threading, time
    from datetime import timedelta
    import torch, torch.distributed as dist, wherry
    from wherry.torch import _pg_session
    store, pgs = dist.HashStore(), {}
    def make(rank):
        pgs[rank] = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=20))
    makers = [threading.Thread(target=make, args=(rank,)) for rank in (0, 1)]
    for maker in makers: maker.start()
    for maker in makers: maker.join()
"""


def run(script):
    """Runs a script with two ranks in a new process. Returns exit code, stdout and stderr."""
    whole = textwrap.dedent(PAIR) + textwrap.dedent(script)
    found = subprocess.run(
        [sys.executable, "-c", whole], capture_output=True, text=True, timeout=60
    )
    return found.returncode, launch.without_notes_of_gloo(found.stdout), found.stderr


def test_a_wait_that_nothing_wakes_does_not_abort_the_exit():
    """The wait returns while the interpreter shuts down, which takes long here."""
    code, output, errors = run("""
        class Slow:  # deleted late
            libc = ctypes.PyDLL(None)
            def __del__(self, libc=libc):
                libc.sleep(3)
        sys.slow = Slow()
        tensor = torch.zeros(8)
        limit = timedelta(seconds=2)
        operation = _pg_session.Operation([pgs[1].recv([tensor], 0, 1)], tensor, 0, limit)
        operation.end = lambda: None
        threading.Thread(target=operation.wait, daemon=True).start()
        while not operation.waits_until: time.sleep(0.001)
        operation._done.set()
        print("done")
    """)
    assert (code, output) == (0, "done\n"), errors


def test_a_wait_with_much_time_left_is_ended_at_exit():
    """Without this, only the end of the group would wake the wait, and that would be too late."""
    began = time.monotonic()
    code, output, errors = run("""
        tensor = torch.zeros(8)
        limit = timedelta(seconds=50)
        operation = _pg_session.Operation([pgs[1].recv([tensor], 0, 1)], tensor, 0, limit)
        threading.Thread(target=operation.wait, daemon=True).start()
        while not operation.waits_until: time.sleep(0.001)
        print("done")
    """)
    assert (code, output) == (0, "done\n"), errors
    assert time.monotonic() - began < 40


@pytest.mark.parametrize("dies", [0, 1])
def test_a_side_dies_and_the_other_exits_at_once(dies):
    with launch.job(2) as job:
        job.start_all(dying_body, dies, spawn=True)
        assert job.finish(killed=(dies,))[1 - dies] == "lives"
