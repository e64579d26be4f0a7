"""The codec for processes without torch: describes Python values to the core, and rebuilds them.

The core reads None, bool, int, float, complex, str, bytes, list, tuple and dict, and asks a codec
about every other type. The codec treats all received data as hostile: it imports nothing that the
data names. Pickles, if they are allowed, are the exception. docs/python-types.md lists the types.
"""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Self

from wherry import _arrays, _core, _types
from wherry._nodes import TENSOR_CONJ, TENSOR_NEG, DTensor, Layout, Memory, Object, Sharded
from wherry._types import CannotReceiveInto, CannotSend, Decoder, DecoderMaker, Encoder
from wherry._types import check_arguments, expect, full_name, hostile, no_arguments
from wherry.errors import Error, InvalidArgument, Malformed, Unsupported

# ---- texts of keys ----

#: A process without torch decodes these types to their payload, so they get the payload's text.
_LIKE_PAYLOAD = frozenset(
    f"torch.{name}" for name in ("Size", "dtype", "device", "layout", "memory_format")
)

#: Larger integers are written in base 16, because Python refuses to write very large ones in base
#: 10.
_BITS_MAX = 4096

#: How to write the text of a scalar, in ASCII. A float has a point, an exponent or a name (inf,
#: nan), so its text differs from that of an int.
_SCALARS: dict[type, Callable[[Any], str]] = {
    type(None): repr,
    bool: repr,
    int: lambda value: str(value) if value.bit_length() < _BITS_MAX else hex(value),
    float: repr,
    complex: lambda value: f"complex({value.real!r},{value.imag!r})",
    str: json.dumps,
    bytes: lambda value: f'x"{value.hex()}"',
}

_SORTABLE = frozenset(((int,), (str,), (bytes,)))


class NoText(Exception):
    """The value has no text that could identify it as a key. See Keys."""


