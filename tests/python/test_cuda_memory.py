"""Memory of CUDA devices from Python, by DLPack: on the driver that stands in for one. Tensors of
torch need a real one: tests/gpu."""

import ctypes
import os
import pathlib

import launch
import numpy as np
import pytest
import wherry

BUILD = pathlib.Path(
    os.environ.get("WHERRY_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build")
)
DRIVER = BUILD / "tests" / "libfake_cuda.so"
KDL_CUDA = 2


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class DeviceArray:
    """An array on a device that supports DLPack, like those of CuPy."""

    def __init__(self, numbers, device=0):
        self.driver = ctypes.CDLL(str(DRIVER))
        self.driver.fake_cuda_shadow.restype = ctypes.c_void_p
        self.device = device
        self.shape = (ctypes.c_int64 * numbers.ndim)(*numbers.shape)
        context, self.data = ctypes.c_void_p(), ctypes.c_void_p()
        assert self.driver.cuInit(0) == 0
        assert self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
        assert self.driver.cuCtxPushCurrent_v2(context) == 0
        assert (
            self.driver.cuMemAlloc_v2(ctypes.byref(self.data), ctypes.c_size_t(numbers.nbytes)) == 0
        )
        assert self.driver.cuCtxPopCurrent_v2(ctypes.byref(context)) == 0
        shadow = self.driver.fake_cuda_shadow(self.data)
        self.numbers = np.frombuffer(
            (ctypes.c_char * numbers.nbytes).from_address(shadow), "float32"
        ).reshape(numbers.shape)
        self.numbers[...] = numbers

    def __dlpack_device__(self):
        return KDL_CUDA, self.device

    def __dlpack__(self, stream=None):
        assert stream is None  # This is the default stream.
        ndim = len(self.shape)
        tensor = DLTensor(
            self.data.value, KDL_CUDA, self.device, ndim, 2, 32, 1, self.shape, None, 0, None, None
        )
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = (
            ctypes.py_object,
            [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
        )
        self.kept = tensor
        return new(ctypes.addressof(tensor), b"dltensor", None)


def numbers(seed, *shape):
    return np.random.default_rng(seed).random(shape, dtype="float32")


def body(place, lanes):
    rank = launch.rank()
    large, small = numbers(1, 1500, 1024), numbers(2, 7)
    with wherry.Group.join(f"unix://{place}?rank={rank}&size=2", timeout=30) as group:
        if rank == 0:
            state = {
                "large": DeviceArray(large),
                "small": [DeviceArray(small, 1)],
                "host": large,
                "step": 3,
            }
            for _ in range(3):
                wherry.send(group, 1, state, lanes=lanes, timeout=30)
            wherry.send(group, 1, {"x": small}, timeout=30)
        else:
            received = wherry.recv(group, 0, lanes=lanes, verify=True, timeout=30)
            assert np.array_equal(received["large"], large) and np.array_equal(
                received["small"][0], small
            )
            into = {
                "large": DeviceArray(0 * large, 1),
                "small": [DeviceArray(0 * small)],
                "host": 0 * large,
                "step": 0,
            }
            received = wherry.recv(group, 0, into, lanes=lanes, timeout=30)
            assert received["large"] is into["large"] and received["step"] == 3
            assert np.array_equal(into["large"].numbers, large) and np.array_equal(
                into["small"][0].numbers, small
            )
            assert np.array_equal(into["host"], large)
            onto = {
                "large": 0 * large,
                "small": [0 * small],
                "host": DeviceArray(0 * large),
                "step": 0,
            }
            wherry.recv(group, 0, onto, lanes=lanes, timeout=30)
            assert np.array_equal(onto["large"], large) and np.array_equal(
                onto["host"].numbers, large
            )
            with pytest.raises(wherry.errors.Mismatch, match="shapes differ"):
                wherry.recv(group, 0, {"x": DeviceArray(numbers(3, 8))}, timeout=30)
            wherry.recv(group, 0, into={"x": (target := DeviceArray(0 * small))}, timeout=30)
            assert np.array_equal(target.numbers, small)
        if rank == 0:
            return "sent"
    return None


def sent_twice(place, lanes):
    """Like body, but with the last send twice. The receiver refuses the first of the two."""
    if launch.rank():
        return body(place, lanes)
    send = wherry.group.send

    def patient(group, dst, state, **options):
        try:
            return send(group, dst, state, **options)
        except wherry.errors.Aborted as error:
            assert "shapes differ" in str(error), error
            return send(group, dst, state, **options)

    wherry.send = patient
    return body(place, lanes)


@pytest.mark.parametrize("lanes", [None, "^cuda_ipc", "stream"])
def test_there_and_back(lanes, tmp_path):
    assert DRIVER.exists(), f"ninja -C {BUILD} tests/libfake_cuda.so"
    with launch.job(2, {"WHERRY_CUDA_LIBRARY": DRIVER}, store=False) as job:
        assert job.run(sent_twice, f"{tmp_path}/meeting", lanes) == ["sent", None]


class Elsewhere:
    """A value on a device, on a machine that has none."""

    def __dlpack_device__(self):
        return KDL_CUDA, 0

    def __dlpack__(self, stream=None):
        shape = (ctypes.c_int64 * 1)(4)
        self.kept = DLTensor(4096, KDL_CUDA, 0, 1, 2, 32, 1, shape, None, 0, None, None), shape
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = (
            ctypes.py_object,
            [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
        )
        return new(ctypes.addressof(self.kept[0]), b"dltensor", None)


def without_driver(place):
    with wherry.Group.join(f"unix://{place}?rank=0&size=2", timeout=30, wait_for=1) as group:
        with pytest.raises(wherry.errors.Unsupported, match="cuda:0") as caught:
            wherry.send(group, 1, {"x": Elsewhere()}, timeout=5)
        return caught.value.path


def test_without_a_driver(tmp_path):
    with launch.job(1, {"WHERRY_CUDA_LIBRARY": "/nonexistent/libcuda.so"}, store=False) as job:
        assert job.run(without_driver, f"{tmp_path}/meeting") == ["x"]
