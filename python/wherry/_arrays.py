"""Encodes NumPy arrays, and objects with the buffer protocol or DLPack. torch is not needed.

A :class:`Memory` node describes the memory of the value, so data can be received into it. A value
to send is copied if no tensor can have its layout. NumPy is imported only if it is needed.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from typing import Any

from wherry import _core, _types
from wherry._nodes import Memory, Object
from wherry._types import CannotReceiveInto, CannotSend, Decoder, DecoderMaker, Encoder
from wherry._types import check_arguments, expect, hostile, no_arguments
from wherry.errors import Unsupported

#: The code of each element type, by its name in PyTorch, and its size in bytes, by its code.
CODES = {name: code for name, (code, _) in _core.DTYPES.items()}
SIZES = dict(_core.DTYPES.values())
_NAMES = {code: name for name, code in CODES.items()}

#: Element types that NumPy has (same name as in PyTorch), and those that ml_dtypes adds.
NATIVE: tuple[str, ...] = ("bool", "int8", "int16", "int32", "int64")
NATIVE += ("uint8", "uint16", "uint32", "uint64")
NATIVE += ("float16", "float32", "float64", "complex64", "complex128")
ADDED: tuple[str, ...] = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz")
ADDED += ("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")

_READ_ONLY = "it is read-only, so nothing can be received into it: pass a copy of it"
_NO_TARGET = "Wherry cannot receive into its memory layout: pass a copy of it"
_FOREIGN = "its byte order is not this machine's"


# ---- views of memory ----


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor in row-major order, in elements."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def describe(
    root: tuple[int, int],
    pointer: int,
    dtype: int,
    shape: tuple[int, ...],
    steps: tuple[int, ...],
    owner: object,
    device: str = "cpu",
) -> Memory | None:
    """Describes a view. Returns None if a tensor cannot have these strides.

    ``steps`` are the strides in bytes. ``root`` is the address and size of the memory that the view
    is part of. Views with the same root share a storage.
    """
    size = SIZES[dtype]
    if 0 in shape:
        return Memory(0, 0, "cpu", dtype, 0, shape, contiguous(shape), 0, owner)
    end = pointer + size
    strides = []
    for length, step in zip(shape, steps):
        if length == 1:
            step = max(step, 0)  # A dimension of length 1 never uses its stride.
        elif step < 0 or step % size:
            return None
        end += (length - 1) * step
        strides.append(step // size)
    begin, nbytes = root
    if pointer < begin or end > begin + nbytes or (pointer - begin) % size:
        begin, nbytes = pointer, end - pointer
    offset = (pointer - begin) // size
    return Memory(begin, nbytes, device, dtype, offset, shape, tuple(strides), 0, owner)


# ---- the buffer protocol ----

_KINDS = dict.fromkeys("bhilqn", "int") | dict.fromkeys("BHILQN", "uint")
_KINDS |= dict.fromkeys("efd", "float") | {"Zf": "complex", "Zd": "complex"}


def _dtype_of_format(text: str, itemsize: int) -> int:
    """The code of the element type, from the letter's kind and the size of an element.

    A letter alone is not enough: its size differs between struct and ctypes.
    """
    letters = text.lstrip("@=<>!")
    if text[:1] in (">", "!") and itemsize > 1:
        raise CannotReceiveInto(f"{_FOREIGN}: send a copy with this machine's byte order")
    name = {"?": "bool", "c": "uint8"}.get(letters) or _KINDS.get(letters, "") + str(8 * itemsize)
    if letters not in _KINDS and letters not in ("?", "c"):
        raise CannotReceiveInto(f"its format is {text!r}: send numbers, booleans or bytes")
    if name not in CODES:
        raise CannotReceiveInto(
            f"its format is {text!r} with {itemsize} bytes per element: convert it to float64 first"
        )
    return CODES[name]


def memory_of_buffer(value: Any, target: bool) -> Memory:
    """Describes an object with the buffer protocol. ``target``: data will be received into it.

    The owner is a memoryview, unless the bytes are copied. While the view exists, the object cannot
    free or move its memory: a bytearray, for example, cannot be resized.
    """
    view = memoryview(value)
    dtype = _dtype_of_format(view.format, view.itemsize)
    if target and view.readonly:
        raise CannotReceiveInto(_READ_ONLY)
    shape = tuple(view.shape or ())
    pointer, _ = _core.buffer_range(view) or (0, 0)
    root = _core.buffer_range(view.obj)
    if root is None or not memoryview(view.obj).contiguous:
        root = (0, 0)
    if not view.suboffsets:
        steps = tuple(view.strides or ())
        if made := describe(root, pointer, dtype, shape, steps, view):
            return made
    if target:
        raise CannotReceiveInto(_NO_TARGET)
    copy = view.tobytes()
    root = _core.buffer_range(copy) or (0, 0)
    steps = tuple(view.itemsize * stride for stride in contiguous(shape))
    made = describe(root, root[0], dtype, shape, steps, copy)
    assert made is not None  # The copy is contiguous.
    return made


# ---- DLPack ----

#: Device texts by DLPack's device type: CPU, CUDA, and host memory that CUDA has pinned.
_DL_DEVICES = {1: "cpu", 2: "cuda:{}", 3: "cpu"}
_DL_READ_ONLY, _DL_COPIED = 1, 2


def memory_of_dlpack(value: Any, target: bool) -> Memory:
    """Describes an object with DLPack whose memory is on the host or on a CUDA device.

    ``target``: data will be received into it. No stream is passed to ``__dlpack__``. By DLPack's
    rules, the work queued on the object then runs before later work on the default stream.
    """
    kind, number = map(int, value.__dlpack_device__())
    device = _DL_DEVICES.get(kind, "").format(number)
    if not device:
        raise CannotReceiveInto(
            f"its memory is on a device that Wherry cannot read (DLPack device type {kind}): "
            "copy it to the host first"
        )
    try:
        capsule = value.__dlpack__(max_version=(1, 0))
    except TypeError:
        capsule = value.__dlpack__()
    try:
        pointer, dtype, code, bits, shape, strides, flags = _core.read_dlpack(capsule)
    except BufferError as error:
        raise CannotReceiveInto(f"{error}: send a copy as an array") from None
    if target and flags & (_DL_READ_ONLY | _DL_COPIED):
        raise CannotReceiveInto("DLPack gives no access to write to it: pass a copy of it")
    if dtype is None:
        raise CannotReceiveInto(
            f"its element type (DLPack code {code}, {bits} bits) is not supported: convert it"
        )
    steps = tuple(SIZES[dtype] * stride for stride in strides or contiguous(shape))
    made = describe((0, 0), pointer, dtype, shape, steps, capsule, device)
    if made is None:
        raise CannotReceiveInto("its strides are negative: send a copy of it")
    return made


# ---- NumPy's element types ----


def need_numpy() -> Any:
    """The module numpy. Raises Unsupported if it is not installed."""
    try:
        import numpy
    except ImportError:
        raise Unsupported(
            "arrays arrive as NumPy arrays, but NumPy is not installed: "
            "pip install numpy, or receive in place with into="
        ) from None
    return numpy


@functools.lru_cache(maxsize=256)
def _code_of(dtype: Any) -> int | None:
    if not dtype.isnative:
        return None
    if dtype.kind in "biufc" and dtype.name in NATIVE:
        return CODES[dtype.name]
    module = type(dtype).__module__.partition(".")[0]
    if dtype.name in ADDED and module in ("numpy", "ml_dtypes"):
        return CODES[dtype.name] if dtype.type.__module__ == "ml_dtypes" else None
    return None


def _why_not(dtype: Any) -> str:
    if dtype.hasobject:
        return "its elements are Python objects: send array.tolist()"
    if dtype.kind == "V" and dtype.names:
        return (
            "its elements are records: send a dict of its fields, "
            "{name: array[name] for name in array.dtype.names}"
        )
    if dtype.kind in "SUT":
        return "its elements are strings: send array.tolist()"
    if not dtype.isnative:
        return f"{_FOREIGN}: send array.astype(array.dtype.newbyteorder('='))"
    return (
        f"its element type {dtype} is specific to NumPy: "
        "convert it, for example with array.astype(numpy.float64)"
    )


@functools.lru_cache(maxsize=256)
def numpy_dtype(code: int) -> Any:
    """NumPy's dtype for an element type."""
    numpy = need_numpy()
    name = _NAMES.get(code, str(code))
    if name in NATIVE:
        return numpy.dtype(name)
    if name in ADDED:
        try:
            import ml_dtypes
        except ImportError:
            raise Unsupported(
                f"NumPy alone has no {name}: pip install ml_dtypes, or receive it with wherry.torch"
            ) from None
        if hasattr(ml_dtypes, name):
            return numpy.dtype(getattr(ml_dtypes, name))
    raise Unsupported(
        f"NumPy has no {name}: receive it with wherry.torch, or send it as another type"
    )


