"""The contents of a manifest (docs/wire-format.md): plain data, its chunks, and a description as
JSON."""

from __future__ import annotations

import bisect
import math
import struct
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Iterator, List, Optional
from typing import Tuple as Tup

DTYPES = (
    "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 float64 complex32 complex64 complex128 "
    "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2 qint8 quint8 qint32 quint4x2 "
    "quint2x4 bits8 bits16 bits1x8 bits2x4 bits4x2 uint1 uint2 uint3 uint4 uint5 uint6 uint7 int1 int2 int3 int4 int5 int6 int7"
).split()
DEVICES = "cpu cuda xpu hip mps hpu xla mtia npu meta privateuseone".split()
ELEMENT_BYTES = {
    **dict.fromkeys((3, 4, 9, 10, 28), 2),
    **dict.fromkeys((5, 6, 11, 13, 24), 4),
    **dict.fromkeys((7, 8, 12, 14), 8),
    15: 16,
}  # All other dtypes have 1.


# Values. None, bool, int (of any size), str and bytes stand for themselves.


@dataclass(frozen=True)
class Float:
    bits: bytes

    @property
    def value(self) -> float:
        return struct.unpack(">d", self.bits)[0]


@dataclass(frozen=True)
class Complex:
    bits: bytes

    @property
    def value(self) -> complex:
        return complex(*struct.unpack(">dd", self.bits))


@dataclass
class Sequence:
    kind: str  # "list" or "tuple"
    items: List[Any]


@dataclass
class Dict:
    entries: List[Tup[Any, Any]]


@dataclass
class Object:
    name: str
    payload: Any


@dataclass
class Tensor:
    storage: int
    dtype: int
    flags: int
    offset: int
    sizes: List[int]
    strides: List[int]  # This is always filled.

    @property
    def nbytes(self) -> int:
        return math.prod(self.sizes) * element_bytes(self.dtype)


@dataclass
class Placement:
    kind: int
    dim: Optional[int] = None
    factor: Optional[int] = None
    reduction: Optional[str] = None


@dataclass
class DTensor:
    mesh: int
    placements: List[Placement]
    dtype: int
    flags: int
    sizes: List[int]
    strides: List[int]
    local: Tensor


@dataclass
class Place:
    rank: int
    device: Tup[int, int]


@dataclass
class Box:
    offsets: List[int]
    sizes: List[int]
    place: Place


@dataclass
class Sharding:
    kind: int
    dim: Optional[int] = None
    places: Optional[List[Place]] = None
    boxes: Optional[List[Box]] = None


@dataclass
class Sharded:
    dtype: int
    flags: int
    format: int
    sizes: List[int]
    shards: List[Tup[Box, Tensor]]
    boxes: List[Box]
    sharding: Optional[Sharding]


@dataclass
class Extent:
    offset: int
    length: int
    levels: List[Tup[int, int]] = field(
        default_factory=list
    )  # (count, stride), the outermost first

    @property
    def run_count(self) -> int:
        return math.prod(count for count, _ in self.levels)

    def run(self, number: int) -> int:
        """The offset of a run in the storage."""
        begin = self.offset
        for count, stride in reversed(self.levels):
            number, digit = divmod(number, count)
            begin += digit * stride
        return begin


@dataclass
class Storage:
    nbytes: int
    device: Tup[int, int]
    extents: List[Extent]  # This is always filled.


@dataclass
class Mesh:
    device_kind: int
    sizes: List[int]
    ranks: List[int]
    names: Optional[List[str]]


