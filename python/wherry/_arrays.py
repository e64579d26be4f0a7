"""NumPy: arrays and scalars to tensors and back. NumPy is imported when it is needed, and nothing here needs it otherwise."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from typing import Any

from wherry import _core, _names
from wherry._buffers import CODES, CannotTravel, Hold, contiguous, describe, is_buffer
from wherry._nodes import TENSOR_CONJ, TENSOR_NEG, Memory, Object
from wherry._types import Decoder, Encoder, Refuse, check_arguments, expect
from wherry.errors import Malformed, Unsupported

#: The types of elements that NumPy has by itself, under the names that both have for them.
NATIVE: tuple[str, ...] = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
NATIVE += ("float16", "float32", "float64", "complex64", "complex128")
#: Those that the package ml_dtypes gives it.
ADDED = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")

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
    if dtype.byteorder not in "=|" and dtype.byteorder != ("<" if sys.byteorder == "little" else ">"):
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
    raise Unsupported(f"NumPy has no {name}: receive it with wherry.torch, or send it as another type")


def _check_time(name: object) -> str:
    """The name of a type of points or lengths of time, as it came."""
    if type(name) is not str or not _TIME.fullmatch(name):
        raise Malformed(f"there is no type of elements {name!r:.80}; the sender is broken or hostile")
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
                value, "it is more than an array: send numpy.asarray(value), and what it has besides on its own"
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
        raise CannotTravel("it is read-only, so that nothing can be received into it: give a copy of it")
    pointer = array.__array_interface__["data"][0]
    if array.base is None and array.flags.c_contiguous and array.size:  # most arrays
        shape = array.shape
        return Object(
            _array_name(time), Memory(pointer, array.nbytes, "cpu", code, 0, shape, contiguous(shape), 0, array)
        )
    memory = describe(_root_of(array, numpy), pointer, code, array.shape, array.strides, array)
    if memory is None:
        if target:
            raise CannotTravel(
                "its elements lie in a way that cannot be received into: give a copy of it, array.copy()"
            )
        array = array.copy("C")
        pointer = array.__array_interface__["data"][0]
        memory = describe((pointer, array.nbytes), pointer, code, array.shape, array.strides, array)
    return Object(_array_name(time), memory)


def _array_name(time: str | None) -> str:
    return "numpy.ndarray" if time is None else _names.write("numpy.ndarray", dtype=time)


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
    return _names.write("numpy.scalar", dtype=time or dtype.name)


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
                raise Malformed(f"times are int64 on the way, not {array.dtype}; the sender is broken or hostile")
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


def tensor(owner: Any, dtype: int, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, flags: int) -> Any:
    """An array over what allocate gave."""
    numpy = need_numpy()
    kind = numpy_dtype(dtype)
    size = kind.itemsize
    if owner is None or 0 in shape:
        return numpy.empty(shape, kind)
    array = numpy.ndarray(shape, kind, owner, offset * size, tuple(size * stride for stride in strides))
    if flags & TENSOR_CONJ:
        array = numpy.conjugate(array)
    if flags & TENSOR_NEG:
        array = numpy.negative(array)
    return array
