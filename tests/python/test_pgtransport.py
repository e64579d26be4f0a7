"""wherry.torch.PGTransport between real processes: what arrives, in place and as new tensors."""

import itertools
import logging
import threading
import time
from collections import OrderedDict, namedtuple
from datetime import timedelta

import launch
import pytest
import torch
import torch.distributed as dist
import wherry
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharded_tensor import ShardMetadata
from torch.distributed._shard.sharding_spec import ChunkShardingSpec, EnumerableShardingSpec
from torch.distributed.tensor import (
    DeviceMesh,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
)
from torch_states import a_model, assert_same, clone, finish, plain_state, same_bits, start, train
from wherry.torch import PGTransport

LIMIT = timedelta(seconds=30)

Point = namedtuple("Point", "x y")


# ---- eight ranks ----


def one_to_seven(transport, rank, state, expected=None):
    """Rank 0 sends to all others; each compares."""
    if rank == 0:
        outcomes = transport.send_checkpoint(list(range(1, 8)), state)
        assert [one.rank for one in outcomes] == list(range(1, 8))
        return None
    received = transport.recv_checkpoint(0)
    assert_same(expected if expected is not None else state, received)
    assert transport.last_stats.lane in ("cma", "ring")
    return received


def mixed_state(rank):
    """What a state dict can hold, with DTensors over all eight ranks."""
    line = DeviceMesh("cpu", torch.arange(8), mesh_dim_names=("dp",))
    square = DeviceMesh("cpu", torch.arange(8).view(2, 4), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(5)
    whole, odd = torch.randn(16, 3), torch.randn(13, 7)
    return {
        **plain_state(3),
        "sharded": distribute_tensor(whole, line, [Shard(0)], src_data_rank=None),
        "uneven": distribute_tensor(odd, line, [Shard(0)], src_data_rank=None),
        "grid": distribute_tensor(odd, square, [Shard(0), Shard(1)], src_data_rank=None),
        "copies": distribute_tensor(odd, square, [Replicate(), Shard(1)], src_data_rank=None),
        "ordered": OrderedDict(z=1, a=torch.ones(2)),
        "point": Point(torch.zeros(1), 2),
        "size": torch.Size([2, 3]),
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
    }


def eight_body():
    rank, _ = start()
    with PGTransport(dist.group.WORLD, LIMIT, "cpu") as transport:
        one_to_seven(transport, rank, plain_state(1))
        received = one_to_seven(transport, rank, {"state": plain_state(2)})
        if rank:
            first, second = received["state"]["tied"]
            assert first is second or first.data_ptr() == second.data_ptr()
            assert isinstance(received["state"]["parameter"], torch.nn.Parameter)
        mine = mixed_state(rank)
        dist.barrier()
        if rank == 0:
            transport.send_checkpoint(range(1, 8), mine)
        else:
            received = transport.recv_checkpoint(0)
            for name in ("sharded", "uneven", "grid", "copies"):
                theirs = distribute_as(0, mine[name])
                assert received[name]._spec == mine[name]._spec, name
                assert same_bits(received[name]._local_tensor, theirs), name
                del received[name], mine[name]
            assert_same(mine, received)
        replicas_in_place(transport, rank)
        sharded_tensors(transport, rank)
        ring(transport, rank)
    finish()


def distribute_as(rank, tensor):
    """The local tensor of a DTensor on another rank: chunks along each sharded dimension."""
    torch.manual_seed(5)
    whole, odd = torch.randn(16, 3), torch.randn(13, 7)
    full = whole if tensor.shape == whole.shape else odd
    place = (tensor.device_mesh.mesh == rank).nonzero()[0].tolist()
    for dimension, placement in enumerate(tensor.placements):
        if isinstance(placement, Shard):
            parts = full.chunk(tensor.device_mesh.mesh.shape[dimension], placement.dim)
            full = parts[place[dimension]] if place[dimension] < len(parts) else full[:0]
    return full


def replicas_in_place(transport, rank):
    """A replica of four ranks heals another, shard by shard, in place into its DTensors."""
    mesh = DeviceMesh("cpu", torch.arange(8).view(2, 4), mesh_dim_names=("replica", "shard"))
    torch.manual_seed(9)
    good = distribute_tensor(torch.randn(13, 5), mesh, [Replicate(), Shard(0)], src_data_rank=None)
    if rank < 4:
        transport.send_checkpoint([rank + 4], {"w": good, "step": 3})
        return
    bad = distribute_tensor(torch.zeros(13, 5), mesh, [Replicate(), Shard(0)], src_data_rank=None)
    local = bad._local_tensor
    with PGTransport(dist.group.WORLD, LIMIT, "cpu", lambda: {"w": bad, "step": 0}) as healing:
        received = healing.recv_checkpoint(rank - 4)
    assert received["w"] is bad and received["step"] == 3
    assert bad._local_tensor is local and same_bits(local, good._local_tensor)


def filled(made, fill):
    for shard in made.local_shards():
        torch.manual_seed(100 * fill + shard.metadata.shard_offsets[0])
        shard.tensor.copy_(torch.randn(shard.tensor.shape))
    return made


def chunks(fill):
    """One shard per rank."""
    spec = ChunkShardingSpec(dim=0, placements=[f"rank:{one}/cpu" for one in range(8)])
    return filled(sharded_tensor.zeros(spec, 24, 4), fill)


def pieces(fill):
    """Three shards per rank, of two sizes, and not next to each other."""
    boxes, row = [], 0
    for size, rank in itertools.product((1, 1, 2), range(8)):
        boxes.append(ShardMetadata([row, 0], [size, 4], f"rank:{rank}/cpu"))
        row += size
    return filled(sharded_tensor.zeros(EnumerableShardingSpec(boxes), row, 4), fill)


def sharded_tensors(transport, rank):
    """Each rank sends its shards to its neighbour, which changes them and sends them back in place.

    The neighbour gets them placed on its own rank.
    """
    state = {"st": chunks(1), "step": 1}
    if rank % 2 == 0:
        transport.send_checkpoint([rank + 1], state)
    else:
        received = transport.recv_checkpoint(rank - 1)["st"]
        (shard,) = received.local_shards()
        assert shard.metadata.shard_offsets == [3 * (rank - 1), 0]
        assert shard.metadata.placement.rank() == rank
        torch.manual_seed(100 + 3 * (rank - 1))
        assert same_bits(shard.tensor, torch.randn(3, 4))
    for make, count in (chunks, 1), (pieces, 3):
        mine = make(2)
        if rank % 2 == 0:
            transport.send_checkpoint([rank + 1], {"st": mine})
            shards = mine.local_shards()
            expected = [shard.tensor + 1 for shard in shards]
            memory = [shard.tensor.data_ptr() for shard in shards]
            with PGTransport(dist.group.WORLD, LIMIT, "cpu", lambda: {"st": mine}) as healing:
                received = healing.recv_checkpoint(rank + 1)["st"]
            assert received is mine and len(shards) == count
            assert [shard.tensor.data_ptr() for shard in mine.local_shards()] == memory
            assert all(
                same_bits(shard.tensor, one) for shard, one in zip(mine.local_shards(), expected)
            )
        else:
            theirs = transport.recv_checkpoint(rank - 1)["st"]
            for shard in theirs.local_shards():
                shard.tensor += 1
            transport.send_checkpoint([rank - 1], {"st": theirs})


def ring(transport, rank):
    """Each rank sends to the next one and receives from the previous one. Even ranks send first."""
    after, before = (rank + 1) % 8, (rank - 1) % 8
    target = {"rank": torch.zeros(1000), "from": -1}
    with PGTransport(dist.group.WORLD, LIMIT, "cpu", lambda: target) as receiving:
        state = {"rank": torch.full((1000,), float(rank)), "from": rank}
        steps = [
            lambda: transport.send_checkpoint([after], state),
            lambda: receiving.recv_checkpoint(before),
        ]
        results = [step() for step in (steps if rank % 2 == 0 else steps[::-1])]
    received = next(one for one in results if isinstance(one, dict))
    assert received["from"] == before and received["rank"] is target["rank"]
    assert bool((target["rank"] == before).all())


def test_eight_ranks():
    with launch.job(8) as job:
        job.run(eight_body, timeout=120)


def rows_body():
    """A new DTensor has the sender's rows. The log says so if they are not those of this rank."""
    rank, size = start()
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(8)
    told = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logging.getLogger("wherry").addHandler(handler)
    with PGTransport(dist.group.WORLD, LIMIT, "cpu", device_mesh=mesh) as transport:
        for placement, expected in ((Replicate(), 0), (Shard(0), 1)):
            state = {"a": distribute_tensor(whole, mesh, [placement])}
            if rank == 0:
                transport.send_checkpoint([1], state)
                continue
            transport.recv_checkpoint(0)
            assert sum("rows are those of the other rank" in text for text in told) == expected
        target = {"a": distribute_tensor(torch.zeros_like(whole), mesh, [Shard(0)])}
        with PGTransport(dist.group.WORLD, LIMIT, "cpu", lambda: target) as receiving:
            if rank == 0:
                with pytest.raises(wherry.errors.Aborted):
                    transport.send_checkpoint([1], state)
            else:
                with pytest.raises(wherry.errors.Mismatch, match=r"\[0:4\] at .* \[4:8\] in"):
                    receiving.recv_checkpoint(0)
    finish()


def test_the_rows_of_another_rank():
    with launch.job(2) as job:
        job.run(rows_body)


# ---- real models ----


OPTIMIZERS = {
    "adam": lambda model: torch.optim.Adam(model.parameters(), 1e-2),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), 1e-2, amsgrad=True),
    "sgd": lambda model: torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9),
}


