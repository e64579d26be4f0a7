"""The named tuples with which a codec and the core describe values to each other.

Enum values and flags are integers with the values in the C headers.
"""

from __future__ import annotations

from typing import NamedTuple

REPLICATE, SHARD, STRIDED_SHARD, PARTIAL = range(4)
SHARDING_NONE, SHARDING_CHUNK, SHARDING_ENUMERABLE = range(3)
FORMAT_CONTIGUOUS, FORMAT_CHANNELS_LAST, FORMAT_CHANNELS_LAST_3D, FORMAT_PRESERVE = range(4)
TENSOR_REQUIRES_GRAD, TENSOR_CONJ, TENSOR_NEG = 1, 2, 4


#: Shape, strides and offset of a tensor, in elements.
Layout = tuple[tuple[int, ...], tuple[int, ...], int]


class Object(NamedTuple):
    """A value of a type that only a codec understands."""

    type_name: str
    payload: object  # any value


class Memory(NamedTuple):
    """A tensor: a strided view of a storage. Equal pointer and nbytes mean the same storage."""

    pointer: int  # address of the storage
    nbytes: int  # size of the storage
    device: str  # for example "cpu" or "cuda:1"
    dtype: int  # a code from _core.DTYPES
    offset: int  # in elements
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    flags: int  # TENSOR_*
    owner: object  # keeps the memory alive


class Mesh(NamedTuple):
    """The ranks that share a DTensor."""

    device: str  # type without an index, for example "cuda"
    shape: tuple[int, ...]
    ranks: tuple[int, ...]  # in row-major order
    dim_names: tuple[str, ...] | None


class Placement(NamedTuple):
    """How a DTensor is placed on one dimension of its mesh."""

    kind: int  # REPLICATE, SHARD, STRIDED_SHARD, PARTIAL
    dim: int
    split_factor: int
    reduce_op: str | None


class DTensor(NamedTuple):
    """A DTensor: a local tensor that is part of a global one."""

    local: object  # a tensor
    mesh: Mesh
    placements: tuple[Placement, ...]
    dtype: int
    flags: int
    shape: tuple[int, ...]  # of the global tensor
    strides: tuple[int, ...]  # of the global tensor


class Box(NamedTuple):
    """Which part of the global tensor a shard is, and where it is, for example "rank:3/cuda:1"."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    rank: int  # -1: unknown
    device: str


class Sharded(NamedTuple):
    """A ShardedTensor: the local shards, and the boxes of all shards."""

    dtype: int
    requires_grad: bool
    pin_memory: bool
    memory_format: int  # FORMAT_*
    shape: tuple[int, ...]  # of the global tensor
    tensors: tuple[object, ...]  # one per local shard
    local: tuple[Box, ...]  # one per local shard
    all: tuple[Box, ...]  # the shards of all ranks
    sharding: int  # how it was split: SHARDING_*
    dim: int
    listed: tuple[Box, ...]  # SHARDING_CHUNK: with rank and device only
