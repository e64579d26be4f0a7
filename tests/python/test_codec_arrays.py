"""NumPy arrays and scalars, the buffer protocol, DLPack: layout, sharing, receiving in place, and
refused arrays."""

import array
import ctypes
import gc
import mmap
import re

import numpy as np
import pytest
from rehearse import core

import wherry
from random_state import SIMPLE
from same_state import assert_same
from test_codec import run_without, there_and_back

from wherry import _arrays, _core
from wherry.errors import Malformed, Mismatch, Unsupported
from wherry._codec import Codec

TIMES = ["datetime64[ns]", "datetime64[D]", "datetime64", "timedelta64[10us]", "timedelta64"]


def in_place(source, target):
    codec = Codec()
    return core.restore(core.build(source, codec), codec, core.build(target, codec.for_target()))


@pytest.mark.parametrize("dtype", SIMPLE + TIMES)
def test_types_of_elements(dtype):
    sent = np.arange(24, dtype="int64")
    sent = (sent.view(dtype) if dtype in TIMES else sent.astype(dtype)).reshape(2, 3, 4)
    value = {
        "a": sent,
        "t": sent.T,
        "zero": sent[0, 0, 0],
        "0-d": np.array(sent[1, 1, 1]),
        "empty": sent[:0],
    }
    assert_same(value, there_and_back(value))


def test_names():
    codec = Codec()
    assert codec.encode(np.ones(1)).type_name == "numpy.ndarray"
    assert (
        codec.encode(np.ones(1, "datetime64[s]")).type_name
        == 'numpy.ndarray {"dtype":"datetime64[s]"}'
    )
    assert codec.encode(np.float16(1)) == ('numpy.scalar {"dtype":"float16"}', b"\x00\x3c")
    assert codec.encode(np.complex64(1 + 2j)).payload == np.array([1, 2], "<f4").tobytes()
    assert codec.encode(np.longlong(3)).type_name == 'numpy.scalar {"dtype":"int64"}'


def test_views_share_the_memory_of_their_base():
    base = np.arange(60.0).reshape(3, 4, 5)
    fortran = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    value = {
        "base": base,
        "t": base.transpose(2, 0, 1),
        "part": base[1:, ::2, 3],
        "bytes": base.reshape(-1).view("uint8")[8:16],
        "wide": np.broadcast_to(base[0, 0, :2], (7, 2)),
        "strided": np.lib.stride_tricks.as_strided(base, (4, 3), (8, 16)),
        "f": fortran,
        "column": fortran[:, 1],
    }
    state = core.build(value, Codec())
    assert len(core.storages(state)) == 2
    received = core.restore(state, Codec())
    assert_same(value, received)
    received["base"][1, 0, 3] = -1.0
    assert received["part"][0, 0] == -1.0 and received["t"][3, 1, 0] == -1.0
    assert received["f"].flags.f_contiguous and not received["f"].flags.c_contiguous


def test_arrays_over_other_memory():
    memory = bytearray(range(64))
    value = [
        np.frombuffer(memory, "uint8", 8, 4),
        np.frombuffer(memory, "int32", 4, 16),
        memory,
        memoryview(memory)[8:24],
    ]
    state = core.build(value, Codec())
    assert len(core.storages(state)) == 1
    received = core.restore(state, Codec())
    assert received[2] == memory and received[1].tobytes() == bytes(range(16, 32))
    assert np.may_share_memory(received[0], received[3])


def test_negative_strides_are_copied():
    sent = np.arange(12).reshape(3, 4)
    value = [sent, sent[::-1], sent[:, ::-2], np.arange(3)[::-1][:1]]
    received = there_and_back(value)
    for one, other in zip(value, received):
        assert np.array_equal(one, other) and one.dtype == other.dtype
    assert received[1].flags.c_contiguous


def test_a_field_of_records():
    records = np.zeros(4, [("a", "i4"), ("b", "f8")])
    records["b"] = [1, 2, 3, 4]
    assert np.array_equal(
        there_and_back({"b": records["b"]})["b"], [1, 2, 3, 4]
    )  # The elements are 12 bytes apart, so they are copied.