class Keys:
    """Texts of keys, for dicts whose keys are not scalars, for sets, and for registered classes.

    A receiver finds tensors by their paths, so a path must identify each key by its value, not by
    its position. The text of a key depends only on its encoded form: it is the same in every
    process. texts() raises if two keys have the same text. Keys with memory or pickles have no
    text; they are numbered, and values under them cannot be received in place.

    ``opaque(cls)`` is True if values of a class never get a text: tensors, and classes whose
    encoders call texts(). For nested values of these, the work would double at each level.
    """

    def __init__(
        self, encode: Callable[[Any], Any], opaque: Callable[[type], bool], target: bool
    ) -> None:
        self._encode = encode
        self._opaque = opaque
        self._target = target

    def text(self, value: Any) -> str:
        """The text of a value. Raises NoText if it has none. encode() may raise other errors."""
        cls = type(value)
        if scalar := _SCALARS.get(cls):
            return scalar(value)
        if cls is tuple:
            return f"({','.join(map(self.text, value))})"
        if cls is list:
            return f"[{','.join(map(self.text, value))}]"
        if cls is dict:
            items = sorted(f"{self.text(key)}:{self.text(item)}" for key, item in value.items())
            return f"{{{','.join(items)}}}"
        if cls is set or cls is frozenset:
            return f"python.{cls.__name__}({','.join(sorted(map(self.text, value)))})"
        if self._opaque(cls):
            raise NoText
        node = self._encode(value)
        if type(node) is not Object or node.type_name == "python.pickle":
            raise NoText
        inside = self.text(node.payload)
        if node.type_name in _LIKE_PAYLOAD:
            return inside
        return f"{node.type_name.replace(' ', '', 1)}({inside})"

    def texts(self, values: Iterable[Any], what: str) -> list[str]:
        """The texts of values. A value without one gets a number such as "#3"; a target raises."""
        made: dict[str, None] = {}
        for number, value in enumerate(values):
            try:
                text = self.text(value)
            except NoText:
                if self._target:
                    raise CannotReceiveInto(
                        f"one of its {what}s contains a tensor or array, or needs a pickle, so it "
                        f"cannot be matched with a {what} of the source; use names or numbers, as "
                        "state_dict() does"
                    ) from None
                text = f"#{number}"
            if text in made:
                raise CannotReceiveInto(f"two of its {what}s have the same text: {text:.80}")
            made[text] = None
        return list(made)

    def _in_order(self, value: Any) -> list[Any]:
        # The order of a set differs between processes, but its items must have the same paths.
        if tuple({type(item) for item in value}) in _SORTABLE:
            return sorted(value)
        found = dict(zip(self.texts(value, "element"), value))
        return [found[text] for text in sorted(found)]

    def encoders(self) -> dict[type, Encoder]:
        """Encoders by exact type. The core itself reads dicts whose keys are all scalars."""
        return {
            dict: lambda value: Object(
                "python.items", dict(zip(self.texts(value, "key"), value.items()))
            ),
            set: lambda value: Object("python.set", self._in_order(value)),
            frozenset: lambda value: Object("python.frozenset", self._in_order(value)),
        }

    def decode_items(self, payload: Any) -> Any:
        """The dict of a payload of ``python.items``."""
        made = {}
        for pair in expect(payload, dict).values():
            key, item = expect(pair, tuple)
            made[key] = item
        if len(made) != len(payload):
            raise hostile("a key occurs twice")
        for number, (text, key) in enumerate(zip(payload, made)):
            self._check(text, number, key, "key")
        return made

    def pack(self, name: str, context: object, children: list[Any]) -> dict[str, Any]:
        """The payload of a registered class. The children's path contains class and context."""
        (text,) = self.texts([context], "context")
        return {"context": context, f"{name}({text})": children}

    def unpack(self, name: str, payload: Any) -> tuple[list[Any], object]:
        """The inverse of pack(): children and context."""
        if len(expect(payload, dict)) != 2 or "context" not in payload:
            raise hostile("a value of a registered class was sent without context or children")
        context = payload["context"]
        (place,) = payload.keys() - {"context"}
        if not expect(place, str).startswith(f"{name}(") or not place.endswith(")"):
            raise hostile(f"the children of a {name} are under {place!r:.80}")
        self._check(place[len(name) + 1 : -1], 0, context, "context")
        return expect(payload[place], list), context

    def _check(self, text: object, number: int, value: object, what: str) -> None:
        # A value that has no text at the sender can have one here. So always accept the number.
        if text == f"#{number}":
            return
        try:
            expected = self.text(value)
        except NoText:
            expected = f"#{number}"
        if text != expected:
            raise hostile(f"the text of a {what} is {text!r:.80}, but should be {expected!r:.80}")


# ---- the codec ----

#: A codec caches at most this many decoders, because a sender can invent any number of type names.
_KNOWN_MAX = 4096

_SCALAR_TYPES = (bool, int, float, complex, str, bytes, tuple, list, set, frozenset)

_PICKLE = "or pass allow_pickle=True on both sides, if the sender may run any code in the receiver"


