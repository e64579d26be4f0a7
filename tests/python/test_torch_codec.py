"""The codec with torch: all types of docs/python-types.md, new and in place, and refused values."""

import copy
import dataclasses
from collections import OrderedDict

import numpy as np
import pytest
from same_state import assert_same, raw

torch = pytest.importorskip(
    "torch", reason="torch is not installed: pip install -r tests/python/requirements-torch.txt"
)

import torch_types as t  # noqa: E402
from test_codec_hostile import Inventor, attack, watched  # noqa: E402, F401
from torch import nn  # noqa: E402
from torch.testing._internal.two_tensor import TwoTensor  # noqa: E402
from torch.utils import _pytree  # noqa: E402

from rehearse import core  # noqa: E402

import wherry  # noqa: E402
from wherry import _core  # noqa: E402
from wherry.errors import Malformed, Mismatch, Unsupported  # noqa: E402
from wherry._codec import Codec  # noqa: E402
from wherry.torch._codec import DTYPES, TorchCodec  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*experimental", "ignore:.*beta", "ignore:.*deprecated", "ignore:.*prototype"
)


def there_and_back(value, codec=None):
    codec = codec or TorchCodec()
    return core.restore(core.build(value, codec), codec)


def in_place(source, target, codec=None):
    codec = codec or TorchCodec()
    return core.restore(core.build(source, codec), codec, core.build(target, codec.for_target()))


def trained():
    """A model and an optimizer that have taken a step."""
    model = nn.Sequential(
        nn.Embedding(10, 8), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 10, bias=False)
    )
    model[3].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01))
    model(torch.arange(4)).sum().backward()
    optimizer.step()
    return model, optimizer


# ---- plain tensors ----


@pytest.mark.parametrize("name", [name for name in _core.DTYPES if getattr(torch, name) in DTYPES])
def test_dtypes(name):
    dtype = getattr(torch, name)
    storage = torch.frombuffer(
        bytearray(range(1, 65)) if name != "bool" else bytearray([0, 1] * 32), dtype=torch.uint8
    ).untyped_storage()
    size = torch.empty(0, dtype=dtype).element_size()
    whole = torch.empty(0, dtype=dtype).set_(storage, 0, (64 // size,), (1,))
    part = torch.empty(0, dtype=dtype).set_(storage, 1, (2, 1), (1, 1))
    scalar = torch.empty(0, dtype=dtype).set_(storage, 2, (), ())
    value = {
        "whole": whole,
        "part": part,
        "scalar": scalar,
        "empty": torch.empty((2, 0), dtype=dtype),
    }
    assert_same(value, there_and_back(value))


def test_every_dtype_of_torch_is_known():
    missing = {
        str(one) for one in vars(torch).values() if type(one) is torch.dtype and one not in DTYPES
    }
    assert missing - {"torch.bcomplex32"} == {  # These are the dtypes of torch 2.15.
        "torch.qint8",
        "torch.quint8",
        "torch.qint32",
        "torch.quint4x2",
        "torch.quint2x4",
    }


def test_a_model_and_its_optimizer():
    model, optimizer = trained()
    sent = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "parameters": dict(model.named_parameters()),
    }
    received = there_and_back(sent)
    assert_same(sent, received)
    assert received["model"]._metadata == sent["model"]._metadata
    other, other_optimizer = trained()
    other.load_state_dict(received["model"])
    other_optimizer.load_state_dict(received["optimizer"])
    assert_same(sent["model"], other.state_dict())


def test_flags():
    base = torch.tensor([1 + 2j, 3 - 4j])
    value = [
        base.conj(),
        base.conj().imag,
        torch._neg_view(base),
        base.clone().requires_grad_(),
        base.conj().detach().requires_grad_(),
    ]
    received = there_and_back(value)
    assert_same(value, received)
    assert received[1].is_neg() and received[4].is_conj() and received[4].is_leaf
    assert torch.equal(received[1], torch.tensor([-2.0, 4.0]))


def test_history_is_not_sent():
    made = (torch.ones(3, requires_grad=True) * 2).t()
    received = there_and_back([made])[0]
    assert received.requires_grad and received.is_leaf and torch.equal(received, made)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, lambda: torch.device("meta")])
