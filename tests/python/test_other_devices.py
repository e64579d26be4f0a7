"""Tensors on devices without a lane: torch copies them through host memory, in buckets.

`standin` is a torch device that is made for these tests (stand_in_device.cpp): only torch's copies
can read its memory. CPU tensors that claim to be on an XPU take the same path without it.
"""

import launch
import pytest
import stand_in_device
import torch
import torch.distributed as dist
import wherry
from torch_states import assert_same
from wherry import _core
from wherry.torch import PGTransport, _staging, pg_transport
from wherry.torch._codec import TorchCodec


def test_the_size_of_a_bucket():
    assert _staging.BUCKET_BYTES == 128 << 20


def test_without_memory():
    with pytest.raises(wherry.errors.Unsupported, match="meta") as caught:
        _core.build({"x": torch.empty(3, device="meta")}, TorchCodec())
    assert caught.value.path == "x"
    with pytest.raises(wherry.errors.InvalidArgument, match="meta has none"):
        TorchCodec().new_on("meta")


# ---- a device that torch knows ----


def a_state(seed):
    """Many small storages of odd sizes, two views of one, one larger than a bucket, one empty."""
    torch.manual_seed(seed)
    base = torch.randn(1000)
    return {
        "small": [torch.randn(1 + 7 * i) for i in range(100)],
        "bytes": [torch.randint(0, 255, (i,), dtype=torch.uint8) for i in range(1, 40)],
        "view": base[100:200],
        "rest": base[300:],
        "large": torch.randn(1 << 20),
        "half": torch.randn(33).bfloat16(),
        "parameter": torch.nn.Parameter(torch.randn(5)),
        "empty": torch.empty(0, 3),
        "step": seed,
    }


def moved(value, device, memo=None):
    """The same state on a device. Views of one storage still share it."""
    memo = {} if memo is None else memo
    if isinstance(value, dict):
        return {key: moved(item, device, memo) for key, item in value.items()}
    if isinstance(value, list):
        return [moved(item, device, memo) for item in value]
    if not isinstance(value, torch.Tensor):
        return value
    key = value.untyped_storage()._cdata
    if key not in memo:
        line = torch.empty(0, dtype=torch.uint8, device=value.device).set_(value.untyped_storage())
        memo[key] = line.to(device)
    made = torch.empty(0, dtype=value.dtype, device=device)
    made.set_(memo[key].untyped_storage(), value.storage_offset(), value.shape, value.stride())
    return torch.nn.Parameter(made) if isinstance(value, torch.nn.Parameter) else made


def devices(value):
    if isinstance(value, (dict, list)):
        return set().union(
            *(devices(item) for item in (value.values() if isinstance(value, dict) else value))
        )
    return {value.device.type} if isinstance(value, torch.Tensor) else set()


def start(library):
    dist.init_process_group("gloo")
    _staging.BUCKET_BYTES = 1 << 20
    return dist.get_rank(), stand_in_device.load(library)


# for a_state with buckets of 1 MiB: one for the small tensors, and four pieces of the large one
BUCKETS = 1 + 4


def in_place_body(library, source, target, lanes):
    """Checks which bytes arrive, which stay unchanged, and the number of copies."""
    rank, counts = start(library)
    state = moved(a_state(1), source)
    mine = moved(a_state(2), target)
    with PGTransport(dist.group.WORLD, 60, "cpu", lambda: mine, lanes=lanes) as transport:
        counts.stand_in_reset()
        if rank == 0:
            transport.send_checkpoint([1], state)
            assert counts.stand_in_crossings() == (BUCKETS if source != "cpu" else 0)
            assert counts.stand_in_largest() <= 1 << 20
        else:
            received = transport.recv_checkpoint(0)
            assert counts.stand_in_crossings() == (
                2 * BUCKETS if target != "cpu" else 0
            )  # The data crosses once in each direction.
            assert counts.stand_in_largest() <= 1 << 20
            assert received["view"] is mine["view"] and received["parameter"] is mine["parameter"]
            assert devices(mine) == {torch.device(target).type}
            assert_same(a_state(1), moved(received, "cpu"))
            base = (
                torch.empty(0, dtype=torch.float, device=target)
                .set_(mine["view"].untyped_storage())
                .cpu()
            )
            untouched = a_state(2)["view"]
            untouched = torch.empty(0).set_(untouched.untyped_storage())
            assert torch.equal(base[:100], untouched[:100]) and torch.equal(
                base[200:300], untouched[200:300]
            )
    dist.barrier()


@pytest.fixture(scope="module")
def library():
    return str(stand_in_device.build())