class Codec:
    """Supports Python's own types, NumPy's, the buffer protocol and DLPack. Makes NumPy arrays."""

    tensor_types: dict[type, str | None] = {}
    dtypes: dict[Any, int] = {}

    #: The rank in meshes from which values are received, if it is known.
    source: int | None = None

    def __init__(self, allow_pickle: bool = False, *, rank: int | None = None) -> None:
        self.allow_pickle = allow_pickle
        #: The rank of this process, for the placement of received shards. None: its rank in
        #: torch's default group.
        self.rank = rank
        self._target = False
        self._start()

    def _start(self) -> None:
        nodes = (Object, Memory, DTensor, Sharded)
        self._encoders: dict[type, Encoder] = dict.fromkeys(nodes, _unchanged)
        self._encoders.update(_types.ENCODERS)
        self._keys = Keys(self.encode, self._has_no_text, self._target)
        self._encoders.update(self._keys.encoders())
        self._makers = self._decoder_makers()
        self._known: dict[str, Decoder] = {}

    def for_target(self) -> Self:
        """A codec for the target of a receive: it refuses memory that cannot be written."""
        made = copy.copy(self)
        made._target = True
        made._start()
        return made

    def _has_no_text(self, cls: type) -> bool:
        """See ``opaque`` in Keys."""
        return cls in self.tensor_types

    # -- from a value to a node

    def encode(self, value: Any) -> Any:
        """Returns the node of wherry._nodes for a value that the core cannot read."""
        cls = type(value)
        try:
            encoder = self._encoders.get(cls) or self._find_encoder(cls, value)
            if encoder is None:
                raise CannotSend(self._reason(value))
            self._encoders[cls] = encoder
            return encoder(value)
        except CannotSend as error:
            reason = error
        except (Error, MemoryError):
            raise
        except Exception as error:  # a method of the value raised this
            raise Unsupported(
                f"a value of type {full_name(cls)} cannot be read: {error!r}"
            ) from error
        if self._target and isinstance(reason, CannotReceiveInto):
            raise Unsupported(f"a value of type {full_name(cls)} cannot be received into: {reason}")
        return self._pickle(value, reason)

    def _find_encoder(self, cls: type, value: Any) -> Encoder | None:
        """The encoder for a type; None if there is none. The order of the rules matters."""
        target = self._target
        found = _arrays.numpy_encoder(cls, target)
        if found is None and issubclass(cls, Enum):
            found = _types.enum_encoder(cls)
        if found is None and issubclass(cls, dict):
            found = _types.dict_encoder(cls)
        if found is None and issubclass(cls, tuple):
            found = _types.namedtuple_encoder(cls)
        if found is None and issubclass(cls, _SCALAR_TYPES):
            return None
        found = found or _types.dataclass_encoder(cls)
        if found is not None:
            return found
        if cls is bytearray:
            return lambda value: Object("python.bytearray", _arrays.memory_of_buffer(value, target))
        if all(callable(getattr(cls, name, None)) for name in ("__dlpack__", "__dlpack_device__")):
            return lambda value: Object("numpy.ndarray", _arrays.memory_of_dlpack(value, target))
        if _core.buffer_range(value) is not None:
            return lambda value: Object("numpy.ndarray", _arrays.memory_of_buffer(value, target))
        return None

    def _reason(self, value: Any) -> str:
        """Why a value without an encoder cannot be sent, and what to do."""
        cls = type(value)
        if callable(getattr(cls, "state_dict", None)):
            return "it has a state dict: send value.state_dict()"
        for plain in _SCALAR_TYPES:
            if issubclass(cls, plain):
                name = plain.__name__
                return f"{name} can be sent, but not its subclasses: send {name}(value)"
        if callable(value):
            return "callables, such as functions and classes, cannot be sent: send their data"
        return "its type is not in docs/python-types.md: send its contents as a dict"

    def _pickle(self, value: object, reason: CannotSend) -> Object:
        """Pickles a value that cannot be sent otherwise, if that is allowed. Else raises."""
        cls = full_name(type(value))
        if not self.allow_pickle:
            raise Unsupported(f"a value of type {cls} cannot be sent: {reason}; {_PICKLE}")
        if self._target:
            return Object("python.pickle", b"")  # The source's value replaces it.
        try:
            return Object("python.pickle", pickle.dumps(value, protocol=4))
        except Exception as error:
            raise Unsupported(
                f"a value of type {cls} cannot be sent: {reason}; pickling it failed too: {error}"
            ) from error

    # -- from a type name and a payload to a value

    def _decoder_makers(self) -> dict[str, DecoderMaker]:
        return {
            **_types.DECODERS,
            "python.items": no_arguments(self._keys.decode_items),
            "numpy.scalar": _arrays.scalar_decoder,
            **_WITHOUT_TORCH,
            "numpy.ndarray": _arrays.array_decoder(self.to_array),
            "python.bytearray": _arrays.bytearray_decoder(self.to_array),
            "python.pickle": self._pickle_decoder,
        }

    def check(self, type_name: str) -> None:
        """Raises if values of this type cannot be made here. Called before data is received."""
        self._decoder(type_name)

    def _decoder(self, type_name: str) -> Decoder:
        decoder = self._known.get(type_name)
        if decoder is not None:
            return decoder
        try:
            name, arguments = _types.parse_type_name(type_name)
            maker = self._makers.get(name)
            if maker is None:
                if name.startswith("torch.") and not self.tensor_types:
                    raise Unsupported(
                        f"a value of type {name!r:.80} needs torch: import torch before receiving"
                    )
                raise Unsupported(f"the type {name!r:.80} is unknown here; update wherry here")
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
        """The value of a received Object. Its payload must already be restored."""
        decoder = self._decoder(type_name)
        try:
            return decoder(payload)
        except Error:
            raise
        except Exception as error:
            raise _malformed(type_name, error) from error

    def _pickle_decoder(self, arguments: dict[str, Any]) -> Decoder:
        check_arguments(arguments)
        if not self.allow_pickle:
            raise Unsupported(
                "it was sent as a pickle, which lets the sender run any code here: receive with "
                "allow_pickle=True if you trust the sender, or send plain values"
            )
        return lambda payload: pickle.loads(expect(payload, bytes))

    # -- memory and tensors

    def to_array(self, made: Any) -> Any:
        """The array for a result of tensor(); None for None."""
        if made is not None and not isinstance(made, _arrays.need_numpy().ndarray):
            raise hostile(f"an array was sent as a {type(made).__name__}, not as a tensor")
        return made

    def new_on(self, device: Any, or_else: Any = None) -> None:
        """Sets the device for new tensors. Without torch, only the host is possible."""
        if device is not None and str(device) != "cpu":
            raise InvalidArgument(
                f"new_device is {device}, but without torch, tensors arrive as NumPy arrays on the "
                "host: import torch before receiving"
            )

    def to_host(self, storage: Any) -> Any:
        """Host memory that replaces a storage on a device that the library cannot access."""
        raise Unsupported("its memory cannot be read")

    def fill_host(self) -> None:
        """Copies the storages of to_host() to the host, after the core has read all tensors."""

    def bring_back(self) -> None:
        """Copies received data from the host memory of to_host() to the devices."""

    def stream(self, devices: Iterable[int], fixed: bool = False) -> int:
        """A CUDA stream that waits for the program's queued work; 0: each device's default stream.

        ``fixed``: it waits only for the work that is queued now, not for work queued later.
        """
        return 0

    def allocate(self, nbytes: int, device: str) -> tuple[Any, int, str]:
        """Allocates a storage that the source has on ``device``. Returns owner, address, device."""
        owner = _arrays.need_numpy().empty(nbytes, "uint8")
        return owner, owner.__array_interface__["data"][0], "cpu"

    def tensor(self, owner: Any, device: str, dtype: int, layout: Layout, flags: int) -> Any:
        """A tensor over memory from allocate(). ``owner`` is None if the storage has no bytes."""
        shape, strides, offset = layout
        numpy = _arrays.need_numpy()
        kind = _arrays.numpy_dtype(dtype)
        steps = tuple(kind.itemsize * stride for stride in strides)
        try:
            if owner is None or 0 in shape:
                return numpy.empty(shape, kind)
            array = numpy.ndarray(shape, kind, owner, offset * kind.itemsize, steps)
            array = numpy.conjugate(array) if flags & TENSOR_CONJ else array
            return numpy.negative(array) if flags & TENSOR_NEG else array
        except Exception as error:
            raise Malformed(
                f"NumPy cannot make an array of shape {shape} and strides {strides}: {error}"
            ) from error

    def distributed(self, node: DTensor | Sharded) -> Any:
        """Makes a received DTensor or ShardedTensor."""
        raise Unsupported("a distributed tensor needs torch: import torch before receiving")


def _unchanged(value: Any) -> Any:
    return value


def _malformed(type_name: str, error: Exception) -> Error:
    text = f"{type(error).__name__}: {str(error)[:200]}"
    return Malformed(f"a received value of type {type_name[:80]!r} cannot be rebuilt: {text}")


def _sizes(payload: Any) -> tuple[int, ...]:
    return tuple(expect(size, int) for size in expect(payload, tuple))


#: How a process without torch decodes torch's types.
_WITHOUT_TORCH: dict[str, DecoderMaker] = {
    **dict.fromkeys(_LIKE_PAYLOAD, no_arguments(lambda payload: expect(payload, str))),
    "torch.Size": no_arguments(_sizes),
    "torch.Parameter": no_arguments(_unchanged),
}
