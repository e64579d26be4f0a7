"""Canonical texts of keys, and what travels under them: dicts with keys that are no scalars, sets, and registered classes.

A receiver finds the place of a tensor by its path. So what lies under a key must have a path that says which key that is, and
not in which place of its dict it came. The text of a key follows from its encoded form alone: the same in every process, and
another for every other key. Keys that hold memory have no such text, nor have pickles: what lies under these is numbered, and
cannot be received into.
"""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, NoReturn, TypeVar

from wherry import _arrays, _core, _types
from wherry._arrays import CannotSend
from wherry._nodes import DTensor, Memory, Object, Sharded
from wherry._types import Decoder, Encoder, check_arguments, expect, no_arguments
from wherry.errors import Error, InvalidArgument, Malformed, Unsupported

#: What a process without torch takes for its payload: a text must not tell the two apart.
_PLAIN = frozenset(
    ("torch.Size", "torch.dtype", "torch.device", "torch.layout", "torch.memory_format")
)

#: Longer ints are written in base 16: Python refuses to write very long ones in base 10.
_BITS_MAX = 4096


class NoText(Exception):
    """The value has no text of its own."""


class Keys:
    """The texts of keys, by the rules of a codec.

    `opaque` says of a type whether its values are to have no text: those of which a text is made when they are encoded, since that
    would double the work with each level.
    """

    def __init__(
        self, encode: Callable[[Any], Any], opaque: Callable[[type], bool], target: bool
    ) -> None:
        self._encode = encode
        self._opaque = opaque
        self._target = target

    def text(self, value: Any) -> str:
        """The canonical text of a value. Raises NoText, and what encode raises."""
        cls = type(value)
        plain = _SCALARS.get(cls)
        if plain is not None:
            return plain(value)
        if cls is tuple:
            return "(" + ",".join(map(self.text, value)) + ")"
        if cls is list:
            return "[" + ",".join(map(self.text, value)) + "]"
        if cls is dict:
            return (
                "{"
                + ",".join(
                    sorted(f"{self.text(key)}:{self.text(item)}" for key, item in value.items())
                )
                + "}"
            )
        if cls is set or cls is frozenset:
            return f"python.{cls.__name__}({','.join(sorted(map(self.text, value)))})"
        if self._opaque(cls):
            raise NoText
        node = self._encode(value)
        if type(node) is not Object or node.type_name == "python.pickle":
            raise NoText
        inside = self.text(node.payload)
        return (
            inside
            if node.type_name in _PLAIN
            else f"{node.type_name.replace(' ', '', 1)}({inside})"
        )

    def texts(self, values: Iterable[Any], what: str) -> list[str]:
        """The texts of some values, each another; those that have none are numbered. Raises CannotSend."""
        made: dict[str, None] = {}
        for number, value in enumerate(values):
            try:
                text = self.text(value)
            except NoText:
                if self._target:
                    raise CannotSend(
                        f"a {what} of it holds memory or needs a pickle, so that nothing tells which {what} of the source it is; use "
                        "names or numbers, as a state_dict() does"
                    ) from None
                text = f"#{number}"
            if text in made:
                raise CannotSend(
                    f"two {what}s of it cannot be told apart by what they hold, {text:.80}"
                )
            made[text] = None
        return list(made)

    def _in_order(self, value: Any) -> list[Any]:
        # The order of a set depends on its history and on the process, and that of its items must not: they have paths.
        if tuple({type(item) for item in value}) in _ORDERED:
            return sorted(value)
        found = dict(zip(self.texts(value, "element"), value))
        return [found[text] for text in sorted(found)]

    def encoders(self) -> dict[type, Encoder]:
        """Of exact types. The core reads every other dict by itself: this one has a key that is no scalar."""
        return {
            dict: lambda value: Object(
                "python.items", dict(zip(self.texts(value, "key"), value.items()))
            ),
            set: lambda value: Object("python.set", self._in_order(value)),
            frozenset: lambda value: Object("python.frozenset", self._in_order(value)),
        }

    def decode_items(self, payload: Any) -> Any:
        """The dict of `python.items`."""
        made = {}
        for pair in expect(payload, dict).values():
            key, item = expect(pair, tuple)
            made[key] = item
        if len(made) != len(payload):
            raise Malformed("a key occurs twice; the sender is broken or hostile")
        for number, (text, key) in enumerate(zip(payload, made)):
            self._check(text, number, key, "key")
        return made

    def pack(self, name: str, context: object, children: list[Any]) -> dict[str, Any]:
        """The payload of a registered class: the children under a text of class and context, so that others have other paths."""
        (text,) = self.texts([context], "context")
        return {"context": context, f"{name}({text})": children}

    def unpack(self, name: str, payload: Any) -> tuple[list[Any], object]:
        """The reverse: children and context."""
        if len(expect(payload, dict)) != 2 or "context" not in payload:
            raise Malformed(
                "a registered class is sent as its context and its children; the sender is broken or hostile"
            )
        context = payload["context"]
        (place,) = payload.keys() - {"context"}
        if not expect(place, str).startswith(f"{name}(") or not place.endswith(")"):
            raise Malformed(
                "the children lie under the text of another class; the sender is broken or hostile"
            )
        self._check(place[len(name) + 1 : -1], 0, context, "context")
        return expect(payload[place], list), context

    def _check(self, text: object, number: int, value: object, what: str) -> None:
        # What had no text at the sender may have one here: another process may know a class by another rule.
        if text == f"#{number}":
            return
        try:
            expected = self.text(value)
        except NoText:
            expected = f"#{number}"
        if text != expected:
            raise Malformed(
                f"something lies under the text of another {what}, {text!r:.80} instead of {expected!r:.80}; the sender is broken or "
                "hostile"
            )