def test_whatever_the_mode(mode):
    value = [
        torch.ones(2, requires_grad=True),
        nn.Parameter(torch.ones(2)),
        torch.ones(2).as_subclass(t.Plain).requires_grad_(),
    ]
    with mode():
        received = there_and_back(value)
    assert_same(value, received)


def test_received_tensors_can_grow():
    received = there_and_back([torch.ones(2), torch.empty(0), torch.empty(0)])
    for tensor in received:
        tensor.resize_(100).fill_(3)
    assert received[1].untyped_storage().data_ptr() != received[2].untyped_storage().data_ptr()


# ---- subclasses, wrappers and sparse tensors ----


def test_parameters():
    weight = torch.arange(6.0).reshape(2, 3)
    value = {
        "p": nn.Parameter(weight),
        "frozen": nn.Parameter(weight.t(), requires_grad=False),
        "int": nn.Parameter(torch.arange(3), requires_grad=False),
        "special": t.Special(weight),
        "complex": nn.Parameter(torch.tensor([1j]).conj()),
    }
    received = there_and_back(value)
    assert_same(value, received)
    assert type(received["p"]) is nn.Parameter and type(received["special"]) is t.Special


def test_attributes_of_plain_tensors_are_not_sent():
    buffer, noted = nn.Buffer(torch.ones(2)), torch.ones(2)
    noted.note = 1
    received = there_and_back([buffer, noted])
    assert type(received[0]) is torch.Tensor and not vars(received[0]) and not vars(received[1])


def test_subclasses():
    plain = torch.arange(6.0).reshape(2, 3).t().as_subclass(t.Plain)
    plain.note = {"a": (1, 2)}
    tagged = torch.ones(3).as_subclass(t.Tagged).requires_grad_()
    value = {"plain": plain, "tagged": tagged, "base": plain.as_subclass(torch.Tensor)}
    received = there_and_back(value)
    assert_same(value, received)
    assert received["plain"].note == {"a": (1, 2)} and received["tagged"].is_leaf


def test_wrappers():
    inner = TwoTensor(torch.ones(2, 3), torch.arange(6.0).reshape(2, 3))
    value = {
        "w": inner,
        "g": TwoTensor(torch.ones(2), torch.ones(2)).requires_grad_(),
        "p": nn.Parameter(inner.detach()),
        "a": inner.a,
    }
    received = there_and_back(value)
    assert_same(value, received)
    assert (
        isinstance(received["p"], nn.Parameter)
        and received["p"].requires_grad
        and received["g"].requires_grad
    )


def sparse_ones():
    dense = torch.tensor([[0, 1.0, 0, 2], [0, 0, 3, 0], [0, 0, 0, 0], [4, 0, 0, 5]])
    yield dense.to_sparse()
    yield torch.sparse_coo_tensor([[0, 0, 1], [2, 2, 0]], [1.0, 2.0, 3.0], (2, 3))
    yield torch.sparse_coo_tensor([[0, 1]], torch.ones(2, 3), (5, 3)).requires_grad_()
    yield torch.sparse_coo_tensor(torch.empty((2, 0), dtype=torch.int64), [], (3, 4))
    yield dense.to_sparse_csr()
    yield dense.to_sparse_csr().requires_grad_()
    yield dense.to_sparse_csc()
    yield dense.to_sparse_bsr((2, 2))
    yield dense.to_sparse_bsc((2, 2))
    yield nn.Parameter(dense.to_sparse(), requires_grad=False)


