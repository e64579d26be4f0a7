"""DTensor and ShardedTensor, received in a process of the mesh, of another mesh, and of none.

Groups are torch's fake ones, which ask no other rank.
"""

# ruff: noqa: E402

import gc
import subprocess
import sys
import textwrap
import weakref

import pytest
from same_state import assert_same

torch = pytest.importorskip(
    "torch", reason="torch is not installed: pip install -r tests/python/requirements-torch.txt"
)

import torch.distributed as dist

if not dist.is_available():
    pytest.skip("this build of torch has no torch.distributed", allow_module_level=True)

from test_torch_codec import in_place, there_and_back
from torch import nn
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharded_tensor import Shard as LocalShard
from torch.distributed._shard.sharded_tensor import ShardedTensor, ShardMetadata
from torch.distributed._shard.sharding_spec import ChunkShardingSpec, EnumerableShardingSpec
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    placement_types,
)
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from rehearse import core

from wherry import _nodes
from wherry.errors import InvalidArgument, Malformed, Mismatch, Unsupported
from wherry.torch import _distributed
from wherry.torch._codec import TorchCodec

# Torch 2.10 has this class without the underscore.
MASK_PARTIAL = getattr(placement_types, "_MaskPartial", None) or placement_types.MaskPartial


class World:
    """Torch's default group. This process is one rank; the others do not exist."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def __enter__(self):
        _distributed.forget_meshes()
        dist.init_process_group("fake", rank=self.rank, world_size=self.size, store=FakeStore())
        return self

    def __exit__(self, *error):
        if dist.is_initialized():
            dist.destroy_process_group()


@pytest.fixture
def world():
    with World(1, 4) as made:
        yield made


def whole(*shape):
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


def distribute(tensor, mesh, placements):
    """This rank's part. A fake group would leave it uninitialized if it had to ask another rank."""
    return distribute_tensor(tensor, mesh, placements, src_data_rank=None)


def dtensors():
    """DTensors over meshes of one and two dimensions, with even, uneven and empty parts."""
    line = init_device_mesh("cpu", (4,))
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    made = {
        "even": distribute(whole(8, 3), line, [Shard(0)]),
        "uneven": distribute(whole(7, 5), line, [Shard(1)]),
        "empty": DTensor.from_local(
            torch.empty(0, 3),
            line,
            [Shard(0)],
            shape=torch.Size([1, 3]),
            stride=(3, 1),
            run_check=False,
        ),
        "all": distribute(whole(3, 2), line, [Replicate()]),
        "partial": DTensor.from_local(whole(3, 2), line, [Partial("avg")]),
        "grid": distribute(whole(5, 7), grid, [Shard(0), Shard(1)]),
        "twice": distribute(whole(9, 2), grid, [Shard(0), Shard(0)]),
        "mixed": distribute(whole(4, 4), grid, [Replicate(), Shard(1)]),
        "strided": DTensor.from_local(
            whole(3, 2), grid, [_StridedShard(0, split_factor=2), Shard(0)]
        ),
        "row": distribute(whole(6, 2), grid["tp"], [Shard(0)]),
        "bf16": distribute(whole(8).bfloat16(), line, [Shard(0)]),
        "transposed": distribute(whole(4, 6), line, [Shard(0)]).t(),
        "scalar": distribute(torch.tensor(3.0), line, [Replicate()]),
    }
    made["grad"] = made["even"].detach().clone().requires_grad_()
    made["parameter"] = nn.Parameter(made["grid"].detach().clone())
    made["frozen"] = nn.Parameter(made["grid"].detach().clone(), requires_grad=False)
    return made


#: torch caches the results of operations. A cached result may have an equal mesh from an earlier
#: call.
OF_OPERATIONS = ("transposed", "grad", "parameter", "frozen")


def test_dtensor(world):
    sent = dtensors()
    received = there_and_back(sent)
    assert_same(sent, received)
    for name, tensor in sent.items():
        if name not in OF_OPERATIONS:
            # The mesh includes its groups.
            assert received[name].device_mesh is tensor.device_mesh, name
    assert (received["grid"] + 1).to_local().sum() == sent["grid"].to_local().sum() + sent[
        "grid"
    ].to_local().numel()


def pick(*names):
    return {name: tensor for name, tensor in dtensors().items() if name in names}


def forgotten(sent, **options):
    """The state is received by a process that has seen none of its meshes."""
    state = core.build(sent, TorchCodec())
    _distributed.forget_meshes()
    return core.restore(state, TorchCodec(**options))


def warnings(caplog):
    return [
        record.getMessage() for record in caplog.records if "device_mesh=" in record.getMessage()
    ]


