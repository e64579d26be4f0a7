"""A value under a key that is not a scalar is received into the value under the same key, or not in
place."""

import dataclasses
import itertools
import math

import codec_types as t
import numpy as np
import pytest
from rehearse import core

from wherry._codec import Codec
from wherry._codec import NoText
from wherry.errors import Malformed, Mismatch, Unsupported


def in_place(source, target, codec=None):
    codec = codec or Codec()
    return core.restore(core.build(source, codec), codec, core.build(target, codec.for_target()))


def text(value, codec=None):
    return (codec or Codec())._keys.text(value)


KEYS = [
    *[
        (0, 1),
        (1, 0),
        (0, (1,)),
        ((0, 1),),
        ("0,1",),
        ("0", "1"),
        (b"01",),
        (None,),
        (0.0, 1.0),
        (1j,),
        (10**5000,),
        (),
    ],
    *[t.Color.RED, t.Color.GREEN, t.Number.ONE, t.Mode.READ, t.Mode.READ | t.Mode.RUN],
    *[t.Frozen(1), t.Frozen("1"), t.Frozen(None, 1), t.Frozen((1,)), t.Pair(0, 1), t.Typed("a")],
    *[frozenset({1, 2}), frozenset({"1", "2"}), frozenset({frozenset({1}), 2}), frozenset()],
    *[
        np.int64(5),
        np.int32(6),
        np.float32(7.5),
        np.bool_(True),
        range(3),
        range(4),
        "\ud800",
        "\\ud800",
        '("a")',
    ],
]


def test_every_key_has_a_different_text():
    texts = [text(key) for key in KEYS]
    assert len(set(texts)) == len(KEYS) and all(one.isascii() for one in texts)
    assert text((0, "a", b"\1")) == '(0,"a",x"01")'
    assert text(t.Color.RED) == 'python.enum{"class":"codec_types.Color"}("RED")'
    assert text(frozenset("cab")) == text(frozenset("bca")) == 'python.frozenset("a","b","c")'


@pytest.mark.parametrize("order", [list, lambda keys: keys[::-1]])
def test_each_key_finds_its_own(order):
    keys = list(dict.fromkeys(KEYS))  # Some keys are equal but have another text.
    source = {key: np.full(3, float(number)) for number, key in enumerate(keys)}
    target = {key: np.zeros(3) for key in order(keys)}
    received = in_place({"x": source}, {"x": target})["x"]
    assert list(received) == keys
    for number, key in enumerate(keys):
        assert received[key] is target[key] and target[key].tolist() == [number] * 3, key


def test_another_key_is_a_mismatch():
    for one, other in itertools.permutations(KEYS, 2):
        target = np.zeros(1)
        with pytest.raises(Mismatch):
            in_place({one: np.ones(1), "\udfff": 1}, {other: target, "\udfff": 1})
        assert not target.any()


@dataclasses.dataclass(frozen=True, eq=False)
class Unequal:
    """No two of these are equal as keys, even with the same content."""

    x: object


def test_keys_with_the_same_text_are_refused():
    for keys in ([Unequal(1), Unequal(1)], [(math.nan,), (float("nan"),)]):
        with pytest.raises(Unsupported, match="have the same text") as caught:
            core.build({"a": dict.fromkeys(keys, 1)}, Codec())
        assert caught.value.path == "a"


def test_keys_with_memory_travel_but_are_no_target():
    codec = Codec()
    source = {Unequal(np.ones(1)): np.full(1, 5.0), Unequal(np.ones(1)): np.full(1, 6.0), (1,): 7}
    received = core.restore(core.build(source, codec), codec)
    assert [float(value) for value in map(np.sum, received.values())] == [5, 6, 7]
    assert [type(key) for key in received] == [Unequal, Unequal, tuple]
    with pytest.raises(NoText):
        text(next(iter(source)))
    for target in (source, {Unequal(bytearray(1))}):
        with pytest.raises(
            Unsupported, match="cannot be received into.*names or numbers"
        ) as caught:
            core.build({"a": target}, codec.for_target())
        assert caught.value.path == "a"


def test_a_pickled_key_is_no_target():
    codec = Codec(allow_pickle=True)
    source = {complex: 1, (2,): 3}
    assert core.restore(core.build(source, codec), codec) == source
    with pytest.raises(Unsupported, match="cannot be received into"):
        core.build(source, codec.for_target())