def model_body(stepped):
    """A rank heals another, whose next steps are then equal, bit for bit."""
    rank, _ = start()
    for kind, name in [("mlp", "adam"), ("transformer", "adamw"), ("conv", "sgd")]:
        model = a_model(1 if rank == 0 else 2, kind)
        optimizer = OPTIMIZERS[name](model)
        if rank == 0:
            train(model, optimizer, kind, 0, 3)
        elif stepped:
            train(model, optimizer, kind, 50, 2)

        def state():
            return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

        before = [parameter.data_ptr() for parameter in model.parameters()]
        with PGTransport(dist.group.WORLD, LIMIT, torch.device("cpu"), state) as transport:
            if rank == 0:
                transport.send_checkpoint([1], state())
            else:
                received = transport.recv_checkpoint(0)
                optimizer.load_state_dict(received["optimizer"])
        train(model, optimizer, kind, 3, 3)
        assert [parameter.data_ptr() for parameter in model.parameters()] == before
        whole = a_model(1, kind)
        undisturbed = OPTIMIZERS[name](whole)
        train(whole, undisturbed, kind, 0, 6)
        assert_same(whole.state_dict(), model.state_dict())
        assert_same(undisturbed.state_dict(), optimizer.state_dict())
    finish()


@pytest.mark.parametrize("stepped", [False, True])
def test_models_and_optimizers_are_healed_in_place(stepped):
    with launch.job(2) as job:
        job.run(model_body, stepped)


