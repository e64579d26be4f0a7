"""A second, plain reader of Wherry's own files, written from docs/file-format.md alone.

It reads a whole file into memory, and raises FileError (or the manifest's ManifestError) for the
first fault.

    file = read(data)
    for tensor in file.manifest.tensors:
        print(tensor, file.bytes_of(tensor))
"""

from __future__ import annotations

import ctypes
import itertools
import struct
import zlib
from dataclasses import dataclass
from typing import List

from manifest_model import Manifest, Tensor, element_bytes
from plain_manifest import Limits, decode

MAGIC = b"\x89WHF\r\n\x1a\n"
HEADER, PAGE, LINE, DIGEST = 64, 4096, 64, 16


class FileError(Exception):
    def __init__(self, status_name: str, message: str):
        super().__init__(f"{status_name}: {message}")
        self.status_name = status_name


@dataclass
class File:
    manifest: Manifest
    storages: List[bytes]
    digests: List[bytes]  # One digest per chunk, or no digests.

    def bytes_of(self, tensor: Tensor) -> bytes:
        """The elements of a tensor, in row-major order."""
        width, data = element_bytes(tensor.dtype), self.storages[tensor.storage]
        found = []
        for place in itertools.product(*map(range, tensor.sizes)):
            at = (
                tensor.offset + sum(i * stride for i, stride in zip(place, tensor.strides))
            ) * width
            found.append(data[at : at + width])
        return b"".join(found)

    def chunk(self, number: int) -> bytes:
        return b"".join(
            self.storages[s][at : at + length] for s, at, length in self.manifest.pieces(number)
        )


def up(number: int, alignment: int) -> int:
    return -(-number // alignment) * alignment


def read(data: bytes, limits: Limits = Limits()) -> File:
    if len(data) < HEADER:
        raise FileError("WHERRY_TRUNCATED", "no whole header")
    magic, version, flags, size, begin, total, chunks, checksum, rest = struct.unpack(
        ">8sIIQQQQI12s", data[:HEADER]
    )
    if magic != MAGIC:
        raise FileError("WHERRY_MALFORMED", "another kind of file")
    if version != 1 or flags & ~1:
        raise FileError("WHERRY_BAD_VERSION", "of another version")
    if size > limits.manifest_bytes:
        raise FileError("WHERRY_LIMIT", "the manifest is too large")
    if total != len(data):
        raise FileError(
            "WHERRY_TRUNCATED" if len(data) < total else "WHERRY_TRAILING_BYTES",
            "of another length",
        )
    if begin > total or size > total - HEADER:
        raise FileError("WHERRY_OUT_OF_BOUNDS", "the manifest goes beyond the end")
    text = data[HEADER : HEADER + size]
    if checksum != zlib.crc32(data[:48] + text) or rest != bytes(12):
        raise FileError("WHERRY_CORRUPT", "header or manifest are damaged")
    manifest = decode(text, limits)
    if chunks != (manifest.chunk_count if flags & 1 else 0):
        raise FileError("WHERRY_MALFORMED", "the digests are not those of the chunks")
    end = up(HEADER + size + chunks * DIGEST, PAGE)
    if begin != end:
        raise FileError("WHERRY_OUT_OF_BOUNDS", "the storages begin elsewhere")
    storages = []
    for storage in manifest.storages:
        at = up(end, PAGE if storage.nbytes >= PAGE else LINE)
        end = at + storage.nbytes
        storages.append(data[at:end])
    if end != total:
        raise FileError("WHERRY_OUT_OF_BOUNDS", "the storages end elsewhere")
    digests = data[HEADER + size : HEADER + size + chunks * DIGEST]
    return File(
        manifest, storages, [digests[i : i + DIGEST] for i in range(0, len(digests), DIGEST)]
    )


def xxh3_128(data: bytes) -> bytes:
    """The digest as the system's xxHash computes it, big endian."""

    class Hash(ctypes.Structure):
        _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]

    function = ctypes.CDLL("libxxhash.so.0").XXH3_128bits
    function.restype, function.argtypes = Hash, [ctypes.c_char_p, ctypes.c_size_t]
    found = function(data, len(data))
    return struct.pack(">QQ", found.high, found.low)