@pytest.mark.parametrize(
    "payload",
    [
        {"(1)": ((2,), "a")},
        {"(1)": ((1,), "a"), "(2)": ((1,), "b")},
        {"(1)": ((1,), "a"), "#1": ((1,), "b")},
        {"(1)": ((True,), "a")},
        {"( 1)": ((1,), "a")},
        {"#1": ((1,), "a")},
        {1: ((1,), "a")},
        {(1,): ((1,), "a")},
        {"[]": ([], "a")},
        {"(1)": ((1,), "a", "b")},
        {"(1)": [(1,), "a"]},
        [((1,), "a")],
    ],
)
def test_hostile_items(payload):
    with pytest.raises(Malformed):
        Codec().decode("python.items", payload)


def test_work_does_not_double_with_each_level():
    key = frozenset()
    for _ in range(60):
        key = frozenset({(key, t.Frozen(1))})
    codec = Codec()
    assert core.restore(core.build({(key,): 1}, codec), codec) == {(key,): 1}


# ---- registered classes ----


@pytest.fixture
def torch_and_bag():
    torch = pytest.importorskip(
        "torch", reason="torch is not installed: pip install -r tests/python/requirements-torch.txt"
    )
    import torch_types

    return torch, torch_types.Bag


def test_another_context_is_a_mismatch(torch_and_bag):
    torch, Bag = torch_and_bag
    from torch_types import Sack
    from wherry.torch._codec import TorchCodec

    source = Bag(q=torch.ones(2), k=torch.full((2,), 2.0))
    same = Bag(q=torch.zeros(2), k=torch.zeros(2))
    received = in_place({"x": source}, {"x": same}, TorchCodec())["x"]
    assert (
        received.items["k"] is same.items["k"]
        and same.items["k"].tolist() == [2, 2]
        and same.items["q"].tolist() == [1, 1]
    )
    for cls, names in ((Bag, "kq"), (Bag, "qx"), (Bag, "q"), (Sack, "qk")):
        target = cls(**{name: torch.zeros(2) for name in names})
        with pytest.raises(Mismatch):
            in_place({"x": source}, {"x": target}, TorchCodec())
        assert not any(item.any() for item in target.items.values())


def test_a_context_with_memory_is_no_target(torch_and_bag):
    torch, _ = torch_and_bag
    from torch_types import Box
    from wherry.torch._codec import TorchCodec

    codec = TorchCodec()
    value = Box(torch.ones(1), torch.full((1,), 3.0))
    assert core.restore(core.build(value, codec), codec).label.item() == 3
    with pytest.raises(Unsupported, match="context"):
        core.build(value, codec.for_target())
    for _ in range(100):  # The value becomes a context within a context, and so on.
        value = Box(1, value)
    assert type(core.restore(core.build(value, codec), codec)) is Box


def test_hostile_contexts(torch_and_bag):
    from wherry.torch._codec import TorchCodec

    name = 'torch.pytree {"class":"torch_types.Bag"}'
    good = {"context": ["a"], 'torch_types.Bag(["a"])': [1]}
    assert TorchCodec().decode(name, good).items == {"a": 1}
    for bad in (
        {"context": ["a"], 'torch_types.Bag(["b"])': [1]},
        {"context": ["a"], 'torch_types.Sack(["a"])': [1]},
        {"context": ["a"], 'torch_types.Bag(["a"]': [1]},
        {"context": ["a"], "torch_types.Bag(#1)": [1]},
        {"context": ["a"], 1: [1]},
        {"context": ["a"], 'torch_types.Bag(["a"])': 1},
        {"context": ["a"]},
        {'torch_types.Bag(["a"])': [1], "children": [1]},
        {**good, "more": 1},
    ):
        with pytest.raises(Malformed):
            TorchCodec().decode(name, bad)


def test_keys_of_torch_and_without(torch_and_bag):
    torch, _ = torch_and_bag
    from wherry.torch._codec import TorchCodec

    source = {torch.float32: 1, torch.Size([2, 3]): 2, torch.device("cpu"): 3, torch.strided: 4}
    built = core.build(source, TorchCodec())
    assert core.restore(built, TorchCodec()) == source
    assert core.restore(built, Codec()) == {
        "torch.float32": 1,
        (2, 3): 2,
        "cpu": 3,
        "torch.strided": 4,
    }
    tensors = {torch.ones(1): 1, torch.ones(1): 2}
    assert list(core.restore(core.build(tensors, TorchCodec()), TorchCodec()).values()) == [1, 2]
    for target in (tensors, set(tensors)):
        with pytest.raises(Unsupported, match="cannot be received into"):
            core.build(target, TorchCodec().for_target())
