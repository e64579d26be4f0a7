"""States, comparisons and helpers that the tests of wherry.torch share."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor


def same_bits(left, right):
    """True if two tensors have the same dtype, shape and bits."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    bits = [one.detach().contiguous().flatten().view(torch.uint8) for one in (left, right)]
    return bits[0].equal(bits[1])


def differences(left, right, path="state"):
    """Where two states differ, as a list of texts."""
    if isinstance(left, DTensor):
        if not isinstance(right, DTensor) or left._spec != right._spec:
            return [f"{path}: another spec"]
        return differences(left._local_tensor, right._local_tensor, path)
    if isinstance(left, torch.Tensor):
        if type(left) is not type(right) or left.requires_grad != right.requires_grad:
            return [f"{path}: {type(left)} and {type(right)}"]
        return [] if same_bits(left, right) else [f"{path}: other bits"]
    if type(left) is not type(right):
        return [f"{path}: {type(left)} and {type(right)}"]
    if isinstance(left, dict):
        if list(left) != list(right):
            return [f"{path}: other keys: {list(left)} and {list(right)}"]
        return [
            text for key in left for text in differences(left[key], right[key], f"{path}.{key}")
        ]
    if isinstance(left, (list, tuple)):
        if len(left) != len(right):
            return [f"{path}: other lengths"]
        pairs = zip(left, right)
        return [
            text
            for i, (one, two) in enumerate(pairs)
            for text in differences(one, two, f"{path}[{i}]")
        ]
    return [] if left == right else [f"{path}: {left!r} and {right!r}"]


def assert_same(left, right):
    found = differences(left, right)
    assert not found, "\n".join(found)


def a_model(seed, kind="mlp"):
    torch.manual_seed(seed)
    if kind == "transformer":
        return nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    if kind == "conv":
        return nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)
        )
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4))


SHAPES = {"transformer": (2, 5, 32), "conv": (2, 3, 8, 8), "mlp": (2, 16)}


def train(model, optimizer, kind, first, steps):
    """Some training steps, with data that depends only on the step."""
    for step in range(first, first + steps):
        torch.manual_seed(1000 + step)
        optimizer.zero_grad()
        model(torch.randn(SHAPES[kind])).square().mean().backward()
        optimizer.step()


def plain_state(seed=0, mib=1):
    """Tensors of several dtypes and layouts, and other values of a state dict."""
    torch.manual_seed(seed)
    base = torch.randn(64, 64)
    tied = torch.randn(10)
    return {
        "big": torch.randn(mib * 262_144),
        "bf16": torch.randn(33, 7).bfloat16(),
        "fp8": torch.randn(100).to(torch.float8_e4m3fn),
        "view": base[3:9, 5:50],
        "transposed": base.t(),
        "expanded": torch.randn(1, 6).expand(5, 6),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3.5, dtype=torch.float64),
        "tied": [tied, tied],
        "parameter": nn.Parameter(torch.randn(4)),
        "step": seed + 7,
        "names": ("a", None, 2.5, True, 1 << 80),
    }


def clone(state):
    return copy.deepcopy(state)


def start():
    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


def finish():
    dist.barrier()
    dist.destroy_process_group()


def exchange(rank, source, destination, transport, state=None):
    """One transfer between two ranks of the transport's group."""
    state = plain_state(1) if state is None else state
    if rank == source:
        transport.send_checkpoint([destination], state)
    elif rank == destination:
        assert_same(state, transport.recv_checkpoint(source))


class Hidden:
    """A process group without a store."""

    def __init__(self, group):
        self._hidden = group

    def __getattr__(self, name):
        if name in ("rank", "size", "send", "recv", "name", "_device_types"):
            return getattr(self._hidden, name)
        raise AttributeError(name)