@pytest.mark.parametrize("sent", list(sparse_ones()), ids=lambda sent: str(sent.layout))
def test_sparse(sent):
    received = there_and_back({"x": sent})["x"]
    assert_same(sent, received)
    assert torch.equal(sent.to_dense(), received.to_dense())


def test_sparse_indices_are_checked():
    codec = TorchCodec()
    for name, payload in (
        (
            'torch.sparse_coo {"size":[2,2]}',
            {"indices": torch.tensor([[0, 7], [0, 0]]), "values": torch.ones(2)},
        ),
        (
            'torch.sparse_coo {"coalesced":true,"size":[2,2]}',
            {"indices": torch.tensor([[1, 0], [0, 0]]), "values": torch.ones(2)},
        ),
        (
            'torch.sparse_csr {"size":[2,2]}',
            {
                "crow_indices": torch.tensor([0, 9, 2]),
                "col_indices": torch.tensor([0, 1]),
                "values": torch.ones(2),
            },
        ),
    ):
        with pytest.raises(Malformed):
            codec.decode(name, payload)


def test_small_types():
    value = [
        torch.Size([2, 3]),
        torch.Size([]),
        torch.float8_e5m2,
        torch.device("cuda", 3),
        torch.strided,
        torch.channels_last,
    ]
    received = there_and_back(value)
    assert received == value and [type(one) for one in received] == [type(one) for one in value]
    without = core.restore(core.build(value, TorchCodec()), Codec())
    assert without == [
        (2, 3),
        (),
        "torch.float8_e5m2",
        "cuda:3",
        "torch.strided",
        "torch.channels_last",
    ]


def test_registered_classes():
    sent = {
        "b": t.Box({"w": torch.ones(2)}, "label"),
        "max": torch.max(torch.arange(6.0).reshape(2, 3), 0),
    }
    received = there_and_back(sent)
    assert (
        type(received["b"]) is t.Box
        and torch.equal(received["b"].content["w"], torch.ones(2))
        and received["b"].label == "label"
    )
    assert type(received["max"]) is torch.return_types.max and torch.equal(
        received["max"].indices, sent["max"].indices
    )


def test_registration_comes_first_and_later():
    class Late(dict):
        pass

    Late.__module__, Late.__qualname__ = __name__, "Late"
    globals()["Late"] = Late
    codec = TorchCodec()
    name = codec.encode(Late(a=1)).type_name
    assert name == f'python.dict {{"class":"{__name__}.Late"}}'
    with pytest.raises(Unsupported, match="not registered"):
        codec.check(f'torch.pytree {{"class":"{__name__}.Late"}}')
    _pytree.register_pytree_node(
        Late,
        lambda value: (list(value.values()), list(value)),
        lambda items, keys: Late(zip(keys, items)),
    )
    received = there_and_back(Late(a=1, b=torch.ones(1)))
    assert type(received) is Late and list(received) == ["a", "b"]


def test_numpy_beside_torch():
    base = np.arange(12.0).reshape(3, 4)
    value = {
        "np": base,
        "t": base.T,
        "torch": torch.ones(2),
        "time": np.array(["2020"], "M8[s]"),
        "scalar": np.float32(2),
        "b": bytearray(b"x"),
    }
    received = there_and_back(value)
    assert_same(value, received)
    received["np"][0, 1] = 9
    assert received["t"][1, 0] == 9


def test_numpy_of_types_that_it_lacks():
    ml_dtypes = pytest.importorskip(
        "ml_dtypes", reason="ml_dtypes is not installed: pip install ml_dtypes"
    )
    value = [
        np.arange(4).astype(getattr(ml_dtypes, name))
        for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")
    ]
    assert_same(value, there_and_back(value))


def test_from_torch_to_numpy_and_back():
    model, _ = trained()
    sent = {"state": model.state_dict(), "p": nn.Parameter(torch.ones(2, 2).t()), "n": np.ones(3)}
    plain = core.restore(core.build(sent, TorchCodec()), Codec())
    assert type(plain["state"]) is OrderedDict and type(plain["p"]) is np.ndarray
    for name, tensor in sent["state"].items():
        assert np.array_equal(plain["state"][name], tensor.numpy())
    back = core.restore(core.build(plain, Codec()), TorchCodec())
    assert type(back["state"]["1.weight"]) is np.ndarray  # The type is the one that was sent.