_TIME = re.compile(r"(datetime64|timedelta64)(\[[0-9]{0,9}[A-Za-zμ]{1,7}\])?")


def _time_name(dtype: Any) -> str | None:
    return str(dtype.name) if dtype.kind in "mM" and dtype.isnative else None


def _check_time(name: object) -> str:
    """Returns a received dtype name. Raises unless it is a datetime64 or timedelta64."""
    if type(name) is not str or not _TIME.fullmatch(name):
        raise hostile(f"the received element type {name!r:.80} does not exist")
    return name


# ---- encoding arrays and scalars ----


def numpy_encoder(cls: type, target: bool) -> Encoder | None:
    """The encoder for a NumPy array or scalar; None for other types."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "ndarray"):
        return None
    if issubclass(cls, numpy.ndarray):
        if cls not in (numpy.ndarray, numpy.memmap):
            raise CannotSend(
                "subclasses of numpy.ndarray cannot be sent: send numpy.asarray(value), and the "
                "rest separately"
            )
        return lambda value: _encode_array(value, numpy, target)
    return _encode_scalar if issubclass(cls, numpy.generic) else None


def _encode_array(array: Any, numpy: Any, target: bool) -> Any:
    time = _time_name(array.dtype)
    code = CODES["int64"] if time else _code_of(array.dtype)
    if code is None:
        raise CannotSend(_why_not(array.dtype))
    if target and not array.flags.writeable:
        raise CannotReceiveInto(_READ_ONLY)
    name = _types.format_type_name("numpy.ndarray", dtype=time) if time else "numpy.ndarray"
    pointer = array.__array_interface__["data"][0]
    shape = array.shape
    memory: Memory | None
    # Most arrays come from here.
    if array.base is None and array.flags.c_contiguous and array.size:
        memory = Memory(pointer, array.nbytes, "cpu", code, 0, shape, contiguous(shape), 0, array)
    else:
        memory = describe(_root_of(array, numpy), pointer, code, shape, array.strides, array)
    if memory is None and target:
        raise CannotReceiveInto(f"{_NO_TARGET}, for example array.copy()")
    if memory is None:
        return _encode_array(array.copy("C"), numpy, target)
    return Object(name, memory)


def _root_of(array: Any, numpy: Any) -> tuple[int, int]:
    """The address and size of the memory that an array is a view of; (0, 0) if unknown."""
    owner = array
    while True:
        base = owner.base
        if type(base) is memoryview:
            base = base.obj
        # as_strided puts a DummyArray between an array and its base.
        if type(base).__name__ == "DummyArray":
            base = base.base
        if not isinstance(base, numpy.ndarray):
            break
        owner = base
    if base is not None:
        if hasattr(base, "untyped_storage"):  # The array is a view of a torch tensor.
            storage = base.untyped_storage()
            return storage.data_ptr(), storage.nbytes()
        if found := _core.buffer_range(base):
            return found
    if owner.flags.forc:
        return owner.__array_interface__["data"][0], owner.nbytes
    return 0, 0


def _encode_scalar(value: Any) -> Any:
    return Object(_scalar_name(value.dtype), value.tobytes())


@functools.lru_cache(maxsize=256)
def _scalar_name(dtype: Any) -> str:
    time = _time_name(dtype)
    if time is None and _code_of(dtype) is None:
        raise CannotSend("its type is specific to NumPy: send value.item()")
    return _types.format_type_name("numpy.scalar", dtype=time or dtype.name)


# ---- decoding ----


def scalar_decoder(arguments: dict[str, Any]) -> Decoder:
    """The decoder of numpy.scalar."""
    check_arguments(arguments, "dtype")
    numpy = need_numpy()
    name = expect(arguments.get("dtype"), str)
    if name in NATIVE or name in ADDED:
        dtype = numpy_dtype(CODES[name])
    else:
        dtype = numpy.dtype(_check_time(name))

    def decode(payload: Any) -> Any:
        data = expect(payload, bytes)
        if len(data) != dtype.itemsize:
            raise hostile(f"a scalar of type {name} has {len(data)} bytes, not {dtype.itemsize}")
        return numpy.frombuffer(data, dtype)[0]

    return decode


def array_decoder(to_array: Callable[[Any], Any]) -> DecoderMaker:
    """The decoder of numpy.ndarray. ``to_array`` turns a result of codec.tensor() into an array."""

    def make(arguments: dict[str, Any]) -> Decoder:
        check_arguments(arguments, "dtype")
        time = _check_time(arguments["dtype"]) if "dtype" in arguments else None

        def decode(payload: Any) -> Any:
            array = to_array(payload)
            if time is None or array is None:
                return array
            if array.dtype != "int64":
                raise hostile(f"an array of {time} was sent as {array.dtype}, not as int64")
            return array.view(time)

        return decode

    return make


def bytearray_decoder(to_array: Callable[[Any], Any]) -> DecoderMaker:
    """The decoder of python.bytearray."""

    def decode(payload: Any) -> Any:
        array = to_array(payload)
        if array is None:
            return None
        if array.ndim != 1 or array.dtype != "uint8":
            raise hostile(
                f"a bytearray was sent as an array of {array.dtype} with ndim = {array.ndim}, not as "
                "an array of uint8 with ndim = 1"
            )
        return bytearray(array)

    return no_arguments(decode)
