"""How the ranks of a process group find each other."""

import os
import signal
import time

import launch
import pytest
import torch
import torch.distributed as dist
import wherry
from torch_states import Hidden, assert_same, exchange, finish, plain_state, start
from wherry import _rendezvous
from wherry._rendezvous import Ticket
from wherry.torch import PGTransport, _process_group
from wherry.torch._rendezvous import AddressRendezvous


# ---- who takes part ----


def subgroup_body():
    """A group numbers its ranks itself. In the group of ranks 1 and 3, rank 1 is rank 0."""
    rank, _ = start()
    odd = dist.new_group([1, 3])
    pair = dist.new_group([2, 1, 3])
    if rank in (1, 3):
        with PGTransport(odd, 20, "cpu") as transport:
            exchange(dist.get_rank(odd), 0, 1, transport, {"from": "rank 1", "w": torch.ones(3)})
            exchange(dist.get_rank(odd), 1, 0, transport, {"from": "rank 3", "w": torch.zeros(3)})
            with pytest.raises(wherry.errors.InvalidArgument, match="0 to 1"):
                transport.send_checkpoint([2], {})
    if rank in (1, 2, 3):
        mine = dist.get_rank(pair)
        with PGTransport(pair, 20, "cpu") as transport:
            exchange(mine, 0, 2, transport, {"who": dist.get_global_rank(pair, 0)})
            if mine == 0:
                with pytest.raises(wherry.errors.Timeout) as caught:
                    transport.send_checkpoint([1], {}, timeout=0.2)
                assert caught.value.rank == 1 == caught.value.outcomes[0].rank
    finish()


def test_a_subgroup_whose_ranks_are_not_those_of_the_job():
    with launch.job(4) as job:
        job.run(subgroup_body)


def only_two_body():
    rank, _ = start()
    if rank in (2, 4):
        with PGTransport(dist.group.WORLD, 20, "cpu") as transport:
            exchange(rank, 4, 2, transport)
    finish()


def test_ranks_that_take_no_part_have_nothing_to_do():
    with launch.job(5) as job:
        job.run(only_two_body)


# ---- where the ranks meet ----


def no_store_body(port):
    """If the store of a group cannot be found, the error says what to do, and doing it helps."""
    rank, _ = start()
    pg = Hidden(dist.group.WORLD)
    assert _process_group.store_of(_process_group.unwrap(pg)) is None
    with (
        PGTransport(pg, 20, "cpu") as transport,
        pytest.raises(wherry.errors.InvalidArgument, match="has no store, .*: pass address="),
    ):
        transport.send_checkpoint([1], {}) if rank == 0 else transport.recv_checkpoint(0)
    with PGTransport(pg, 20, "cpu", address=f"tcp://127.0.0.1:{port}") as transport:
        exchange(rank, 0, 1, transport)
        exchange(rank, 1, 0, transport)
        dist.barrier()
    finish()


def test_a_group_without_a_store():
    with launch.job(2) as job:
        job.run(no_store_body, launch.free_port())


def address_body(folder):
    rank, _ = start()
    pair = dist.new_group([1, 2])
    with PGTransport(dist.group.WORLD, 20, "cpu", address=f"unix://{folder}/all") as transport:
        exchange(rank, 0, 2, transport)
        assert rank == 1 or isinstance(transport._current.rendezvous, AddressRendezvous)
        if rank in (1, 2):
            with PGTransport(pair, 20, "cpu", address=f"unix://{folder}/all2") as other:
                exchange(rank - 1, 1, 0, other)
        dist.barrier()
    # There is one transport per transfer. One rank may still leave while the other one joins again.
    for turn in range(30):
        with PGTransport(
            dist.group.WORLD, 20, "cpu", address=f"unix://{folder}/turns"
        ) as transport:
            exchange(rank, turn % 2, 1 - turn % 2, transport, {"turn": turn})
    finish()


def test_at_an_address(tmp_path):
    with launch.job(3) as job:
        job.run(address_body, str(tmp_path))


def rendezvous_body():
    rank, _ = start()
    with PGTransport(dist.group.WORLD, 20, "cpu") as transport:
        exchange(rank, 0, 1, transport)
        assert isinstance(transport._current.rendezvous, AddressRendezvous)
        dist.barrier()
    finish()


def test_at_the_address_of_the_environment():
    with launch.job(2, {"WHERRY_RENDEZVOUS": f"127.0.0.1:{launch.free_port()}"}) as job:
        job.run(rendezvous_body)


def over_group_body():
    rank, _ = start()
    with PGTransport(dist.group.WORLD, 20, "cpu", lanes="group") as transport:
        exchange(rank, 0, 1, transport)
        exchange(rank, 1, 0, transport)
        assert transport.last_stats.lane in ("blocks", "stream"), transport.last_stats
    finish()