# ---- options ----


def options_body():
    rank, _ = start()
    pg = dist.group.WORLD
    state = plain_state(1)
    for options in [
        {"verify": True},
        {"lanes": "stream"},
        {"lanes": "ring", "threads": 1},
        {"step": 4},
        {"progress": lambda p: None},
    ]:
        with PGTransport(pg, 30, "cpu", **options) as transport:
            if rank == 0:
                transport.send_checkpoint((1,), state)
            else:
                assert_same(state, transport.recv_checkpoint(0))
                assert transport.last_stats.lane in options.get("lanes", "cma ring")
                assert transport.last_stats.checked == (
                    options.get("verify", False) or options.get("lanes") == "stream"
                )
        dist.barrier()
    with PGTransport(
        pg, 30, "cpu", lambda: {"a": torch.zeros(3), "b": torch.zeros(2)}, step=1
    ) as transport:
        if rank == 0:
            transport.send_checkpoint([1], {"a": torch.ones(3)}, step=8)
            with pytest.raises(wherry.errors.Aborted, match="partial"):
                transport.send_checkpoint([1], {"a": torch.ones(3)})
            with pytest.raises(wherry.errors.Mismatch, match="step") as caught:
                transport.send_checkpoint([1], {"a": torch.ones(3)}, step=5)
            assert caught.value.rank == 1
        else:
            with PGTransport(
                pg, 30, "cpu", lambda: {"a": torch.zeros(3), "b": torch.zeros(2)}, partial=True
            ) as lenient:
                received = lenient.recv_checkpoint(0, step=8)
            assert bool((received["a"] == 1).all())
            with pytest.raises(wherry.errors.Mismatch) as caught:
                transport.recv_checkpoint(0)
            assert caught.value.path == "b" and caught.value.rank == 0
            with pytest.raises(wherry.errors.Mismatch, match="step"):
                transport.recv_checkpoint(0, step=6)
    finish()


def test_options():
    with launch.job(2) as job:
        job.run(options_body)


