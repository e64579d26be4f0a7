"""Ranks on several hosts: which lane and which network the bytes take."""

import pathlib
import re
import subprocess
import sys
import time

import hosts
import launch
import pytest
import torch
import wherry

MIB = 1 << 20


def a_state(seed, mib=1):
    return {
        "w": torch.full((mib << 18,), float(seed)),
        "b": torch.arange(1000) + seed,
        "step": seed,
    }


def check(state, seed, mib=1):
    assert state["step"] == seed and torch.equal(state["b"], torch.arange(1000) + seed)
    assert state["w"].numel() == mib << 18 and bool((state["w"] == seed).all())


# ---- the lane ----


def everybody_body(lane):
    """Each rank sends to all others. Returns the lane to each of them."""
    taken = {}
    with wherry.Group.join("env://", 30) as group:
        for source in range(group.size):
            if group.rank == source:
                others = [rank for rank in range(group.size) if rank != source]
                outcomes = wherry.send(group, others, a_state(source), timeout=30, lanes=lane)
                taken = {one.rank: one.stats.lane for one in outcomes}
            else:
                check(wherry.recv(group, source, timeout=30, lanes=lane), source)
        group.barrier(1, 30)
    return taken


def test_four_hosts_of_two_ranks(lane):
    with (
        hosts.World(4) as world,
        launch.job(8, hosts=world.hosts * 2, env=world.environment()) as job,
    ):
        for source, taken in enumerate(job.run(everybody_body, f"cma,{lane}")):
            assert taken == {
                str(r): "cma" if r % 4 == source % 4 else lane for r in range(8) if r != source
            }


def one_to_one_body(mib=1, lane=None):
    """Rank 0 sends to the other rank, which returns how long it took."""
    with wherry.Group.join("env://", 30) as group:
        if group.rank == 0:
            wherry.send(group, [1], a_state(3, mib), timeout=50, lanes=lane)
        else:
            check(wherry.recv(group, 0, timeout=50, lanes=lane), 3, mib)


def run_pair(world, *arguments, **environment):
    """Runs two ranks on the first two hosts. Returns the lines of the receiver's log."""
    with launch.job(
        2, hosts=world.hosts, env=world.environment(WHERRY_LOG="info", **environment)
    ) as job:
        job.run(one_to_one_body, *arguments)
        return job.ranks[1].output.splitlines()


def refusals(log):
    """The receiver's reasons for the lanes that it did not use."""
    found = (
        re.fullmatch(r"wherry: (?:info|warn): the lane (\w+) from rank 0 does not work: (.*)", line)
        for line in log
    )
    return {match[1]: match[2] for match in found if match}


@pytest.mark.parametrize(
    "one_machine, shared, lane, reasons",
    [
        (
            False,
            "",
            "stream",
            {"cma": "rank 0 is on another host", "ring": "rank 0 is on another host"},
        ),
        # Containers of one machine. Containers of one pod share the network; some share the pids.
        (
            True,
            "",
            "stream",
            {
                "cma": "rank 0 is in another pid namespace",
                "ring": "rank 0 is on this host, but in another network namespace",
            },
        ),
        (True, "net", "ring", {"cma": "rank 0 is in another pid namespace"}),
        (True, "pid", "cma", {}),
    ],
)
def test_hosts_and_containers_are_distinguished(one_machine, shared, lane, reasons):
    with hosts.World(2, one_machine=one_machine, shared=shared) as world:
        log = run_pair(world, 8, "cma,ring,stream")
    assert f"wherry: info: the lane from rank 0 is {lane}" in log
    found = refusals(log)
    assert set(found) == set(reasons) and all(
        found[one].startswith(reasons[one]) for one in reasons
    ), found


# ---- the network ----


def listens_at(log):
    return next(line.rpartition(" ")[2].rpartition(":")[0] for line in log if "listens at" in line)


@pytest.mark.parametrize("island", [0, 1])
def test_an_interface_that_leads_nowhere_is_not_advertised(island):
    """Each host has another interface too, such as one for containers, or one without a cable."""
    with hosts.World(2, networks=2) as world:
        for host in world.hosts:
            world.cut(host.number, island)
        log = run_pair(world, 4, MASTER_ADDR=world.hosts[0].address(1 - island))
        assert listens_at(log) == world.hosts[1].address(1 - island)
        assert world.hosts[0].sent(1 - island) > 4 * MIB > world.hosts[0].sent(island)


def test_the_bytes_take_the_network_that_is_named(lane):
    """The ranks meet on the first network, and the second is the fast one."""
    with hosts.World(2, networks=2) as world:
        more = {"UCX_NET_DEVICES": "eth1"} if lane == "ucx" else {}
        log = run_pair(world, 4, lane, WHERRY_INTERFACE="eth1", **more)
        way = f"to rank 0, from {world.hosts[1].address(1)} to {world.hosts[0].address(1)}"
        assert lane != "stream" or any(line.endswith(way) for line in log)
        assert listens_at(log) == world.hosts[1].address(1)
        assert world.hosts[0].sent(1) > 4 * MIB > world.hosts[0].sent(0)