@pytest.mark.parametrize("several", [False, True])
def test_a_mesh_argument(world, caplog, several):
    """The mesh, and slices of it by dimension names."""
    sent = pick("grid", "row")
    grid = sent["grid"].device_mesh
    received = forgotten(
        sent, device_mesh=[init_device_mesh("cpu", (4,)), grid] if several else grid
    )
    assert received["grid"].device_mesh is grid
    row = received["row"].device_mesh
    assert row == grid["tp"] and row.get_group() is grid.get_group("tp")
    assert not warnings(caplog)


def test_the_argument_must_be_a_mesh():
    with pytest.raises(InvalidArgument, match="device_mesh must be a DeviceMesh"):
        TorchCodec(device_mesh=[4])


def test_a_slice_of_a_mesh_that_was_seen(world, caplog):
    """For example in a DTensor of the target."""
    sent = pick("row")
    state = core.build(sent, TorchCodec())
    _distributed.forget_meshes()
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    core.build(distribute(whole(5, 7), grid, [Shard(0), Shard(1)]), TorchCodec().for_target())
    received = core.restore(state, TorchCodec())
    assert received["row"].device_mesh.get_group() is grid.get_group("tp") and not warnings(caplog)


def test_an_unknown_mesh_cannot_communicate(world, caplog):
    """The warning comes once per call, however many meshes a sender invents."""
    sent = pick("grid", "even", "row")
    received = forgotten(sent)
    assert all(torch.equal(received[name].to_local(), sent[name].to_local()) for name in sent)
    for name in sent:
        with pytest.raises(RuntimeError):
            received[name].device_mesh.get_all_groups()
    (told,) = warnings(caplog)
    assert "cannot communicate" in told


def test_mesh_of_groups_that_were_made_again(world):
    sent = dtensors()["even"]
    state = core.build([sent], TorchCodec())
    dist.destroy_process_group()
    dist.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
    received = core.restore(state, TorchCodec())[0]
    # The groups of the old mesh were destroyed.
    assert received.device_mesh is not sent.device_mesh
    again = init_device_mesh("cpu", (4,))
    received = core.restore(state, TorchCodec(device_mesh=again))[0]
    assert received.device_mesh is again and received._spec == sent._spec
    # The process has used this mesh by now.
    assert core.restore(state, TorchCodec())[0].device_mesh is again


def outside(sent, rank=None):
    """Received in a process without a torch group."""
    state = core.build(sent, TorchCodec())
    dist.destroy_process_group()
    _distributed.forget_meshes()
    return core.restore(state, TorchCodec(rank=rank))


def test_dtensor_without_a_group(world):
    sent = dtensors()
    row = sent.pop("row")  # A row of a mesh equals only a row of that mesh.
    received = outside({**sent, "row": row}, rank=1)
    made = received.pop("row")
    assert_same(sent, received)
    assert made._spec.placements == row._spec.placements and made.device_mesh.mesh.tolist() == [
        0,
        1,
    ]
    assert received["grid"].device_mesh is not sent["grid"].device_mesh
    # The mesh is made only once.
    assert received["grid"].device_mesh is received["mixed"].device_mesh
    assert received["grid"].device_mesh._coordinate_on_dim == (0, 1)


@pytest.mark.parametrize("rank, size", [(0, 1), (5, 8)])
def test_dtensor_in_another_world(world, rank, size):
    sent = dtensors()
    sent.pop("row")
    state = core.build(sent, TorchCodec())
    dist.destroy_process_group()
    with World(rank, size):
        received = core.restore(state, TorchCodec())
        assert_same(sent, received)
        assert received["even"].device_mesh._coordinate_on_dim == ((0,) if rank == 0 else None)


def test_a_mesh_has_the_rank_of_this_process():
    node = _nodes.Mesh("cpu", (2,), (4, 5), None)
    first, same, other = (_distributed.Meshes(None, rank).find(node) for rank in (4, 4, 5))
    assert first is same and first is not other
    assert first._coordinate_on_dim == (0,) and other._coordinate_on_dim == (1,)


def test_meshes_are_not_kept():
    node = _nodes.Mesh("cpu", (2,), (4, 5), None)
    made = weakref.ref(_distributed.Meshes(None, None).find(node))
    gc.collect()
    assert made() is None and node not in _distributed._meshes


def test_slices_are_made_once_per_call(world, monkeypatch):
    """A sender decides how many meshes there are to look for."""
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    _distributed.describe_mesh(grid)
    meshes, made = _distributed.Meshes(None, None), []
    add = meshes._add_slices
    monkeypatch.setattr(meshes, "_add_slices", lambda found: made.append(1) or add(found))
    kept = [meshes.find(_nodes.Mesh("cpu", (2,), (0, number), None)) for number in range(1, 20)]
    assert len(made) == 1 and len(kept) == 19


