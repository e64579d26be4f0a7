"""Memory of objects that are neither NumPy arrays nor torch tensors: by the buffer protocol, or by DLPack.

Both are read through ctypes, so that nothing need be installed for it. What is read is the memory itself, not a copy: it can be
received into.
"""

from __future__ import annotations

import ctypes
import functools
import re
import sys
from collections.abc import Callable
from typing import Any, Protocol

from wherry import _core, _types
from wherry._nodes import TENSOR_CONJ, TENSOR_NEG, Memory, Object
from wherry._types import Decoder, Encoder, Refuse, check_arguments, expect
from wherry.errors import Malformed, Unsupported

#: Code of an element type by PyTorch's name for it, and its bytes by the code.
CODES = {name: code for name, (code, _) in _core.DTYPES.items()}
SIZES = dict(_core.DTYPES.values())

_FOREIGN_ORDER = ">!" if sys.byteorder == "little" else "<"


class CannotSend(Exception):
    """Why not, and what to do: for an error that says the type as well."""


# Views of memory.


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a tensor without gaps, the last dimension fastest, in elements."""
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
    """A view, by its strides in bytes. None where a tensor cannot be that, so that it must be copied.

    root: address and length of the memory that it is a part of. Views with the same root share a storage.
    """
    size = SIZES[dtype]
    if 0 in shape:
        return Memory(0, 0, "cpu", dtype, 0, shape, contiguous(shape), 0, owner)
    end = pointer + size
    strides = []
    for length, step in zip(shape, steps):
        if length == 1:
            step = max(step, 0)  # it says nothing, and may be anything
        elif step < 0 or step % size:
            return None
        end += (length - 1) * step
        strides.append(step // size)
    begin, nbytes = root
    if pointer < begin or end > begin + nbytes or (pointer - begin) % size:
        begin, nbytes = pointer, end - pointer
    return Memory(
        begin, nbytes, device, dtype, (pointer - begin) // size, shape, tuple(strides), 0, owner
    )


# The buffer protocol.


class _PyBuffer(ctypes.Structure):
    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_void_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


_FULL_RO = 0x11C  # PyBUF_FULL_RO
_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [ctypes.POINTER(_PyBuffer)]
_release_buffer.restype = None


class Hold:
    """Holds the memory of an object where it is until this is gone; a bytearray, say, cannot grow meanwhile."""

    def __init__(self, exporter: object) -> None:
        self._view: _PyBuffer | None = None
        view = _PyBuffer()
        _get_buffer(exporter, ctypes.byref(view), _FULL_RO)
        self._view = view
        self.pointer: int = view.buf or 0
        self.nbytes: int = view.len

    def __del__(self) -> None:
        if self._view is not None:
            _release_buffer(ctypes.byref(self._view))


def is_buffer(value: Any) -> bool:
    """Whether a value has the buffer protocol."""
    try:
        memoryview(value).release()
    except (TypeError, BufferError, ValueError):
        return False
    return True


_KINDS = (
    dict.fromkeys("bhilqn", "int") | dict.fromkeys("BHILQN", "uint") | dict.fromkeys("efd", "float")
)
_KINDS |= {"Zf": "complex", "Zd": "complex"}


def _dtype_of_format(text: str, itemsize: int) -> int:
    """By kind and size: the letter alone means one size to struct and another to ctypes."""
    letters = text.lstrip("@=<>!")
    if text[:1] in tuple(_FOREIGN_ORDER) and itemsize > 1:
        raise CannotSend(
            "its bytes are in the order of another kind of machine: send a copy in this one's"
        )
    name = {"?": "bool", "c": "uint8"}.get(letters) or _KINDS.get(letters, "") + str(8 * itemsize)
    if letters not in _KINDS and letters not in ("?", "c"):
        raise CannotSend(f"its elements have the format {text!r}: send numbers, booleans or bytes")
    if name not in CODES:
        raise CannotSend(
            f"its elements have the format {text!r}, of {itemsize} bytes: convert it to float64 first"
        )
    return CODES[name]


def memory_of_buffer(value: Any, target: bool) -> Memory:
    """Of an object with the buffer protocol. target: it is to be received into."""
    view = memoryview(value)
    dtype = _dtype_of_format(view.format, view.itemsize)
    if target and view.readonly:
        raise CannotSend(
            "it is read-only, so that nothing can be received into it: give a copy of it"
        )
    shape = tuple(view.shape or ())
    made = None
    if not view.suboffsets:
        hold = Hold(view)
        made = describe(
            _root_of_view(view), hold.pointer, dtype, shape, tuple(view.strides or ()), hold
        )
    if made is not None:
        return made
    if target:
        raise CannotSend(
            "its elements lie in a way that cannot be received into: give a copy of it"
        )
    copy = view.tobytes()
    hold = Hold(copy)
    steps = tuple(view.itemsize * stride for stride in contiguous(shape))
    made = describe((hold.pointer, hold.nbytes), hold.pointer, dtype, shape, steps, (hold, copy))
    assert made is not None  # it has no gaps
    return made


def _root_of_view(view: memoryview) -> tuple[int, int]:
    """All of the memory of what a view looks at, where that is one piece."""
    exporter = view.obj
    if is_buffer(exporter) and memoryview(exporter).contiguous:
        hold = Hold(exporter)
        return hold.pointer, hold.nbytes
    return 0, 0


# DLPack.


class _DLTensor(ctypes.Structure):
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
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    ]


_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_pointer.restype = ctypes.c_void_p

#: CPU, CUDA, memory of the host that CUDA has pinned.
_DL_DEVICES = {1: "cpu", 2: "cuda:{}", 3: "cpu"}
_DL_READ_ONLY, _DL_COPIED = 1, 2


class HasDLPack(Protocol):
    """What an object with DLPack has."""

    def __dlpack__(self, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...


def memory_of_dlpack(value: HasDLPack, target: bool) -> Memory:
    """Of an object with DLPack, in memory of the host or of a CUDA device. target: it is to be received into.

    No stream is named: an object on a device then sees to it that what it has queued comes before the default stream.
    """
    kind, number = map(int, value.__dlpack_device__())
    device = _DL_DEVICES.get(kind, "").format(number)
    if not device:
        raise CannotSend(
            f"its memory is on a device (number {kind} of DLPack's) that cannot be read: copy it to the host first"
        )
    try:
        capsule = value.__dlpack__(max_version=(1, 0))
    except TypeError:
        capsule = value.__dlpack__()
    tensor, flags = _open_capsule(capsule)
    if target and flags & (_DL_READ_ONLY | _DL_COPIED):
        raise CannotSend(
            "it is read-only, so that nothing can be received into it: give a copy of it"
        )
    dtype = _core.DLPACK_DTYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise CannotSend(
            f"its elements are of a type (code {tensor.code}, {tensor.bits} bits) that has no name here: convert it first"
        )
    size = SIZES[dtype]
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = (
        tuple(tensor.strides[i] for i in range(tensor.ndim))
        if tensor.strides
        else contiguous(shape)
    )
    pointer = (tensor.data or 0) + tensor.byte_offset
    made = describe(
        (0, 0), pointer, dtype, shape, tuple(size * stride for stride in strides), capsule, device
    )
    if made is None:
        raise CannotSend("its strides are negative: send a copy of it")
    return made


def _open_capsule(capsule: object) -> tuple[Any, int]:
    # The capsule stays as it is: it frees the tensor when it is gone, being used up by nobody.
    if _capsule_is(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        if managed.major != 1:
            raise CannotSend(
                f"its DLPack is of version {managed.major}, and version 1 is read here: send a copy as an array"
            )
        return managed.tensor, managed.flags
    return _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor")), 0


#: The types of elements that NumPy has by itself, under the names that both have for them.
NATIVE: tuple[str, ...] = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
)
NATIVE += ("float16", "float32", "float64", "complex64", "complex128")
#: Those that the package ml_dtypes gives it.
ADDED = (
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)

_NAMES = {code: name for name, (code, _) in _core.DTYPES.items()}
_TIME = re.compile(r"(datetime64|timedelta64)(\[[0-9]{0,9}[A-Za-zμ]{1,7}\])?")


def need_numpy() -> Any:
    """NumPy, or an error with the way out."""
    try:
        import numpy
    except ImportError:
        raise Unsupported(
            "arrays come back as NumPy's, and NumPy is not installed: pip install numpy, or receive in place with into="
        ) from None
    return numpy


# Types of elements.


@functools.lru_cache(maxsize=256)
def _code_of(dtype: Any) -> int | None:
    if dtype.byteorder not in "=|" and dtype.byteorder != (
        "<" if sys.byteorder == "little" else ">"
    ):
        return None
    if dtype.kind in "biufc" and dtype.name in NATIVE:
        return CODES[dtype.name]
    if (
        dtype.name in ADDED
        and type(dtype).__module__.partition(".")[0] in ("numpy", "ml_dtypes")
        and dtype.type.__module__ == "ml_dtypes"
    ):
        return CODES[dtype.name]
    return None


def _why_not(dtype: Any) -> str:
    if dtype.hasobject:
        return "its elements are Python objects: send array.tolist()"
    if dtype.kind == "V" and dtype.names:
        return "its elements are records: send a dict of its fields, {name: array[name] for name in array.dtype.names}"
    if dtype.kind in "SUT":
        return "its elements are strings: send array.tolist()"
    if not dtype.isnative:
        return "its bytes are in the order of another kind of machine: send array.astype(array.dtype.newbyteorder('='))"
    return f"its elements are {dtype}, which has no equal elsewhere: convert it, with array.astype(numpy.float64), say"


def _time_name(dtype: Any) -> str | None:
    return str(dtype.name) if dtype.kind in "mM" and dtype.isnative else None


@functools.lru_cache(maxsize=256)
def numpy_dtype(code: int) -> Any:
    """NumPy's own for a type of elements."""
    numpy = need_numpy()
    name = _NAMES.get(code, str(code))
    if name in NATIVE:
        return numpy.dtype(name)
    if name in ADDED:
        try:
            import ml_dtypes
        except ImportError:
            raise Unsupported(
                f"NumPy has no {name} by itself: pip install ml_dtypes, or receive it with wherry.torch"
            ) from None
        if hasattr(ml_dtypes, name):
            return numpy.dtype(getattr(ml_dtypes, name))
    raise Unsupported(
        f"NumPy has no {name}: receive it with wherry.torch, or send it as another type"
    )


