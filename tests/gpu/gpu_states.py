"""States on a GPU, and code that the cases of the GPU tests share. It runs in the ranks. `DEVICE`
may be the CPU, to test the cases themselves."""

import os
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import launch  # noqa: E402

from wherry.torch import PGTransport  # noqa: E402

WANTED = os.environ.get("WHERRY_GPU_TEST_DEVICE", "cuda:0")
DEVICE = torch.device(
    f"cuda:{launch.rank()}" if WANTED == "each" else WANTED
)  # Each rank has its own device, or all ranks have the same one.
ON_GPU = DEVICE.type == "cuda"
LIMIT = 60
MIB = 1 << 20


def on_device(value):
    """A copy with every tensor on the device. A tensor that occurs twice is copied once."""
    seen = {}

    def move(item):
        if isinstance(item, torch.Tensor):
            if id(item) not in seen:
                seen[id(item)] = item, item.to(DEVICE)
            return seen[id(item)][1]
        if isinstance(item, dict):
            return {key: move(one) for key, one in item.items()}
        return type(item)(move(one) for one in item) if isinstance(item, (list, tuple)) else item

    return move(value)


def bits(tensor):
    return (
        tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8)
    )


def differences(left, right, path="state"):
    """Where two states differ, whatever the devices, as a list of texts."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        if (left.dtype, left.shape, left.requires_grad) != (
            right.dtype,
            right.shape,
            right.requires_grad,
        ):
            return [
                f"{path}: {left.dtype} {tuple(left.shape)} and {right.dtype} {tuple(right.shape)}"
            ]
        return [] if bits(left).equal(bits(right)) else [f"{path}: other bits"]
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
        return [
            text
            for i, pair in enumerate(zip(left, right))
            for text in differences(*pair, f"{path}[{i}]")
        ]
    return [] if left == right else [f"{path}: {left!r} and {right!r}"]


def assert_same(left, right):
    found = differences(left, right)
    assert not found, "\n".join(found)


def devices_of(value):
    """The kinds of device that the tensors of a state are on."""
    if isinstance(value, torch.Tensor):
        return {value.device.type}
    items = (
        value.values()
        if isinstance(value, dict)
        else value
        if isinstance(value, (list, tuple))
        else ()
    )
    return set().union(*[devices_of(item) for item in items])


def plain_state(seed=0, mib=5):
    """Tensors of many dtypes and forms on the device."""
    torch.manual_seed(seed)
    tied = torch.randn(10, device=DEVICE)
    dtypes = (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
    )
    dtypes += (torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2)
    numbers = torch.randint(0, 2, (37, 5), dtype=torch.int32)
    return {
        "big": torch.randn(mib * MIB // 4, device=DEVICE),
        "dtypes": {str(dtype): numbers.to(torch.float32).to(dtype).to(DEVICE) for dtype in dtypes},
        "empty": torch.empty(0, 3, device=DEVICE),
        "scalar": torch.tensor(3.5, dtype=torch.float64, device=DEVICE),
        "tied": [tied, tied],
        "parameter": nn.Parameter(torch.randn(4, device=DEVICE)),
        "small": [torch.full((i % 7 + 1,), float(i), device=DEVICE) for i in range(50)],
        "step": seed + 7,
        "names": ("a", None, 2.5, True, 1 << 80),
    }


def mixed_state(seed=0):
    """A state as in training on a GPU: the step counters of the optimizer are on the host."""
    torch.manual_seed(seed)
    return {
        "model": {
            "weight": nn.Parameter(torch.randn(300, 700, device=DEVICE)),
            "bias": torch.randn(700, device=DEVICE),
        },
        "optimizer": {
            "step": torch.tensor(float(seed)),
            "average": torch.randn(300, 700, device=DEVICE),
        },
        "loader": {"order": torch.randperm(10_000), "epoch": seed},
    }


def zeroed(value):
    """A copy that contains zeros, to receive into."""
    if isinstance(value, nn.Parameter):
        return nn.Parameter(torch.zeros_like(value.detach()))
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    if isinstance(value, dict):
        return {key: zeroed(item) for key, item in value.items()}
    return (
        type(value)(zeroed(item) for item in value) if isinstance(value, (list, tuple)) else value
    )


def transport(target=None, group=None, timeout=LIMIT, **options):
    return PGTransport(
        group or dist.group.WORLD,
        timeout,
        DEVICE,
        None if target is None else lambda: target,
        **options,
    )


def one_way(state, target=None, source=0, **options):
    """One transfer between the two ranks. Returns the received state (at the source: None) and the
    statistics."""
    rank = dist.get_rank()
    with transport(target if rank != source else None, **options) as way:
        if rank == source:
            way.send_checkpoint([1 - source], state)
            return None, way.last_stats
        return way.recv_checkpoint(source), way.last_stats


def expect_lane(stats, name):
    """Checks the lane. On the CPU, which only tests the cases themselves, other lanes are used."""
    assert not ON_GPU or name in stats.lane.split("+"), (
        f"the lane was {stats.lane}, not {name}: {stats.reasons}"
    )


__all__ = [name for name in dir() if not name.startswith("_")]
_ = launch