def test_over_the_group_itself():
    with launch.job(2) as job:
        job.run(over_group_body)


def broken_group_body():
    """A mismatch over the group ends in order. A timeout breaks it, and the error says so."""
    rank, _ = start()
    good, bad = {"w": torch.ones(1000)}, {"w": torch.zeros(999)}
    with PGTransport(dist.group.WORLD, 20, "cpu", lambda: bad, lanes="group") as transport:
        with pytest.raises((wherry.errors.Aborted, wherry.errors.Mismatch)):
            transport.send_checkpoint([1], good) if rank == 0 else transport.recv_checkpoint(0)
        assert not bad["w"].any()
    with PGTransport(dist.group.WORLD, 20, "cpu", lanes="group") as transport:
        exchange(rank, 0, 1, transport, good)
        dist.barrier()
        began = time.monotonic()
        if rank == 1:
            with pytest.raises(wherry.errors.Timeout):
                transport.recv_checkpoint(0, timeout=0.3)
            assert time.monotonic() - began < 5
            transport.close()
            with PGTransport(dist.group.WORLD, 20, "cpu", lanes="group") as other:
                with pytest.raises(wherry.errors.Closed, match="create a new one"):
                    other.recv_checkpoint(0)
            launch.say("broken")
        launch.wait_for("broken")
    dist.destroy_process_group()


def test_a_timeout_over_the_group_itself_breaks_it():
    with launch.job(2) as job:
        job.run(broken_group_body)


def torchft_body():
    """torchft configures its wrapper again, with other ranks. The same transport still works."""
    from torchft.process_group import ProcessGroupGloo

    me = launch.rank()
    store = f"127.0.0.1:{os.environ['MASTER_PORT']}"
    pg = ProcessGroupGloo()
    with PGTransport(pg, 20, "cpu") as transport:
        with pytest.raises(wherry.errors.InvalidArgument, match="not initialized"):
            transport.recv_checkpoint(0)
        for quorum, ranks in enumerate([[0, 1], [1, 0]]):
            pg.configure(f"{store}/{quorum}", "replica", ranks.index(me), 2)
            exchange(ranks.index(me), 0, 1, transport)
            pg.barrier().wait()


def test_a_wrapper_of_torchft():
    pytest.importorskip("torchft", reason="torchft is not installed: pip install torchft")
    with launch.job(2) as job:
        job.run(torchft_body)


class Rankless(dist.ProcessGroup):
    """Like torchft's groups that live in another process."""

    def __init__(self):
        super().__init__(0, 1)

    def size(self):
        return 2


def test_a_group_that_does_not_tell_its_rank_is_refused():
    with (
        PGTransport(Rankless(), 1, "cpu") as transport,
        pytest.raises(wherry.errors.InvalidArgument, match="Rankless does not provide the rank"),
    ):
        transport.recv_checkpoint(1)


@pytest.mark.parametrize(
    "host, expected",
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("10.1.2.3", False), ("a.b", False)],
)
def test_which_hosts_are_loopback(host, expected):
    assert _rendezvous.is_loopback(host) == expected


class Elsewhere:
    """A group that no launcher knows."""


@pytest.mark.parametrize(
    "master, local, routes, expected, on_one, warned",
    [
        ("127.0.0.1", None, {}, "127.0.0.1", True, False),
        ("node7", None, {"node7": "10.0.0.7"}, "10.0.0.7", False, False),
        ("node7", None, {"node7": "127.0.1.1", "192.0.2.1": "10.0.0.8"}, "10.0.0.8", False, False),
        ("node7", None, {"node7": "127.0.1.1", "2001:db8::1": "fd00::8"}, "fd00::8", False, False),
        ("node7", None, {"node7": "127.0.1.1"}, "127.0.0.1", False, True),
        ("", None, {"192.0.2.1": "10.0.0.8"}, "127.0.0.1", True, False),
        ("", "1", {"192.0.2.1": "10.0.0.8"}, "10.0.0.8", False, False),
    ],
)
def test_the_address_for_the_other_ranks(
    monkeypatch, caplog, master, local, routes, expected, on_one, warned
):
    monkeypatch.setattr(_rendezvous, "address_towards", routes.get)
    for name, value in {
        "MASTER_ADDR": master,
        "LOCAL_WORLD_SIZE": local,
        "WORLD_SIZE": local and "2",
        "WHERRY_INTERFACE": None,
    }.items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(
            name, value
        )
    assert (
        _process_group.host_for(Elsewhere(), None) == expected
        and _process_group.on_one_host(Elsewhere()) == on_one
    )
    assert ("MASTER_ADDR" in caplog.text and "WHERRY_INTERFACE" in caplog.text) == warned and len(
        caplog.messages
    ) == warned


