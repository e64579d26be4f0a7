"""wherry.torchft.Transport inside torchft's Manager: replicas are killed, restarted and healed."""

import os
import signal
import time
from datetime import timedelta

import launch
import pytest
import torch
import torch.distributed as dist
from torch_states import differences


def last_step():
    """The step at which all replicas end. The restarted replica sets it, a few steps ahead."""
    return launch.wait_for("last step") if launch.is_said("last step") else 1000


def replica_body(lighthouse, asynchronous, in_place, life):
    """A replica of one rank. Rank 1 kills itself in its first life. Returns the weights."""
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
    from wherry.torchft import Transport

    limit = timedelta(seconds=20)
    rank = launch.rank()
    torch.manual_seed(rank)  # each starts with other weights; the first step makes them equal
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    adam = torch.optim.Adam(model.parameters(), 1e-2)

    def state():
        return {"model": model.state_dict(), "optimizer": adam.state_dict()}

    def load(found):
        model.load_state_dict(found["model"])
        adam.load_state_dict(found["optimizer"])

    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    transport = Transport(
        limit, state_dict=(lambda: manager._manager_state_dict()) if in_place else None
    )
    manager = Manager(
        pg=ProcessGroupGloo(timeout=limit), min_replica_size=2, load_state_dict=load, state_dict=state, replica_id=f"replica_{rank}",
        store_addr="localhost", store_port=store.port, rank=0, world_size=1, lighthouse_addr=lighthouse, timeout=limit,
        quorum_timeout=limit, connect_timeout=limit, use_async_quorum=asynchronous, checkpoint_transport=transport,
    )  # fmt: skip
    wrapped = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, adam)
    while manager.current_step() < last_step():
        if rank == 1 and life == 1 and manager.current_step() == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        torch.manual_seed(100 * manager.current_step() + rank)
        optimizer.zero_grad()
        wrapped(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        if (
            rank == 1
            and life == 2
            and manager.current_step() > 3
            and not launch.is_said("last step")
        ):
            launch.say("last step", manager.current_step() + 4)
        time.sleep(0.02)
    lane = transport.last_stats.lane if transport.last_stats else None
    weights = {name: value.tolist() for name, value in model.state_dict().items()}
    moments = [value["exp_avg"].tolist() for value in adam.state_dict()["state"].values()]
    launch.say(f"done {rank}")
    for other in range(3):  # the lighthouse counts live replicas
        launch.wait_for(f"done {other}")
    manager.shutdown(wait=False)
    return [weights, moments, lane]


@pytest.mark.parametrize("asynchronous, in_place", [(True, False), (False, False), (False, True)])
def test_a_replica_that_is_killed_is_healed(asynchronous, in_place):
    coordination = pytest.importorskip(
        "torchft.coordination", reason="torchft is not installed: pip install torchft"
    )
    lighthouse = coordination.LighthouseServer(
        bind="0.0.0.0:0", min_replicas=2, join_timeout_ms=100
    )
    try:
        with launch.job(3, {"TORCHFT_LIGHTHOUSE": lighthouse.address()}, store=False) as job:
            for rank in range(3):
                job.start(rank, replica_body, lighthouse.address(), asynchronous, in_place, 1)
            until = time.monotonic() + 60
            while job.ranks[1].status is None and time.monotonic() < until:
                time.sleep(0.05)
            assert job.ranks[1].status == -signal.SIGKILL, job.ranks[1].output
            job.start(1, replica_body, lighthouse.address(), asynchronous, in_place, 2)
            results = job.finish(120)
    finally:
        lighthouse.shutdown()
    assert not differences(results[0][:2], results[1][:2]) and not differences(
        results[0][:2], results[2][:2]
    )
    assert results[1][2] in ("cma", "ring")
