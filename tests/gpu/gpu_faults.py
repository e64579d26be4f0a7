"""A rank dies during a transfer from or into GPU memory: the result of the other rank."""

import time

import gpu_states as gpu
import launch
import torch
import torch.distributed as dist
import wherry
from gpu_states import DEVICE, MIB, ON_GPU, transport

#: Enough bytes that a slow lane needs seconds, so that a rank can be killed meanwhile.
PARTS = 64 if ON_GPU else 12


def state(fill):
    return {f"w{i}": torch.full((64 * MIB // 4,), fill, device=DEVICE) for i in range(PARTS)}


def device_works():
    assert float(torch.ones(1000, device=DEVICE).sum()) == 1000.0


def report(progress):
    if progress.bytes and not launch.is_said("moving"):
        launch.say("moving")


def pause_then_kill(victim):
    """The test kills the source or the receiver as soon as bytes move. The other one notices, and
    can continue."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    target = state(0.0) if rank else None
    mine = state(1.0) if rank == 0 else None
    options = {"lanes": "stream", "threads": 1, "progress": report}
    with transport(target, **options) as way:
        begin = time.monotonic()
        try:
            way.recv_checkpoint(0) if rank else way.send_checkpoint([1], mine)
            raise AssertionError(
                f"the transfer was done before rank {victim} was killed: make it larger"
            )
        except wherry.errors.PeerLost as error:
            assert rank != victim
            print(f"after {time.monotonic() - begin:.2f} s: {error}")
    device_works()
    launch.say("noticed")
    # The rank that takes its place is served over another group, because gloo's has a dead rank.
    with wherry.Group.join(
        f"unix://{launch.wait_for('meeting')}?rank={rank}&size=2", timeout=30
    ) as group:
        if rank == 0:
            wherry.send(group, 1, {"x": mine["w3"]}, timeout=30)
        else:
            assert bool((wherry.recv(group, 0, {"x": target["w3"]}, timeout=30)["x"] == 1.0).all())
        group.barrier(1, timeout=30)
    device_works()


def newcomer(rank):
    tensor = torch.full((64 * MIB // 4,), 1.0 if rank == 0 else 0.0, device=DEVICE)
    with wherry.Group.join(
        f"unix://{launch.wait_for('meeting')}?rank={rank}&size=2", timeout=30
    ) as group:
        if rank == 0:
            wherry.send(group, 1, {"x": tensor}, timeout=30)
        else:
            assert bool((wherry.recv(group, 0, {"x": tensor}, timeout=30)["x"] == 1.0).all())
        group.barrier(1, timeout=30)


__all__ = ["newcomer", "pause_then_kill"]
_ = gpu