def _check_time(name: object) -> str:
    """The name of a type of points or lengths of time, as it came."""
    if type(name) is not str or not _TIME.fullmatch(name):
        raise Malformed(
            f"there is no type of elements {name!r:.80}; the sender is broken or hostile"
        )
    return name


# Encoding.


def numpy_encoder(cls: type, refuse: Refuse, target: bool) -> Encoder | None:
    """For arrays and scalars of NumPy; None where the type is another."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "ndarray"):
        return None
    if issubclass(cls, numpy.ndarray):
        if cls not in (numpy.ndarray, numpy.memmap):
            return lambda value: refuse(
                value,
                "it is more than an array: send numpy.asarray(value), and what it has besides on its own",
            )
        return lambda value: _encode_array(value, numpy, refuse, target)
    if issubclass(cls, numpy.generic):
        return lambda value: _encode_scalar(value, refuse)
    return None


def _encode_array(array: Any, numpy: Any, refuse: Refuse, target: bool) -> Any:
    time = _time_name(array.dtype)
    code = CODES["int64"] if time else _code_of(array.dtype)
    if code is None:
        return refuse(array, _why_not(array.dtype))
    if target and not array.flags.writeable:
        raise CannotSend(
            "it is read-only, so that nothing can be received into it: give a copy of it"
        )
    pointer = array.__array_interface__["data"][0]
    if array.base is None and array.flags.c_contiguous and array.size:  # most arrays
        shape = array.shape
        return Object(
            _array_name(time),
            Memory(pointer, array.nbytes, "cpu", code, 0, shape, contiguous(shape), 0, array),
        )
    memory = describe(_root_of(array, numpy), pointer, code, array.shape, array.strides, array)
    if memory is None:
        if target:
            raise CannotSend(
                "its elements lie in a way that cannot be received into: give a copy of it, array.copy()"
            )
        array = array.copy("C")
        pointer = array.__array_interface__["data"][0]
        memory = describe((pointer, array.nbytes), pointer, code, array.shape, array.strides, array)
    return Object(_array_name(time), memory)


def _array_name(time: str | None) -> str:
    return "numpy.ndarray" if time is None else _types.format_type_name("numpy.ndarray", dtype=time)


def _root_of(array: Any, numpy: Any) -> tuple[int, int]:
    """Address and length of the memory that an array is a view of, as far as that is known."""
    owner = array
    while True:
        base = owner.base
        if type(base) is memoryview:
            base = base.obj
        # as_strided puts a nameless object between an array and its base.
        if type(base).__name__ == "DummyArray":
            base = base.base
        if not isinstance(base, numpy.ndarray):
            break
        owner = base
    if base is not None:
        if hasattr(base, "untyped_storage"):  # an array that torch made of a tensor
            storage = base.untyped_storage()
            return storage.data_ptr(), storage.nbytes()
        if is_buffer(base):
            hold = Hold(base)
            return hold.pointer, hold.nbytes
    if owner.flags.forc:
        return owner.__array_interface__["data"][0], owner.nbytes
    return 0, 0


def _encode_scalar(value: Any, refuse: Refuse) -> Any:
    dtype = value.dtype
    name = _scalar_name(dtype)
    if name is None:
        return refuse(value, "it has no equal elsewhere: send value.item()")
    return Object(name, _little(value.tobytes(), dtype))


@functools.lru_cache(maxsize=256)
def _scalar_name(dtype: Any) -> str | None:
    time = _time_name(dtype)
    if time is None and _code_of(dtype) is None:
        return None
    return _types.format_type_name("numpy.scalar", dtype=time or dtype.name)


def _little(data: bytes, dtype: Any) -> bytes:
    """Least significant byte first, whichever the machine; the parts of a complex number each for itself."""
    if sys.byteorder == "little":
        return data
    part = dtype.itemsize // (2 if dtype.kind == "c" else 1)
    return b"".join(data[at : at + part][::-1] for at in range(0, len(data), part))


# Decoding.


def _scalar_decoder(arguments: dict[str, Any]) -> Decoder:
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
            raise Malformed(
                f"a scalar of type {name} has {dtype.itemsize} bytes, not {len(data)}; the sender is broken or hostile"
            )
        return numpy.frombuffer(_little(data, dtype), dtype)[0]

    return decode


def array_decoder(to_array: Callable[[Any], Any]) -> Callable[[dict[str, Any]], Decoder]:
    """For numpy.ndarray; to_array makes an array of what the codec's tensor() made."""

    def make(arguments: dict[str, Any]) -> Decoder:
        check_arguments(arguments, "dtype")
        time = _check_time(arguments["dtype"]) if "dtype" in arguments else None

        def decode(payload: Any) -> Any:
            array = to_array(payload)
            if time is None or array is None:
                return array
            if array.dtype != "int64":
                raise Malformed(
                    f"times are int64 on the way, not {array.dtype}; the sender is broken or hostile"
                )
            return array.view(time)

        return decode

    return make