def test_ipv6():
    with hosts.World(2) as world:
        for host in world.hosts:
            host.ip(f"addr add fd77::{host.number + 1}/64 dev eth0 nodad")
        log = run_pair(world, 1, "stream", WHERRY_RENDEZVOUS="[fd77::1]:29600")
    assert listens_at(log) == "[fd77::2]"
    assert any(line.endswith("to rank 0, from fd77::2 to fd77::1") for line in log)


@pytest.mark.parametrize("remedy", ["default route", "WHERRY_INTERFACE", ""])
def test_a_host_whose_own_name_leads_to_loopback(remedy):
    """As in Debian's /etc/hosts, the first host's name resolves to another address on that host
    itself. All ranks use this name."""
    with hosts.World(2, debian=True) as world:
        if remedy == "default route":
            for host in world.hosts:
                host.ip("route add default dev eth0")
        more = {"WHERRY_INTERFACE": "eth0"} if remedy == "WHERRY_INTERFACE" else {}
        with launch.job(
            2,
            hosts=world.hosts,
            env=world.environment(MASTER_ADDR="host0", WHERRY_LOG="info", **more),
        ) as job:
            if remedy:
                job.run(one_to_one_body)
                assert listens_at(job.ranks[0].output.splitlines()) == world.hosts[0].address()
            else:
                job.run(nobody_comes_body)
                assert (
                    "the name host0 leads to loopback on this host: other hosts cannot join"
                    in job.ranks[0].output
                )


def nobody_comes_body():
    with pytest.raises(wherry.errors.Timeout, match="1 of 2 ranks have not come"):
        wherry.Group.join("env://", 1)


def test_a_meeting_point_that_no_way_leads_to_is_passed_over():
    with hosts.World(2) as world:
        points = f"10.99.0.1:29600,{world.hosts[1].address()}:29600"
        log = run_pair(world, 1, WHERRY_RENDEZVOUS=points)
    assert listens_at(log) == world.hosts[1].address()


def wrong_network_body(cut):
    with wherry.Group.join("env://", 20) as group:
        if group.rank == 0:
            with pytest.raises(wherry.errors.PeerError):
                wherry.send(group, [1], a_state(3), timeout=20, lanes="stream")
        else:
            with pytest.raises(wherry.errors.PeerLost, match=f"at {cut}:") as caught:
                wherry.recv(group, 0, timeout=20, lanes="stream")
            assert caught.value.rank == 0 and "WHERRY_INTERFACE" in str(caught.value)


def test_a_network_that_leads_nowhere_is_named_in_the_error():
    with hosts.World(2, networks=2) as world:
        for host in world.hosts:
            world.cut(host.number, 1)
        with launch.job(
            2, hosts=world.hosts, env=world.environment(WHERRY_INTERFACE="eth1")
        ) as job:
            job.run(wrong_network_body, world.hosts[0].address(1))


# ---- far and lossy ----


def test_far_away_and_lossy(lane, needs_wire):
    with hosts.World(2, delay_ms=100, loss=0.01) as world:
        log = run_pair(world, 4, lane)
    assert f"wherry: info: the lane from rank 0 is {lane}" in log


def test_few_round_trips(needs_wire):
    """A receiver needs three round trips before the bytes move, because it opens all channels at
    once."""
    with hosts.World(2, delay_ms=300) as world:
        log = run_pair(world, 1, "stream")
    plan = next(re.search(r"plan ([0-9.]+)", line) for line in log if "info: received" in line)
    assert 3 * 0.6 - 0.02 < float(plan[1]) < 4 * 0.6 - 0.01, log


# ---- the harness itself ----


MAKER = """
import sys, time
sys.path.insert(0, sys.argv[1])
import hosts
world = hosts.World(2, delay_ms=1)
print(world.switch.pid, world.wire.pid, *(host.pid for host in world.hosts), flush=True)
time.sleep(60)
"""


def test_nothing_is_left_of_hosts_whose_test_was_killed(needs_wire):
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER, hosts.HERE], stdout=subprocess.PIPE, text=True
    )
    keepers = [int(pid) for pid in maker.stdout.readline().split()]
    assert len(keepers) == 4
    maker.kill()
    maker.communicate()
    until = time.monotonic() + 10
    while any(
        pathlib.Path(f"/proc/{pid}/ns/net").exists() for pid in keepers
    ):  # A process that has ended has no namespace.
        assert time.monotonic() < until
        time.sleep(0.01)
