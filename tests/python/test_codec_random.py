"""2,000 random states there and back, and in place: types, order, bits, strides, flags, and which tensors share memory."""

import ctypes

import pytest
from random_state import Maker
from same_state import assert_same

from wherry import _core
from wherry._codec import Codec

BLOCK = 100


def run(codec, torch, first, extra=()):
    for seed in range(first, first + BLOCK):
        state = Maker(seed, torch, extra).state()
        try:
            built = _core.build(state, codec)
            assert_same(state, _core.restore(built, codec))
            # A second time, from what was received: nothing may be lost that only the first trip would show.
            again = _core.restore(built, codec)
            assert_same(state, _core.restore(_core.build(again, codec), codec))
            in_place(state, built, again, codec)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def in_place(state, built, target, codec):
    """Into a state of the same form, all of whose memory is zero before."""
    into = _core.build(target, codec.for_target())
    for address, nbytes, _ in into.storages():
        if nbytes:
            ctypes.memset(address, 0, nbytes)
    received = _core.restore(built, codec, into)
    assert_same(state, received)
    used = {row for row in _core.build(received, codec).storages() if row[1]}
    assert used == {row for row in into.storages() if row[1]}


@pytest.mark.parametrize("first", range(0, 500, BLOCK))
def test_without_torch(first):
    run(Codec(), None, first)


@pytest.mark.parametrize("first", range(0, 2000, BLOCK))
@pytest.mark.filterwarnings("ignore")  # torch calls several of its types experimental, the first time that each is made
def test_with_torch(first):
    torch = pytest.importorskip(
        "torch", reason="torch is not installed: pip install -r tests/python/requirements-torch.txt"
    )
    import torch_types
    from wherry.torch._codec import TorchCodec

    run(TorchCodec(), torch, first, torch_types.EXTRA)