def bytearray_decoder(to_array: Callable[[Any], Any]) -> Callable[[dict[str, Any]], Decoder]:
    """For python.bytearray."""

    def make(arguments: dict[str, Any]) -> Decoder:
        check_arguments(arguments)

        def decode(payload: Any) -> Any:
            array = to_array(payload)
            if array is None:
                return None
            if array.ndim != 1 or array.dtype != "uint8":
                raise Malformed("a bytearray is a line of bytes; the sender is broken or hostile")
            return bytearray(array)

        return decode

    return make


SCALAR_DECODERS: dict[str, Callable[[dict[str, Any]], Decoder]] = {"numpy.scalar": _scalar_decoder}


# Memory and arrays of a state that is received.


def allocate(nbytes: int) -> tuple[Any, int, str]:
    """Memory for a storage: NumPy's arrays are in that of the host."""
    owner = need_numpy().empty(nbytes, "uint8")
    return owner, owner.__array_interface__["data"][0], "cpu"


def tensor(
    owner: Any,
    dtype: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    flags: int,
) -> Any:
    """An array over what allocate gave."""
    numpy = need_numpy()
    kind = numpy_dtype(dtype)
    size = kind.itemsize
    if owner is None or 0 in shape:
        return numpy.empty(shape, kind)
    array = numpy.ndarray(
        shape, kind, owner, offset * size, tuple(size * stride for stride in strides)
    )
    if flags & TENSOR_CONJ:
        array = numpy.conjugate(array)
    if flags & TENSOR_NEG:
        array = numpy.negative(array)
    return array
