"""The Python package between hosts: PGTransport over gloo, and torchft's transport."""

import os
from datetime import timedelta

import hosts
import launch
import pytest
import torch.distributed as dist
import wherry
from torch_states import assert_same, clone, finish, plain_state, start
from wherry import torchft
from wherry.torch import PGTransport

LIMIT = timedelta(seconds=20)


# ---- torch ----


def gloo_body(lane):
    """Transfers in both directions, in place, with a rank on each host and another one on the
    source's host."""
    rank, size = start()
    assert size == 3
    target = plain_state(rank)
    with PGTransport(
        dist.group.WORLD, LIMIT, "cpu", state_dict=lambda: target, lanes=f"cma,{lane}"
    ) as transport:
        assert os.environ["MASTER_ADDR"] != "127.0.0.1"
        taken = {}
        for source, others in ((0, [1, 2]), (1, [0])):
            if rank == source:
                outcomes = transport.send_checkpoint(others, plain_state(10 + source))
                taken = {one.rank: one.stats.lane for one in outcomes}
            elif rank in others:
                assert_same(plain_state(10 + source), transport.recv_checkpoint(source))
    finish()
    return taken


def test_pgtransport_meets_by_the_store(lane):
    """Ranks 0 and 2 are on one host, rank 1 on another."""
    with (
        hosts.World(2) as world,
        launch.job(
            3, hosts=[*world.hosts, world.hosts[0]], env=world.environment(TORCH_GLOO_LAZY_INIT=0)
        ) as job,
    ):
        assert job.run(gloo_body, lane) == [{"1": lane, "2": "cma"}, {"0": lane}, {}]


# ---- torchft ----


def torchft_body(lane):
    """As in a Manager, torchft passes the metadata of the healthy replica to the replica that
    heals."""
    transport = torchft.Transport(timeout=LIMIT, lanes=lane)
    state = {"model": plain_state(4, mib=8), "torchft": {"step": 7, "batches_committed": 70}}
    if launch.rank() == 0:
        transport.send_checkpoint([1], 7, clone(state), LIMIT)
        launch.say("metadata", transport.metadata())
        launch.wait_for("healed")
        transport.disallow_checkpoint()
    else:
        assert_same(state, transport.recv_checkpoint(0, launch.wait_for("metadata"), 7, LIMIT))
        launch.say("healed")
        assert transport.last_stats.lane == lane
    transport.shutdown()


def test_torchft_heals_a_replica_on_another_host(lane):
    """The lighthouse is on the first host. From the route to the lighthouse, each replica learns
    the address at which others reach it."""
    with hosts.World(2) as world:
        env = world.environment(TORCHFT_LIGHTHOUSE=f"http://{world.hosts[0].name}:29510")
        with launch.job(2, hosts=world.hosts, env=env) as job:
            job.run(torchft_body, lane)


def torchft_without_secret_body():
    with torchft.Transport(timeout=LIMIT) as transport:
        if launch.rank() == 0:
            transport.send_checkpoint([1], 7, {"a": 1}, LIMIT)
            launch.say("metadata", transport.metadata())
            return launch.wait_for("refused")
        with pytest.raises(wherry.errors.InvalidArgument, match="set WHERRY_SECRET") as caught:
            transport.recv_checkpoint(0, launch.wait_for("metadata"), 7, LIMIT)
        launch.say("refused", str(caught.value))


def test_torchft_says_that_several_hosts_need_a_secret():
    with hosts.World(2) as world:
        lighthouse = f"http://{world.hosts[0].name}:29510"
        env = world.environment(TORCHFT_LIGHTHOUSE=lighthouse, WHERRY_SECRET="")
        with launch.job(2, hosts=world.hosts, env=env) as job:
            assert "on another host" in job.run(torchft_without_secret_body)[0]
