"""Memory of objects that are neither NumPy arrays nor torch tensors: by the buffer protocol, or by DLPack.

Both are read through ctypes, so that nothing need be installed for it. What is read is the memory itself, not a copy: it can be
received into.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Protocol

from wherry import _core
from wherry._nodes import Memory

#: Code of an element type by PyTorch's name for it, and its bytes by the code.
CODES = {name: code for name, (code, _) in _core.DTYPES.items()}
SIZES = dict(_core.DTYPES.values())

_FOREIGN_ORDER = ">!" if sys.byteorder == "little" else "<"


class CannotTravel(Exception):
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
    return Memory(begin, nbytes, device, dtype, (pointer - begin) // size, shape, tuple(strides), 0, owner)


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


_KINDS = dict.fromkeys("bhilqn", "int") | dict.fromkeys("BHILQN", "uint") | dict.fromkeys("efd", "float")
_KINDS |= {"Zf": "complex", "Zd": "complex"}


def _dtype_of_format(text: str, itemsize: int) -> int:
    """By kind and size: the letter alone means one size to struct and another to ctypes."""
    letters = text.lstrip("@=<>!")
    if text[:1] in tuple(_FOREIGN_ORDER) and itemsize > 1:
        raise CannotTravel("its bytes are in the order of another kind of machine: send a copy in this one's")
    name = {"?": "bool", "c": "uint8"}.get(letters) or _KINDS.get(letters, "") + str(8 * itemsize)
    if letters not in _KINDS and letters not in ("?", "c"):
        raise CannotTravel(f"its elements have the format {text!r}: send numbers, booleans or bytes")
    if name not in CODES:
        raise CannotTravel(f"its elements have the format {text!r}, of {itemsize} bytes: convert it to float64 first")
    return CODES[name]


def memory_of_buffer(value: Any, target: bool) -> Memory:
    """Of an object with the buffer protocol. target: it is to be received into."""
    view = memoryview(value)
    dtype = _dtype_of_format(view.format, view.itemsize)
    if target and view.readonly:
        raise CannotTravel("it is read-only, so that nothing can be received into it: give a copy of it")
    shape = tuple(view.shape or ())
    made = None
    if not view.suboffsets:
        hold = Hold(view)
        made = describe(_root_of_view(view), hold.pointer, dtype, shape, tuple(view.strides or ()), hold)
    if made is not None:
        return made
    if target:
        raise CannotTravel("its elements lie in a way that cannot be received into: give a copy of it")
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
        raise CannotTravel(
            f"its memory is on a device (number {kind} of DLPack's) that cannot be read: copy it to the host first"
        )
    try:
        capsule = value.__dlpack__(max_version=(1, 0))
    except TypeError:
        capsule = value.__dlpack__()
    tensor, flags = _open_capsule(capsule)
    if target and flags & (_DL_READ_ONLY | _DL_COPIED):
        raise CannotTravel("it is read-only, so that nothing can be received into it: give a copy of it")
    dtype = _core.DLPACK_DTYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise CannotTravel(
            f"its elements are of a type (code {tensor.code}, {tensor.bits} bits) that has no name here: convert it first"
        )
    size = SIZES[dtype]
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else contiguous(shape)
    pointer = (tensor.data or 0) + tensor.byte_offset
    made = describe((0, 0), pointer, dtype, shape, tuple(size * stride for stride in strides), capsule, device)
    if made is None:
        raise CannotTravel("its strides are negative: send a copy of it")
    return made


def _open_capsule(capsule: object) -> tuple[Any, int]:
    # The capsule stays as it is: it frees the tensor when it is gone, being used up by nobody.
    if _capsule_is(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        if managed.major != 1:
            raise CannotTravel(
                f"its DLPack is of version {managed.major}, and version 1 is read here: send a copy as an array"
            )
        return managed.tensor, managed.flags
    return _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor")), 0
