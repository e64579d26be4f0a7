"""Tensors on an accelerator that the library does not know, such as an XPU: by way of the host, copied by torch.

No machine of the tests has one. So tensors of torch stand in that say they are on one, and whose memory cannot be had but by copies.
"""

import launch
import pytest
import torch
import torch.distributed as dist
import wherry
from wherry import _core
from wherry.torch import PGTransport
from wherry.torch._codec import TorchCodec


class DeviceStorage:
    """Memory on a device: it can be copied to the host and from there, and has no address."""

    made = {}

    def __init__(self, storage):
        self.storage = storage
        self.device = torch.device("xpu:0")
        self._cdata = storage._cdata
        self.copies = 0

    @classmethod
    def of(cls, storage):
        return cls.made.setdefault(storage._cdata, cls(storage))

    def data_ptr(self):
        raise AssertionError("the address of another device's memory was asked for")

    nbytes = data_ptr

    def cpu(self):
        return self.storage.clone()

    def copy_(self, host):
        self.copies += 1
        self.storage.copy_(host)


class DeviceTensor:
    """A tensor on a device, as the core sees it."""

    is_cpu = False
    device = torch.device("xpu:0")

    def __init__(self, tensor):
        self.tensor = tensor

    def untyped_storage(self):
        return DeviceStorage.of(self.tensor.untyped_storage())

    def __getattr__(self, name):
        return getattr(self.tensor, name)


class DeviceCodec(TorchCodec):
    tensor_types = {**TorchCodec.tensor_types, DeviceTensor: None}


def over_the_group():
    """As a job on such devices does it: lanes="group", in place, two tensors of one storage, bytes around them left alone."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    base = torch.arange(1000.0) if rank == 0 else torch.full((1000,), -1.0)
    state = {"a": DeviceTensor(base[100:200]), "b": DeviceTensor(base[300:]), "step": rank}
    transport = PGTransport(dist.group.WORLD, 30, "xpu:0", lambda: state, lanes="group")
    transport._codec = DeviceCodec()
    if rank == 0:
        transport.send_checkpoint([1], state)
        transport.send_checkpoint([1], {"a": DeviceTensor(torch.zeros(99)), "b": 1, "step": 2})
    else:
        received = transport.recv_checkpoint(0)
        assert received["a"] is state["a"] and received["step"] == 0
        expected = torch.full((1000,), -1.0)
        expected[100:200], expected[300:] = torch.arange(100.0, 200.0), torch.arange(300.0, 1000.0)
        assert torch.equal(base, expected)
        storage = state["a"].untyped_storage()
        assert storage.copies == 1
        with pytest.raises(wherry.Mismatch):
            transport.recv_checkpoint(0)
        assert storage.copies == 1 and torch.equal(base, expected)  # nothing was touched
    dist.barrier()


def refusing():
    try:
        over_the_group()
    except wherry.Aborted as error:
        assert "differ" in str(error) and dist.get_rank() == 0
        dist.barrier()


def test_over_the_group():
    with launch.job(2) as job:
        job.run(refusing)


def test_without_memory():
    with pytest.raises(wherry.Unsupported, match="meta") as caught:
        _core.build({"x": torch.empty(3, device="meta")}, TorchCodec())
    assert caught.value.path == "x"