def test_a_mesh_of_many_dimensions_is_not_sliced(world):
    """A sender could invent a mesh with more slices than this process has time for."""
    names = tuple(f"d{number}" for number in range(24))
    kept = _distributed.Meshes(None, None).find(_nodes.Mesh("cpu", (1,) * 24, (1,), names))
    meshes = _distributed.Meshes(None, None)
    made = meshes.find(_nodes.Mesh("cpu", (2,), (0, 1), None))
    assert kept is not made and len(meshes._found) == 1


def test_hostile_meshes():
    codec = TorchCodec(rank=3)
    mesh = _nodes.Mesh("cpu", (2,), (0, 1), None)
    node = _nodes.DTensor(
        torch.ones(2), mesh, (_nodes.Placement(_nodes.SHARD, 0, 0, None),), 11, 0, (4,), (1,)
    )
    assert type(codec.distributed(node)) is DTensor
    integers = torch.ones(2, dtype=torch.int32)
    for bad in (
        node._replace(mesh=mesh._replace(ranks=(0, 1 << 40))),
        node._replace(mesh=mesh._replace(shape=(2, 2))),
        node._replace(mesh=mesh._replace(ranks=(3, 3))),
        node._replace(local=1),
        node._replace(local=integers, dtype=6, flags=1),
        node._replace(shape=(1 << 63,)),
    ):
        with pytest.raises(Malformed):
            codec.distributed(bad)


def test_dtensors_that_are_refused(world):
    line = init_device_mesh("cpu", (4,))
    masked = DTensor.from_local(torch.ones(3), line, [Partial()])
    masked._spec.placements = (MASK_PARTIAL(offset_shape=torch.Size([4]), offset_dim=0),)
    strange = dtensors()["twice"]
    strange._spec.shard_order = tuple(
        entry._replace(mesh_dims=(1, 0)) for entry in strange._spec.shard_order
    )
    meta = DTensor.from_local(torch.ones(3, device="meta"), line, [Replicate()], run_check=False)
    for value, text in (
        (masked, "only Replicate, Shard and Partial"),
        (strange, "its shard order differs"),
        (meta, "meta device"),
    ):
        with pytest.raises(Unsupported, match=text) as caught:
            core.build({"d": [value]}, TorchCodec())
        assert caught.value.path == "d[0]"


@pytest.mark.parametrize(("source", "told"), [(1, False), (2, True)])
def test_rows_of_another_rank_are_told(world, caplog, source, told):
    """This process is rank 1 of the mesh. A new DTensor has the rows of the rank that sent it."""
    codec = TorchCodec()
    codec.source = source
    core.restore(core.build(pick("even", "grid", "all"), TorchCodec()), codec)
    warned = [one for one in caplog.messages if "its rows are those of the other rank" in one]
    assert len(warned) == told, caplog.messages
    assert not told or "of rank 2 as a new DTensor of rank 1" in warned[0]


def test_dtensor_in_place(world):
    sent, target = dtensors(), dtensors()
    for name in ("row", "transposed"):
        sent.pop(name)
        target.pop(name)
    for tensor in sent.values():
        tensor._local_tensor.copy_(tensor._local_tensor + 100)
    received = in_place(sent, target)
    for name, tensor in target.items():
        assert received[name] is tensor, name
        assert torch.equal(tensor._local_tensor, sent[name]._local_tensor), name
    with pytest.raises(Mismatch) as caught:
        in_place({"d": sent["even"]}, {"d": sent["uneven"]})
    assert caught.value.path == "d"


# ShardedTensor.


def placements(count):
    return [f"rank:{rank}/cpu" for rank in range(count)]


def sharded():
    boxes = [
        ShardMetadata([0, 0], [2, 4], "rank:1/cpu"),
        ShardMetadata([2, 0], [2, 1], "rank:1/cpu"),
        ShardMetadata([2, 1], [2, 3], "rank:0/cpu"),
    ]
    nobody = [ShardMetadata([0], [2], "rank:0/cpu"), ShardMetadata([2], [2], "rank:2/cpu")]
    return {
        "chunks": sharded_tensor.rand(ChunkShardingSpec(0, placements(4)), 10, 3),
        "other dim": sharded_tensor.rand(
            ChunkShardingSpec(-1, placements(2)), 4, 5, dtype=torch.float64
        ),
        "several": sharded_tensor.rand(EnumerableShardingSpec(boxes), 4, 4),
        "none here": sharded_tensor.ones(EnumerableShardingSpec(nobody), 4),
        "grad": sharded_tensor.ones(ChunkShardingSpec(0, placements(4)), 8, requires_grad=True),
    }


