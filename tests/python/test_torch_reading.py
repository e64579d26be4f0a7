"""How torch tensors are read: with DLPack's C functions, or attribute by attribute.

Both give the same result.
"""

import ctypes

import numpy as np
import pytest
from random_state import Maker
from same_state import assert_same

torch = pytest.importorskip(
    "torch", reason="torch is not installed: pip install -r tests/python/requirements-torch.txt"
)

import torch_types  # noqa: E402

from rehearse import core  # noqa: E402

from wherry.torch._codec import DTYPES, TorchCodec  # noqa: E402

TABLE = "__dlpack_c_exchange_api__"
NAME = b"dlpack_exchange_api"

pytestmark = [
    pytest.mark.skipif(
        not hasattr(torch.Tensor, TABLE),
        reason="this torch has no C functions for DLPack: 2.10 has",
    ),
    pytest.mark.filterwarnings("ignore"),  # torch warns that several of its types are experimental.
]

Describe = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.argtypes, new_capsule.restype = (
    [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
    ctypes.py_object,
)
pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
pointer_of.argtypes, pointer_of.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p


class Table(ctypes.Structure):
    """DLPackExchangeAPI of version 1."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("unused", ctypes.c_void_p * 3),
        ("describe", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    ]


class Counted:
    """Torch's own table, which counts how often a tensor is described."""

    def __init__(self):
        self.calls = 0
        own = Table.from_address(pointer_of(getattr(torch.Tensor, TABLE), NAME))
        self.own = Describe(own.describe)
        self.function = Describe(self.describe)
        self.table = Table(
            1, own.minor, None, own.unused, ctypes.cast(self.function, ctypes.c_void_p), own.stream
        )
        self.capsule = new_capsule(ctypes.addressof(self.table), NAME, None)

    def describe(self, tensor, place):
        self.calls += 1
        return self.own(tensor, place)


def tensors():
    """Tensors of every kind that the core reads without the codec, and tensors of each dtype."""
    base = torch.arange(48.0).reshape(6, 8)
    complex_ = torch.arange(8.0).to(torch.complex64)
    state = {}
    for dtype in DTYPES:
        size = torch.empty(0, dtype=dtype).element_size()
        state[str(dtype)] = torch.empty(0, dtype=dtype).set_(
            torch.zeros(16 * size).untyped_storage(), 1, (3, 2), (2, 1)
        )
    return {
        **state,
        "whole": base,
        "tied": base.view(48),
        "rows": base[2:4],
        "column": base[:, 3],
        "turned": base.t(),
        "spread": base[:1].expand(5, 8),
        "last": base[5, 7],
        "scalar": torch.tensor(3),
        "nothing": base[6:],
        "empty": torch.empty(0, 4),
        "larger": torch.empty(0).set_(torch.zeros(64).untyped_storage(), 0, (4,), (1,)),
        "conj": complex_.conj(),
        "neg": complex_.conj().imag,
        "neg, whole": torch._neg_view(torch.ones(4)),
        "neg, no view": torch._neg_view(torch.ones(4)).data,
        "grad": torch.ones(4, requires_grad=True),
        "not a leaf": torch.ones(4, requires_grad=True) * 2,
        "parameter": torch.nn.Parameter(torch.ones(4)),
        "parameter without": torch.nn.Parameter(torch.ones(4), requires_grad=False),
    }


def described(state):
    built = core.build(state, TorchCodec())
    return core.tensors(built), core.storages(built), core.dump(built)


def test_reading_all_tensors_or_one_by_one(monkeypatch):
    state = tensors()
    counted = Counted()
    monkeypatch.setattr(torch.Tensor, TABLE, counted.capsule)
    at_once = described(state)
    assert counted.calls == len(state)
    monkeypatch.delattr(torch.Tensor, TABLE)
    assert described(state) == at_once
    assert counted.calls == len(state)


def test_tables_of_other_versions(monkeypatch):
    state = tensors()
    expected = described(state)
    counted = Counted()
    newer = Table(2, 0, ctypes.addressof(counted.table), (ctypes.c_void_p * 3)(), 1, 1)
    monkeypatch.setattr(torch.Tensor, TABLE, new_capsule(ctypes.addressof(newer), NAME, None))
    assert described(state) == expected
    assert counted.calls == len(state)
    newer.previous = None
    assert described(state) == expected
    assert counted.calls == len(state)
    for other in (new_capsule(ctypes.addressof(newer), b"another", None), None, 7):
        monkeypatch.setattr(torch.Tensor, TABLE, other)
        assert described(state) == expected
    without = Table(1, 3, None, (ctypes.c_void_p * 3)(), None, None)
    monkeypatch.setattr(torch.Tensor, TABLE, new_capsule(ctypes.addressof(without), NAME, None))
    assert described(state) == expected


def test_random_states_one_by_one(monkeypatch):
    codec = TorchCodec()
    monkeypatch.delattr(torch.Tensor, TABLE)
    for seed in range(100):
        state = Maker(seed, torch, torch_types.EXTRA).state()
        assert_same(state, core.restore(core.build(state, codec), codec))


@pytest.mark.parametrize("at_once", [True, False])
def test_memory_under_two_names_is_one_storage(monkeypatch, at_once):
    if not at_once:
        monkeypatch.delattr(torch.Tensor, TABLE)
    array = np.arange(8.0)
    state = {"array": array, "one": torch.from_numpy(array), "other": torch.from_numpy(array)[2:]}
    codec = TorchCodec()
    built = core.build(state, codec)
    assert len(core.storages(built)) == 1
    received = core.restore(built, codec)
    received["array"][3] = -1
    assert received["one"][3] == -1
    assert received["other"][1] == -1


def test_a_part_of_memory_is_a_separate_storage():
    array = np.arange(8.0)
    state = {"all": torch.from_numpy(array), "half": torch.from_numpy(array[:4])}
    built = core.build(state, TorchCodec())
    assert core.storages(built) == [(array.ctypes.data, 64, "cpu"), (array.ctypes.data, 32, "cpu")]
