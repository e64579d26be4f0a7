"""The codec with torch: tensors and torch's other types, on top of the types that need no torch."""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree

from wherry import _arrays, _core, _types
from wherry._codec import Codec, Keys
from wherry._nodes import TENSOR_CONJ, TENSOR_NEG, TENSOR_REQUIRES_GRAD, DTensor, Object, Sharded
from wherry._types import (
    Decoder,
    Encoder,
    Refuse,
    check_arguments,
    expect,
    hidden_class,
    no_arguments,
)
from wherry.errors import InvalidArgument, Malformed, NoMemory, Unsupported
from wherry.torch import _tensors
from wherry.torch._staging import Staging

if TYPE_CHECKING:
    from wherry.torch._distributed import Meshes

#: A quantized tensor is more than its elements, so the core must not read it as plain memory.
_QUANTIZED = ("qint8", "quint8", "qint32", "quint4x2", "quint2x4")

DTYPES: dict[Any, int] = {
    getattr(torch, name): code
    for name, (code, _) in _core.DTYPES.items()
    if hasattr(torch, name) and name not in _QUANTIZED
}
_BY_CODE: dict[int, torch.dtype] = {code: dtype for dtype, code in DTYPES.items()}
_CODE_NAMES = {code: name for name, (code, _) in _core.DTYPES.items()}

#: Empty tensors by dtype code and device. Making tensors from these is faster than naming both each
#: time, and does not depend on torch's default device.
_EMPTY: dict[tuple[int, str], torch.Tensor] = {}
_new_storage: Any = torch.UntypedStorage

# ---- torch's small types: torch.float32, torch.strided, torch.Size ----


def _named(cls: type) -> dict[str, Any]:
    return {str(item): item for item in vars(torch).values() if type(item) is cls}


_BY_NAME: dict[str, dict[str, Any]] = {
    "torch.dtype": _named(torch.dtype),
    "torch.layout": _named(torch.layout),
    "torch.memory_format": _named(torch.memory_format),
}


def _named_decoder(type_name: str) -> Decoder:
    known = _BY_NAME[type_name]

    def decode(payload: Any) -> Any:
        found = known.get(expect(payload, str))
        if found is None:
            raise Unsupported(
                f"this version of torch has no {type_name} {payload!r:.80}: update it here"
            )
        return found

    return decode


def _size(payload: Any) -> torch.Size:
    return torch.Size([expect(size, int) for size in expect(payload, tuple)])


_ENCODERS: dict[type, Encoder] = {
    torch.Size: lambda value: Object("torch.Size", tuple(value)),
    torch.device: lambda value: Object("torch.device", str(value)),
    torch.dtype: lambda value: Object("torch.dtype", str(value)),
    torch.layout: lambda value: Object("torch.layout", str(value)),
    torch.memory_format: lambda value: Object("torch.memory_format", str(value)),
}

_DECODERS: dict[str, Callable[[dict[str, Any]], Decoder]] = {
    "torch.Size": no_arguments(_size),
    "torch.device": no_arguments(lambda payload: torch.device(expect(payload, str))),
    **{name: no_arguments(_named_decoder(name)) for name in _BY_NAME},
}

# ---- classes that a program has registered with torch.utils._pytree ----

#: Registered by torch. These have encoders of their own.
_BUILT_IN = frozenset((tuple, list, dict, OrderedDict, defaultdict, deque, torch.Size))


def _registration(cls: type) -> Any:
    """How a class was registered; None if it was not, or if torch did it for its own use."""
    if cls in _BUILT_IN or cls.__module__.startswith("torch._"):
        return None
    return _pytree.SUPPORTED_NODES.get(cls)


def _pytree_encoder(cls: type, refuse: Refuse, keys: Keys) -> Encoder | None:
    node = _registration(cls)
    if node is None:
        return None
    class_name = _types.importable_name(cls)
    if class_name is None:
        return hidden_class(cls, refuse)
    name = class_name
    type_name = _types.format_type_name("torch.pytree", **{"class": name})

    def encode(value: Any) -> Any:
        children, context = node.flatten_fn(value)
        if isinstance(context, _pytree.ConstantNode):
            return refuse(value, "it is registered as a constant, so it has nothing to send")
        return Object(type_name, keys.pack(name, context, list(children)))

    return encode


