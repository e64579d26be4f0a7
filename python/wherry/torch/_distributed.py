"""DTensor, ShardedTensor and device meshes: described for the core, and made again.

A received DTensor names its mesh by device type, shape, ranks and dimension names. The receiver
looks for a mesh with these properties: one that the caller gave (`device_mesh=`), one
that it has seen in a state (its own or one that it sent), or a slice of either by dimension names.
If there is none, it makes a mesh without process groups and logs a warning: such a DTensor can be
read, but not redistributed.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed._shard.sharded_tensor.metadata import ShardedTensorMetadata, TensorProperties
from torch.distributed._shard.sharded_tensor.shard import Shard as LocalShard
from torch.distributed._shard.sharding_spec.api import EnumerableShardingSpec
from torch.distributed._shard.sharding_spec.chunk_sharding_spec import ChunkShardingSpec
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.remote_device import _remote_device
from torch.distributed.tensor import DTensor as TorchDTensor
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor.placement_types import _StridedShard

from wherry import _nodes
from wherry._nodes import Box, DTensor, Mesh, Place, Placement, Sharded, Sharding
from wherry._types import Refuse
from wherry.errors import InvalidArgument, Malformed
from wherry.torch._tensors import parameter

logger = logging.getLogger("wherry")

# ---- meshes ----

#: The dimension names of a mesh without dimensions, because the library wants at least one.
POINT = ("(a single rank)",)

_lock = threading.Lock()
_nodes_by_mesh: weakref.WeakKeyDictionary[DeviceMesh, Mesh] = weakref.WeakKeyDictionary()
_meshes: weakref.WeakValueDictionary[Mesh, DeviceMesh] = weakref.WeakValueDictionary()
_made: weakref.WeakValueDictionary[int, DeviceMesh] = weakref.WeakValueDictionary()  # here, by id


def describe_mesh(mesh: DeviceMesh) -> Mesh:
    """The node of a mesh. The mesh is remembered while the program holds it."""
    node = _nodes_by_mesh.get(mesh)
    if node is None:
        ranks = mesh.mesh
        names = mesh.mesh_dim_names if ranks.ndim else POINT
        shape = tuple(ranks.shape) or (1,)
        flat = tuple(ranks.flatten().tolist())
        node = Mesh(mesh.device_type, shape, flat, tuple(names) if names else None)
        with _lock:
            _nodes_by_mesh[mesh] = node
    known = _meshes.get(node)
    # After a failure a program makes its groups and meshes again. The old ones may still be around.
    if known is not mesh and (known is None or not _can_communicate(known)):
        with _lock:
            _meshes[node] = mesh
    return node


def _can_communicate(mesh: DeviceMesh) -> bool:
    try:
        groups = mesh.get_all_groups()
        alive = all(dist.get_process_group_ranks(group) for group in groups)
    except Exception:  # it has no groups, or torch has destroyed them
        return False
    # Torch looks groups up by name, and a group that was made later may have the same name.
    root = getattr(mesh, "_root_mesh", None) or mesh
    made_with = list(getattr(root, "_pg_registry", {}).values())
    return alive and (
        not made_with or all(any(one is group for one in made_with) for group in groups)
    )


class Meshes:
    """Finds the meshes of received DTensors, for one call."""

    def __init__(self, given: DeviceMesh | Sequence[DeviceMesh] | None, rank: int | None) -> None:
        several = (given,) if isinstance(given, DeviceMesh) else tuple(given or ())
        if not all(isinstance(mesh, DeviceMesh) for mesh in several):
            raise InvalidArgument("device_mesh is a DeviceMesh, or several of them")
        self._rank = dist.get_rank() if dist.is_initialized() else rank
        self._found: dict[Mesh, DeviceMesh] = {}
        self._looked_at_slices = False
        self._warned = False
        self._add_slices(several)

    def find(self, node: Mesh) -> DeviceMesh:
        """A mesh of this process, with its process groups if it has some."""
        if node not in self._found:
            known = _meshes.get(node)
            if known is not None and self._fits(known):
                self._found[node] = known
        if node not in self._found and not self._looked_at_slices:
            self._looked_at_slices = True
            # Once per call, and not of meshes that were made here: a sender chooses the number of
            # meshes and of their dimensions.
            self._add_slices(
                mesh
                for mesh in list(_meshes.values())
                if _made.get(id(mesh)) is not mesh and self._fits(mesh)
            )
        if node not in self._found:
            self._found[node] = self._make(node)
        return self._found[node]

    def _fits(self, mesh: DeviceMesh) -> bool:
        """A mesh knows which of its ranks this process is."""
        same_rank = self._rank is None or getattr(mesh, "_rank", self._rank) == self._rank
        return same_rank and (_made.get(id(mesh)) is mesh or _can_communicate(mesh))

    def _add_slices(self, meshes: Iterable[DeviceMesh]) -> None:
        """Adds meshes, and what their dimension names select of them. This does not communicate."""
        for mesh in meshes:
            names = mesh.mesh_dim_names or ()
            self._found.setdefault(describe_mesh(mesh), mesh)
            for count in range(1, len(names)):
                for chosen in itertools.combinations(names, count):
                    # Torch raises if this process is not in the slice.
                    with contextlib.suppress(RuntimeError, KeyError, AttributeError):
                        part = mesh[chosen]
                        self._found.setdefault(describe_mesh(part), part)

    def _make(self, node: Mesh) -> DeviceMesh:
        try:
            point = node.dim_names == POINT
            ranks = torch.tensor(node.ranks, dtype=torch.int, device="cpu")
            made = DeviceMesh(
                node.device,
                ranks.reshape(() if point else node.shape),
                mesh_dim_names=None if point else node.dim_names,
                _init_backend=False,
                _rank=-1 if self._rank is None else self._rank,
            )
        except Exception as error:
            raise Malformed(
                f"torch cannot make a mesh of shape {node.shape} for {node.device!r}: {error}"
            ) from error
        with _lock:
            _made[id(made)] = made
            _meshes[node] = made
        if not self._warned:
            self._warned = True
            logger.warning(
                "this process has no device mesh like that of the received DTensors (shape %s, "
                "dimensions %s), so they get one that cannot communicate: pass device_mesh=",
                list(node.shape),
                node.dim_names,
            )
        return made


def forget_meshes() -> None:
    """Forgets all meshes: for tests."""
    with _lock:
        _nodes_by_mesh.clear()
        _meshes.clear()
        _made.clear()


# ---- DTensor ----


def encode_dtensor(value: Any, dtypes: dict[Any, int], refuse: Refuse) -> Any:
    """The node of a DTensor."""
    spec = value._spec
    local = value._local_tensor
    meta = spec.tensor_meta
    if type(local) is not torch.Tensor:
        return refuse(
            value,
            f"its local part is a {type(local).__name__}: redistribute it, or wait for its local "
            "part, first",
        )
    if local.is_meta:
        return refuse(
            value,
            "it has no memory, because it is on the device meta: give it some first, for example "
            "with module.to_empty(device='cpu')",
        )
    if meta is None:
        return refuse(
            value,
            "its global shape is not known: make it by DTensor.from_local or distribute_tensor",
        )
    placements = tuple([_describe_placement(placement) for placement in spec.placements])
    if None in placements:
        return refuse(
            value,
            f"its placements are {spec.placements}, and only Replicate, Shard and Partial can be "
            "sent: redistribute it first",
        )
    # The order of cuts can differ from that of the mesh only if there is more than one.
    cuts = sum(one.kind in (_nodes.SHARD, _nodes.STRIDED_SHARD) for one in placements)
    if cuts > 1 and not _cut_in_mesh_order(spec):
        return refuse(value, "it is cut in another order than its mesh: redistribute it first")
    flags = _nodes.TENSOR_REQUIRES_GRAD if value.requires_grad else 0
    mesh = describe_mesh(spec.mesh)
    if mesh.dim_names == POINT:
        placements = (_describe_placement(Replicate()),)
    node = DTensor(
        local, mesh, placements, dtypes[meta.dtype], flags, tuple(meta.shape), tuple(meta.stride)
    )
    return parameter(value, node)


def _cut_in_mesh_order(spec: Any) -> bool:
    return bool(DTensorSpec(spec.mesh, spec.placements, tensor_meta=spec.tensor_meta) == spec)


def _describe_placement(placement: Any) -> Any:
    cls = type(placement)
    if cls is Replicate:
        return Placement(_nodes.REPLICATE, 0, 0, None)
    if cls is Shard:
        return Placement(_nodes.SHARD, placement.dim, 0, None)
    if cls is _StridedShard:
        return Placement(_nodes.STRIDED_SHARD, placement.dim, placement.split_factor, None)
    if cls is Partial:
        return Placement(_nodes.PARTIAL, 0, 0, placement.reduce_op)
    return None


def _make_placement(node: Placement) -> Any:
    if node.kind == _nodes.REPLICATE:
        return Replicate()
    if node.kind == _nodes.SHARD:
        return Shard(node.dim)
    if node.kind == _nodes.STRIDED_SHARD:
        return _StridedShard(node.dim, split_factor=node.split_factor)
    return Partial(node.reduce_op or "sum")


def make_dtensor(node: DTensor, dtype: torch.dtype, meshes: Meshes) -> Any:
    """A DTensor over a mesh of this process."""
    mesh = meshes.find(node.mesh)
    try:
        meta = TensorMeta(torch.Size(node.shape), tuple(node.strides), dtype)
        placements = (
            () if node.mesh.dim_names == POINT else tuple(map(_make_placement, node.placements))
        )
        spec = DTensorSpec(mesh, placements, tensor_meta=meta)
        requires_grad = bool(node.flags & _nodes.TENSOR_REQUIRES_GRAD)
        make: Any = TorchDTensor
        return make(node.local, spec, requires_grad=requires_grad)
    except Exception as error:
        raise Malformed(f"torch cannot make the DTensor that was sent: {error}") from error


# ---- ShardedTensor ----

_FORMATS = {
    torch.contiguous_format: _nodes.FORMAT_CONTIGUOUS,
    torch.channels_last: _nodes.FORMAT_CHANNELS_LAST,
    torch.channels_last_3d: _nodes.FORMAT_CHANNELS_LAST_3D,
    torch.preserve_format: _nodes.FORMAT_PRESERVE,
}
_MEMORY_FORMATS = {number: memory_format for memory_format, number in _FORMATS.items()}


class _CannotDescribe(Exception):
    """A ShardedTensor cannot be described; the text says why."""


def encode_sharded(value: Any, dtypes: dict[Any, int], refuse: Refuse) -> Any:
    """The node of a ShardedTensor."""
    metadata = value.metadata()
    properties = metadata.tensor_properties
    shards = value.local_shards()
    if any(type(shard.tensor) is not torch.Tensor or shard.tensor.is_meta for shard in shards):
        return refuse(
            value,
            "a local shard is not a plain tensor with memory: make the shards of "
            "tensor.detach(), not on the device meta",
        )
    try:
        return Sharded(
            dtypes[properties.dtype],
            bool(properties.requires_grad),
            bool(properties.pin_memory),
            _FORMATS[properties.memory_format],
            tuple(metadata.size),
            tuple([shard.tensor for shard in shards]),
            tuple([_describe_box(shard.metadata) for shard in shards]),
            tuple([_describe_box(shard) for shard in metadata.shards_metadata]),
            _describe_sharding(value.sharding_spec()),
        )
    except _CannotDescribe as reason:
        return refuse(value, str(reason))


def _describe_place(placement: Any) -> Place:
    if placement is None:
        raise _CannotDescribe("a shard has no placement: give it one, such as 'rank:0/cpu'")
    if placement.worker_name() is not None:
        raise _CannotDescribe(
            f"a shard is placed at {placement}, which names a worker: use ranks, such as "
            "'rank:0/cpu'"
        )
    rank = placement.rank()
    return Place(-1 if rank is None else rank, str(placement.device()))


def _describe_box(shard: ShardMetadata) -> Box:
    return Box(
        tuple(shard.shard_offsets), tuple(shard.shard_sizes), _describe_place(shard.placement)
    )


def _describe_sharding(spec: Any) -> Sharding:
    if type(spec) is ChunkShardingSpec:
        return Sharding(
            _nodes.SHARDING_CHUNK,
            int(spec.dim),
            tuple([_describe_place(place) for place in spec.placements]),
            (),
        )
    if type(spec) is EnumerableShardingSpec:
        return Sharding(
            _nodes.SHARDING_ENUMERABLE,
            0,
            (),
            tuple([_describe_box(shard) for shard in spec.shards]),
        )
    raise _CannotDescribe(
        f"its sharding is a {type(spec).__name__}, and only ChunkShardingSpec and "
        "EnumerableShardingSpec can be sent"
    )


def _make_place(place: Place) -> _remote_device:
    return _remote_device(place.device if place.rank < 0 else f"rank:{place.rank}/{place.device}")


def _make_box(box: Box) -> ShardMetadata:
    return ShardMetadata(list(box.offsets), list(box.sizes), _make_place(box.place))


def _make_sharding(node: Sharding, shards: list[ShardMetadata]) -> Any:
    if node.kind == _nodes.SHARDING_CHUNK:
        return ChunkShardingSpec(node.dim, [_make_place(place) for place in node.places])
    # The constructor compares every shard with every other, and the sender chooses their number.
    spec = EnumerableShardingSpec.__new__(EnumerableShardingSpec)
    spec.shards = (
        [_make_box(box) for box in node.boxes]
        if node.kind == _nodes.SHARDING_ENUMERABLE
        else shards
    )
    return spec


def make_sharded(node: Sharded, dtype: torch.dtype, rank: int | None) -> Any:
    """A ShardedTensor whose local shards are on `rank`, this process.

    Torch's constructors require a process group, as many local shards as the metadata gives this
    rank, and pinned memory if the sender's was pinned. A received ShardedTensor may lack each of
    these, so its parts are set here.
    """
    if rank is None and dist.is_initialized():
        rank = dist.get_rank()
    try:
        local = [_local_shard(tensor, box, rank) for tensor, box in zip(node.tensors, node.local)]
        shards = [_make_box(box) for box in node.all]
        memory_format = _MEMORY_FORMATS[node.memory_format]
        properties = TensorProperties(
            dtype, torch.strided, node.requires_grad, memory_format, node.pin_memory
        )
        tensor_class: Any = torch.Tensor
        made: Any = tensor_class._make_wrapper_subclass(
            ShardedTensor,
            torch.Size(node.shape),
            dtype=dtype,
            layout=torch.strided,
            requires_grad=node.requires_grad,
        )
        made._sharding_spec = _make_sharding(node.sharding, shards)
        made._metadata = ShardedTensorMetadata(shards, torch.Size(node.shape), properties)
    except Exception as error:
        raise Malformed(f"torch cannot make the ShardedTensor that was sent: {error}") from error
    made._local_shards = local
    made._init_rrefs = False
    made._sharded_tensor_id = None
    made._remote_shards = {}
    made._process_group = dist.group.WORLD if dist.is_initialized() else None
    return made


def _local_shard(tensor: Any, box: Box, rank: int | None) -> LocalShard:
    place = Place(box.place.rank if rank is None else rank, str(tensor.device))
    return LocalShard(tensor, _make_box(Box(box.offsets, box.sizes, place)))
