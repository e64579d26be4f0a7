"""wherry.torch.compat gives what torch.distributed.checkpoint._pg_transport gives, on the same inputs."""

import dataclasses
import inspect
import logging
import pickle

import pytest

torch = pytest.importorskip(
    "torch", reason="torch is not installed: pip install -r tests/python/requirements-torch.txt"
)

if not torch.distributed.is_available():
    pytest.skip("this build of torch has no torch.distributed", allow_module_level=True)

from random_state import Maker  # noqa: E402
from test_torch_codec import trained  # noqa: E402
from test_torch_codec_distributed import dtensors, sharded, world  # noqa: E402, F401
from torch.distributed.checkpoint import _pg_transport as reference  # noqa: E402

from wherry.torch import PGTransport, compat  # noqa: E402

NAMES = "_cast_tensor _prepare_tensor _prepare_state_dict _TensorMeta _DTensorMeta _ShardedTensorMeta _StateDictMeta _timeit".split()


def tensors():
    base = torch.arange(24.0).reshape(4, 6)
    yield from (
        base,
        base.t(),
        base[1:, ::2],
        base.expand(2, 4, 6),
        base[3, 5],
        base[:0],
        torch.empty(0),
        torch.tensor(3),
    )
    yield from (
        torch.ones(3, dtype=dtype)
        for dtype in (torch.bool, torch.int16, torch.bfloat16, torch.complex64, torch.float8_e5m2)
    )
    yield torch.ones(3, dtype=torch.complex64).conj()
    yield torch.ones(3, requires_grad=True)


def same_tensors(ours, theirs):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs):
        assert type(one) is type(other) is torch.Tensor
        assert one.untyped_storage() is other.untyped_storage()
        assert one.dtype == other.dtype and one.shape == other.shape and one.stride() == other.stride()
        assert one.storage_offset() == other.storage_offset() and one.device == other.device
        assert torch.equal(one, other)


def same_meta(ours, theirs):
    """Equal, field by field; the classes have the same names."""
    assert type(ours).__name__ == type(theirs).__name__
    if dataclasses.is_dataclass(theirs):
        names = [field.name for field in dataclasses.fields(theirs)]
        assert [field.name for field in dataclasses.fields(ours)] == names
        for name in names:
            same_meta(getattr(ours, name), getattr(theirs, name))
    elif type(theirs) is list:
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs):
            same_meta(one, other)
    elif isinstance(theirs, torch.Size):
        assert type(ours) is torch.Size and ours == theirs
    else:
        assert ours is theirs or ours == theirs


def test_names():
    assert compat.PGTransport is PGTransport
    for name in NAMES:
        ours, theirs = getattr(compat, name), getattr(reference, name)
        assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters), name
    parameters = list(inspect.signature(PGTransport).parameters)
    assert parameters[:4] == list(inspect.signature(reference.PGTransport).parameters)


@pytest.mark.parametrize("tensor", list(tensors()), ids=lambda tensor: f"{tensor.dtype}-{list(tensor.shape)}")
def test_cast_and_prepare(tensor):
    for dtype in (torch.uint8, torch.int8):
        same_tensors([compat._cast_tensor(tensor, dtype)], [reference._cast_tensor(tensor, dtype)])
    ours, theirs = compat._prepare_tensor(tensor), reference._prepare_tensor(tensor)
    same_tensors([ours[0]], [theirs[0]])
    same_meta(ours[1], theirs[1])


def test_cast_to_wider_elements():
    tensor = torch.arange(8.0)[2:4]
    for dtype in (torch.float32, torch.int32, torch.float64, torch.int64):
        same_tensors([compat._cast_tensor(tensor, dtype)], [reference._cast_tensor(tensor, dtype)])


@pytest.mark.parametrize(
    "tensor", [torch.nn.Parameter(torch.ones(2)), torch.ones(2).as_subclass(type("Sub", (torch.Tensor,), {}))]
)
def test_what_the_reference_does_not_cast(tensor):
    for module in (compat, reference):
        with pytest.raises(AssertionError):
            module._cast_tensor(tensor, torch.uint8)
        with pytest.raises(AssertionError):
            module._prepare_state_dict({"x": tensor}, torch.device("cpu"))


def test_sparse_is_refused_by_both():
    for module in (compat, reference):
        with pytest.raises((NotImplementedError, RuntimeError)):
            module._prepare_state_dict({"x": torch.eye(2).to_sparse()}, torch.device("cpu"))


def compare(state):
    ours, our_tensors = compat._prepare_state_dict(state, torch.device("cpu"))
    theirs, their_tensors = reference._prepare_state_dict(state, torch.device("cpu"))
    same_meta(ours, theirs)
    same_tensors(our_tensors, their_tensors)
    return ours


def test_state_dicts():
    model, optimizer = trained()
    for state in (
        {},
        [],
        torch.ones(2),
        {"a": torch.ones(2), "b": [torch.zeros(3).t(), {"c": torch.tensor(1), "n": None}], "t": (1, "x")},
        model.state_dict(),
        optimizer.state_dict(),
        {"odd": object, "set": {1}, ("key", 1): torch.ones(1)},
    ):
        compare(state)


def test_shared_storages():
    base = torch.arange(10.0)
    meta = compare({"a": base, "b": base[2:], "c": base[::3]})
    assert [leaf.nbytes for leaf in meta.non_tensor_leaves] == [40, 40, 40]


@pytest.mark.filterwarnings("ignore")  # torch calls several of its types experimental, the first time that each is made
def test_random_states():
    for seed in range(300):
        maker = Maker(seed, torch)
        maker.leaves = [maker.integer, maker.text, maker.array, maker.other, maker.tensor, maker.tensor, maker.view]
        state = maker.state()
        ours, our_tensors = compat._prepare_state_dict(state, torch.device("cpu"))
        theirs, their_tensors = reference._prepare_state_dict(state, torch.device("cpu"))
        same_tensors_bits(our_tensors, their_tensors)
        assert ours.paths == theirs.paths and ours.treespec == theirs.treespec
        for one, other in zip(ours.non_tensor_leaves, theirs.non_tensor_leaves):
            if isinstance(other, reference._TensorMeta):
                same_meta(one, other)
            else:
                assert one is other


def same_tensors_bits(ours, theirs):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs):
        assert (
            one.untyped_storage() is other.untyped_storage() and one.shape == other.shape and one.dtype == other.dtype
        )


def test_distributed(world):  # noqa: F811
    meta = compare({"d": dtensors(), "s": sharded(), "n": 1})
    kinds = {type(leaf).__name__ for leaf in meta.non_tensor_leaves}
    assert kinds == {"_DTensorMeta", "_ShardedTensorMeta", "int"}


def test_meta_can_be_pickled():
    meta, _ = compat._prepare_state_dict({"a": torch.ones(2), "b": 1}, torch.device("cpu"))
    again = pickle.loads(pickle.dumps(meta))
    assert again == meta


def test_timeit(caplog):
    with caplog.at_level(logging.INFO), compat._timeit("the work"):
        pass
    assert [record.getMessage().split(" took ")[0] for record in caplog.records] == ["the work"]
    with pytest.raises(KeyError), compat._timeit("failing"):
        raise KeyError
    assert len(caplog.records) == 1  # as the reference: only what was done is told
