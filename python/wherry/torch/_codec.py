"""The codec with torch: tensors and what is made of them, on top of the types that need no torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from wherry import _arrays, _core
from wherry._codec import Codec
from wherry._nodes import TENSOR_CONJ, TENSOR_NEG, TENSOR_REQUIRES_GRAD, DTensor, Sharded
from wherry._types import Decoder, Encoder
from wherry.errors import InvalidArgument, Malformed, NoMemory, Unsupported
from wherry.torch import _small, _streams, _tensors
from wherry.torch._staging import Staging

#: A quantized tensor is more than its elements, so that these are not read as they are.
_QUANTIZED = ("qint8", "quint8", "qint32", "quint4x2", "quint2x4")

DTYPES: dict[Any, int] = {
    getattr(torch, name): code
    for name, (code, _) in _core.DTYPES.items()
    if hasattr(torch, name) and name not in _QUANTIZED
}
_BY_CODE: dict[int, torch.dtype] = {code: dtype for dtype, code in DTYPES.items()}
_CODE_NAMES = {code: name for name, (code, _) in _core.DTYPES.items()}

#: By code and device, a tensor without elements, from which others are made: faster than by naming both each time, and
#: whatever torch's default device is.
_EMPTY: dict[tuple[int, str], torch.Tensor] = {}
_new_storage: Any = torch.UntypedStorage


class TorchCodec(Codec):
    """Tensors of torch, of every dtype, and torch's other types; everything else as without torch."""

    tensor_types = {torch.Tensor: None, nn.Parameter: "torch.Parameter"}
    dtypes = DTYPES
    _device = "cpu"  # of new tensors that the source has on an accelerator
    _new_staged: torch.device | None = None  # the same, if it is staged

    def _start(self) -> None:
        super()._start()
        self._staging = Staging()
        self._encoders.update(_small.ENCODERS)

    def _has_no_text(self, cls: type) -> bool:
        return super()._has_no_text(cls) or _small.is_registered(cls)

    def _find_encoder(self, cls: type, value: Any) -> Encoder | None:
        if issubclass(cls, torch.Tensor):
            return self._distributed_encoder(cls) or _tensors.tensor_encoder(cls, self.refuse)
        if issubclass(cls, nn.Module):
            return None  # though it may be a dataclass as well
        return _small.node_encoder(cls, self.refuse, self._keys) or super()._find_encoder(cls, value)

    def _distributed_encoder(self, cls: type) -> Encoder | None:
        # Where there is such a value, its module is there: nothing is imported for programs without any.
        module = sys.modules.get("torch.distributed.tensor")
        if module is not None and cls is module.DTensor:
            from wherry.torch import _dtensor

            return lambda value: _dtensor.encode(value, DTYPES, self.refuse)
        module = sys.modules.get("torch.distributed._shard.sharded_tensor")
        if module is not None and cls is module.ShardedTensor:
            from wherry.torch import _sharded

            return lambda value: _sharded.encode(value, DTYPES, self.refuse)
        return None

    def _reason(self, value: Any) -> str:
        if isinstance(value, torch.Generator):
            return "it is a generator of random numbers: send value.get_state()"
        if isinstance(value, (torch.UntypedStorage, torch.TypedStorage)):
            return "it is bare memory: send a tensor over it"
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return "it is a symbol without a value"
        return super()._reason(value)

    def _decoder_makers(self) -> dict[str, Callable[[dict[str, Any]], Decoder]]:
        pytree = _small.node_decoder(self._keys)
        return {**super()._decoder_makers(), **_small.DECODERS, **_tensors.DECODERS, "torch.pytree": pytree}

    def to_array(self, made: Any) -> Any:
        """A NumPy array over the memory of a tensor."""
        if made is None or not isinstance(made, torch.Tensor):
            return super().to_array(made)
        dtype = _arrays.numpy_dtype(DTYPES[made.dtype])
        tensor = made.detach().cpu().resolve_conj().resolve_neg()
        if dtype.name in _arrays.NATIVE:
            return tensor.numpy()
        return tensor.view(torch.uint8 if dtype.itemsize == 1 else torch.int16).numpy().view(dtype)

    def new_on(self, device: Any, or_else: Any = None) -> None:
        """CUDA tensors of the source go to a CUDA device, its host tensors to the host. All go to a device of another kind."""
        found = torch.device("cpu" if device is None else device)
        if found.type == "meta":
            raise InvalidArgument("new tensors need memory, and the device meta has none: name another new_device")
        if device is None and or_else is not None and torch.device(or_else).type == "cuda" and torch.cuda.is_available():
            found = torch.device(or_else)
        if found.type == "cuda" and found.index is None:
            found = torch.device("cuda", torch.cuda.current_device())
        self._device = str(found)
        self._new_staged = None if found.type in ("cpu", "cuda") else found

    def to_host(self, storage: Any) -> Any:
        if storage.device.type == "meta":
            raise Unsupported("it has no memory, being on the device meta")
        return self._staging.add(storage)

    def fill_host(self) -> None:
        """Of a target too: bytes that are not received must come back as they were."""
        self._staging.fill_host()
        if not self._target:
            self._staging = Staging()

    def bring_back(self) -> None:
        self._staging.fill_device()

    def stream(self, devices: Iterable[int], fixed: bool = False) -> int:
        """Behind what this thread's current streams have queued."""
        own = {torch.device(self._device).index} if self._device.startswith("cuda") else set()
        return _streams.joined(sorted(own | set(devices)), fixed)

    def _place(self, device: str) -> str:
        return device if device == "cpu" else self._device

    def allocate(self, nbytes: int, device: str) -> tuple[Any, int, str]:
        """Memory for a new storage, from torch's allocator."""
        if self._new_staged is not None:
            staged = self._staging.new(nbytes, self._new_staged)
            return staged, staged.data_ptr(), "cpu"
        place = self._place(device)
        try:
            owner = _new_storage(nbytes) if place == "cpu" else _new_storage(nbytes, device=torch.device(place))
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
        """A tensor over what allocate gave; owner is None for a storage without bytes."""
        if self._new_staged is not None:
            self._staging.fill_device()  # once: all bytes have come
            device = self._device
            owner = None if owner is None else owner.on_device.untyped_storage()
        elif owner is None:
            device = self._place(device)
        empty = _EMPTY.get((dtype, device))
        if empty is None:
            empty = _EMPTY[dtype, device] = _new_empty(dtype, device)
        try:
            made = empty.new_empty(0)
            made.set_(made.untyped_storage() if owner is None else owner, offset, shape, strides)
            return _with_flags(made, flags) if flags else made
        except RuntimeError as error:
            raise Malformed(f"torch cannot make a tensor of shape {shape} and strides {strides}: {error}") from error

    def dtensor(self, node: DTensor) -> Any:
        """A DTensor that was received."""
        if not torch.distributed.is_available():
            raise Unsupported("a DTensor needs torch.distributed, which this build of torch lacks")
        from wherry.torch import _dtensor

        return _dtensor.restore(node, _known(node.dtype), self.rank)

    def sharded(self, node: Sharded) -> Any:
        """A ShardedTensor that was received."""
        if not torch.distributed.is_available():
            raise Unsupported("a ShardedTensor needs torch.distributed, which this build of torch lacks")
        from wherry.torch import _sharded

        return _sharded.restore(node, _known(node.dtype), self.rank)


def _known(code: int) -> torch.dtype:
    dtype = _BY_CODE.get(code)
    if dtype is None:
        raise Unsupported(
            f"tensors of {_CODE_NAMES.get(code, code)} cannot be made here: update torch, or send another dtype"
        )
    return dtype


def _new_empty(code: int, device: str) -> torch.Tensor:
    return torch.empty(0, dtype=_known(code), device=device)


def _with_flags(made: torch.Tensor, flags: int) -> torch.Tensor:
    if flags & TENSOR_CONJ:
        made = made.conj()
    if flags & TENSOR_NEG:
        made = torch._neg_view(made)
    return made.requires_grad_() if flags & TENSOR_REQUIRES_GRAD else made
