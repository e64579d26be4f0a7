"""The codec for processes with torch: adds tensors and torch's other types to wherry._codec."""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from wherry import _arrays, _core, _types
from wherry._codec import Codec, Keys
from wherry._nodes import TENSOR_CONJ, TENSOR_NEG, TENSOR_REQUIRES_GRAD
from wherry._nodes import DTensor, Layout, Object, Sharded
from wherry._types import CannotSend, Decoder, DecoderMaker, Encoder
from wherry._types import expect, no_arguments
from wherry.errors import InvalidArgument, Malformed, NoMemory, Unsupported
from wherry.torch import _private, _tensors
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

#: Empty tensors by dtype code and device. new_empty() of these is faster than torch.empty() with
#: dtype and device, and does not depend on torch's default device.
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
                f"this version of torch has no {type_name} {payload!r:.80}: update torch here"
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

_DECODERS: dict[str, DecoderMaker] = {
    "torch.Size": no_arguments(_size),
    "torch.device": no_arguments(lambda payload: torch.device(expect(payload, str))),
    **{name: no_arguments(_named_decoder(name)) for name in _BY_NAME},
}

# ---- classes that a program has registered with torch.utils._pytree ----

#: Torch registers these classes itself, but they have their own encoders.
_BUILT_IN = frozenset((tuple, list, dict, OrderedDict, defaultdict, deque, torch.Size))


def _registration(cls: type) -> Any:
    """The registration of a class; None if there is none, or if torch made it for its own use."""
    if cls in _BUILT_IN or cls.__module__.startswith("torch._"):
        return None
    return _private.SUPPORTED_NODES.get(cls)


def _pytree_encoder(cls: type, keys: Keys) -> Encoder | None:
    node = _registration(cls)
    if node is None:
        return None
    name = _types.importable_name(cls)
    type_name = _types.format_type_name("torch.pytree", **{"class": name})

    def encode(value: Any) -> Any:
        children, context = node.flatten_fn(value)
        if isinstance(context, _private.ConstantNode):
            raise CannotSend("its class is registered as a constant, so it has no contents to send")
        return Object(type_name, keys.pack(name, context, list(children)))

    return encode


def _pytree_decoder(keys: Keys) -> DecoderMaker:
    def make(arguments: dict[str, Any]) -> Decoder:
        cls = _types.find_class(arguments, object, "registered class")
        node = _registration(cls)
        if node is None:
            raise Unsupported(
                f"the class {_types.full_name(cls)} is not registered in this process: call "
                "torch.utils._pytree.register_pytree_node here, as the sender does"
            )

        def decode(payload: Any) -> Any:
            children, context = keys.unpack(arguments["class"], payload)
            return node.unflatten_fn(children, context)

        return decode

    return make


# ---- the codec ----


def _distributed_encoder(cls: type) -> Encoder | None:
    # If a program has a value of these classes, their module is already imported. The other
    # programs need not import it.
    tensor = sys.modules.get("torch.distributed.tensor")
    is_dtensor = tensor is not None and cls is tensor.DTensor
    if not is_dtensor and cls is not _private.sharded_tensor_class():
        return None
    distributed = _need_distributed(cls.__name__)
    encode = distributed.encode_dtensor if is_dtensor else distributed.encode_sharded
    return lambda value: encode(value, DTYPES)


