"""Checkpoint files for the tests of the command, written without the library."""

import json
import os
import struct
import zlib

SIZES = {"F32": 4, "I64": 8, "U8": 1, "BF16": 2}


def write_safetensors(path, tensors, metadata=None):
    """tensors: {name: (dtype, shape, bytes)}"""
    header, at = {"__metadata__": metadata} if metadata else {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for *_, data in tensors.values():
            file.write(data)
    return path


def small(path, layers=4, step=7, **changed):
    """A few layers, a step and some metadata; `changed` gives tensors other bytes."""
    tensors = {f"layers.{i}.weight": ("F32", [16, 8], bytes([i]) * 512) for i in range(layers)}
    tensors["head"] = ("BF16", [4], b"headhead")
    tensors["step"] = ("I64", [], struct.pack("<q", step))
    for name, data in changed.items():
        dtype, shape, _ = tensors[name]
        tensors[name] = (dtype, shape, data)
    return write_safetensors(path, tensors, {"by": "a test"})


def native(path, manifest, storages):
    """A .wherry file of a manifest and its storages, each shorter than a page."""
    begin = -(-(64 + len(manifest)) // 4096) * 4096
    data = bytearray(begin)
    for storage in storages:
        data += bytes(-len(data) % 64) + storage
    head = struct.pack(">8sIIQQQQ", b"\x89WHF\r\n\x1a\n", 1, 0, len(manifest), begin, len(data), 0)
    data[: 64 + len(manifest)] = head + struct.pack(">I12x", zlib.crc32(head + manifest)) + manifest
    path.write_bytes(data)
    return path


def sparse(path, tensors, nbytes):
    """Tensors of zero bytes, which take no disk space."""
    header = {
        f"w{i}": {"dtype": "U8", "shape": [nbytes], "data_offsets": [i * nbytes, (i + 1) * nbytes]}
        for i in range(tensors)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + tensors * nbytes)
    return path


def large(path, nbytes, tensors=8):
    """Every MiB is different, so that a misplaced chunk is noticed."""
    each = nbytes // tensors
    header = {
        f"w{i}": {"dtype": "U8", "shape": [each], "data_offsets": [i * each, (i + 1) * each]}
        for i in range(tensors)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    block = bytearray(os.urandom(1 << 20))
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for i in range(each * tensors >> 20):
            block[:8] = struct.pack("<Q", i)
            file.write(block)
        file.write(bytes(block)[: each * tensors % (1 << 20)])
    return path