def test_read_only_and_unaligned():
    locked = np.arange(5)
    locked.flags.writeable = False
    odd = np.frombuffer(bytearray(17), "uint8")[1:].view("float64")
    odd[:] = [1.5, -2.5]
    received = there_and_back(
        {"locked": locked, "odd": odd, "const": np.broadcast_to(np.int8(3), (2, 2))}
    )
    assert np.array_equal(received["locked"], locked) and received["locked"].flags.writeable
    assert np.array_equal(received["odd"], odd) and np.array_equal(
        received["const"], [[3, 3], [3, 3]]
    )


def test_memmap(tmp_path):
    mapped = np.memmap(tmp_path / "file", "float32", "w+", shape=(4, 2))
    mapped[:] = 7
    received = there_and_back([mapped])[0]
    assert type(received) is np.ndarray and np.array_equal(received, mapped)
    assert in_place([np.ones((4, 2), "float32")], [mapped])[0] is mapped and mapped[0, 0] == 1


REFUSED = [
    (lambda: np.array([object()]), "array.tolist()"),
    (lambda: np.array(["a"]), "array.tolist()"),
    (lambda: np.array([b"a"]), "array.tolist()"),
    (lambda: np.zeros(2, [("a", "i4")]), "a dict of its fields"),
    (lambda: np.zeros(2, ">f4"), "newbyteorder"),
    (lambda: np.zeros(2, ">M8[s]"), "newbyteorder"),
    (lambda: np.zeros(2, np.longdouble), "numpy.float64"),
    (lambda: np.zeros(2, "V3"), "convert it"),
    (lambda: np.matrix([[1]]), "numpy.asarray"),
    (lambda: np.ma.masked_array([1, 2], [True, False]), "numpy.asarray"),
    (lambda: np.str_("a"), "value.item()"),
    (lambda: np.longdouble(1), "value.item()"),
    (lambda: np.void(b"abc"), "value.item()"),
]


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("make, way_out", REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_refused(make, way_out):
    with pytest.raises(Unsupported) as caught:
        core.build({"x": [make()]}, Codec())
    assert caught.value.path == "x[0]" and way_out in str(caught.value)
    received = there_and_back({"x": [make()]}, Codec(allow_pickle=True))["x"][0]
    assert type(received) is type(make())


# ---- receiving in place ----


def test_in_place():
    target = {
        "a": np.zeros((2, 3)),
        "b": np.zeros((3, 2), order="F").T,
        "time": np.zeros(2, "datetime64[s]"),
    }
    source = {
        "a": np.arange(6.0).reshape(2, 3),
        "b": np.ones((2, 3)),
        "time": np.array([5, 6], "datetime64[s]"),
        "n": 5,
    }
    received = in_place(source, {**target, "n": 4})
    for name in target:
        assert received[name] is target[name] and np.array_equal(target[name], source[name])
    assert received["n"] == 5


def test_into_part_of_an_array():
    base = np.zeros((4, 6), "int16")
    received = in_place({"x": np.arange(4, dtype="int16").reshape(2, 2)}, {"x": base[1:3, 2:6:2]})
    assert (
        received["x"].base is not None
        and base.sum() == 6
        and base[2, 4] == 3
        and base[0].sum() == 0
    )


def test_into_memory_of_other_kinds():
    source = {"x": np.arange(4, dtype="int32")}
    for target in (
        array.array("i", [9] * 4),
        memoryview(bytearray(16)).cast("i"),
        (ctypes.c_int * 4)(),
        DLPack(np.zeros(4, "int32")),
    ):
        received = in_place(source, {"x": target})["x"]
        assert received is target
        assert list(target.array if isinstance(target, DLPack) else target) == [0, 1, 2, 3]
    with mmap.mmap(-1, 16) as mapped:
        assert in_place({"x": np.arange(16, dtype="uint8")}, {"x": mapped})["x"] is mapped
        assert mapped[:] == bytes(range(16))
        gc.collect()
    into = bytearray(16)
    assert in_place({"x": np.arange(16, dtype="uint8")}, {"x": into})[
        "x"
    ] is into and into == bytes(range(16))


def test_not_into_what_cannot_be_written():
    locked = np.zeros(3)
    locked.flags.writeable = False
    for target in (
        locked,
        np.zeros(3)[::-1],
        memoryview(bytes(24)),
        DLPack(np.zeros(3), read_only=True),
        np.zeros(3, [("a", "i4"), ("b", "f8")])["b"],
    ):
        for codec in (Codec(), Codec(allow_pickle=True)):
            with pytest.raises(Unsupported, match="cannot be received into.*pass a copy") as caught:
                core.build({"t": {"x": target}}, codec.for_target())
            assert caught.value.path == "t.x"


def test_a_target_keeps_what_the_source_says():
    codec = Codec(allow_pickle=True)
    target = core.build({"a": np.zeros(2), "f": lambda: 1}, codec.for_target())
    received = core.restore(core.build({"a": np.ones(2), "f": print}, codec), codec, target)
    assert received["f"] is print


def test_mismatch_touches_nothing():
    target = np.zeros(3, "float32")
    with pytest.raises(Mismatch):
        in_place({"x": np.ones(3)}, {"x": target})
    assert not target.any()


# ---- the buffer protocol ----


@pytest.mark.parametrize("code", "bBhHiIlLqQfd")
def test_buffers(code):
    sent = array.array(code, [1, 2, 3])
    received = there_and_back([sent])[0]
    assert (
        type(received) is np.ndarray
        and list(received) == [1, 2, 3]
        and received.itemsize == sent.itemsize
    )
    assert received.dtype == np.asarray(sent).dtype


def test_buffers_of_ctypes():
    made = ((ctypes.c_double * 2) * 3)((1, 2), (3, 4), (5, 6))
    received = there_and_back(
        [made, (ctypes.c_bool * 2)(True, False), (ctypes.c_char * 2)(b"a", b"b")]
    )
    assert np.array_equal(received[0], [[1, 2], [3, 4], [5, 6]])
    assert received[1].dtype == bool and received[2].tobytes() == b"ab"


def test_views_of_memory():
    memory = bytearray(range(24))
    grid = memoryview(memory).cast("B", (4, 6))
    received = there_and_back(
        [memoryview(memory)[3:9:2], grid, memoryview(memory)[::-1], memoryview(b"abc")]
    )
    assert received[0].tolist() == [3, 5, 7] and received[1].shape == (4, 6)
    assert received[2].tolist() == list(range(24))[::-1] and received[3].tobytes() == b"abc"
    assert np.may_share_memory(received[0], received[1])


def test_memory_is_held():
    memory = bytearray(8)
    state = core.build({"x": memory}, Codec())
    with pytest.raises(BufferError):
        memory.extend(b"more")
    del state
    gc.collect()
    memory.extend(b"more")


def test_formats_that_are_refused():
    class Point(ctypes.Structure):
        _fields_ = [("x", ctypes.c_int), ("y", ctypes.c_int)]

    for value, text in (
        (Point(1, 2), "numbers, booleans or bytes"),
        ((ctypes.c_longdouble * 1)(1), "format"),
    ):
        with pytest.raises(Unsupported, match=text):
            core.build([value], Codec())
    with pytest.raises(Unsupported, match="not this machine"):
        core.build([(ctypes.c_int.__ctype_be__ * 2)(1, 2)], Codec())


def test_a_bytearray_is_bytes():
    with pytest.raises(Malformed):
        Codec().decode("python.bytearray", np.zeros(3))
    with pytest.raises(Malformed):
        Codec().decode("python.bytearray", [1, 2])


# DLPack.


class DLPack:
    """An object with DLPack and nothing else."""

    def __init__(self, inner, read_only=False, old=False):
        self.array = inner
        self.read_only = read_only
        self.old = old

    def __dlpack__(self, **options):
        if self.old and options:
            raise TypeError("no options")
        made = self.array
        if self.read_only:
            made = made.view()
            made.flags.writeable = False
        return made.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("dtype", SIMPLE)
def test_dlpack(dtype, old):
    sent = np.arange(24).astype(dtype).reshape(2, 3, 4)[:, ::2].transpose(2, 0, 1)
    value = {
        "x": DLPack(sent, old=old),
        "zero": DLPack(np.zeros((), dtype), old=old),
        "empty": DLPack(np.zeros((2, 0), dtype)),
    }
    received = there_and_back(value)
    assert (
        type(received["x"]) is np.ndarray
        and np.array_equal(received["x"], sent)
        and received["x"].dtype == sent.dtype
    )
    assert received["zero"].shape == () and received["empty"].shape == (2, 0)


def test_dlpack_keeps_its_memory():
    sent = np.arange(1000.0)
    state = core.build([DLPack(sent.copy())], Codec())
    gc.collect()
    assert np.array_equal(core.restore(state, Codec())[0], sent)


def test_dlpack_elsewhere():
    class Device:
        def __dlpack_device__(self):
            return (8, 0)  # Metal

        def __dlpack__(self, **options):
            raise AssertionError("asked for memory of a device")

    with pytest.raises(Unsupported, match="copy it to the host first") as caught:
        core.build({"x": Device()}, Codec())
    assert caught.value.path == "x"


# ---- types that NumPy lacks ----


def state_of_code(name):
    """A state with one tensor of a type that NumPy may lack."""
    code, size = _core.DTYPES[name]
    memory = np.arange(2 * size, dtype="uint8")

    class One(Codec):
        def encode(self, value):
            return _arrays.Memory(
                memory.ctypes.data, memory.nbytes, "cpu", code, 0, (2,), (1,), 0, memory
            )

    return core.build({"x": object()}, One())


def test_types_that_numpy_lacks():
    with pytest.raises(
        Unsupported, match=re.escape("NumPy has no complex32: receive it with wherry.torch")
    ) as caught:
        core.restore(state_of_code("complex32"), Codec())
    assert caught.value.path == "x"
    run_without(
        ["ml_dtypes", "torch"],
        """
        import wherry
        from test_codec_arrays import Codec, core, state_of_code
        try:
            core.restore(state_of_code("bfloat16"), Codec())
            raise SystemExit("not refused")
        except wherry.errors.Unsupported as error:
            assert "pip install ml_dtypes" in str(error), error
        """,
    )


def test_types_of_ml_dtypes():
    ml_dtypes = pytest.importorskip(
        "ml_dtypes", reason="ml_dtypes is not installed: pip install ml_dtypes"
    )
    for name in (
        "bfloat16",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    ):
        dtype = np.dtype(getattr(ml_dtypes, name))
        sent = np.arange(6).astype("float32").astype(dtype).reshape(2, 3)
        assert_same([sent, sent.T, sent[0, 1]], there_and_back([sent, sent.T, sent[0, 1]]))
        assert core.restore(state_of_code(name), Codec())["x"].dtype == dtype
    with pytest.raises(Unsupported):
        core.build([np.zeros(2, ml_dtypes.int4)], Codec())


def test_flags_of_torch():
    codec = Codec()
    owner, *_ = codec.allocate(16, "cpu")
    owner.view("complex64")[:] = [1 + 2j, 3 - 4j]
    made = [codec.tensor(owner, "cpu", 14, ((2,), (1,), 0), flags) for flags in (0, 1, 2, 4, 6)]
    expected = [
        [1 + 2j, 3 - 4j],
        [1 + 2j, 3 - 4j],
        [1 - 2j, 3 + 4j],
        [-1 - 2j, -3 + 4j],
        [-1 + 2j, -3 - 4j],
    ]
    assert [list(one) for one in made] == expected


def test_other_devices():
    codec = Codec()
    assert codec.allocate(16, "cuda:0")[2] == "cpu"  # The data arrives on the host.
    with pytest.raises(wherry.errors.InvalidArgument, match="import torch"):
        codec.new_on("cuda:0")
    codec.new_on("cpu")
    assert codec.stream([0, 1]) == 0