# ---- receiving in place ----


def test_in_place_a_model():
    (model, optimizer), (other, other_optimizer) = trained(), trained()
    source = {"m": model.state_dict(), "o": optimizer.state_dict(), "step": 7}
    target = {"m": other.state_dict(), "o": other_optimizer.state_dict(), "step": 3}
    received = in_place(source, target)
    assert received["step"] == 7
    for name, tensor in target["m"].items():
        assert received["m"][name] is tensor and torch.equal(tensor, source["m"][name])
    assert torch.equal(other[1].weight, model[1].weight) and other[3].weight is other[0].weight


def test_in_place_returns_the_target_itself():
    target = {
        "t": torch.zeros(2, 3).t(),
        "p": nn.Parameter(torch.zeros(2)),
        "s": torch.zeros(2).as_subclass(t.Plain),
        "n": np.zeros(2),
        "special": t.Special(torch.zeros(2)),
    }
    source = copy.deepcopy({name: item for name, item in target.items() if name != "s"})
    source["s"] = torch.zeros(2).as_subclass(t.Plain)
    with torch.no_grad():
        for item in source.values():
            item += 5
    received = in_place(source, target)
    for name, item in target.items():
        assert received[name] is item and float(item.min().item()) == 5, name


def test_in_place_sparse_and_wrappers():
    target = {"s": torch.eye(3).to_sparse(), "w": TwoTensor(torch.zeros(2), torch.zeros(2))}
    source = {
        "s": (2 * torch.eye(3)).to_sparse(),
        "w": TwoTensor(torch.ones(2), torch.full((2,), 4.0)),
    }
    received = in_place(source, target)
    assert torch.equal(target["s"].to_dense(), 2 * torch.eye(3)) and torch.equal(
        received["s"].to_dense(), 2 * torch.eye(3)
    )
    assert torch.equal(target["w"].b, source["w"].b) and received["w"].a is target["w"].a


def test_mismatches_touch_nothing():
    for source, target in (
        (torch.ones(2), torch.zeros(3)),
        (torch.ones(2), torch.zeros(2, dtype=torch.float64)),
        (torch.ones(2), torch.zeros(2, 1)),
        (torch.tensor([1j]).conj(), torch.tensor([0j])),
    ):
        with pytest.raises(Mismatch) as caught:
            in_place({"a": [source]}, {"a": [target]})
        assert caught.value.path == "a[0]" and not target.any()


# ---- values that are refused ----


def quantized():
    return torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)


class Module(nn.Module):
    pass


def with_hook():
    made = torch.ones(2).as_subclass(t.Plain)
    made.hook = print
    return made


def local_subclass():
    class Local(torch.Tensor):
        pass

    return torch.ones(2).as_subclass(Local)


def fake():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(2)


REFUSED = [
    (quantized, "dequantize()"),
    (lambda: torch.ones(2, device="meta"), "to_empty"),
    (lambda: nn.Parameter(torch.ones(2, device="meta")), "to_empty"),
    (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "unbind()"),
    (
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        "the tensors that it contains",
    ),
    (lambda: torch.ones(2).to_mkldnn(), "to_dense()"),
    (nn.UninitializedParameter, "first initialize the module, or run it once"),
    (nn.UninitializedBuffer, "first initialize the module, or run it once"),
    (lambda: t.Opaque(torch.ones(2)), "the tensors that it contains"),
    (with_hook, "'hook'"),
    (local_subclass, "top level of its module"),
    (fake, "FakeTensor has no memory"),
    (Module, "state_dict()"),
    (lambda: torch.optim.SGD([torch.ones(1)]), "state_dict()"),
    (torch.Generator, "get_state()"),
    (lambda: torch.ones(2).untyped_storage(), "a tensor that uses it"),
    (lambda: torch.ones, "functions"),
]