@dataclass
class Manifest:
    chunk_bytes: int
    rank: int
    storages: List[Storage]
    meshes: List[Mesh]
    root: Any
    # All tensors, in the order of the tree, including those inside DTensors and ShardedTensors.
    tensors: List[Tensor]

    def runs(self) -> Iterator[Tup[int, int, int]]:
        """All runs as (storage, offset, length), in the order of the space, without gaps."""
        for number, extent in self._layout[1]:
            for run in range(extent.run_count):
                yield number, extent.run(run), extent.length

    @cached_property
    def _layout(self) -> Tup[List[int], List[Tup[int, Extent]]]:
        """The position of each extent, then the end of the space; and the extents."""
        numbers = sorted(
            range(len(self.storages)), key=lambda number: self.storages[number].device[0] != 0
        )
        extents = [
            (number, extent) for number in numbers for extent in self.storages[number].extents
        ]
        begins = [0]
        for _, extent in extents:
            begins.append(begins[-1] + extent.length * extent.run_count)
        return begins, extents

    @property
    def space(self) -> int:
        return self._layout[0][-1]

    @cached_property
    def parts(self) -> Tup[int, int]:
        """The bytes of the extents on the CPU, and of those on other devices."""
        sizes = [0, 0]
        for number, extent in self._layout[1]:
            sizes[self.storages[number].device[0] != 0] += extent.length * extent.run_count
        return sizes[0], sizes[1]

    def chunks_of(self, part: int) -> int:
        return -(-self.parts[part] // self.chunk_bytes)

    @property
    def chunk_count(self) -> int:
        return self.chunks_of(0) + self.chunks_of(1)

    def locate(self, position: int) -> Tup[int, int, int, int]:
        """The byte at a position: its storage, its offset there, and the begin and end of its
        run."""
        begins, extents = self._layout
        index = bisect.bisect_right(begins, position) - 1
        storage, extent = extents[index]
        run, within = divmod(position - begins[index], extent.length)
        begin = extent.run(run)
        return storage, begin + within, begin, begin + extent.length

    def chunk_begin(self, chunk: int) -> int:
        """The position of a chunk; for chunk_count, the end of the space."""
        position = chunk * self.chunk_bytes
        if chunk >= self.chunks_of(0):
            position = self.parts[0] + (chunk - self.chunks_of(0)) * self.chunk_bytes
        if position >= self.space:
            return self.space
        _, offset, begin, _ = self.locate(position)
        return position - min(offset % 16, offset - begin)

    def pieces(self, chunk: int) -> List[Tup[int, int, int]]:
        """The pieces of a chunk as (storage, offset, length), at most one per run."""
        position, end = self.chunk_begin(chunk), self.chunk_begin(chunk + 1)
        pieces = []
        while position < end:
            storage, offset, _, run_end = self.locate(position)
            pieces.append((storage, offset, min(run_end - offset, end - position)))
            position += pieces[-1][2]
        return pieces


def element_bytes(dtype: int) -> int:
    return ELEMENT_BYTES.get(dtype, 1)


def contiguous_strides(sizes: List[int]) -> List[int]:
    strides = [1] * len(sizes)
    for i in range(len(sizes) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(sizes[i + 1], 1)
    return strides


# The description as JSON: bits of floats in hex, large integers as decimal text, names for dtypes
# and devices.


def _device_json(device: Tup[int, int]) -> list:
    return [DEVICES[device[0]], device[1]]


def _box_json(box: Box) -> dict:
    return {"offsets": box.offsets, "sizes": box.sizes, "place": _place_json(box.place)}


def _place_json(place: Place) -> list:
    return [place.rank, *_device_json(place.device)]


def _placement_json(p: Placement) -> list:
    return (
        ["replicate"],
        ["shard", p.dim],
        ["strided_shard", p.dim, p.factor],
        ["partial", p.reduction],
    )[p.kind]


def _tensor_json(t: Tensor) -> dict:
    return {
        "storage": t.storage,
        "dtype": DTYPES[t.dtype],
        "flags": t.flags,
        "offset": t.offset,
        "sizes": t.sizes,
        "strides": t.strides,
    }


def _dtensor_json(d: DTensor) -> dict:
    return {
        "mesh": d.mesh,
        "placements": [_placement_json(p) for p in d.placements],
        "dtype": DTYPES[d.dtype],
        "flags": d.flags,
        "sizes": d.sizes,
        "strides": d.strides,
        "local": _tensor_json(d.local),
    }


def _sharding_json(s: Optional[Sharding]) -> Any:
    if s is None:
        return None
    if s.kind == 1:
        return {"chunk": s.dim, "places": [_place_json(place) for place in s.places]}
    return {"enumerable": [_box_json(box) for box in s.boxes]}


def _sharded_json(s: Sharded) -> dict:
    return {
        "dtype": DTYPES[s.dtype],
        "flags": s.flags,
        "format": s.format,
        "sizes": s.sizes,
        "shards": [
            {"box": _box_json(box), "tensor": _tensor_json(tensor)} for box, tensor in s.shards
        ],
        "boxes": [_box_json(box) for box in s.boxes],
        "sharding": _sharding_json(s.sharding),
    }


def value_json(value: Any) -> Any:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return {"bigint": str(value)}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, Float):
        return {"float": value.bits.hex()}
    if isinstance(value, Complex):
        return {"complex": [value.bits[:8].hex(), value.bits[8:].hex()]}
    if isinstance(value, Sequence):
        return {value.kind: [value_json(item) for item in value.items]}
    if isinstance(value, Dict):
        return {"dict": [[value_json(key), value_json(item)] for key, item in value.entries]}
    if isinstance(value, Object):
        return {"object": value.name, "payload": value_json(value.payload)}
    for kind, name, function in (
        (Tensor, "tensor", _tensor_json),
        (DTensor, "dtensor", _dtensor_json),
        (Sharded, "sharded", _sharded_json),
    ):
        if isinstance(value, kind):
            return {name: function(value)}
    return value  # None, bool, int, str


def to_json(m: Manifest, chunks: int = 16) -> dict:
    """A stable description of a manifest, with the figures of wherry_prepared_summary and the first
    chunks."""
    return {
        "chunk_bytes": m.chunk_bytes,
        "rank": m.rank,
        "storages": [
            {
                "nbytes": s.nbytes,
                "device": _device_json(s.device),
                "extents": [
                    [e.offset, e.length, [list(level) for level in e.levels]] for e in s.extents
                ],
            }
            for s in m.storages
        ],
        "meshes": [
            {
                "device": DEVICES[mesh.device_kind],
                "sizes": mesh.sizes,
                "ranks": mesh.ranks,
                "names": mesh.names,
            }
            for mesh in m.meshes
        ],
        "root": value_json(m.root),
        "summary": {
            "tensors": len(m.tensors),
            "storages": len(m.storages),
            "extents": sum(len(s.extents) for s in m.storages),
            "storage_bytes": sum(s.nbytes for s in m.storages),
            "view_bytes": sum(t.nbytes for t in m.tensors),
            "bytes": m.space,
            "chunks": m.chunk_count,
            "chunk_begins": [m.chunk_begin(chunk) for chunk in range(min(m.chunk_count, chunks))],
        },
    }