def test_a_named_interface_goes_before_the_route(monkeypatch):
    monkeypatch.setattr(_rendezvous, "address_towards", {"node7": "10.0.0.7"}.get)
    monkeypatch.setattr(_rendezvous, "_interface_address", {"ib0": "10.9.0.1"}.get)
    for interface, expected in (("ib0", "10.9.0.1"), ("ib9", "10.0.0.7")):
        monkeypatch.setenv("WHERRY_INTERFACE", interface)
        assert _rendezvous.address_for_others("node7", "") == expected


def test_the_address_of_an_interface():
    assert (
        _rendezvous._interface_address("lo") == "127.0.0.1"
        and _rendezvous._interface_address("no such one") is None
    )


# ---- tickets ----


def test_tickets():
    ticket = Ticket("tcp://[fe80::1%eth0]:4123", 4096, 0, bytes(range(32)))
    assert Ticket.read(ticket.text()) == ticket
    for host in ("", "4026531833/5b36ffb3-1f4e-4da5-891d-14cb3802b6b2"):
        without = ticket._replace(secret=None, host=host)
        assert Ticket.read(without.text()) == without
    good = ticket.text()
    for bad in (
        "",
        good + " ",
        good[:-1],
        good.replace("-1 ", "-2 "),
        good.replace("4096 0", "4 4"),
        good.replace("tcp", "udp"),
        good.replace(" 4096", " 99999999"),
        "x" * 5000,
        good.replace(":4123", ":4123?rank=1"),
        good.upper(),
        good + "\n",
    ):
        with pytest.raises(wherry.errors.Malformed) as caught:
            Ticket.read(bad)
        assert ticket.secret.hex() not in str(caught.value)


def wrong_ticket_body():
    """A receiver refuses wrong tickets, and uses the right one when it comes."""
    rank, _ = start()
    store = _process_group.store_of(dist.group.WORLD)
    with PGTransport(dist.group.WORLD, 20, "cpu") as transport:
        if rank == 0:
            listener = _rendezvous.Listener("127.0.0.1", 0, 2)
            for lie, expected in [
                (listener.ticket._replace(secret=bytes(32)).text(), wherry.errors.BadSecret),
                (
                    listener.ticket._replace(address="tcp://127.0.0.1:9").text(),
                    wherry.errors.Timeout,
                ),
                ("nonsense", wherry.errors.Malformed),
                (listener.ticket._replace(size=3).text(), wherry.Error),
            ]:
                store.set("wherry/1", lie)
                began = time.monotonic()
                with pytest.raises(expected) as caught:
                    transport.recv_checkpoint(1, timeout=1.5)
                assert caught.value.rank == 1 and 1.4 < time.monotonic() - began < 15
            read = _rendezvous.Ticket.read

            def read_and_say(text):
                launch.say("read the wrong ticket")
                return read(text)

            _rendezvous.Ticket.read = read_and_say
            assert_same(plain_state(1), transport.recv_checkpoint(1))
            listener.connection.close()
        else:
            launch.wait_for("read the wrong ticket")
            transport.send_checkpoint([0], plain_state(1))
    finish()


def test_a_wrong_ticket_is_refused():
    with launch.job(2) as job:
        job.run(wrong_ticket_body)


def restarted_source_body(life):
    """A source that was started again has another ticket. A receiver with the old one finds it."""
    rank = launch.rank()
    store = dist.PrefixStore(
        "pg", dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False)
    )
    pg = dist.ProcessGroup(store, rank, 2)
    with PGTransport(pg, 20, "cpu") as transport:
        if rank == 0:
            transport.send_checkpoint([1], {"life": life})
            launch.say(f"sent {life}")
            while life == 1:
                signal.pause()  # The process stays until it is killed.
        else:
            assert transport.recv_checkpoint(0) == {"life": 1}
            launch.say("ready")
            launch.wait_for("killed")
            launch.say("receiving")
            assert transport.recv_checkpoint(0) == {"life": 2}


def test_a_source_that_was_started_anew_is_found():
    with launch.job(2) as job:
        job.start_all(restarted_source_body, 1)
        job.wait_for_file("sent 1")
        job.wait_for_file("ready")
        job.ranks[0].signal(signal.SIGKILL)
        while job.ranks[0].status is None:
            time.sleep(0.01)
        job.say("killed")
        job.wait_for_file("receiving")
        job.wait_until_asleep(1)
        job.start(0, restarted_source_body, 2)
        job.finish(30)
