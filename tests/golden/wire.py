"""Encodes nested Python lists as CBOR, and puts a tree into a manifest."""

import math


class Raw:
    """Bytes, or their hex digits, that are copied into the output unchanged."""

    def __init__(self, data):
        self.data = bytes.fromhex(data) if isinstance(data, str) else data


class Tag:
    def __init__(self, number, item):
        self.number, self.item = number, item


def head(major, number):
    """The head of a CBOR item, in its shortest form."""
    if number < 24:
        return bytes([major << 5 | number])
    size = next(n for n in (1, 2, 4, 8) if number < 1 << 8 * n)
    return bytes([major << 5 | 24 + (1, 2, 4, 8).index(size)]) + number.to_bytes(size, "big")


def cbor(item):
    if isinstance(item, Raw):
        return item.data
    if item is None or isinstance(item, bool):
        return {None: b"\xf6", False: b"\xf4", True: b"\xf5"}[item]
    if isinstance(item, int):
        return head(0, item) if item >= 0 else head(1, -1 - item)
    if isinstance(item, str):
        return head(3, len(item.encode())) + item.encode()
    if isinstance(item, bytes):
        return head(2, len(item)) + item
    if isinstance(item, Tag):
        return head(6, item.number) + cbor(item.item)
    return head(4, len(item)) + b"".join(map(cbor, item))


def big(number):
    """An integer that does not fit into a CBOR int."""
    tag, rest = (2, number) if number >= 0 else (3, -1 - number)
    return Tag(tag, rest.to_bytes(math.ceil(rest.bit_length() / 8), "big"))


def manifest(root, storages=(), meshes=(), chunk=4 << 20, rank=-1):
    """A manifest as a list."""
    return ["wherry", 1, chunk, rank, list(storages), list(meshes), root]


def claim(major, count, *items):
    """The head of an array or a string with this count, followed by any number of items."""
    return Raw(head(major, count) + b"".join(map(cbor, items)))
