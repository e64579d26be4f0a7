"""Cards in frames, through a group without a store that is found: failures leave no thread behind, and whole groups whole."""

import subprocess
import sys
import textwrap
import time

import launch
import pytest
import torch
import torch.distributed as dist
import wherry
from torch_states import Hidden, exchange, finish, start
from wherry.torch import PGTransport

PAIR = """
    import ctypes, os, signal, sys, threading, time
    from datetime import timedelta
    import torch, torch.distributed as dist, wherry
    from wherry.torch import PGTransport, _table
    store, pgs = dist.HashStore(), {}
    def make(rank):
        pgs[rank] = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=20))
    makers = [threading.Thread(target=make, args=(rank,)) for rank in (0, 1)]
    for maker in makers: maker.start()
    for maker in makers: maker.join()
"""


def run(script):
    """A process of its own that ends as processes do, with two ranks in it. Returns its exit code and what it said."""
    whole = textwrap.dedent(PAIR) + textwrap.dedent(script)
    found = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, timeout=60)
    return found.returncode, found.stdout, found.stderr


@pytest.mark.parametrize("how", ["interrupt", "timeout"])
@pytest.mark.parametrize("side", ["receive", "send"])
def test_giving_up_leaves_no_thread_and_the_process_ends_well(how, side):
    """The other rank never comes: a receiver waits for a card, a source for one that is taken, whatever the other says."""
    code, output, errors = run(f"""
        transport = PGTransport(pgs[1], {0.5 if how == "timeout" else 20}, "cpu")
        if {how == "interrupt"}:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        began = time.monotonic()
        try:
            if {side == "receive"}:
                transport.recv_checkpoint(0)
            else:
                way = transport._find_way()
                way._frames.settle(way._frames.send([0], "card")[0], 0, wherry._options.Deadline(transport._timeout))
        except (wherry.Timeout, KeyboardInterrupt) as error:
            names = [one.name for one in threading.enumerate() if one.name.startswith("wherry-card")]
            print(type(error).__name__, names, time.monotonic() - began < 5)
    """)
    expected = "KeyboardInterrupt" if how == "interrupt" else "Timeout"
    assert (code, output) == (0, f"{expected} [] True\n"), errors


def test_a_wait_that_nothing_wakes_does_not_abort_the_exit():
    """It comes back while the interpreter is being taken apart, which takes long here."""
    code, output, errors = run("""
        class Slow:  # taken apart late
            libc = ctypes.PyDLL(None)
            def __del__(self, libc=libc):
                libc.sleep(3)
        sys.slow = Slow()
        tensor = torch.zeros(8)
        operation = _table.Operation([pgs[1].recv([tensor], 0, 1)], tensor, 0, timedelta(seconds=2))
        operation.end = lambda: None
        threading.Thread(target=operation.wait, daemon=True).start()
        time.sleep(0.2)
        operation._done.set()
        print("done")
    """)
    assert (code, output) == (0, "done\n"), errors


def test_a_wait_with_much_time_left_is_ended_at_exit():
    """Otherwise the end of the group wakes it, which is too late."""
    began = time.monotonic()
    code, output, errors = run("""
        tensor = torch.zeros(8)
        operation = _table.Operation([pgs[1].recv([tensor], 0, 1)], tensor, 0, timedelta(seconds=50))
        threading.Thread(target=operation.wait, daemon=True).start()
        time.sleep(0.2)
        print("done")
    """)
    assert (code, output) == (0, "done\n"), errors
    assert time.monotonic() - began < 40


def dying_body(dies):
    """Killed while a block moves; the other one ends at once, as processes do."""
    from test_pgtransport_group import dying_body as body

    return body(dies)


@pytest.mark.parametrize("dies", [0, 1])
def test_a_side_that_dies_and_the_other_that_exits_at_once(dies):
    with launch.job(2) as job:
        job.start_all(dying_body, dies, spawn=True)
        assert job.finish(killed=(dies,))[1 - dies] == "lives"


def mismatch_body():
    """A receiver that does not fit, and one that cannot: their cards were taken, so the group stays whole."""
    rank, _ = start()
    pg = Hidden(dist.group.WORLD)
    for target, sent in ({"w": torch.zeros(3)}, {"w": torch.zeros(4)}), (None, {"w": wherry_only()}):
        with PGTransport(pg, 20, "cpu", target and (lambda: target)) as transport:
            with pytest.raises((wherry.Aborted, wherry.Mismatch, wherry.Unsupported)):
                transport.send_checkpoint([1], sent) if rank == 0 else transport.recv_checkpoint(0)
            assert transport._holder.way._frames._kept == []
            dist.barrier()
    with PGTransport(pg, 20, "cpu") as transport:
        exchange(rank, 0, 1, transport)
        exchange(rank, 1, 0, transport)
        dist.barrier()
    finish()


def wherry_only():
    """What a rank sends that the other has no class for."""
    import codec_types

    if launch.rank() == 1:
        del codec_types.Pair
        return None
    return codec_types.Pair(1, 2)


def test_a_mismatch_leaves_the_group_whole():
    with launch.job(2) as job:
        job.run(mismatch_body)


def untaken_body():
    """Nobody takes a card: it is still under way when the harbour closes, so the group is out of step, and that is said."""
    rank, _ = start()
    pg = Hidden(dist.group.WORLD)
    if rank == 0:
        with PGTransport(pg, 0.3, "cpu") as transport, pytest.raises(wherry.Timeout):
            transport.send_checkpoint([1], {})
        with PGTransport(pg, 5, "cpu") as transport, pytest.raises(wherry.Closed, match="never taken"):
            transport.send_checkpoint([1], {})
        launch.say("over")
    launch.wait_for("over")


def test_a_card_that_nobody_takes_breaks_the_group():
    with launch.job(2) as job:
        job.run(untaken_body)


def closed_body():
    """Another thread takes a link away after the card came: that is an error at once, and no wait for a second card."""
    rank, _ = start()
    with PGTransport(Hidden(dist.group.WORLD), 10, "cpu") as transport:
        exchange(rank, 0, 1, transport)
        if rank == 0:
            with pytest.raises(wherry.Error):
                transport.send_checkpoint([1], {"x": 1}, timeout=3)
        else:
            way = transport._holder.way
            known = way._known

            def take_away(source):
                card, link = known(source)
                link.close()
                return card, link

            way._known = take_away
            began = time.monotonic()
            with pytest.raises(wherry.Closed):
                transport.recv_checkpoint(0)
            assert time.monotonic() - began < 2


def test_no_second_card_is_waited_for():
    with launch.job(2) as job:
        job.run(closed_body)
