"""Describes DTensors, ShardedTensors and device meshes to the core, and rebuilds them.

A received DTensor describes its mesh by device type, shape, ranks and dimension names. The receiver
looks for a mesh with these properties: one that the caller passed (`device_mesh=`), one in a state
that it has sent or received into, or a slice of either by dimension names. If there is none, it
makes a mesh without process groups and logs a warning: the DTensor can then be read, but not
redistributed.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor as TorchDTensor
from torch.distributed.tensor import Partial, Replicate, Shard

from wherry import _nodes
from wherry._nodes import Box, DTensor, Mesh, Placement, Sharded
from wherry._types import CannotSend
from wherry.errors import InvalidArgument, Malformed, Unsupported
from wherry.torch import _private
from wherry.torch._tensors import ON_META, parameter

logger = logging.getLogger("wherry")


@contextlib.contextmanager
def _making(what: str) -> Iterator[None]:
    """Exceptions of torch are about the received description."""
    try:
        yield
    except Unsupported:
        raise
    except Exception as error:
        raise Malformed(f"torch cannot make {what}: {error}") from error


# ---- meshes ----

#: Dimension names that mark a mesh without dimensions. The library requires at least one dimension.
POINT = ("(a single rank)",)

_lock = threading.Lock()
_nodes_by_mesh: weakref.WeakKeyDictionary[DeviceMesh, Mesh] = weakref.WeakKeyDictionary()
_meshes: weakref.WeakValueDictionary[Mesh, DeviceMesh] = weakref.WeakValueDictionary()
#: The meshes that this module made, by id.
_made: weakref.WeakValueDictionary[int, DeviceMesh] = weakref.WeakValueDictionary()


def describe_mesh(mesh: DeviceMesh) -> Mesh:
    """The node of a mesh. Also remembers the mesh, until the program drops it."""
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
    # After a failure, a program recreates its groups and meshes, but old meshes may still exist.
    if known is not mesh and (known is None or not _can_communicate(known)):
        with _lock:
            _meshes[node] = mesh
    return node


def _can_communicate(mesh: DeviceMesh) -> bool:
    try:
        groups = mesh.get_all_groups()
        alive = all(dist.get_process_group_ranks(group) for group in groups)
    except Exception:  # The mesh has no groups, or torch has destroyed them.
        return False
    # Torch finds groups by name, so get_all_groups() may return newer groups with the same names.
    made_with = _private.groups_of_mesh(mesh)
    return alive and (
        not made_with or all(any(one is group for one in made_with) for group in groups)
    )


class Meshes:
    """Finds the meshes of received DTensors, for one call."""

    def __init__(self, given: DeviceMesh | Sequence[DeviceMesh] | None, rank: int | None) -> None:
        several = (given,) if isinstance(given, DeviceMesh) else tuple(given or ())
        if not all(isinstance(mesh, DeviceMesh) for mesh in several):
            raise InvalidArgument("device_mesh must be a DeviceMesh or a sequence of them")
        self._rank = dist.get_rank() if dist.is_initialized() else rank
        self._found: dict[Mesh, DeviceMesh] = {}
        self._looked_at_slices = False
        self._warned = False
        self._warned_of_rows = False
        self._add_slices(several)

    def find(self, node: Mesh) -> DeviceMesh:
        """A mesh of this process that matches the node. Makes one if there is none."""
        if node not in self._found:
            known = _meshes.get(node)
            if known is not None and self._fits(known):
                self._found[node] = known
        if node not in self._found and not self._looked_at_slices:
            self._looked_at_slices = True
            # Do this once, and not for meshes that were made here: a hostile sender could cause
            # many of these, with many dimensions.
            self._add_slices(
                mesh
                for mesh in list(_meshes.values())
                if _made.get(id(mesh)) is not mesh and self._fits(mesh)
            )
        if node not in self._found:
            self._found[node] = self._make(node)
        return self._found[node]

    def check_rows(self, mesh: DeviceMesh, placements: Sequence[Any], source: int | None) -> None:
        """Warns if a DTensor over a mesh of this process has the rows of another rank."""
        if source is None or self._rank is None or self._warned_of_rows:
            return
        own, other = (torch.nonzero(mesh.mesh == rank).tolist() for rank in (self._rank, source))
        cut = [
            dim
            for dim, one in enumerate(placements)
            if isinstance(one, (Shard, _private._StridedShard))
        ]
        if own and other and any(own[0][dim] != other[0][dim] for dim in cut):
            self._warned_of_rows = True
            logger.warning(
                "received a shard of rank %d as a new DTensor of rank %d, over their common mesh: "
                "its rows are those of the other rank; pass a target, and receive from a rank that "
                "has the same shard",
                source,
                self._rank,
            )

    def _fits(self, mesh: DeviceMesh) -> bool:
        """True if the mesh is for this process's rank, and can communicate or was made here."""
        rank = _private.rank_of_mesh(mesh)
        same_rank = self._rank is None or rank is None or rank == self._rank
        return same_rank and (_made.get(id(mesh)) is mesh or _can_communicate(mesh))

    def _add_slices(self, meshes: Iterable[DeviceMesh]) -> None:
        """Adds meshes, and their slices by dimension names. Does not communicate."""
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
        with _making(f"a mesh of shape {node.shape} for {node.device!r}"):
            point = node.dim_names == POINT
            ranks = torch.tensor(node.ranks, dtype=torch.int, device="cpu")
            made: DeviceMesh = _private.mesh_without_groups(
                node.device,
                ranks.reshape(() if point else node.shape),
                None if point else node.dim_names,
                -1 if self._rank is None else self._rank,
            )
        with _lock:
            _made[id(made)] = made
            _meshes[node] = made
        if not self._warned:
            self._warned = True
            logger.warning(
                "this process has no device mesh like that of the received DTensors (shape %s, "
                "dimensions %s), so they get a mesh that cannot communicate; to use your own mesh, "
                "pass device_mesh=",
                list(node.shape),
                node.dim_names,
            )
        return made


