"""How a codec describes values to the core, and the core to a codec: named tuples.

Integers that stand for an enum or for flags have the values of the C headers.
"""

from __future__ import annotations

from typing import NamedTuple

REPLICATE, SHARD, STRIDED_SHARD, PARTIAL = range(4)
SHARDING_NONE, SHARDING_CHUNK, SHARDING_ENUMERABLE = range(3)
FORMAT_CONTIGUOUS, FORMAT_CHANNELS_LAST, FORMAT_CHANNELS_LAST_3D, FORMAT_PRESERVE = range(4)
TENSOR_REQUIRES_GRAD, TENSOR_CONJ, TENSOR_NEG = 1, 2, 4


class Object(NamedTuple):
    """A value of a type that only a codec understands."""

    type_name: str
    payload: object  # any value


class Memory(NamedTuple):
    """A tensor: a strided view of memory. Views with the same pointer and nbytes share a
    storage."""

    pointer: int  # of the storage
    nbytes: int  # of the storage
    device: str  # "cpu", "cuda:1"
    dtype: int  # of DTYPES
    offset: int  # in elements
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    flags: int  # TENSOR_*
    owner: object  # kept alive while the memory is in use


class Mesh(NamedTuple):
    """The ranks that share a DTensor."""

    device: str  # without an index: "cpu"
    shape: tuple[int, ...]
    ranks: tuple[int, ...]  # the last dimension varies fastest
    dim_names: tuple[str, ...] | None


class Placement(NamedTuple):
    """How a DTensor is placed on one dimension of its mesh."""

    kind: int  # REPLICATE, SHARD, STRIDED_SHARD, PARTIAL
    dim: int
    split_factor: int
    reduce_op: str | None


class DTensor(NamedTuple):
    """A local tensor that is part of a global one."""

    local: object  # a tensor
    mesh: Mesh
    placements: tuple[Placement, ...]
    dtype: int
    flags: int
    shape: tuple[int, ...]  # global
    strides: tuple[int, ...]  # global


class Place(NamedTuple):
    """Where a shard is: "rank:3/cuda:1"."""

    rank: int  # -1: unknown
    device: str


class Box(NamedTuple):
    """Which part of a global tensor a shard is, and where it is."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    place: Place


class Sharding(NamedTuple):
    """How a ShardedTensor was split."""

    kind: int  # SHARDING_*
    dim: int
    places: tuple[Place, ...]
    boxes: tuple[Box, ...]


class Sharded(NamedTuple):
    """A ShardedTensor: the local shards, and the boxes of all shards."""

    dtype: int
    requires_grad: bool
    pin_memory: bool
    memory_format: int  # FORMAT_*
    shape: tuple[int, ...]  # global
    tensors: tuple[object, ...]  # of the local shards
    local: tuple[Box, ...]  # one per tensor
    all: tuple[Box, ...]  # of all ranks
    sharding: Sharding
