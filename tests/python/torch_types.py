"""Classes of a program that uses torch, for the tests of the codec."""

import torch
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree


class Plain(torch.Tensor):
    """A subclass that adds a name."""


class Tagged(torch.Tensor):
    """A subclass with its own __torch_function__."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


class Special(torch.nn.Parameter):
    """A subclass of Parameter."""


class Box:
    """Registered with torch.utils._pytree."""

    def __init__(self, content, label):
        self.content = content
        self.label = label

    def __eq__(self, other):
        return type(other) is Box and repr((self.content, self.label)) == repr(
            (other.content, other.label)
        )


_pytree.register_pytree_node(
    Box, lambda box: ([box.content], box.label), lambda children, label: Box(children[0], label)
)


class Bag:
    """Also registered. Its context says which child is which."""

    def __init__(self, **items):
        self.items = items


class Sack(Bag):
    """The same under another name."""


for _one in (Bag, Sack):
    _pytree.register_pytree_node(
        _one,
        lambda bag: (list(bag.items.values()), list(bag.items)),
        lambda children, names, one=_one: one(**dict(zip(names, children))),
    )


class Opaque(torch.Tensor):
    """A wrapper without __tensor_flatten__."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError


def subclass(maker):
    made = maker.tensor()
    cls = maker.random.choice([Plain, Tagged])
    with torch._C.DisableTorchFunctionSubclass():
        made = made.as_subclass(cls)
    if maker.random.random() < 0.5:
        made.note = {"b": [1, None], "a": (1.5,)}
    return made


def special(maker):
    return Special(
        torch.ones(2, 3).mul_(maker.random.random()), requires_grad=maker.random.random() < 0.5
    )


def two(maker):
    made = TwoTensor(torch.ones(2, 2), torch.arange(4.0).reshape(2, 2))
    return torch.nn.Parameter(made) if maker.random.random() < 0.5 else made


def box(maker):
    return Box(maker.number(), maker.text())


def dtensor(maker):
    """A DTensor over a mesh of 2 by 2 ranks. This process is the first; no group is needed."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    names = maker.random.choice([None, ("dp", "tp")])
    mesh = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=names, _init_backend=False, _rank=0)
    placements = tuple(
        maker.random.choice([Replicate(), Shard(0), Shard(1), Partial("max")]) for _ in range(2)
    )
    shape = torch.Size(maker.random.choice([0, 1, 5, 6]) for _ in range(2))
    local = list(shape)
    for placement in placements:
        if isinstance(placement, Shard):
            local[placement.dim] = -(-local[placement.dim] // 2)
    dtype = maker.random.choice([torch.float32, torch.bfloat16])
    spec = DTensorSpec(
        mesh,
        placements,
        tensor_meta=TensorMeta(shape, torch.empty(shape, device="meta").stride(), dtype),
    )
    made = DTensor(torch.rand(local).to(dtype), spec, requires_grad=maker.random.random() < 0.3)
    return torch.nn.Parameter(made) if maker.random.random() < 0.3 else made


EXTRA = (subclass, special, two, box, *((dtensor,) if torch.distributed.is_available() else ()))
