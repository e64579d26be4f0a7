"""ShardedTensor: local shards with the places of all, and back."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed._shard.sharded_tensor.metadata import ShardedTensorMetadata, TensorProperties
from torch.distributed._shard.sharded_tensor.shard import Shard
from torch.distributed._shard.sharding_spec.api import EnumerableShardingSpec
from torch.distributed._shard.sharding_spec.chunk_sharding_spec import ChunkShardingSpec
from torch.distributed.remote_device import _remote_device

from wherry import _nodes
from wherry._nodes import SHARDING_CHUNK, SHARDING_ENUMERABLE, Box, Place, Sharded, Sharding
from wherry._types import Refuse
from wherry.errors import Malformed

_FORMATS = {
    torch.contiguous_format: _nodes.FORMAT_CONTIGUOUS,
    torch.channels_last: _nodes.FORMAT_CHANNELS_LAST,
    torch.channels_last_3d: _nodes.FORMAT_CHANNELS_LAST_3D,
    torch.preserve_format: _nodes.FORMAT_PRESERVE,
}
_MEMORY_FORMATS = {number: memory_format for memory_format, number in _FORMATS.items()}


class _CannotSay(Exception):
    """Why a ShardedTensor cannot be described."""


def encode(value: Any, dtypes: dict[Any, int], refuse: Refuse) -> Any:
    """The node of a ShardedTensor."""
    metadata = value.metadata()
    properties = metadata.tensor_properties
    shards = value.local_shards()
    if any(type(shard.tensor) is not torch.Tensor or shard.tensor.is_meta for shard in shards):
        return refuse(
            value,
            "a local shard is not a plain tensor with memory: make the shards of tensor.detach(), not on the device meta",
        )
    try:
        return Sharded(
            dtypes[properties.dtype],
            bool(properties.requires_grad),
            bool(properties.pin_memory),
            _FORMATS[properties.memory_format],
            tuple(metadata.size),
            tuple([shard.tensor for shard in shards]),
            tuple([_box_node(shard.metadata) for shard in shards]),
            tuple([_box_node(shard) for shard in metadata.shards_metadata]),
            _sharding_node(value.sharding_spec()),
        )
    except _CannotSay as reason:
        return refuse(value, str(reason))


def _place_node(placement: Any) -> Place:
    if placement is None:
        raise _CannotSay("a shard has no placement: give it one, such as 'rank:0/cpu'")
    if placement.worker_name() is not None:
        raise _CannotSay(f"a shard is placed at {placement}, by the name of a worker: use ranks, such as 'rank:0/cpu'")
    rank = placement.rank()
    return Place(-1 if rank is None else rank, str(placement.device()))


def _box_node(shard: ShardMetadata) -> Box:
    return Box(tuple(shard.shard_offsets), tuple(shard.shard_sizes), _place_node(shard.placement))


def _sharding_node(spec: Any) -> Sharding:
    if type(spec) is ChunkShardingSpec:
        return Sharding(SHARDING_CHUNK, int(spec.dim), tuple([_place_node(place) for place in spec.placements]), ())
    if type(spec) is EnumerableShardingSpec:
        return Sharding(SHARDING_ENUMERABLE, 0, (), tuple([_box_node(shard) for shard in spec.shards]))
    raise _CannotSay(
        f"its sharding is a {type(spec).__name__}, and only ChunkShardingSpec and EnumerableShardingSpec travel"
    )


def _placement(place: Place) -> _remote_device:
    return _remote_device(place.device if place.rank < 0 else f"rank:{place.rank}/{place.device}")


def _shard_metadata(box: Box) -> ShardMetadata:
    return ShardMetadata(list(box.offsets), list(box.sizes), _placement(box.place))


def _sharding(node: Sharding, shards: list[ShardMetadata]) -> Any:
    if node.kind == SHARDING_CHUNK:
        return ChunkShardingSpec(node.dim, [_placement(place) for place in node.places])
    # Not by its constructor: that compares every shard with every other, and a sender decides how many there are.
    spec = EnumerableShardingSpec.__new__(EnumerableShardingSpec)
    spec.shards = [_shard_metadata(box) for box in node.boxes] if node.kind == SHARDING_ENUMERABLE else shards
    return spec


def restore(node: Sharded, dtype: torch.dtype, rank: int | None) -> Any:
    """A ShardedTensor whose local shards are at this process; rank: as they name it.

    Its constructors want a process group, as many local shards as the metadata gives this rank, and pinned memory where that
    was pinned. What was received from another rank may lack each of these, so that it is put together here.
    """
    if rank is None and dist.is_initialized():
        rank = dist.get_rank()
    try:
        local = [_local_shard(tensor, box, rank) for tensor, box in zip(node.tensors, node.local)]
        shards = [_shard_metadata(box) for box in node.all]
        memory_format = _MEMORY_FORMATS[node.memory_format]
        properties = TensorProperties(dtype, torch.strided, node.requires_grad, memory_format, node.pin_memory)
        made: Any = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined, unused-ignore]
            ShardedTensor, torch.Size(node.shape), dtype=dtype, layout=torch.strided, requires_grad=node.requires_grad
        )
        made._sharding_spec = _sharding(node.sharding, shards)
        made._metadata = ShardedTensorMetadata(shards, torch.Size(node.shape), properties)
    except Exception as error:
        raise Malformed(f"torch cannot make the ShardedTensor that was sent: {error}") from error
    made._local_shards = local
    made._init_rrefs = False
    made._sharded_tensor_id = None
    made._remote_shards = {}
    made._process_group = dist.group.WORLD if dist.is_initialized() else None
    return made


def _local_shard(tensor: Any, box: Box, rank: int | None) -> Shard:
    place = Place(box.place.rank if rank is None else rank, str(tensor.device))
    return Shard(tensor, _shard_metadata(Box(box.offsets, box.sizes, place)))