def test_sharded(world):
    sent = sharded()
    received = there_and_back(sent)
    assert_same(sent, received)
    for name, tensor in sent.items():
        ours, theirs = vars(received[name]), vars(tensor)
        assert ours.keys() == theirs.keys(), name
        assert ours["_process_group"] is theirs["_process_group"]
    assert len(received["several"].local_shards()) == 2 and not received["none here"].local_shards()


def test_sharded_as_the_constructor_makes_it(world):
    sent = sharded()["chunks"]
    received = there_and_back([sent])[0]
    reference = ShardedTensor._init_from_local_shards_and_global_metadata(
        [LocalShard(shard.tensor, shard.metadata) for shard in sent.local_shards()], sent.metadata()
    )
    assert (
        received.metadata() == reference.metadata()
        and received.sharding_spec() == reference.sharding_spec()
    )
    assert [shard.metadata for shard in received.local_shards()] == [
        shard.metadata for shard in reference.local_shards()
    ]


def test_sharded_names_the_receiver(world):
    sent = sharded()
    received = outside(sent, rank=3)
    for name, tensor in sent.items():
        assert received[name].metadata() == tensor.metadata()
        for one, other in zip(tensor.local_shards(), received[name].local_shards()):
            assert (
                other.metadata.placement.rank() == 3
                and str(other.metadata.placement.device()) == "cpu"
            )
            assert other.metadata.shard_offsets == one.metadata.shard_offsets and torch.equal(
                one.tensor, other.tensor
            )


def test_sharded_in_place(world):
    sent, target = sharded(), sharded()
    received = in_place(sent, target)
    for name, tensor in target.items():
        assert received[name] is tensor
        for one, other in zip(sent[name].local_shards(), tensor.local_shards()):
            assert torch.equal(one.tensor, other.tensor)


def test_sharded_that_is_refused(world):
    named = sharded()["chunks"]
    named.metadata().shards_metadata[0].placement = torch.distributed._remote_device("trainer/cpu")
    more = sharded()["chunks"]
    more.local_shards()[0].tensor = nn.Parameter(more.local_shards()[0].tensor)
    for value, text in ((named, "names a worker"), (more, "not a plain tensor")):
        with pytest.raises(Unsupported, match=text) as caught:
            core.build({"s": value}, TorchCodec())
        assert caught.value.path == "s"


def test_hostile_shards():
    codec = TorchCodec()
    box = _nodes.Box((0,), (2,), 0, "cpu")
    node = _nodes.Sharded(
        11,
        False,
        False,
        0,
        (2,),
        (torch.ones(2),),
        (box,),
        (box,),
        _nodes.SHARDING_ENUMERABLE,
        0,
        (box,),
    )
    assert type(codec.distributed(node)) is ShardedTensor
    bad = [
        node._replace(tensors=(torch.ones(3),)),
        node._replace(tensors=(1,)),
        node._replace(local=(box._replace(sizes=(2, 2)),)),
        node._replace(dtype=6, requires_grad=True),
        node._replace(memory_format=9),
        node._replace(all=(box._replace(device="nowhere"),)),
    ]
    for one in bad:
        with pytest.raises(Malformed):
            codec.distributed(one)
    many = tuple(box._replace(offsets=(i,), sizes=(1,)) for i in range(20000))
    made = codec.distributed(node._replace(shape=(20000,), all=many, listed=many))
    # This takes much less than quadratic time.
    assert len(made.metadata().shards_metadata) == 20000


# ---- real groups ----


def test_with_real_groups(tmp_path):
    """Two processes with a gloo group: a received DTensor is on their mesh and can communicate."""
    script = """
        import sys, torch, torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Shard, distribute_tensor
        from rehearse import core
        from wherry.torch._codec import TorchCodec
        rank, folder = int(sys.argv[1]), sys.argv[2]
        dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{folder}/store")
        mesh = init_device_mesh("cpu", (2,))
        sent = distribute_tensor(torch.arange(7.0), mesh, [Shard(0)])
        received = core.restore(core.build([sent], TorchCodec()), TorchCodec())[0]
        assert received.device_mesh is mesh and received._spec == sent._spec
        assert received.full_tensor().tolist() == [0, 1, 2, 3, 4, 5, 6]
        # To a rank that still reads, a rank that leaves looks dead.
        store = dist.distributed_c10d._get_default_store()
        store.set(f"done{rank}", "1")
        store.wait(["done0", "done1"])
        dist.destroy_process_group()
    """
    command = [
        sys.executable,
        "-c",
        f"import sys\nsys.path[:0] = {sys.path!r}\n" + textwrap.dedent(script),
    ]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path)], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        for one in ranks:
            _, errors = one.communicate(timeout=240)
            assert one.returncode == 0, errors
    finally:
        for one in ranks:
            one.kill()
            one.wait()
