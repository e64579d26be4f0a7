"""lanes="group" as over NCCL and XCCL, where two ranks take turns; here over gloo, which carries it too."""

import threading
import time

import launch
import pytest
import torch
import torch.distributed as dist
import wherry
from torch_states import assert_same, clone, plain_state
from wherry.torch import PGTransport, _table


def start():
    dist.init_process_group("gloo")
    _table.takes_turns = lambda device: True
    return dist.get_rank(), dist.get_world_size()


def finish():
    assert [one.name for one in threading.enumerate() if one.name.startswith("wherry")] == []
    total = torch.ones(3)
    dist.all_reduce(total)  # the group itself works still
    assert total.tolist() == [dist.get_world_size()] * 3
    dist.destroy_process_group()


def ring_body():
    """Each rank in turn to the next, then from one to all, then in place, with more than fits into a frame or a block."""
    rank, size = start()
    transport = PGTransport(dist.group.WORLD, 30, "cpu", lanes="group")
    before, after = (rank - 1) % size, (rank + 1) % size
    state = {"from": rank, **plain_state(rank)}
    if rank == 0:
        transport.send_checkpoint([after], state)
    received = transport.recv_checkpoint(before)
    if rank:
        transport.send_checkpoint([after], state)
    assert_same({"from": before, **plain_state(before)}, received)
    assert transport.last_stats.lane == "stream"
    if rank == 1:
        transport.send_checkpoint([0, 2], plain_state(9))
    else:
        assert_same(plain_state(9), transport.recv_checkpoint(1))
    large = {"large": torch.arange(3 << 20), "small": [torch.full((3,), float(i)) for i in range(2000)]}
    target = clone(large)
    target["large"].zero_()
    placing = PGTransport(dist.group.WORLD, 30, "cpu", lambda: target, lanes="group", verify=True)
    if rank == 0:
        transport.send_checkpoint([2], large)
    elif rank == 2:
        assert placing.recv_checkpoint(0)["large"] is target["large"]
        assert_same(large, target)
    dist.barrier()
    finish()


def test_ring_fan_out_and_in_place():
    with launch.job(3) as job:
        job.run(ring_body)


def mismatch_body():
    """A mismatch ends in order: the group is of use afterwards."""
    rank, _ = start()
    target = {"w": torch.full((4,), 7.0)}
    transport = PGTransport(dist.group.WORLD, 30, "cpu", lambda: target, lanes="group")
    if rank == 0:
        with pytest.raises(wherry.Aborted, match="shapes differ"):
            transport.send_checkpoint([1], {"w": torch.zeros(5)})
        transport.send_checkpoint([1], {"w": torch.ones(4)})
    else:
        with pytest.raises(wherry.Mismatch, match="shapes differ"):
            transport.recv_checkpoint(0)
        assert target["w"].tolist() == [7.0] * 4
        transport.recv_checkpoint(0)
        assert target["w"].tolist() == [1.0] * 4
    finish()


def test_a_mismatch_leaves_the_group_usable():
    with launch.job(2) as job:
        job.run(mismatch_body)


def nonsense_body(before):
    """What is no frame of Wherry's is refused, and the group is broken: it is out of step."""
    rank, _ = start()
    if rank == 0:
        frame = torch.full((16 << 10,), 255, dtype=torch.uint8)
        dist.group.WORLD.send([frame], 1, _table._TAG).wait()
        dist.group.WORLD.recv([frame], 1, _table._TAG).wait()
        launch.wait_for("noticed")
        return
    send = _table._Table.send

    def send_late(self, *arguments):
        while before and not self._session.broken:
            time.sleep(0.01)
        return send(self, *arguments)

    _table._Table.send = send_late
    transport = PGTransport(dist.group.WORLD, 5, "cpu", lanes="group")
    with pytest.raises(wherry.PeerError, match="something else than a frame"):
        transport.recv_checkpoint(0)
    with pytest.raises(wherry.Closed, match="make it again"):
        transport.recv_checkpoint(0)
    launch.say("noticed")


@pytest.mark.parametrize("before", [False, True])
def test_nonsense(before):
    """`before`: it is there before this rank has said anything."""
    with launch.job(2) as job:
        job.run(nonsense_body, before)