@pytest.mark.parametrize("lanes", [None, "group"])
@pytest.mark.parametrize(
    "source, target", [("standin", "standin"), ("standin", "cpu"), ("cpu", "standin")]
)
def test_in_place(library, source, target, lanes):
    with launch.job(2) as job:
        job.run(in_place_body, library, source, target, lanes)


def new_body(library, source, new_device):
    rank, counts = start(library)
    state = moved(a_state(1), source)
    with PGTransport(dist.group.WORLD, 60, "cpu", new_device=new_device) as transport:
        counts.stand_in_reset()
        if rank == 0:
            transport.send_checkpoint([1], state)
        else:
            received = transport.recv_checkpoint(0)
            assert devices(received) == {torch.device(new_device or "cpu").type}
            assert counts.stand_in_crossings() == (BUCKETS if new_device else 0)
            assert counts.stand_in_largest() <= 1 << 20
            assert (
                received["view"].untyped_storage()._cdata
                == received["rest"].untyped_storage()._cdata
            )
            assert_same(a_state(1), moved(received, "cpu"))
    dist.barrier()


@pytest.mark.parametrize(
    "source, new_device", [("standin", None), ("standin", "standin:0"), ("cpu", "standin")]
)
def test_new_tensors(library, source, new_device):
    with launch.job(2) as job:
        job.run(new_body, library, source, new_device)


def mismatch_body(library):
    """Nothing on the device changes."""
    rank, counts = start(library)
    target = {"a": torch.full((100,), -1.0).to("standin"), "b": torch.zeros(3).to("standin")}
    with PGTransport(dist.group.WORLD, 30, "cpu", lambda: target) as transport:
        if rank == 0:
            with pytest.raises(wherry.errors.Aborted, match="differ"):
                transport.send_checkpoint(
                    [1], {"a": torch.ones(100).to("standin"), "b": torch.zeros(4).to("standin")}
                )
        else:
            counts.stand_in_reset()
            with pytest.raises(wherry.errors.Mismatch, match="differ"):
                transport.recv_checkpoint(0)
            assert counts.stand_in_crossings() == 1  # The data goes to the host.
            assert torch.equal(target["a"].cpu(), torch.full((100,), -1.0))
    dist.barrier()


def test_a_mismatch_touches_nothing(library):
    with launch.job(2) as job:
        job.run(mismatch_body, library)


def torchft_body(library):
    """torchft's transport: served in the background, received in place and as new tensors."""
    from wherry.torchft import Transport

    counts = stand_in_device.load(library)
    source, state = Transport(30), moved(a_state(1), "standin")
    target = moved(a_state(2), "standin")
    source.send_checkpoint([1], 7, state, 30)
    assert counts.stand_in_largest() <= 128 << 20
    for options in ({}, {"state_dict": lambda: target}, {"new_device": "standin"}):
        received = Transport(30, **options).recv_checkpoint(0, source.metadata(), 7, 30)
        assert devices(received) == {"standin" if options else "cpu"}
        assert_same(a_state(1), moved(received, "cpu"))
    source.shutdown()


def test_torchft(library):
    with launch.job(1, store=False) as job:
        job.run(torchft_body, library)


# ---- CPU tensors that take this path ----


class DeviceTensor:
    """A CPU tensor that claims to be on an XPU."""

    is_cpu = False
    device = torch.device("xpu:0")

    def __init__(self, tensor):
        self.tensor = tensor

    def __getattr__(self, name):
        return getattr(self.tensor, name)


class DeviceCodec(TorchCodec):
    tensor_types = {**TorchCodec.tensor_types, DeviceTensor: None}


def forced_body():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pg_transport.TorchCodec = DeviceCodec
    base = torch.arange(1000.0) if rank == 0 else torch.full((1000,), -1.0)
    state = {"a": DeviceTensor(base[100:200]), "b": DeviceTensor(base[300:]), "step": rank}
    with PGTransport(dist.group.WORLD, 30, "cpu", lambda: state) as over:
        if rank == 0:
            over.send_checkpoint([1], state)
            with pytest.raises(wherry.errors.Aborted, match="differ"):
                over.send_checkpoint([1], {"a": DeviceTensor(torch.zeros(99)), "b": 1, "step": 2})
        else:
            received = over.recv_checkpoint(0)
            assert received["a"] is state["a"] and received["step"] == 0
            expected = torch.full((1000,), -1.0)
            expected[100:200], expected[300:] = (
                torch.arange(100.0, 200.0),
                torch.arange(300.0, 1000.0),
            )
            assert torch.equal(base, expected)
            with pytest.raises(wherry.errors.Mismatch):
                over.recv_checkpoint(0)
            assert torch.equal(base, expected)
    dist.barrier()


def test_cpu_tensors_take_the_same_path():
    with launch.job(2) as job:
        job.run(forced_body)