_ORDERED = frozenset(((int,), (str,), (bytes,)))

#: In ASCII, whatever a str holds. A float has a point, an exponent or a name, so that it is no int.
_SCALARS: dict[type, Callable[[Any], str]] = {
    type(None): repr,
    bool: repr,
    int: lambda value: str(value) if value.bit_length() < _BITS_MAX else hex(value),
    float: repr,
    complex: lambda value: f"complex({value.real!r},{value.imag!r})",
    str: json.dumps,
    bytes: lambda value: f'x"{value.hex()}"',
}


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
        self._encoders: dict[type, Encoder] = dict.fromkeys(
            (Object, Memory, DTensor, Sharded), _as_it_is
        )
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
        except CannotSend as reason:
            if self._target:
                raise Unsupported(
                    f"a value of the type {_types.full_name(cls)} cannot be received into: {reason}"
                ) from None
            return self.refuse(value, str(reason))
        except (Error, MemoryError):
            raise
        except Exception as error:  # of a method of the value, which then has no path
            raise Unsupported(
                f"a value of the type {_types.full_name(cls)} cannot be read: {error!r}"
            ) from error

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
        if found is None and issubclass(
            cls, (int, float, complex, str, bytes, tuple, list, set, frozenset)
        ):
            return None
        if found is None:
            found = _types.dataclass_encoder(cls, refuse)
        return found or self._memory_encoder(cls, value)

    def _memory_encoder(self, cls: type, value: Any) -> Encoder | None:
        target = self._target
        if cls is bytearray:
            return lambda value: Object("python.bytearray", _arrays.memory_of_buffer(value, target))
        if callable(getattr(cls, "__dlpack__", None)) and callable(
            getattr(cls, "__dlpack_device__", None)
        ):
            return lambda value: Object("numpy.ndarray", _arrays.memory_of_dlpack(value, target))
        if _core.buffer_range(value) is not None:
            return lambda value: Object("numpy.ndarray", _arrays.memory_of_buffer(value, target))
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
        cls = _types.full_name(type(value))
        if not self.allow_pickle:
            raise Unsupported(f"a value of the type {cls} cannot travel: {reason}; {WAY_OUT}")
        if self._target:
            return Object(
                "python.pickle", b""
            )  # only its place counts: the value will be the source's
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
            name, arguments = _types.parse_type_name(type_name)
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
            raise Unsupported(
                f"a value of the type {name!r:.80} needs torch: import torch before receiving"
            )
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
        """Host memory that stands in for a storage on a device that the library cannot reach."""
        raise Unsupported("its memory cannot be read")

    def fill_host(self) -> None:
        """Copies the bytes of these storages to the host. The core calls it when it has read all tensors."""

    def bring_back(self) -> None:
        """Copies what was received from there to the devices."""

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
            raise Malformed(
                f"NumPy cannot make an array of shape {shape} and strides {strides}: {error}"
            ) from error

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