class TorchCodec(Codec):
    """Supports torch's tensors and other types, and everything that Codec supports.

    Use one codec per call: it holds the storages that this call stages.
    """

    tensor_types = {torch.Tensor: None, nn.Parameter: "torch.Parameter"}
    dtypes = DTYPES

    def __init__(
        self, allow_pickle: bool = False, *, rank: int | None = None, device_mesh: Any = None
    ) -> None:
        self._device = "cpu"  # for new tensors; see new_on()
        self._new_staged: torch.device | None = None  # the same device, if it must be staged
        self._meshes: Meshes | None = None
        super().__init__(allow_pickle, rank=rank)
        if device_mesh is not None:
            self._meshes = _need_distributed("DeviceMesh").Meshes(device_mesh, rank)

    def _start(self) -> None:
        super()._start()
        self._staging = Staging()
        self._encoders.update(_ENCODERS)

    # From a value to a node.

    def _has_no_text(self, cls: type) -> bool:
        return super()._has_no_text(cls) or _registration(cls) is not None

    def _find_encoder(self, cls: type, value: Any) -> Encoder | None:
        if issubclass(cls, torch.Tensor):
            return _distributed_encoder(cls) or _tensors.tensor_encoder(cls)
        if issubclass(cls, nn.Module):
            return None  # This is so even if it is a dataclass.
        found = _pytree_encoder(cls, self._keys)
        return found or super()._find_encoder(cls, value)

    def _reason(self, value: Any) -> str:
        if isinstance(value, torch.Generator):
            return "it is a random number generator: send value.get_state()"
        if isinstance(value, (torch.UntypedStorage, torch.TypedStorage)):
            return "a storage has no shape: send a tensor that uses it"
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return "a symbolic number has no value: send a plain number"
        return super()._reason(value)

    # From a type name and a payload to a value.

    def _decoder_makers(self) -> dict[str, DecoderMaker]:
        pytree = {"torch.pytree": _pytree_decoder(self._keys)}
        return {**super()._decoder_makers(), **_DECODERS, **_tensors.DECODERS, **pytree}

    def to_array(self, made: Any) -> Any:
        """The NumPy array for a received tensor. It shares the memory of a plain host tensor."""
        if made is None or not isinstance(made, torch.Tensor):
            return super().to_array(made)
        dtype = _arrays.numpy_dtype(DTYPES[made.dtype])
        tensor = made.detach().cpu().resolve_conj().resolve_neg()
        if dtype.name in _arrays.NATIVE:
            return tensor.numpy()
        return tensor.view(torch.uint8 if dtype.itemsize == 1 else torch.int16).numpy().view(dtype)

    # Devices.

    def new_on(self, device: Any, or_else: Any = None) -> None:
        """Sets the device for new tensors.

        If it is a CUDA device, only tensors that the source has on CUDA go there; the others go to
        the host. If it is any other device, all new tensors go there. None: ``or_else`` if that is
        a CUDA device and CUDA is available, else the host.
        """
        found = torch.device("cpu" if device is None else device)
        if found.type == "meta":
            raise InvalidArgument(
                "new tensors need memory, but the device meta has none: pass another new_device"
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
            raise Unsupported("a tensor on the device meta has no memory")
        return self._staging.add(storage)

    def fill_host(self) -> None:
        """Also needed for a target: its bytes that are not received must stay unchanged."""
        self._staging.fill_host()
        if not self._target:
            self._staging = Staging()

    def bring_back(self) -> None:
        self._staging.fill_device()

    def stream(self, devices: Iterable[int], fixed: bool = False) -> int:
        """A stream that waits for this thread's current streams; 0: the default streams.

        A transfer returns only when its copies are done, so torch's streams and its allocator need
        not wait for them.
        """
        # If torch has not initialized CUDA, it has queued no work. Another library allocated the
        # memory.
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call, unused-ignore]
            return 0
        own = {torch.device(self._device).index} if self._device.startswith("cuda") else set()
        current = [torch.cuda.current_stream(device) for device in sorted(own | set(devices))]
        if not current or (not fixed and all(stream.cuda_stream == 0 for stream in current)):
            return 0
        if not fixed and len(current) == 1:
            return int(current[0].cuda_stream)
        # This takes a stream from torch's pool, which never destroys its streams.
        make: Any = torch.cuda.Stream
        behind = make(current[0].device)
        for stream in current:
            behind.wait_stream(stream)
        return int(behind.cuda_stream)

    # New tensors.

    def _place(self, device: str) -> str:
        return device if device == "cpu" else self._device

    def allocate(self, nbytes: int, device: str) -> tuple[Any, int, str]:
        """Allocates a new storage with torch's allocator. Returns owner, address and device."""
        if self._new_staged is not None:
            staged = self._staging.new(nbytes, self._new_staged)
            return staged, staged.data_ptr(), "cpu"
        place = self._place(device)
        try:
            if place == "cpu":
                owner = _new_storage(nbytes)
            else:
                owner = _new_storage(nbytes, device=torch.device(place))
        except RuntimeError as error:
            raise NoMemory(f"torch cannot allocate {nbytes} bytes on {place}: {error}") from error
        return owner, owner.data_ptr(), place

    def tensor(self, owner: Any, device: str, dtype: int, layout: Layout, flags: int) -> Any:
        """A tensor over memory from allocate(). ``owner`` is None if the storage has no bytes."""
        shape, strides, offset = layout
        if self._new_staged is not None:
            self._staging.fill_device()  # All bytes have arrived. The first call copies them.
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

    def distributed(self, node: DTensor | Sharded) -> Any:
        distributed, dtype = _need_distributed("distributed tensor"), _torch_dtype(node.dtype)
        if isinstance(node, Sharded):
            return distributed.make_sharded(node, dtype, self.rank)
        if self._meshes is None:
            self._meshes = distributed.Meshes(None, self.rank)
        return distributed.make_dtensor(node, dtype, self._meshes, self.source)


def _need_distributed(what: str) -> Any:
    """The module wherry.torch._distributed. It is imported late, because the import is slow."""
    if not torch.distributed.is_available():
        raise Unsupported(f"a {what} needs torch.distributed, which this build of torch lacks")
    from wherry.torch import _distributed

    return _distributed


def _torch_dtype(code: int) -> torch.dtype:
    dtype = _BY_CODE.get(code)
    if dtype is None:
        raise Unsupported(
            f"this version of torch has no tensors of {_CODE_NAMES.get(code, code)}: update torch "
            "here, or send another dtype"
        )
    return dtype


def _with_flags(made: torch.Tensor, flags: int) -> torch.Tensor:
    if flags & TENSOR_CONJ:
        made = made.conj()
    if flags & TENSOR_NEG:
        made = _private._neg_view(made)
    return made.requires_grad_() if flags & TENSOR_REQUIRES_GRAD else made
