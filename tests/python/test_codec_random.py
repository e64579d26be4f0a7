"""2,000 random states are sent and compared, as new values and in place: types, order, bits,
strides, flags, and which tensors share memory."""

import ctypes

import pytest
from random_state import Maker
from same_state import assert_same

from rehearse import core

from wherry._codec import Codec
from wherry.errors import Mismatch

BLOCK = 100


def run(codec, torch, first, extra=()):
    for seed in range(first, first + BLOCK):
        state = Maker(seed, torch, extra).state()
        try:
            built = core.build(state, codec)
            assert_same(state, core.restore(built, codec))
            # Encodes and decodes the result again. The second time must not lose anything either.
            again = core.restore(built, codec)
            assert_same(state, core.restore(core.build(again, codec), codec))
            in_place(state, built, again, codec)
            other_keys(built, again, codec)
            by_key(state, built, again, codec)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def in_place(state, built, target, codec):
    """Receives into a state of the same form whose memory is all zero."""
    into = core.build(target, codec.for_target())
    for address, nbytes, _ in core.storages(into):
        if nbytes:
            ctypes.memset(address, 0, nbytes)
    received = core.restore(built, codec, into)
    assert_same(state, received)
    used = {row for row in core.storages(core.build(received, codec)) if row[1]}
    assert used == {row for row in core.storages(into) if row[1]}


def by_key(state, built, target, codec):
    """Receives into a state whose dicts have another order: each value goes to its own key."""
    turned = rebuilt(target, lambda value: dict(list(value.items())[::-1]))
    received = in_place(state, built, turned, codec)
    compare_places(received, turned)


def other_keys(built, target, codec):
    """Receives into a state in which one unusual key is another one: nothing is received into its
    value."""
    changed = []

    def change(value):
        odd = [key for key in value if not isinstance(key, (int, str, bytes, type(None)))]
        if not odd or changed:
            return value
        changed.append(odd[0])
        return {("other", key) if key is odd[0] else key: item for key, item in value.items()}

    into = rebuilt(target, change)
    if changed:
        with pytest.raises(Mismatch):
            core.restore(built, codec, core.build(into, codec.for_target()))


def rebuilt(value, change):
    """The same tree with other dicts. The contents of other containers stay."""
    if type(value) is dict:
        return change({key: rebuilt(item, change) for key, item in value.items()})
    if type(value) in (list, tuple):
        return type(value)(rebuilt(item, change) for item in value)
    return value


def compare_places(received, target):
    if type(received) is dict:
        assert received.keys() == target.keys()
        for key in received:
            compare_places(received[key], target[key])
    elif type(received) in (list, tuple):
        for one, other in zip(received, target):
            compare_places(one, other)
    elif type(received).__name__ in ("Tensor", "Parameter", "ndarray"):
        # A sparse tensor is a new object. Only its memory is the target's.
        assert received is target or str(getattr(received, "layout", "")) not in (
            "",
            "torch.strided",
        )


@pytest.mark.parametrize("first", range(0, 500, BLOCK))
def test_without_torch(first):
    run(Codec(), None, first)


@pytest.mark.parametrize("first", range(0, 2000, BLOCK))
@pytest.mark.filterwarnings(
    "ignore"
)  # torch warns about several of its types when the first one is made.
def test_with_torch(first):
    torch = pytest.importorskip(
        "torch", reason="torch is not installed: pip install -r tests/python/requirements-torch.txt"
    )
    import torch_types
    from wherry.torch._codec import TorchCodec

    run(TorchCodec(), torch, first, torch_types.EXTRA)