@pytest.mark.parametrize("make, way_out", REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_refused(make, way_out):
    with pytest.raises(Unsupported) as caught:
        core.build({"x": [make()]}, TorchCodec())
    assert caught.value.path == "x[0]" and way_out in str(caught.value), caught.value


@dataclasses.dataclass(eq=False)
class DataModule(nn.Module):
    size: int

    def __post_init__(self):
        super().__init__()


def test_a_module_is_no_dataclass():
    with pytest.raises(Unsupported, match=r"send value\.state_dict\(\)"):
        core.build([DataModule(3)], TorchCodec())


class Failing:
    pass


def fail(value):
    raise KeyError("lost")


def test_methods_that_fail():
    if Failing not in _pytree.SUPPORTED_NODES:
        _pytree.register_pytree_node(Failing, fail, fail)
    with pytest.raises(Unsupported, match="Failing cannot be read: KeyError.*lost") as caught:
        core.build({"a": [Failing()]}, TorchCodec())
    assert caught.value.path == "a[0]"


def test_inside_a_transformation():
    def inside(x):
        with pytest.raises(Unsupported, match="torch.func") as caught:
            core.build({"x": x}, TorchCodec())
        assert caught.value.path == "x"
        return x

    torch.vmap(inside)(torch.ones(2, 3))


def test_pickle_of_refused_types():
    received = there_and_back(
        {"q": quantized(), "m": nn.Linear(2, 2)}, TorchCodec(allow_pickle=True)
    )
    assert received["q"].is_quantized and type(received["m"]) is nn.Linear


# ---- a hostile sender ----


def test_hostile(watched):  # noqa: F811
    codec = TorchCodec()
    leaves = [
        torch.zeros(3),
        torch.zeros((2, 2), dtype=torch.int64),
        torch.ones(2, dtype=torch.uint8),
        nn.Parameter(torch.ones(1)),
    ]
    classes = "torch_types.Plain torch_types.Box torch_types.Opaque torch.Tensor torch.nn.parameter.Parameter".split()
    classes += [
        "torch.testing._internal.two_tensor.TwoTensor",
        "torch.return_types.max",
        "torch.fx.immutable_collections.immutable_list",
    ]
    made, errors = attack(codec, Inventor(2, list(codec._makers), leaves, classes), 60000)
    assert made > 500 and errors >= {"Malformed", "Unsupported"}


def test_hostile_flags_and_memory():
    codec = TorchCodec()
    owner, *_ = codec.allocate(16, "cpu")
    with pytest.raises(Malformed):
        # Integers have no gradient.
        codec.tensor(owner, "cpu", _core.DTYPES["int32"][0], ((2,), (1,), 0), 1)
    with pytest.raises(wherry.errors.NoMemory):
        codec.allocate(1 << 62, "cpu")
    with pytest.raises(Unsupported):
        codec.tensor(owner, "cpu", _core.DTYPES["qint8"][0], ((2,), (1,), 0), 0)
    assert raw(codec.tensor(None, "cpu", 11, ((0, 1 << 40), (1 << 40, 1), 0), 0)) == b""


def test_memory_of_devices_arrives_on_the_host():
    codec = TorchCodec()
    owner, _, place = codec.allocate(16, "cuda:3")
    assert (owner.device.type, place) == ("cpu", "cpu")
    assert codec.tensor(None, "cuda:3", 11, ((0,), (1,), 0), 0).device.type == "cpu"
    codec.new_on(None, "cuda")  # This machine may lack CUDA.
    assert codec.allocate(16, "cpu")[2] == "cpu"
    with pytest.raises(wherry.errors.InvalidArgument, match="the device meta has none"):
        codec.new_on("meta")
