"""The codec without torch: how Python values are described to the core, and made again. docs/python-types.md has the table.

The core reads None, bool, int, float, complex, str, bytes, list, tuple and dict by itself, and asks a codec about every value of
another type. Whatever arrives is hostile until it is proven otherwise: nothing from the wire is imported or executed.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, NoReturn, TypeVar

from wherry import _arrays, _buffers, _names, _types
from wherry._buffers import CannotTravel
from wherry._keys import Keys
from wherry._nodes import DTensor, Memory, Object, Sharded
from wherry._types import Decoder, Encoder, check_arguments, expect, no_arguments
from wherry.errors import Error, InvalidArgument, Malformed, Unsupported

_Self = TypeVar("_Self", bound="Codec")

WAY_OUT = "or pass allow_pickle=True on both sides, if you trust the sender with this process"

#: Type names that are kept with their decoders. A sender may invent any number of them.
_KNOWN_MAX = 4096


class Codec:
    """Python's own types, NumPy's, and memory of anything with the buffer protocol or DLPack; tensors come back as NumPy arrays."""

    tensor_types: dict[type, str | None] = {}
    dtypes: dict[Any, int] = {}

    def __init__(self, allow_pickle: bool = False, *, rank: int | None = None) -> None:
        self.allow_pickle = allow_pickle
        #: This process, as the shards that it receives name it; None: its rank in torch's default group.
        self.rank = rank
        self._target = False
        self._start()

    def _start(self) -> None:
        self._encoders: dict[type, Encoder] = dict.fromkeys((Object, Memory, DTensor, Sharded), _as_it_is)
        self._encoders.update(_types.ENCODERS)
        self._keys = Keys(self.encode, self._has_no_text, self._target)
        self._encoders.update(self._keys.encoders())
        self._makers = self._decoder_makers()
        self._known: dict[str, Decoder] = {}

    def for_target(self: _Self) -> _Self:
        """The same for a state that is to be received into: what cannot be written to is refused."""
        made = copy.copy(self)
        made._target = True
        made._start()
        return made

    def _has_no_text(self, cls: type) -> bool:
        """Whether values of a type that encode is not to be asked about tell no key from another."""
        return cls in self.tensor_types

    # From a value to a node.

    def encode(self, value: Any) -> Any:
        """What the core does not read by itself, as a node of wherry._nodes."""
        cls = type(value)
        encoder = self._encoders.get(cls)
        if encoder is None:
            encoder = self._find_encoder(cls, value)
            if encoder is None:
                return self.refuse(value, self._reason(value))
            self._encoders[cls] = encoder
        try:
            return encoder(value)
        except CannotTravel as reason:
            if self._target:
                raise Unsupported(
                    f"a value of the type {_names.name_of(cls)} cannot be received into: {reason}"
                ) from None
            return self.refuse(value, str(reason))
        except (Error, MemoryError):
            raise
        except Exception as error:  # of a method of the value, which then has no path
            raise Unsupported(f"a value of the type {_names.name_of(cls)} cannot be read: {error!r}") from error

    def _find_encoder(self, cls: type, value: Any) -> Encoder | None:
        """The encoder of a type, None where it has none; the order of the rules counts."""
        refuse = self.refuse
        found = _arrays.numpy_encoder(cls, refuse, self._target)
        if found is None and issubclass(cls, Enum):
            found = _types.enum_encoder(cls, refuse)
        if found is None and issubclass(cls, dict):
            found = _types.dict_encoder(cls, refuse)
        if found is None and issubclass(cls, tuple):
            found = _types.namedtuple_encoder(cls, refuse)
        if found is None and issubclass(cls, (int, float, complex, str, bytes, tuple, list, set, frozenset)):
            return None
        if found is None:
            found = _types.dataclass_encoder(cls, refuse)
        return found or self._memory_encoder(cls, value)

    def _memory_encoder(self, cls: type, value: Any) -> Encoder | None:
        target = self._target
        if cls is bytearray:
            return lambda value: Object("python.bytearray", _buffers.memory_of_buffer(value, target))
        if callable(getattr(cls, "__dlpack__", None)) and callable(getattr(cls, "__dlpack_device__", None)):
            return lambda value: Object("numpy.ndarray", _buffers.memory_of_dlpack(value, target))
        if _buffers.is_buffer(value):
            return lambda value: Object("numpy.ndarray", _buffers.memory_of_buffer(value, target))
        return None

    def _reason(self, value: Any) -> str:
        """Why a value of a type that has no encoder cannot travel, and what to do."""
        cls = type(value)
        if callable(getattr(cls, "state_dict", None)):
            return "it is an object with a state of its own: send value.state_dict()"
        for plain in (bool, int, float, complex, str, bytes, tuple, list, set, frozenset):
            if issubclass(cls, plain):
                return f"only {plain.__name__} itself travels, not a subclass of it: send {plain.__name__}(value)"
        if callable(value):
            return "functions and classes do not travel: send what it was made of"
        return "only data of the types that docs/python-types.md lists travels: send its contents as a dict"

    def refuse(self, value: object, reason: str) -> Object:
        """For what cannot travel: as a pickle where that is allowed, else an error with the reason, which says the way out."""
        cls = _names.name_of(type(value))
        if not self.allow_pickle:
            raise Unsupported(f"a value of the type {cls} cannot travel: {reason}; {WAY_OUT}")
        if self._target:
            return Object("python.pickle", b"")  # only its place counts: the value will be the source's
        try:
            return Object("python.pickle", pickle.dumps(value, protocol=4))
        except Exception as error:
            raise Unsupported(
                f"a value of the type {cls} cannot travel: {reason}; nor can it be pickled: {error}"
            ) from error

    # From a name and a payload to a value.

    def _decoder_makers(self) -> dict[str, Callable[[dict[str, Any]], Decoder]]:
        return {
            **_types.DECODERS,
            "python.items": no_arguments(self._keys.decode_items),
            **_arrays.SCALAR_DECODERS,
            **_WITHOUT_TORCH,
            "numpy.ndarray": _arrays.array_decoder(self.to_array),
            "python.bytearray": _arrays.bytearray_decoder(self.to_array),
            "python.pickle": self._pickle_decoder,
        }

    def check(self, type_name: str) -> None:
        """Raises where values of that name cannot be made here. Called before anything is received."""
        self._decoder(type_name)

    def _decoder(self, type_name: str) -> Decoder:
        decoder = self._known.get(type_name)
        if decoder is not None:
            return decoder
        try:
            name, arguments = _names.read(type_name)
            maker = self._makers.get(name)
            if maker is None:
                self._unknown(name)
            decoder = maker(arguments)
        except Error:
            raise
        except Exception as error:
            raise _malformed(type_name, error) from error
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[type_name] = decoder
        return decoder

    def decode(self, type_name: str, payload: Any) -> Any:
        """The value of an Object that was received; the payload is restored already."""
        decoder = self._decoder(type_name)
        try:
            return decoder(payload)
        except Error:
            raise
        except Exception as error:
            raise _malformed(type_name, error) from error

    def _unknown(self, name: str) -> NoReturn:
        if name.startswith("torch."):
            raise Unsupported(f"a value of the type {name!r:.80} needs torch: import torch before receiving")
        raise Unsupported(f"there is no type {name!r:.80} here; update wherry on this side")

    def _pickle_decoder(self, arguments: dict[str, Any]) -> Decoder:
        check_arguments(arguments)
        if not self.allow_pickle:
            raise Unsupported(
                "it was sent as a pickle, and loading one lets the sender run any code here: receive with allow_pickle=True if you "
                "trust it with this process, or send plain values"
            )
        return lambda payload: pickle.loads(expect(payload, bytes))

    # Memory, and what is made of it.

    def to_array(self, made: Any) -> Any:
        """An array of what tensor() made; None where nothing was received."""
        if made is not None and not isinstance(made, _arrays.need_numpy().ndarray):
            raise Malformed(
                f"an array is made of a tensor, not of a {type(made).__name__}; the sender is broken or hostile"
            )
        return made

    def new_on(self, device: Any, or_else: Any = None) -> None:
        """Says where what a source has on an accelerator arrives, where it is new. None: on `or_else` where that can be, else on the host."""
        if device is not None and str(device) != "cpu":
            raise InvalidArgument(
                f"arrays of NumPy are in the memory of the host, not on {device}: import torch, and tensors arrive there"
            )

    def to_host(self, storage: Any) -> Any:
        """A copy on the host of a storage on a device that the library does not know."""
        raise Unsupported("its memory cannot be read")

    def bring_back(self) -> None:
        """Copies what was received into such copies to where it belongs."""

    def stream(self, devices: Iterable[int], fixed: bool = False) -> int:
        """The stream behind what the program has queued on these CUDA devices; 0: the default stream of each."""
        return 0

    def allocate(self, nbytes: int, device: str) -> tuple[Any, int, str]:
        """Memory for a new storage that the source has on `device`: what owns it, its address, and where it is."""
        return _arrays.allocate(nbytes)

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
        try:
            return _arrays.tensor(owner, dtype, shape, strides, offset, flags)
        except Error:
            raise
        except Exception as error:
            raise Malformed(f"NumPy cannot make an array of shape {shape} and strides {strides}: {error}") from error

    def dtensor(self, node: DTensor) -> Any:
        """A DTensor that was received."""
        raise Unsupported("a DTensor needs torch: import torch before receiving")

    def sharded(self, node: Sharded) -> Any:
        """A ShardedTensor that was received."""
        raise Unsupported("a ShardedTensor needs torch: import torch before receiving")


def _as_it_is(node: Any) -> Any:
    return node


def _malformed(type_name: str, error: Exception) -> Error:
    return Malformed(
        f"a value of the type {type_name[:80]!r} cannot be made: {type(error).__name__}: {str(error)[:200]}"
    )


def _sizes(payload: Any) -> tuple[int, ...]:
    return tuple(expect(size, int) for size in expect(payload, tuple))


#: What torch's types are to a process without torch.
_WITHOUT_TORCH: dict[str, Callable[[dict[str, Any]], Decoder]] = {
    "torch.Size": no_arguments(_sizes),
    "torch.dtype": no_arguments(lambda payload: expect(payload, str)),
    "torch.device": no_arguments(lambda payload: expect(payload, str)),
    "torch.layout": no_arguments(lambda payload: expect(payload, str)),
    "torch.memory_format": no_arguments(lambda payload: expect(payload, str)),
    "torch.Parameter": no_arguments(_as_it_is),
}
