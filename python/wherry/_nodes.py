"""What a codec hands to the core for a value that the core does not read by itself: plain tuples with names."""

from __future__ import annotations

from typing import NamedTuple


class Object(NamedTuple):
    """A value of a type that only a codec understands: a name, and a payload that is walked like any other value."""

    type_name: str
    payload: object


class Memory(NamedTuple):
    """A tensor: a strided view of a run of memory. Views of the same run share one storage."""

    pointer: int  # the storage's first byte
    nbytes: int  # of the storage
    device: str  # "cpu", "cuda:1"
    dtype: int  # of DTYPES
    offset: int  # in elements
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    flags: int  # TENSOR_*
    owner: object  # kept alive as long as the memory is used


class Mesh(NamedTuple):
    """The ranks that a DTensor is spread over."""

    device: str  # the kind alone: "cpu"
    shape: tuple[int, ...]
    ranks: tuple[int, ...]  # the last dimension fastest
    dim_names: tuple[str, ...] | None


class Placement(NamedTuple):
    """How a tensor lies over one dimension of a mesh."""

    kind: int  # REPLICATE, SHARD, STRIDED_SHARD, PARTIAL
    dim: int
    split_factor: int
    reduce_op: str | None


class DTensor(NamedTuple):
    """A local tensor that is a part of a global one."""

    local: object  # a tensor, walked like any other
    mesh: Mesh
    placements: tuple[Placement, ...]
    dtype: int
    flags: int
    shape: tuple[int, ...]  # global
    strides: tuple[int, ...]  # global


class Place(NamedTuple):
    """Where a shard lives: "rank:3/cuda:1"."""

    rank: int  # -1: not said
    device: str


class Box(NamedTuple):
    """Which part of a global tensor a shard is, and where it lives."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    place: Place


class Sharding(NamedTuple):
    """How the shards were cut."""

    kind: int  # SHARDING_NONE, SHARDING_CHUNK, SHARDING_ENUMERABLE
    dim: int
    places: tuple[Place, ...]
    boxes: tuple[Box, ...]


class Sharded(NamedTuple):
    """Local shards, each a box of a global tensor."""

    dtype: int
    requires_grad: bool
    pin_memory: bool
    memory_format: int  # FORMAT_*
    shape: tuple[int, ...]  # global
    tensors: tuple[object, ...]  # of the local shards, walked like any other
    local: tuple[Box, ...]  # as many
    all: tuple[Box, ...]  # of all ranks
    sharding: Sharding


#: wherry_placement_kind, wherry_sharding_kind, wherry_memory_format and the flags of a tensor, as the C headers have them.
REPLICATE, SHARD, STRIDED_SHARD, PARTIAL = range(4)
SHARDING_NONE, SHARDING_CHUNK, SHARDING_ENUMERABLE = range(3)
FORMAT_CONTIGUOUS, FORMAT_CHANNELS_LAST, FORMAT_CHANNELS_LAST_3D, FORMAT_PRESERVE = range(4)
TENSOR_REQUIRES_GRAD, TENSOR_CONJ, TENSOR_NEG = 1, 2, 4