def forget_meshes() -> None:
    """Forgets all meshes. Only tests need this."""
    with _lock:
        _nodes_by_mesh.clear()
        _meshes.clear()
        _made.clear()


# ---- DTensor ----


def encode_dtensor(value: Any, dtypes: dict[Any, int]) -> Any:
    """The node of a DTensor."""
    spec = _private.spec_of(value)
    local = _private.local_tensor_of(value)
    meta = spec.tensor_meta
    if type(local) is not torch.Tensor:
        raise CannotSend(
            f"its local tensor is a {type(local).__name__}, not a torch.Tensor: redistribute it "
            "first, or wait for pending communication"
        )
    if local.is_meta:
        raise CannotSend(ON_META)
    if meta is None:
        raise CannotSend(
            "its global shape is unknown: create it with DTensor.from_local or distribute_tensor"
        )
    placements = tuple([_describe_placement(placement) for placement in spec.placements])
    if None in placements:
        raise CannotSend(
            f"its placements are {spec.placements}, but only Replicate, Shard and Partial can be "
            "sent: redistribute it first"
        )
    # The receiver makes a spec that shards in the order of the mesh dimensions. Only two or more
    # sharded dimensions can have another order.
    cuts = sum(one.kind in (_nodes.SHARD, _nodes.STRIDED_SHARD) for one in placements)
    if cuts > 1 and spec != _private.DTensorSpec(spec.mesh, spec.placements, tensor_meta=meta):
        raise CannotSend(
            "its shard order differs from the order of its mesh dimensions: redistribute it first"
        )
    flags = _nodes.TENSOR_REQUIRES_GRAD if value.requires_grad else 0
    mesh = describe_mesh(spec.mesh)
    if mesh.dim_names == POINT:
        placements = (_describe_placement(Replicate()),)
    node = DTensor(
        local, mesh, placements, dtypes[meta.dtype], flags, tuple(meta.shape), tuple(meta.stride)
    )
    return parameter(value, node)


def _describe_placement(placement: Any) -> Any:
    cls = type(placement)
    if cls is Replicate:
        return Placement(_nodes.REPLICATE, 0, 0, None)
    if cls is Shard:
        return Placement(_nodes.SHARD, placement.dim, 0, None)
    if cls is _private._StridedShard:
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
        return _private._StridedShard(node.dim, split_factor=node.split_factor)
    return Partial(node.reduce_op or "sum")


def make_dtensor(
    node: DTensor, dtype: torch.dtype, meshes: Meshes, source: int | None = None
) -> Any:
    """Makes a received DTensor over a mesh of this process. ``source``: the mesh rank it is of."""
    mesh = meshes.find(node.mesh)
    with _making("the received DTensor"):
        meta = _private.TensorMeta(torch.Size(node.shape), tuple(node.strides), dtype)
        point = node.mesh.dim_names == POINT
        placements = () if point else tuple(map(_make_placement, node.placements))
        meshes.check_rows(mesh, placements, source)
        spec = _private.DTensorSpec(mesh, placements, tensor_meta=meta)
        requires_grad = bool(node.flags & _nodes.TENSOR_REQUIRES_GRAD)
        make: Any = TorchDTensor
        return make(node.local, spec, requires_grad=requires_grad)