def arguments_body():
    rank, size = start()
    pg = dist.group.WORLD
    with PGTransport(pg, LIMIT, "cpu") as transport:
        # There is no destination, so the state is not read.
        transport.send_checkpoint([], object())
        for ranks, told in [
            ([rank], "is this process: remove"),
            ([1 - rank, 1 - rank], "twice"),
            ([2], "0 to 1"),
            ([-1], "0 to 1"),
        ]:
            with pytest.raises(wherry.errors.InvalidArgument, match=told):
                transport.send_checkpoint(ranks, {})
        with pytest.raises(wherry.errors.InvalidArgument, match="is this process"):
            transport.recv_checkpoint(rank)
        with pytest.raises(wherry.errors.Unsupported, match="allow_pickle") as caught:
            transport.send_checkpoint([1 - rank], {"a": {"b": threading.Lock()}})
        assert caught.value.path == "a.b"
        with pytest.raises(wherry.errors.InvalidArgument, match="bus"):
            PGTransport(pg, LIMIT, "cpu", lanes="bus").send_checkpoint([1 - rank], {})
    for wrong in [
        {"timeout": -1},
        {"timeout": "long"},
        {"step": -2},
        {"threads": -1},
        {"state_dict": {}},
    ]:
        with pytest.raises(wherry.errors.InvalidArgument):
            PGTransport(**{"pg": pg, "timeout": 1, "device": "cpu", **wrong})
    with pytest.raises(RuntimeError):
        PGTransport(pg, 1, "nonsense")
    finish()


def test_arguments():
    with launch.job(2) as job:
        job.run(arguments_body)


def pickle_body():
    rank, _ = start()
    value = {"timer": timedelta(seconds=3)}
    with PGTransport(dist.group.WORLD, LIMIT, "cpu", allow_pickle=True) as both:
        if rank == 0:
            both.send_checkpoint([1], value)
            with pytest.raises(wherry.errors.Aborted):
                both.send_checkpoint([1], value)
        else:
            assert both.recv_checkpoint(0) == value
            with (
                PGTransport(dist.group.WORLD, LIMIT, "cpu") as careful,
                pytest.raises(wherry.errors.Unsupported) as caught,
            ):
                careful.recv_checkpoint(0)
            assert caught.value.path == "timer" and "allow_pickle" in str(caught.value)
    finish()


def test_pickle_only_if_both_sides_allow_it():
    with launch.job(2) as job:
        job.run(pickle_body)


# ---- threads ----


def gil_body():
    """Other threads run while bytes move."""
    rank, _ = start()
    target = {"w": torch.ones(1 << 28)}
    with PGTransport(dist.group.WORLD, 60, "cpu", lambda: target) as transport:
        counted, done = [0], threading.Event()

        def count():
            while not done.wait(0.001):
                counted[0] += 1

        counter = threading.Thread(target=count)
        dist.barrier()
        counter.start()
        began = time.perf_counter()
        if rank == 0:
            transport.send_checkpoint([1], {"w": torch.zeros(1 << 28)})
        else:
            transport.recv_checkpoint(0)
        seconds = time.perf_counter() - began
        done.set()
        counter.join()
        assert rank == 0 or not target["w"].any()
        assert counted[0] > 20 and counted[0] > 10 * seconds, (counted[0], seconds)
    finish()


def test_the_gil_is_released_while_a_gigabyte_moves():
    with launch.job(2) as job:
        job.run(gil_body, timeout=120)


def threads_body():
    """Two transports on one group, in both directions at once, many times."""
    rank, _ = start()
    other, failures = 1 - rank, []
    one, two = (
        PGTransport(dist.group.WORLD, LIMIT, "cpu"),
        PGTransport(dist.group.WORLD, LIMIT, "cpu"),
    )

    def guard(body):
        try:
            for turn in range(20):
                body(turn)
        except BaseException as error:
            failures.append(error)

    def send(turn):
        one.send_checkpoint(
            [other],
            {"x": torch.full((100_000,), float(turn)), "turn": turn, "from": rank},
            step=turn,
        )

    def receive(turn):
        received = two.recv_checkpoint(other, step=turn)
        assert (
            received["turn"] == turn
            and received["from"] == other
            and bool((received["x"] == turn).all())
        )

    threads = [threading.Thread(target=guard, args=(body,)) for body in (send, receive)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one.close()
    two.close()
    assert not failures, failures
    finish()


def test_two_transports_in_both_directions_at_once():
    with launch.job(2) as job:
        job.run(threads_body)


def test_clone_is_a_copy():
    """The comparison that these tests use notices a flipped bit."""
    state = plain_state(1)
    other = clone(state)
    assert_same(state, other)
    other["bf16"].view(torch.int16)[0, 0] ^= 1
    with pytest.raises(AssertionError, match="bf16"):
        assert_same(state, other)
