"""Links that are cut, hosts that die, and ranks that return on another host."""

import os
import signal
import time

import hosts
import launch
import pytest
import wherry
from test_hosts import a_state, check

#: Time limit for ranks to notice the loss of a link. docs/groups.md says five seconds; this machine
#: may be busy.
LINK_SECONDS = 5 + 4


# ---- a cut link ----

BIG = 64


def cut_body(lane):
    """Rank 0 sends to ranks 1 and 2. The link to rank 1 is cut in the middle. Then it is mended,
    and rank 1 asks again."""

    def moved(progress):
        if group.rank == 1 and progress.bytes > progress.total / 8:
            launch.say("moving")

    def awaits(kind, call):
        with pytest.raises(kind) as caught:
            call()
        seconds = time.time() - launch.wait_for("cut")
        assert seconds < LINK_SECONDS, f"told after {seconds:.1f} s: {caught.value}"
        return caught.value

    with wherry.Group.join("env://", 30) as group:
        group.barrier(1, 30)
        if group.rank == 0:
            error = awaits(
                wherry.errors.PeerLost,
                lambda: wherry.send(group, [1, 2], a_state(5, BIG), timeout=60, lanes=lane),
            )
            assert [(one.rank, one.ok) for one in error.outcomes] == [
                (1, False),
                (2, True),
            ] and error.rank == 1
            wherry.send(group, [2], a_state(6), timeout=20, lanes=lane)  # The other ranks continue.
        elif group.rank == 1:
            error = awaits(
                wherry.errors.PeerError,
                lambda: wherry.recv(group, 0, timeout=60, lanes=lane, progress=moved),
            )
            assert error.rank == 0 and error.stats.lane == lane
            launch.say("lost")
        else:
            check(wherry.recv(group, 0, timeout=60, lanes=lane), 5, BIG)
            check(wherry.recv(group, 0, timeout=60, lanes=lane), 6)
        launch.wait_for("mended")
        if group.rank == 0:
            wherry.send(group, [1], a_state(7, BIG), timeout=30, lanes=lane)
        elif group.rank == 1:
            check(wherry.recv(group, 0, timeout=30, lanes=lane), 7, BIG)


def test_a_link_is_cut_in_the_middle(lane):
    with (
        hosts.World(3, rate_mbit=400) as world,
        launch.job(3, hosts=world.hosts, env=world.environment()) as job,
    ):
        job.start_all(cut_body, lane)
        job.wait_for_file("moving")
        world.cut(1)
        job.say("cut", time.time())
        job.wait_for_file("lost")
        world.mend(1)
        job.say("mended")
        job.finish(30)


# ---- another host ----


def greet_again(group, rank):
    """Exchanges a message with a rank that was replaced. A rank that has not heard of the new
    process yet greets the old one, and learns of its loss while it waits for the answer."""
    until = time.monotonic() + LINK_SECONDS
    while True:
        try:
            group.send(rank, 5, b"hello", 20)
            return group.recv(rank, 5, 20)[1]
        except wherry.errors.PeerLost:
            if time.monotonic() > until:
                raise


def survivor_body(lane):
    """What the other ranks do: they meet the rank that comes back, and the next rank heals it."""
    with wherry.Group.join("env://", 30) as group:
        group.barrier(1, 30)
        launch.say(f"ready {group.rank}")
        lost = launch.wait_for("signalled")
        began = time.monotonic()
        while group.alive(lost) and not launch.is_said("back"):
            assert time.monotonic() - began < LINK_SECONDS
            time.sleep(0.01)
        launch.wait_for("back")
        began = time.monotonic()
        while not group.alive(lost):  # It has met one of the others, and that one tells the rest.
            assert time.monotonic() - began < LINK_SECONDS
            time.sleep(0.01)
        source = (lost + 1) % group.size
        if group.rank == source:
            wherry.send(group, [lost], a_state(8, 4), timeout=30, lanes=lane)
        assert greet_again(group, lost) == f"of {lost}".encode()
        group.barrier(2, 30)


def victim_body():
    with wherry.Group.join("env://", 30) as group:
        group.barrier(1, 30)
        launch.say(f"ready {group.rank}")
        group.recv(wherry.ANY_RANK, 99, 60)


def returned_body(lane):
    with wherry.Group.join("env://", 20, wait_for=2) as group:
        launch.say("back")
        check(wherry.recv(group, (group.rank + 1) % group.size, timeout=30, lanes=lane), 8, 4)
        for rank in range(group.size):
            if rank != group.rank:
                assert group.recv(rank, 5, 20)[1] == b"hello"
                group.send(rank, 5, f"of {group.rank}".encode(), 20)
        group.barrier(2, 30)
        return os.uname().nodename


@pytest.mark.parametrize("rank, power", [(0, False), (2, False), (0, True)])
def test_a_rank_returns_on_another_host(rank, power, lane):
    """Rank r is on host r, and host 3 is the spare one. With `power`, the whole host ends without
    sending any packet."""
    with hosts.World(4) as world:
        meeting = ",".join(f"{host.name}:29600" for host in world.hosts[:2])
        with launch.job(
            3, hosts=world.hosts, env=world.environment(WHERRY_RENDEZVOUS=meeting)
        ) as job:
            for one in range(3):
                job.start(one, *((victim_body,) if one == rank else (survivor_body, lane)))
            for one in range(3):
                job.wait_for_file(f"ready {one}")
            if power:
                world.power_off(rank)
            else:
                job.ranks[rank].signal(signal.SIGKILL)
            job.say("signalled", rank)
            job.start(rank, returned_body, lane, host=world.hosts[3])
            assert job.finish(60)[rank] == "host3"


def test_a_rank_joins_while_the_host_of_the_meeting_is_stopped(lane):
    """Rank 0, which listens at the first meeting point, is stopped. Rank 2 comes back through the
    second one."""
    with hosts.World(3) as world:
        meeting = ",".join(f"{host.name}:29600" for host in world.hosts[:2])
        with launch.job(
            3, hosts=world.hosts, env=world.environment(WHERRY_RENDEZVOUS=meeting)
        ) as job:
            job.start(0, victim_body)
            job.start(1, stopped_source_body, lane)
            job.start(2, victim_body)
            for one in range(3):
                job.wait_for_file(f"ready {one}")
            job.ranks[0].signal(signal.SIGSTOP)
            job.ranks[2].signal(signal.SIGKILL)
            began = time.monotonic()
            job.start(2, stopped_newcomer_body, lane)
            job.wait_for_file("back")
            assert time.monotonic() - began < LINK_SECONDS
            job.wait_for_file("done")


def stopped_source_body(lane):
    with wherry.Group.join("env://", 30) as group:
        group.barrier(1, 30)
        launch.say("ready 1")
        launch.wait_for("back")
        wherry.send(group, [2], a_state(9), timeout=20, lanes=lane)
        launch.wait_for("done")


def stopped_newcomer_body(lane):
    with wherry.Group.join("env://", 20, wait_for=2) as group:
        launch.say("back")
        check(wherry.recv(group, 1, timeout=20, lanes=lane), 9)
        launch.say("done")
