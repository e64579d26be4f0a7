"""A second, plain decoder of manifests, written from docs/wire-format.md alone.

It is slow, strict and short. It reads from the first byte to the last and raises ManifestError for
the first fault. If one item has several faults, it reports the first of this list: truncated, form
(CBOR, shortest), type, limit, more than the bytes left, length of an array, range, and last,
conditions on several items together.

    manifest = decode(data)
    for chunk in range(manifest.chunk_count):
        print(manifest.chunk_begin(chunk), manifest.pieces(chunk))
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, List, Optional
from typing import Tuple as Tup

from manifest_model import (
    DEVICES,
    DTYPES,
    Box,
    Complex,
    Dict,
    DTensor,
    Extent,
    Float,
    Manifest,
    Mesh,
    Object,
    Place,
    Placement,
    Sequence,
    Sharded,
    Sharding,
    Storage,
    Tensor,
    contiguous_strides,
    element_bytes,
    to_json,
)

__all__ = ["Limits", "Manifest", "ManifestError", "decode", "to_json"]

TRUNCATED, MALFORMED, NOT_CANONICAL = "WHERRY_TRUNCATED", "WHERRY_MALFORMED", "WHERRY_NOT_CANONICAL"
BAD_VERSION, LIMIT, OUT_OF_BOUNDS = "WHERRY_BAD_VERSION", "WHERRY_LIMIT", "WHERRY_OUT_OF_BOUNDS"
REPEATED_KEY, TRAILING_BYTES = "WHERRY_REPEATED_KEY", "WHERRY_TRAILING_BYTES"

UINT, NEGATIVE, BYTES, TEXT, ARRAY, MAP, TAG, SIMPLE = range(8)  # CBOR's major types
FALSE, TRUE, NULL = 20, 21, 22
TYPE_NAMES = [
    "an unsigned integer",
    "a negative integer",
    "bytes",
    "text",
    "an array",
    "a map",
    "a tag",
    "a simple value",
]
INT_MAX = 2**63 - 1
NDIM_MAX = 64


class ManifestError(Exception):
    """The first fault of a manifest: the name of its status and the offset of the bad item."""

    def __init__(self, status_name: str, offset: int, message: str):
        super().__init__(f"{status_name} at byte {offset}: {message}")
        self.status_name, self.offset, self.message = status_name, offset, message


@dataclass(frozen=True)
class Limits:
    """The defaults of wherry_limits."""

    depth: int = 256
    manifest_bytes: int = 1 << 30
    values: int = 64 << 20
    string_bytes: int = 64 << 20
    total_bytes: int = 64 << 40


class _Reader:
    """Reads CBOR in the restricted form."""

    def __init__(self, data: bytes, limits: Limits):
        self.data, self.at, self.limits = data, 0, limits

    def head(self) -> Tup[int, int, int]:
        """The offset of the next item, its major type and its argument."""
        start, left = self.at, len(self.data) - self.at
        if left < 1:
            raise ManifestError(TRUNCATED, start, "an item is missing")
        major, info = self.data[start] >> 5, self.data[start] & 31
        self.at += 1
        if major == SIMPLE:
            if info not in (FALSE, TRUE, NULL):
                raise ManifestError(
                    MALFORMED,
                    start,
                    "a float, undefined, or another simple value that does not occur",
                )
            return start, major, info
        if info < 24:
            return start, major, info
        if info < 28:
            size = 1 << (info - 24)
            if left - 1 < size:
                raise ManifestError(TRUNCATED, start, "the head of an item is cut off")
            argument = int.from_bytes(self.data[start + 1 : start + 1 + size], "big")
            if argument < (24 if size == 1 else 1 << (4 * size)):
                raise ManifestError(NOT_CANONICAL, start, f"{argument} is not in its shortest form")
            self.at += size
            return start, major, argument
        if info == 31 and BYTES <= major <= MAP:
            raise ManifestError(NOT_CANONICAL, start, "indefinite length")
        raise ManifestError(MALFORMED, start, "not the head of a CBOR item")

    def expect(self, wanted: int, what: str) -> Tup[int, int]:
        start, major, argument = self.head()
        if major != wanted:
            raise ManifestError(
                MALFORMED, start, f"{what} is {TYPE_NAMES[major]}, not {TYPE_NAMES[wanted]}"
            )
        return start, argument

    def integer(self, what: str, low: int, high: int = INT_MAX) -> int:
        start, major, argument = self.head()
        if major not in (UINT, NEGATIVE):
            raise ManifestError(MALFORMED, start, f"{what} is {TYPE_NAMES[major]}, not an integer")
        number = argument if major == UINT else -1 - argument
        if not low <= number <= high:
            raise ManifestError(MALFORMED, start, f"{what} is {number}, not one of {low} to {high}")
        return number

    def uint(self, what: str, high: int = INT_MAX, low: int = 0) -> int:
        return self.integer(what, low, high)

    def content(self, start: int, size: int, what: str) -> bytes:
        """The bytes of a string, after its head."""
        if size > self.limits.string_bytes:
            raise ManifestError(LIMIT, start, f"{what} has {size} bytes")
        self.left(start, size, what)
        self.at += size
        return self.data[self.at - size : self.at]

    def utf8(self, start: int, size: int, what: str) -> str:
        try:
            return self.content(start, size, what).decode("utf-8")
        except UnicodeDecodeError:
            raise ManifestError(MALFORMED, start, f"{what} is not UTF-8") from None

    def text(self, what: str) -> str:
        return self.utf8(*self.expect(TEXT, what), what)

    def name(self, what: str) -> str:
        start, name = self.at, self.text(what)
        if "\0" in name:
            raise ManifestError(MALFORMED, start, f"{what} has a zero byte in it")
        return name

    def octets(self, what: str, size: int) -> bytes:
        start, length = self.expect(BYTES, what)
        content = self.content(start, length, what)
        if length != size:
            raise ManifestError(MALFORMED, start, f"{what} has {length} bytes, not {size}")
        return content

    def left(self, start: int, count: int, what: str) -> None:
        if count > len(self.data) - self.at:
            raise ManifestError(
                TRUNCATED, start, f"{what} claims {count} items or bytes, more than are left"
            )

    def array(self, what: str, lengths: Optional[Any] = None, most: Optional[int] = None) -> int:
        """The head of an array with one of these lengths."""
        start, count = self.expect(ARRAY, what)
        if most is not None and count > most:
            raise ManifestError(LIMIT, start, f"{what} has {count} items, more than {most}")
        self.left(start, count, what)
        if lengths is not None and count not in lengths:
            raise ManifestError(MALFORMED, start, f"{what} has {count} items")
        return count

    def uints(
        self, what: str, count: Optional[int] = None, most: Optional[int] = NDIM_MAX, low: int = 0
    ) -> List[int]:
        length = self.array(what, None if count is None else (count,), most)
        return [self.uint(what, low=low) for _ in range(length)]

    def null(self) -> bool:
        """True if the next item is null, which is then read."""
        found = self.data[self.at : self.at + 1] == b"\xf6"
        self.at += found
        return found


class _Decoder(_Reader):
    def manifest(self) -> Manifest:
        if len(self.data) > self.limits.manifest_bytes:
            raise ManifestError(LIMIT, 0, f"the manifest has {len(self.data)} bytes")
        start, count = self.expect(ARRAY, "the manifest")
        at = self.at
        if self.text("the magic text") != "wherry":
            raise ManifestError(MALFORMED, at, "this is not a manifest")
        at = self.at
        if self.integer("the version", -(2**64), 2**64) != 1:
            raise ManifestError(BAD_VERSION, at, "another version")
        self.left(start, count - 2, "the manifest")
        if count != 7:
            raise ManifestError(MALFORMED, start, f"the manifest has {count} items, not 7")
        at, chunk_bytes = self.at, self.uint("chunk_bytes", 2**30, 2**12)
        if chunk_bytes & (chunk_bytes - 1):
            raise ManifestError(MALFORMED, at, f"chunk_bytes is {chunk_bytes}, not a power of two")
        rank = self.integer("the rank", -1)
        self.total = self.space = self.values = self.storages_named = self.meshes_named = 0
        self.storages = [self.storage() for _ in range(self.array("the storages"))]
        self.meshes: List[Mesh] = []
        for _ in range(self.array("the meshes")):
            at, mesh = self.at, self.mesh()
            if mesh in self.meshes:
                raise ManifestError(NOT_CANONICAL, at, "two equal meshes")
            self.meshes.append(mesh)
        self.tensors: List[Tensor] = []
        root = self.value(0)
        if self.storages_named < len(self.storages) or self.meshes_named < len(self.meshes):
            raise ManifestError(
                NOT_CANONICAL, self.at, "a storage or a mesh is not named by the tree"
            )
        if self.at < len(self.data):
            raise ManifestError(TRAILING_BYTES, self.at, "bytes after the end")
        return Manifest(chunk_bytes, rank, self.storages, self.meshes, root, self.tensors)

    # Storages and extents.

    def device_kind(self) -> int:
        return self.uint("the kind of a device", len(DEVICES) - 1)

    def device(self) -> Tup[int, int]:
        return self.device_kind(), self.integer("the index of a device", -1, 2**31 - 1)

    def storage(self) -> Storage:
        self.array("a storage", (4,))
        at, nbytes = self.at, self.uint("the size of a storage")
        self.total += nbytes
        if self.total > self.limits.total_bytes:
            raise ManifestError(LIMIT, at, f"the storages have {self.total} bytes")
        device = self.device()
        at = self.at
        if self.null():
            if nbytes == 0:
                raise ManifestError(NOT_CANONICAL, at, "no extents are written as an empty array")
            extents = [Extent(0, nbytes)]
            self.add_space(at, nbytes)
        else:
            extents = []
            for _ in range(self.array("the extents")):
                start = self.at
                extents.append(self.extent(nbytes, extents[-1].offset if extents else 0))
                whole = [extent for extent in extents if not extent.levels][-2:]
                if (
                    not extents[-1].levels
                    and len(whole) == 2
                    and whole[1].offset <= whole[0].offset + whole[0].length
                ):
                    raise ManifestError(
                        NOT_CANONICAL, start, "two adjacent or overlapping extents; expected one"
                    )
            if extents == [Extent(0, nbytes)]:
                raise ManifestError(
                    NOT_CANONICAL, at, "one extent of the whole storage is written as null"
                )
        return Storage(nbytes, device, extents)

    def extent(self, nbytes: int, least_offset: int) -> Extent:
        start = self.at
        count = self.array("an extent", (2, 3))
        at, offset = self.at, self.uint("the offset of an extent")
        if offset < least_offset:
            raise ManifestError(NOT_CANONICAL, at, "the extents are not in ascending order")
        length = self.uint("the length of an extent", low=1)
        levels = self.levels() if count == 3 else []
        span = length
        for repeats, stride in reversed(levels):
            if offset + span > nbytes:
                break
            if stride < span:
                raise ManifestError(
                    MALFORMED, start, f"a stride of {stride} repeats a span of {span}"
                )
            span += (repeats - 1) * stride
        if offset + span > nbytes:
            raise ManifestError(
                OUT_OF_BOUNDS, start, f"an extent ends at {offset + span} of {nbytes} bytes"
            )
        extent = Extent(offset, length, levels)
        self.add_space(start, length * extent.run_count)
        return extent

    def levels(self) -> List[Tup[int, int]]:
        start = self.at
        count = self.array("the levels", most=2 * NDIM_MAX)
        if count == 0 or count % 2:
            raise ManifestError(MALFORMED, start, f"the levels are {count} numbers")
        return [
            (self.uint("the count of a level", low=2), self.uint("the stride of a level"))
            for _ in range(count // 2)
        ]

    def add_space(self, at: int, length: int) -> None:
        self.space += length
        if self.space > self.limits.total_bytes:
            raise ManifestError(LIMIT, at, f"the space has {self.space} bytes")

    def mesh(self) -> Mesh:
        self.array("a mesh", (4,))
        device_kind = self.device_kind()
        at, sizes = self.at, self.uints("the sizes of a mesh", low=1)
        if not sizes:
            raise ManifestError(MALFORMED, at, "a mesh has at least one dimension")
        ranks = self.uints("the ranks of a mesh", math.prod(sizes), most=None)
        names = None
        if not self.null():
            self.array("the names of a mesh", (len(sizes),))
            names = [self.name("the name of a dimension") for _ in sizes]
        return Mesh(device_kind, sizes, ranks, names)

    # Values.

    def value(self, depth: int, key: bool = False) -> Any:
        """A value inside `depth` containers."""
        start, major, argument = self.head()
        self.count_values(start, 1)
        if major in (UINT, NEGATIVE):
            if argument > INT_MAX:
                raise ManifestError(
                    MALFORMED, start, "an integer outside of 64 bits is written with a tag"
                )
            return argument if major == UINT else -1 - argument
        if major == SIMPLE:
            return {FALSE: False, TRUE: True, NULL: None}[argument]
        if major == TEXT:
            return self.utf8(start, argument, "a string")
        if major == BYTES:
            return self.content(start, argument, "a byte string")
        if major == TAG:
            return self.big_integer(start, argument)
        if major == MAP:
            raise ManifestError(MALFORMED, start, "a map does not occur")
        if argument == 0:
            raise ManifestError(MALFORMED, start, "a value that is an array begins with its kind")
        kind = self.uint("the kind of a value")
        if key and kind not in (4, 5):
            raise ManifestError(MALFORMED, start, f"a key of kind {kind}")
        if 8 <= kind <= 11 and depth >= self.limits.depth:
            raise ManifestError(
                LIMIT, start, f"more than {self.limits.depth} containers within each other"
            )
        items = argument - 1
        if 8 <= kind <= 10:
            self.count_values(start, items, ahead=True)
        self.left(start, items, "a value")
        lengths = {4: 1, 5: 1, 8: items, 9: items, 10: items & ~1, 11: 2, 12: 6, 13: 7, 14: 7}
        if kind not in lengths or lengths[kind] != items:
            raise ManifestError(MALFORMED, start, f"no value has the kind {kind} and {items} items")
        if kind in (4, 5):
            return (
                Float(self.octets("a float", 8))
                if kind == 4
                else Complex(self.octets("a complex number", 16))
            )
        if kind in (8, 9):
            return Sequence(
                "list" if kind == 8 else "tuple", [self.value(depth + 1) for _ in range(items)]
            )
        if kind == 10:
            seen: set = set()
            return Dict(
                [(self.key(depth + 1, seen), self.value(depth + 1)) for _ in range(items // 2)]
            )
        if kind == 11:
            return Object(self.object_name(), self.value(depth + 1))
        return {12: self.tensor, 13: self.dtensor, 14: self.sharded}[kind]()

    def count_values(self, start: int, more: int, ahead: bool = False) -> None:
        if self.values + more > self.limits.values:
            raise ManifestError(LIMIT, start, f"more than {self.limits.values} values")
        self.values += 0 if ahead else more

    def big_integer(self, start: int, tag: int) -> int:
        if tag not in (2, 3):
            raise ManifestError(MALFORMED, start, f"the tag {tag} does not occur")
        content = self.content(*self.expect(BYTES, "a big integer"), "a big integer")
        number = int.from_bytes(content, "big")
        if number <= INT_MAX or content[0] == 0:
            raise ManifestError(
                NOT_CANONICAL, start, "a big integer that fits int64, or has a leading zero"
            )
        return number if tag == 2 else -1 - number

    def key(self, depth: int, seen: set) -> Any:
        start = self.at
        key = self.value(depth, key=True)
        if (
            self.data[start : self.at] in seen
        ):  # There is only one spelling of each key, so equal keys have equal bytes.
            raise ManifestError(REPEATED_KEY, start, f"the key {key!r:.100} occurs twice")
        seen.add(self.data[start : self.at])
        return key

    def object_name(self) -> str:
        start, name = self.at, self.name("the name of a type")
        if not name:
            raise ManifestError(MALFORMED, start, "the name of a type is empty")
        return name

    # Tensors.

    def reference(self, what: str, count: int, named: int) -> Tup[int, int]:
        """The number of a storage or mesh, and how many are used so far; `named` were used
        before."""
        start, number = self.at, self.uint(what)
        if number >= count:
            raise ManifestError(OUT_OF_BOUNDS, start, f"{what} is {number} of {count}")
        if number > named:
            raise ManifestError(
                NOT_CANONICAL, start, f"{what} is {number} where {named} is the next"
            )
        return number, max(named, number + 1)

    def dtype(self) -> int:
        return self.uint("a dtype", len(DTYPES) - 1)

    def sizes(self, dtype: int) -> List[int]:
        start, sizes = self.at, self.uints("the sizes of a tensor")
        if math.prod(max(size, 1) for size in sizes) * element_bytes(dtype) > INT_MAX:
            raise ManifestError(
                OUT_OF_BOUNDS, start, f"the bytes of the sizes {sizes} do not fit 63 bits"
            )
        return sizes

    def strides(self, sizes: List[int]) -> List[int]:
        start = self.at
        if self.null():
            return contiguous_strides(sizes)
        strides = self.uints("the strides of a tensor", len(sizes))
        if strides == contiguous_strides(sizes):
            raise ManifestError(
                NOT_CANONICAL, start, "strides of a contiguous tensor; expected null"
            )
        return strides

    def tensor(self) -> Tensor:
        """A tensor after its kind."""
        start = self.at
        storage, self.storages_named = self.reference(
            "the storage of a tensor", len(self.storages), self.storages_named
        )
        dtype, flags = self.dtype(), self.uint("the flags of a tensor", 7)
        at, offset = self.at, self.uint("the offset of a tensor")
        if offset * element_bytes(dtype) > INT_MAX:
            raise ManifestError(
                OUT_OF_BOUNDS, at, f"the bytes of the offset {offset} do not fit 63 bits"
            )
        sizes = self.sizes(dtype)
        tensor = Tensor(storage, dtype, flags, offset, sizes, self.strides(sizes))
        end = offset + sum((size - 1) * stride for size, stride in zip(sizes, tensor.strides)) + 1
        if 0 not in sizes and end * element_bytes(dtype) > self.storages[storage].nbytes:
            raise ManifestError(OUT_OF_BOUNDS, start, "an element lies outside its storage")
        self.tensors.append(tensor)
        return tensor

    def local_tensor(self) -> Tensor:
        self.array("a local tensor", (7,))
        self.uint("the kind of a local tensor", 12, 12)
        return self.tensor()

    def dtensor(self) -> DTensor:
        mesh, self.meshes_named = self.reference(
            "the mesh of a DTensor", len(self.meshes), self.meshes_named
        )
        start = self.at
        count = self.array("the placements", (len(self.meshes[mesh].sizes),))
        placements = [self.placement() for _ in range(count)]
        dtype, flags = self.dtype(), self.uint("the flags of a DTensor", 1)
        sizes = self.sizes(dtype)
        if any(p.dim is not None and p.dim >= len(sizes) for p in placements):
            raise ManifestError(
                OUT_OF_BOUNDS, start, "a placement names a dimension that is not there"
            )
        strides = self.strides(sizes)
        at, local = self.at, self.local_tensor()
        if local.dtype != dtype or len(local.sizes) != len(sizes):
            raise ManifestError(
                MALFORMED, at, "the local tensor has another dtype or number of dimensions"
            )
        return DTensor(mesh, placements, dtype, flags, sizes, strides, local)

    def placement(self) -> Placement:
        start, count = self.at, self.array("a placement", (1, 2, 3))
        kind = self.uint("the kind of a placement", 3)
        if count != (1, 2, 3, 2)[kind]:
            raise ManifestError(MALFORMED, start, f"a placement of kind {kind} has {count} items")
        if kind == 3:
            return Placement(kind, reduction=self.name("the reduction of a placement"))
        dim = self.uint("the dimension of a placement") if kind else None
        return Placement(kind, dim, self.uint("a split factor", low=1) if kind == 2 else None)

    def sharded(self) -> Sharded:
        dtype, flags = self.dtype(), self.uint("the flags of a ShardedTensor", 3)
        form = self.uint("a memory format", 3)
        sizes = self.sizes(dtype)
        shards = [self.shard(dtype, sizes) for _ in range(self.array("the local shards"))]
        boxes = self.boxes(sizes)
        return Sharded(dtype, flags, form, sizes, shards, boxes, self.sharding(sizes))

    def place(self) -> Place:
        return Place(self.integer("the rank of a shard", -1), self.device())

    def box(self, sizes: List[int]) -> Box:
        start = self.at
        box = Box(
            self.uints("the offsets of a box", len(sizes)),
            self.uints("the sizes of a box", len(sizes)),
            None,
        )
        if any(offset + size > whole for offset, size, whole in zip(box.offsets, box.sizes, sizes)):
            raise ManifestError(OUT_OF_BOUNDS, start, "a box lies outside its tensor")
        box.place = self.place()
        return box

    def boxes(self, sizes: List[int]) -> List[Box]:
        boxes = []
        for _ in range(self.array("the boxes")):
            self.array("a box", (5,))
            boxes.append(self.box(sizes))
        return boxes

    def shard(self, dtype: int, sizes: List[int]) -> Tup[Box, Tensor]:
        self.array("a shard", (6,))
        box = self.box(sizes)
        at, local = self.at, self.local_tensor()
        if local.dtype != dtype or local.sizes != box.sizes:
            raise ManifestError(
                MALFORMED,
                at,
                "a local tensor has another dtype than the whole, or other sizes than its box",
            )
        return box, local

    def sharding(self, sizes: List[int]) -> Optional[Sharding]:
        if self.null():
            return None
        start, count = self.at, self.array("a sharding", (2, 3))
        kind = self.uint("the kind of a sharding", 2, 1)
        if count != (3 if kind == 1 else 2):
            raise ManifestError(MALFORMED, start, f"a sharding of kind {kind} has {count} items")
        if kind == 2:
            return Sharding(kind, boxes=self.boxes(sizes))
        dim, places = self.integer("the dimension of a sharding", -(2**63)), []
        for _ in range(self.array("the places of a sharding")):
            self.array("a place", (3,))
            places.append(self.place())
        return Sharding(kind, dim, places)


def decode(data: bytes, limits: Limits = Limits()) -> Manifest:
    """Reads a manifest, or raises a ManifestError."""
    return _Decoder(bytes(data), limits).manifest()