def _pytree_decoder(keys: Keys) -> Callable[[dict[str, Any]], Decoder]:
    def make(arguments: dict[str, Any]) -> Decoder:
        check_arguments(arguments, "class")
        cls = _types.find_class(arguments.get("class"), object, "registered class")
        node = _registration(cls)
        if node is None:
            raise Unsupported(
                f"the class {_types.full_name(cls)} is not registered in this process: call "
                "torch.utils._pytree.register_pytree_node here as in the sender"
            )

        def decode(payload: Any) -> Any:
            children, context = keys.unpack(arguments["class"], payload)
            return node.unflatten_fn(children, context)

        return decode

    return make


# ---- the codec ----


class TorchCodec(Codec):
    """Torch's tensors of every dtype, and its other types; everything else as without torch.

    Use one per call: it keeps what the call stages on other devices.
    """

    tensor_types = {torch.Tensor: None, nn.Parameter: "torch.Parameter"}
    dtypes = DTYPES

    def __init__(
        self, allow_pickle: bool = False, *, rank: int | None = None, device_mesh: Any = None
    ) -> None:
        self._device = "cpu"  # where new tensors go that the source has on an accelerator
        self._new_staged: torch.device | None = None  # the same, if that device is staged
        self._meshes: Meshes | None = None
        super().__init__(allow_pickle, rank=rank)
        if device_mesh is not None:
            self._meshes = self._make_meshes(device_mesh)

    def _start(self) -> None:
        super()._start()
        self._staging = Staging()
        self._encoders.update(_ENCODERS)

    # From a value to a node.

    def _has_no_text(self, cls: type) -> bool:
        return super()._has_no_text(cls) or _registration(cls) is not None

    def _find_encoder(self, cls: type, value: Any) -> Encoder | None:
        if issubclass(cls, torch.Tensor):
            return self._distributed_encoder(cls) or _tensors.tensor_encoder(cls, self.refuse)
        if issubclass(cls, nn.Module):
            return None  # even if it is a dataclass
        found = _pytree_encoder(cls, self.refuse, self._keys)
        return found or super()._find_encoder(cls, value)

    def _distributed_encoder(self, cls: type) -> Encoder | None:
        # A program that has such a value has imported its module. Other programs do not pay for the
        # import.
        module = sys.modules.get("torch.distributed.tensor")
        if module is not None and cls is module.DTensor:
            from wherry.torch import _distributed

            return lambda value: _distributed.encode_dtensor(value, DTYPES, self.refuse)
        module = sys.modules.get("torch.distributed._shard.sharded_tensor")
        if module is not None and cls is module.ShardedTensor:
            from wherry.torch import _distributed

            return lambda value: _distributed.encode_sharded(value, DTYPES, self.refuse)
        return None

    def _reason(self, value: Any) -> str:
        if isinstance(value, torch.Generator):
            return "it is a random number generator: send value.get_state()"
        if isinstance(value, (torch.UntypedStorage, torch.TypedStorage)):
            return "it is bare memory: send a tensor over it"
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return "it is a symbol without a value"
        return super()._reason(value)

    # From a name and a payload to a value.

    def _decoder_makers(self) -> dict[str, Callable[[dict[str, Any]], Decoder]]:
        pytree = {"torch.pytree": _pytree_decoder(self._keys)}
        return {**super()._decoder_makers(), **_DECODERS, **_tensors.DECODERS, **pytree}

    def to_array(self, made: Any) -> Any:
        """A NumPy array over the memory of a tensor."""
        if made is None or not isinstance(made, torch.Tensor):
            return super().to_array(made)
        dtype = _arrays.numpy_dtype(DTYPES[made.dtype])
        tensor = made.detach().cpu().resolve_conj().resolve_neg()
        if dtype.name in _arrays.NATIVE:
            return tensor.numpy()
        return tensor.view(torch.uint8 if dtype.itemsize == 1 else torch.int16).numpy().view(dtype)

    # Devices.

    def new_on(self, device: Any, or_else: Any = None) -> None:
        """Says where new tensors go.

        A CUDA device takes those that the source has on CUDA. A device of another kind takes all.
        """
        found = torch.device("cpu" if device is None else device)
        if found.type == "meta":
            raise InvalidArgument(
                "new tensors need memory, and the device meta has none: name another new_device"
            )
        fallback = torch.device("cpu" if or_else is None else or_else)
        if device is None and fallback.type == "cuda" and torch.cuda.is_available():
            found = fallback
        if found.type == "cuda" and found.index is None:
            found = torch.device("cuda", torch.cuda.current_device())
        self._device = str(found)
        self._new_staged = None if found.type in ("cpu", "cuda") else found

    def to_host(self, storage: Any) -> Any:
        if storage.device.type == "meta":
            raise Unsupported("it has no memory, because it is on the device meta")
        return self._staging.add(storage)

    def fill_host(self) -> None:
        """For a target too: bytes that are not received must come back unchanged."""
        self._staging.fill_host()
        if not self._target:
            self._staging = Staging()

    def bring_back(self) -> None:
        self._staging.fill_device()

    def stream(self, devices: Iterable[int], fixed: bool = False) -> int:
        """A stream behind all work that torch has queued on these devices; 0: the default streams.

        That is the work on this thread's current streams.

        A call returns when its copies are done, so it has nothing to tell torch's streams or
        allocator afterwards.
        """
        # If torch has not started CUDA, the memory is somebody else's, and torch has queued
        # nothing.
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call, unused-ignore]
            return 0
        own = {torch.device(self._device).index} if self._device.startswith("cuda") else set()
        current = [torch.cuda.current_stream(device) for device in sorted(own | set(devices))]
        if not current or (not fixed and all(stream.cuda_stream == 0 for stream in current)):
            return 0
        if not fixed and len(current) == 1:
            return int(current[0].cuda_stream)
        # From torch's pool, which never destroys a stream.
        make: Any = torch.cuda.Stream
        behind = make(current[0].device)
        for stream in current:
            behind.wait_stream(stream)
        return int(behind.cuda_stream)

    # New tensors.

    def _place(self, device: str) -> str:
        return device if device == "cpu" else self._device

    def allocate(self, nbytes: int, device: str) -> tuple[Any, int, str]:
        """Memory for a new storage, from torch's allocator."""
        if self._new_staged is not None:
            staged = self._staging.new(nbytes, self._new_staged)
            return staged, staged.data_ptr(), "cpu"
        place = self._place(device)
        try:
            on_host = place == "cpu"
            owner = (
                _new_storage(nbytes)
                if on_host
                else _new_storage(nbytes, device=torch.device(place))
            )
        except RuntimeError as error:
            raise NoMemory(f"torch has no {nbytes} bytes on {place}: {error}") from error
        return owner, owner.data_ptr(), place

    def tensor(
        self,
        owner: Any,
        device: str,
        dtype: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int,
        flags: int,
    ) -> Any:
        """A tensor over what allocate() gave; owner is None if the storage has no bytes."""
        if self._new_staged is not None:
            self._staging.fill_device()  # at the first tensor: all bytes have come
            device = self._device
            owner = None if owner is None else owner.on_device.untyped_storage()
        elif owner is None:
            device = self._place(device)
        empty = _EMPTY.get((dtype, device))
        if empty is None:
            empty = torch.empty(0, dtype=_torch_dtype(dtype), device=device)
            _EMPTY[dtype, device] = empty
        try:
            made = empty.new_empty(0)
            made.set_(made.untyped_storage() if owner is None else owner, offset, shape, strides)
            return _with_flags(made, flags) if flags else made
        except RuntimeError as error:
            raise Malformed(
                f"torch cannot make a tensor of shape {shape} and strides {strides}: {error}"
            ) from error

    def dtensor(self, node: DTensor) -> Any:
        """A received DTensor."""
        _need_distributed("DTensor")
        from wherry.torch import _distributed

        if self._meshes is None:
            self._meshes = self._make_meshes(None)
        return _distributed.make_dtensor(node, _torch_dtype(node.dtype), self._meshes)

    def _make_meshes(self, given: Any) -> Meshes:
        from wherry.torch import _distributed

        return _distributed.Meshes(given, self.rank)

    def sharded(self, node: Sharded) -> Any:
        """A received ShardedTensor."""
        _need_distributed("ShardedTensor")
        from wherry.torch import _distributed

        return _distributed.make_sharded(node, _torch_dtype(node.dtype), self.rank)


def _need_distributed(what: str) -> None:
    if not torch.distributed.is_available():
        raise Unsupported(f"a {what} needs torch.distributed, which this build of torch lacks")


def _torch_dtype(code: int) -> torch.dtype:
    dtype = _BY_CODE.get(code)
    if dtype is None:
        raise Unsupported(
            f"torch cannot make tensors of {_CODE_NAMES.get(code, code)} here: update torch, or "
            "send another dtype"
        )
    return dtype


def _with_flags(made: torch.Tensor, flags: int) -> torch.Tensor:
    if flags & TENSOR_CONJ:
        made = made.conj()
    if flags & TENSOR_NEG:
        made = torch._neg_view(made)
    return made.requires_grad_() if flags & TENSOR_REQUIRES_GRAD else made
