"""Whether two states are the same: types, order, every bit, and which tensors share memory."""

import dataclasses
import enum
import struct
from collections import OrderedDict, defaultdict, deque

import numpy as np

try:
    import torch
except ImportError:
    torch = None


class Comparison:
    """Compares the sent state with the received one. Each storage must correspond to exactly one
    other storage."""

    def __init__(self):
        self.storages = {}
        self.arrays = []

    def same(self, sent, received, path=""):
        assert type(sent) is type(received), f"{path}: {type(sent)} became {type(received)}"
        for kind, compare in self.kinds():
            if isinstance(sent, kind):
                return compare(sent, received, path)
        if dataclasses.is_dataclass(sent):
            return self.attributes(sent, received, path)
        assert sent == received, f"{path}: {sent!r} became {received!r}"
        if isinstance(sent, (bytearray, frozenset, set)):
            assert {type(item) for item in sent} == {type(item) for item in received}, path
        return None

    def kinds(self):
        if torch is not None:
            yield torch.Tensor, self.tensors
        yield enum.Enum, self.identical
        yield np.generic, self.scalars
        yield np.ndarray, self.numpy
        yield (float, complex), self.floats
        yield dict, self.dicts
        yield (list, tuple, deque), self.sequences
        yield (
            slice,
            lambda a, b, path: self.same(
                (a.start, a.stop, a.step), (b.start, b.stop, b.step), path
            ),
        )

    def identical(self, sent, received, path):
        assert sent is received, path

    def floats(self, sent, received, path):
        parts = ((sent.real, sent.imag), (received.real, received.imag))
        assert struct.pack("<2d", *parts[0]) == struct.pack("<2d", *parts[1]), (
            f"{path}: {sent!r} became {received!r}"
        )

    def attributes(self, sent, received, path):
        fields = {field.name for field in dataclasses.fields(sent)}
        names = fields | set(getattr(sent, "__dict__", ()))
        assert fields | set(getattr(received, "__dict__", ())) == names, path
        for name in names:
            self.same(getattr(sent, name), getattr(received, name), f"{path}.{name}")

    def dicts(self, sent, received, path):
        assert len(sent) == len(received), path
        for (key, item), (other_key, other) in zip(sent.items(), received.items()):
            self.same(key, other_key, f"{path}<key>")
            self.same(item, other, f"{path}[{key!r}]")
        if isinstance(sent, defaultdict):
            assert sent.default_factory is received.default_factory, path
        if isinstance(sent, OrderedDict) or type(sent) is not dict:
            self.same(
                dict(getattr(sent, "__dict__", {})),
                dict(getattr(received, "__dict__", {})),
                f"{path}.__dict__",
            )

    def sequences(self, sent, received, path):
        assert len(sent) == len(received), path
        assert getattr(sent, "maxlen", None) == getattr(received, "maxlen", None), path
        for index, (item, other) in enumerate(zip(sent, received)):
            self.same(item, other, f"{path}[{index}]")

    def scalars(self, sent, received, path):
        assert sent.dtype == received.dtype and sent.tobytes() == received.tobytes(), (
            f"{path}: {sent!r} became {received!r}"
        )

    def numpy(self, sent, received, path):
        assert sent.dtype == received.dtype and sent.shape == received.shape, path
        assert sent.tobytes() == received.tobytes(), path
        assert received.flags.writeable, path
        if sent.size and all(
            stride >= 0 and stride % sent.itemsize == 0 for stride in sent.strides
        ):
            steps = [
                (a, b) for a, b, size in zip(sent.strides, received.strides, sent.shape) if size > 1
            ]
            assert all(a == b for a, b in steps), (
                f"{path}: strides {sent.strides} became {received.strides}"
            )
            for other_sent, other_received in self.arrays:
                shares = np.may_share_memory(sent, other_sent)
                assert shares == np.may_share_memory(received, other_received), (
                    f"{path}: shared {shares}"
                )
                if shares:
                    assert address(sent) - address(other_sent) == address(received) - address(
                        other_received
                    ), path
            self.arrays.append((sent, received))

    def tensors(self, sent, received, path):
        assert sent.requires_grad == received.requires_grad, path
        assert isinstance(sent, torch.nn.Parameter) == isinstance(received, torch.nn.Parameter), (
            path
        )
        assert (
            sent.dtype == received.dtype
            and sent.shape == received.shape
            and sent.layout == received.layout
        ), path
        if hasattr(sent, "_local_shards"):
            return self.sharded(sent, received, path)
        if hasattr(sent, "_local_tensor"):
            assert sent._spec == received._spec, f"{path}: {sent._spec} became {received._spec}"
            return self.plain(sent._local_tensor, received._local_tensor, path)
        if hasattr(sent, "__tensor_flatten__"):
            names, context = sent.__tensor_flatten__()
            assert context == received.__tensor_flatten__()[1], path
            for name in names:
                self.same(getattr(sent, name), getattr(received, name), f"{path}.{name}")
            return None
        notes = [
            {name: item for name, item in vars(one).items() if name != "_is_param"}
            for one in (sent, received)
        ]
        assert notes[0] == notes[1], path
        if sent.layout is torch.strided:
            return self.plain(sent, received, path)
        return self.sparse(sent, received, path)

    def sparse(self, sent, received, path):
        if sent.layout is torch.sparse_coo:
            assert sent.is_coalesced() == received.is_coalesced(), path
            self.plain(sent._indices(), received._indices(), path)
            return self.plain(sent._values().detach(), received._values().detach(), path)
        for name in ("crow_indices", "col_indices", "ccol_indices", "row_indices"):
            if ("csr" in str(sent.layout) or "bsr" in str(sent.layout)) == (
                name in ("crow_indices", "col_indices")
            ):
                self.plain(getattr(sent, name)(), getattr(received, name)(), path)
        return self.plain(sent.values().detach(), received.values().detach(), path)

    def sharded(self, sent, received, path):
        assert (
            sent.metadata() == received.metadata()
            and sent.sharding_spec() == received.sharding_spec()
        ), path
        assert len(sent.local_shards()) == len(received.local_shards()), path
        for one, other in zip(sent.local_shards(), received.local_shards()):
            assert one.metadata == other.metadata, path
            self.plain(one.tensor, other.tensor, path)

    def plain(self, sent, received, path):
        assert sent.stride() == received.stride(), (
            f"{path}: {sent.stride()} became {received.stride()}"
        )
        assert sent.storage_offset() == received.storage_offset(), path
        assert sent.is_conj() == received.is_conj() and sent.is_neg() == received.is_neg(), path
        assert received.is_leaf, path
        assert raw(sent) == raw(received), f"{path}: {sent} became {received}"
        assert sent.untyped_storage().nbytes() == received.untyped_storage().nbytes(), path
        if sent.untyped_storage().nbytes():
            key, other = sent.untyped_storage()._cdata, received.untyped_storage()._cdata
            assert self.storages.setdefault(key, other) == other, (
                f"{path}: no longer shares its storage"
            )
            assert self.storages.setdefault(-other, key) == key, (
                f"{path}: shares a storage that it did not"
            )


def address(array):
    return array.__array_interface__["data"][0]


def raw(tensor):
    """The stored bits of each element."""
    with torch.no_grad():
        plain = tensor.detach().as_subclass(torch.Tensor)
        size = plain.element_size()
        storage = torch.empty(0, dtype=torch.uint8).set_(plain.untyped_storage())
        shape = (*plain.shape, size)
        strides = (*(stride * size for stride in plain.stride()), 1)
        return (
            storage.as_strided(shape, strides, plain.storage_offset() * size)
            .contiguous()
            .numpy()
            .tobytes()
        )


def assert_same(sent, received):
    Comparison().same(sent, received)