# ---- ShardedTensor ----

_FORMATS = {
    torch.contiguous_format: _nodes.FORMAT_CONTIGUOUS,
    torch.channels_last: _nodes.FORMAT_CHANNELS_LAST,
    torch.channels_last_3d: _nodes.FORMAT_CHANNELS_LAST_3D,
    torch.preserve_format: _nodes.FORMAT_PRESERVE,
}
_MEMORY_FORMATS = {number: memory_format for memory_format, number in _FORMATS.items()}


def encode_sharded(value: Any, dtypes: dict[Any, int]) -> Any:
    """The node of a ShardedTensor."""
    metadata = value.metadata()
    properties = metadata.tensor_properties
    shards = value.local_shards()
    if any(type(shard.tensor) is not torch.Tensor or shard.tensor.is_meta for shard in shards):
        raise CannotSend(
            "a local shard is not a plain tensor with memory: create the shards from "
            "tensor.detach(), not on the device meta"
        )
    return Sharded(
        dtypes[properties.dtype],
        bool(properties.requires_grad),
        bool(properties.pin_memory),
        _FORMATS[properties.memory_format],
        tuple(metadata.size),
        tuple([shard.tensor for shard in shards]),
        _describe_boxes(shard.metadata for shard in shards),
        _describe_boxes(metadata.shards_metadata),
        *_describe_sharding(value.sharding_spec()),
    )


def _describe_box(offsets: Sequence[int], sizes: Sequence[int], placement: Any) -> Box:
    if placement is None:
        raise CannotSend("a shard has no placement: set one, such as 'rank:0/cpu'")
    if placement.worker_name() is not None:
        raise CannotSend(
            f"the placement {placement} of a shard names a worker: use a rank, such as 'rank:0/cpu'"
        )
    rank = placement.rank()
    return Box(tuple(offsets), tuple(sizes), -1 if rank is None else rank, str(placement.device()))


def _describe_boxes(shards: Iterable[Any]) -> tuple[Box, ...]:
    return tuple(
        [_describe_box(one.shard_offsets, one.shard_sizes, one.placement) for one in shards]
    )


def _describe_sharding(spec: Any) -> tuple[int, int, tuple[Box, ...]]:
    if type(spec) is _private.ChunkShardingSpec:
        places = tuple([_describe_box((), (), place) for place in spec.placements])
        return _nodes.SHARDING_CHUNK, int(spec.dim), places
    if type(spec) is _private.EnumerableShardingSpec:
        return _nodes.SHARDING_ENUMERABLE, 0, _describe_boxes(spec.shards)
    raise CannotSend(
        f"its sharding spec is a {type(spec).__name__}, but only ChunkShardingSpec and "
        "EnumerableShardingSpec can be sent"
    )


def _make_place(box: Box) -> Any:
    return _private._remote_device(box.device if box.rank < 0 else f"rank:{box.rank}/{box.device}")


def _make_box(box: Box) -> Any:
    return _private.ShardMetadata(list(box.offsets), list(box.sizes), _make_place(box))


def _make_sharding(node: Sharded, shards: list[Any]) -> Any:
    if node.sharding == _nodes.SHARDING_CHUNK:
        return _private.ChunkShardingSpec(node.dim, [_make_place(box) for box in node.listed])
    listed = node.sharding == _nodes.SHARDING_ENUMERABLE
    # The sender chooses the number of shards, so their cost must not be its square.
    return _private.enumerable_spec([_make_box(box) for box in node.listed] if listed else shards)


def make_sharded(node: Sharded, dtype: torch.dtype, rank: int | None) -> Any:
    """Makes a received ShardedTensor. Its local shards are on `rank`, which is this process.

    It may have other local shards than the metadata has for this rank, and no process group.
    """
    if rank is None and dist.is_initialized():
        rank = dist.get_rank()
    with _making("the received ShardedTensor"):
        local = [_local_shard(tensor, box, rank) for tensor, box in zip(node.tensors, node.local)]
        shards = [_make_box(box) for box in node.all]
        memory_format = _MEMORY_FORMATS[node.memory_format]
        properties = _private.TensorProperties(
            dtype, torch.strided, node.requires_grad, memory_format, node.pin_memory
        )
        spec = _make_sharding(node, shards)
        return _private.sharded_tensor(torch.Size(node.shape), properties, spec, shards, local)


def _local_shard(tensor: Any, box: Box, rank: int | None) -> Any:
    here = box.rank if rank is None else rank
    made = _make_box(Box(box.offsets, box.sizes, here, str(tensor.device)))
    return _private.Shard(tensor, made)
