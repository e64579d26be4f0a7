"""Type names, and the encoders and decoders of Python's own types.

A type name is a name, optionally followed by one space and arguments. The arguments are a JSON
object in ASCII, without spaces and with sorted keys. Examples: `python.set`, `python.namedtuple
{"class":"mod.Point"}`. docs/python-types.md lists them. Nothing in a type name is imported: a
class is found only if this process has already imported it.

An encoder turns a value into a node. It is made once per type. A decoder turns a payload into a
value. It is made from the arguments of the type name, so that the name can be checked before the
payload arrives. Sets, and dicts with keys that are not scalars, are in _codec.
"""

from __future__ import annotations

import collections
import copyreg
import dataclasses
import enum
import functools
import inspect
import json
import math
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any, NoReturn

from wherry._nodes import Object
from wherry.errors import Malformed, Unsupported

Encoder = Callable[[Any], Any]
Decoder = Callable[[Any], Any]
DecoderMaker = Callable[[dict[str, Any]], Decoder]

_MISSING = object()


class CannotSend(Exception):
    """Why a value cannot be sent, and what to do. The codec adds the value's type.

    If pickles are allowed, the codec pickles the value instead of raising.
    """


class CannotReceiveInto(CannotSend):
    """Like CannotSend, but for a target the codec always raises, even if pickles are allowed."""


def hostile(text: str) -> Malformed:
    """The error for bytes that no correct sender sends."""
    return Malformed(f"{text}; the sender is broken or hostile")


def other_program(text: str) -> Malformed:
    """The error for a value whose class differs between the two sides."""
    return Malformed(f"{text}; both sides must run the same version of the program")


# ---- type names ----


def format_type_name(name: str, **arguments: object) -> str:
    """The text of a type name. Arguments that are None are left out."""
    given = {key: value for key, value in arguments.items() if value is not None}
    if not given:
        return name
    return f"{name} {json.dumps(given, sort_keys=True, separators=(',', ':'), allow_nan=False)}"


def parse_type_name(text: str) -> tuple[str, dict[str, Any]]:
    """Splits a received type name into name and arguments. Raises ValueError or RecursionError."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key occurs twice")
        return found

    def no_constant(text: str) -> NoReturn:
        raise ValueError(f"{text} is not JSON")

    name, space, rest = text.partition(" ")
    if not space:
        return name, {}
    arguments = json.loads(rest, object_pairs_hook=unique, parse_constant=no_constant)
    if type(arguments) is not dict:
        raise ValueError("the arguments are not a JSON object")
    return name, arguments


def check_arguments(arguments: dict[str, Any], *allowed: str) -> None:
    """Raises Unsupported for unknown arguments, because they may change what a value means."""
    for name in arguments:
        if name not in allowed:
            raise Unsupported(
                f"its type name has an argument {name!r:.80} that this version does not know; "
                "update wherry here"
            )


def no_arguments(decoder: Decoder) -> DecoderMaker:
    """The decoder maker of a type name without arguments."""

    def make(arguments: dict[str, Any]) -> Decoder:
        check_arguments(arguments)
        return decoder

    return make


def expect(payload: object, *types: type) -> Any:
    """Returns the payload. Raises unless its type is exactly one of ``types``."""
    if type(payload) not in types:
        raise hostile(f"its payload is a {type(payload).__name__}, not a {types[0].__name__}")
    return payload


# ---- classes ----


def full_name(cls: type) -> str:
    """The name of a class, for messages."""
    module = cls.__module__
    return cls.__qualname__ if module == "builtins" else f"{module}.{cls.__qualname__}"


def importable_name(cls: type) -> str:
    """The name by which another process finds the class. Raises CannotSend if there is none."""
    name = f"{cls.__module__}.{cls.__qualname__}"
    if _look_up(name) is not cls:
        raise CannotSend(
            f"the other side cannot find {full_name(cls)} by its name: define the class at the top "
            "level of its module"
        )
    return name


def find_class(arguments: dict[str, Any], base: type, what: str, *allowed: str) -> Any:
    """The class in a type name: a subclass of ``base``. ``what`` describes it in error messages.

    Also checks that there are no arguments but "class" and those ``allowed``.
    """
    check_arguments(arguments, "class", *allowed)
    name = arguments.get("class")
    if type(name) is not str:
        raise hostile(f"a type name lacks the argument 'class' (expected: {what})")
    cls = _look_up(name)
    if cls is None:
        raise Unsupported(
            f"the {what} has the class {name}, which this process has not imported; import the "
            "module that defines it before receiving (the class must be at the top level of the "
            "module or in another class)"
        )
    if not issubclass(cls, base):
        raise other_program(f"the class {name} is of another kind here (expected: {what})")
    return cls


def _look_up(name: str) -> type | None:
    # Looks in the __dict__ of modules and classes: getattr() could run code that imports.
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        found: object = sys.modules.get(".".join(parts[:cut]))
        for part in parts[cut:]:
            if found is None:
                break
            found = getattr(found, "__dict__", {}).get(part)
        if isinstance(found, type) and f"{found.__module__}.{found.__qualname__}" == name:
            return found
    return None


# ---- extended JSON: an object with the key "$" is a value of the type that "$" names ----


def to_json(value: Any) -> Any:
    """Converts a plain value to JSON that keeps types and order. Raises TypeError for others."""
    cls = type(value)
    if value is None or cls in (bool, int, str):
        return value
    if cls is float:
        return value if math.isfinite(value) else {"$": "float", "value": value.hex()}
    if cls is list:
        return [to_json(item) for item in value]
    if cls is tuple:
        return {"$": "tuple", "items": [to_json(item) for item in value]}
    if cls is bytes:
        return {"$": "bytes", "value": value.hex()}
    if cls is not dict and cls is not OrderedDict:
        raise TypeError(full_name(cls))
    if cls is OrderedDict and vars(value):
        raise TypeError("an OrderedDict with attributes")
    keys = list(value)
    # format_type_name() sorts the keys of JSON objects. If that would change the order, use pairs.
    if cls is dict and all(type(key) is str for key in keys):
        if keys == sorted(keys) and "$" not in value:
            return {key: to_json(item) for key, item in value.items()}
    pairs = [[to_json(key), to_json(item)] for key, item in value.items()]
    return {"$": cls.__name__, "items": pairs}


def from_json(value: Any) -> Any:
    """The inverse of to_json(). Raises ValueError, TypeError or KeyError for other JSON."""
    if type(value) is list:
        return [from_json(item) for item in value]
    if type(value) is not dict:
        return value
    if "$" not in value:
        return {key: from_json(item) for key, item in value.items()}
    return _FROM_JSON[value["$"]](value)


def _pairs(value: dict[str, Any]) -> list[tuple[Any, Any]]:
    pairs = [(from_json(key), from_json(item)) for key, item in value["items"]]
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key occurs twice")
    return pairs


_FROM_JSON: dict[str, Callable[[dict[str, Any]], object]] = {
    "float": lambda value: float.fromhex(value["value"]),
    "tuple": lambda value: tuple(from_json(item) for item in value["items"]),
    "bytes": lambda value: bytes.fromhex(value["value"]),
    "dict": lambda value: dict(_pairs(value)),
    "OrderedDict": lambda value: OrderedDict(_pairs(value)),
}


# ---- attributes of instances; they are in the type name, so that paths do not depend on them ----


def attributes_of(value: object) -> dict[str, object]:
    """The attributes in the __dict__ and the slots of an instance."""
    found = dict(getattr(value, "__dict__", ()))
    cls: Any = type(value)
    for name in _slots(cls):
        item = getattr(value, name, _MISSING)
        if item is not _MISSING:
            found[name] = item
    return found


@functools.lru_cache(maxsize=1024)
def _slots(cls: Any) -> tuple[str, ...]:
    return tuple(copyreg._slotnames(cls))  # type: ignore[attr-defined]  # as pickle does


def why_not_set(cls: Any, name: object) -> str:
    """Why a received value may not have this attribute; "" if it may."""
    if type(name) is not str or not name.isidentifier() or name[:2] == name[-2:] == "__":
        return "has a name that cannot be sent"
    if name in _slots(cls):
        return ""
    known = inspect.getattr_static(cls, name, None)
    hides = callable(known) or hasattr(type(known), "__set__") or hasattr(type(known), "__func__")
    return "hides a method or property of the class" if hides else ""


def set_attributes(value: object, attributes: dict[str, object], what: str) -> None:
    """Sets the attributes of a new instance without running code of its class."""
    cls: Any = type(value)
    for name, item in attributes.items():
        if why_not_set(cls, name):
            raise hostile(
                f"a received {what} has the attribute {name!r:.80}, which {full_name(cls)} cannot "
                "have"
            )
        if name in _slots(cls):
            object.__setattr__(value, name, item)
        else:
            vars(value)[name] = item


def attributes_json(value: object, instead: str) -> Any:
    """The attributes of a value as JSON, or None if it has none.

    Raises CannotSend if an attribute cannot be sent. ``instead`` is what the message then tells the
    user to send.
    """
    made = {}
    for name, item in attributes_of(value).items():
        problem = why_not_set(type(value), name)
        try:
            made[name] = to_json(item)
        except TypeError as error:
            problem = problem or f"is not a plain value ({error})"
        except RecursionError:
            problem = problem or "is nested too deeply"
        if problem:
            raise CannotSend(f"its attribute {name!r} {problem}: delete it, or send {instead}")
    return made or None


def attributes_from(arguments: dict[str, Any]) -> dict[str, Any]:
    """The inverse of attributes_json(), from the arguments of a type name."""
    found = expect(arguments.get("attributes", {}), dict)
    return {name: from_json(item) for name, item in found.items()}


# ---- dicts ----

#: The default factories that a defaultdict may have.
_PLAIN: list[type] = [bool, bytes, bytearray, complex, dict, float, frozenset, int, list, set]
_PLAIN += [str, tuple, OrderedDict, collections.Counter, deque]
FACTORIES: dict[str, Callable[[], object]] = {cls.__name__: cls for cls in _PLAIN}
_FACTORY_NAMES = {id(factory): name for name, factory in FACTORIES.items()}

_DICT_BASES: tuple[type, ...] = (OrderedDict, defaultdict, dict)


def dict_encoder(cls: type) -> Encoder:
    """The encoder for dict and its subclasses."""
    base: Any = next(one for one in _DICT_BASES if issubclass(cls, one))
    class_name = None if cls is base else importable_name(cls)

    def encode(value: Any) -> Any:
        factory = value.default_factory if base is defaultdict else None
        factory_name = _FACTORY_NAMES.get(id(factory))
        if factory is not None and factory_name is None:
            raise CannotSend(
                f"its default_factory is {factory!r}, but must be one of {', '.join(FACTORIES)} "
                "or None: send dict(value)"
            )
        attributes = attributes_json(value, "dict(value)")
        arguments = {"class": class_name, "factory": factory_name, "attributes": attributes}
        type_name = format_type_name("python." + base.__name__, **arguments)
        return Object(type_name, dict(base.items(value)))

    return encode


def _dict_decoder(base: Any) -> DecoderMaker:
    def make(arguments: dict[str, Any]) -> Decoder:
        allowed = ("factory", "attributes")
        check_arguments(arguments, "class", *allowed)
        cls = base
        if "class" in arguments:
            cls = find_class(arguments, base, base.__name__, *allowed)
        named = arguments.get("factory")
        factory = None if named is None else FACTORIES[named]
        if factory is not None and base is not defaultdict:
            raise hostile(f"a {base.__name__} cannot have a factory")
        attributes_from(arguments)

        def decode(payload: Any) -> Any:
            # Use methods of the base class, so that no code of the received class runs.
            made: Any = base.__new__(cls)
            if factory is not None:
                defaultdict.__init__(made, factory)
            for key, item in expect(payload, dict).items():
                base.__setitem__(made, key, item)
            # Decode the attributes for each value, so that no two values share them.
            set_attributes(made, attributes_from(arguments), base.__name__)
            return made

        return decode

    return make


# ---- classes with fields ----


def namedtuple_encoder(cls: Any) -> Encoder | None:
    """The encoder for a named tuple; None for other subclasses of tuple."""
    fields = getattr(cls, "_fields", None)
    if type(fields) is not tuple or not all(type(field) is str for field in fields):
        return None
    type_name = format_type_name("python.namedtuple", **{"class": importable_name(cls)})

    def encode(value: Any) -> Any:
        if len(value) != len(fields):
            raise CannotSend(f"it has {len(value)} items, but its class has {len(fields)} fields")
        if extra := list(attributes_of(value)):
            raise CannotSend(f"it has an attribute {extra[0]!r} that is not a field: delete it")
        return Object(type_name, dict(zip(fields, tuple.__iter__(value))))

    return encode


def _namedtuple_decoder(arguments: dict[str, Any]) -> Decoder:
    cls = find_class(arguments, tuple, "namedtuple")
    fields = getattr(cls, "_fields", None)
    if type(fields) is not tuple:
        raise other_program(f"the class {full_name(cls)} is not a namedtuple here")

    def decode(payload: Any) -> Any:
        _check_fields(cls, expect(payload, dict), set(fields))
        return tuple.__new__(cls, [payload[field] for field in fields])

    return decode


def _check_fields(cls: type, payload: dict[Any, Any], fields: set[str], more: bool = False) -> None:
    missing = fields - payload.keys()
    extra = set() if more else payload.keys() - fields
    if missing or extra:
        lacks = f" lacks the fields {sorted(missing)}" if missing else ""
        has = f" has the extra fields {sorted(map(str, extra))}" if extra else ""
        both = " and" if lacks and has else ""
        raise other_program(f"the received {full_name(cls)}{lacks}{both}{has}")


def dataclass_encoder(cls: type) -> Encoder | None:
    """The encoder for a dataclass; None for other classes. Sends fields and other attributes."""
    if not dataclasses.is_dataclass(cls):
        return None
    type_name = format_type_name("python.dataclass", **{"class": importable_name(cls)})
    try:
        object.__new__(cls)
    except TypeError:
        raise CannotSend("a dataclass that inherits from a builtin type cannot be sent") from None
    fields = tuple(field.name for field in dataclasses.fields(cls))

    def encode(value: Any) -> Any:
        found = attributes_of(value)
        try:
            payload = {
                field: found.pop(field) if field in found else getattr(value, field)
                for field in fields
            }
        except AttributeError as error:
            raise CannotSend(f"it has a field without a value ({error}): assign one") from None
        for name in found:
            if problem := why_not_set(cls, name):
                raise CannotSend(f"its attribute {name!r} {problem}: delete it")
        payload.update(found)
        return Object(type_name, payload)

    return encode


def _dataclass_decoder(arguments: dict[str, Any]) -> Decoder:
    cls: type = find_class(arguments, object, "dataclass")
    if not dataclasses.is_dataclass(cls):
        raise other_program(f"the class {full_name(cls)} is not a dataclass here")
    fields = {field.name for field in dataclasses.fields(cls)}

    def decode(payload: Any) -> Any:
        _check_fields(cls, expect(payload, dict), fields, more=True)
        made = object.__new__(cls)
        for name in fields:
            object.__setattr__(made, name, payload[name])
        others = {name: item for name, item in payload.items() if name not in fields}
        set_attributes(made, others, "dataclass")
        return made

    return decode


def enum_encoder(cls: Any) -> Encoder:
    """The encoder for an enum. Flags are sent by value, because they can be combined; other members
    are sent by name."""
    is_flag = issubclass(cls, enum.Flag)
    name = "python.flag" if is_flag else "python.enum"
    type_name = format_type_name(name, **{"class": importable_name(cls)})
    if is_flag:
        return lambda value: Object(type_name, int(value._value_))
    return lambda value: Object(type_name, value._name_)


def _enum_decoder(arguments: dict[str, Any]) -> Decoder:
    cls = find_class(arguments, enum.Enum, "enumeration")

    def decode(payload: Any) -> Any:
        member = cls._member_map_.get(expect(payload, str))
        if member is None:
            raise other_program(f"{full_name(cls)} has no member {payload!r:.80} here")
        return member

    return decode


def _flag_decoder(arguments: dict[str, Any]) -> Decoder:
    cls = find_class(arguments, enum.Flag, "flag")
    return lambda payload: cls(expect(payload, int))


# ---- other types ----


def _set_decoder(cls: Callable[[list[Any]], Any]) -> Decoder:
    def decode(payload: Any) -> Any:
        made = cls(expect(payload, list))
        if len(made) != len(payload):
            raise hostile("an element occurs twice")
        return made

    return decode


def _range(payload: Any) -> range:
    start, stop, step = expect(payload, tuple)
    return range(expect(start, int), expect(stop, int), expect(step, int))


def _slice(payload: Any) -> Any:
    start, stop, step = expect(payload, tuple)
    return slice(start, stop, step)


def _deque_decoder(arguments: dict[str, Any]) -> Decoder:
    check_arguments(arguments, "maxlen")
    maxlen = arguments.get("maxlen")
    if maxlen is not None:
        expect(maxlen, int)
    return lambda payload: deque(expect(payload, list), maxlen)


#: Encoders by exact type. The core itself reads strings without lone surrogates.
ENCODERS: dict[type, Encoder] = {
    deque: lambda value: Object(format_type_name("python.deque", maxlen=value.maxlen), list(value)),
    range: lambda value: Object("python.range", (value.start, value.stop, value.step)),
    slice: lambda value: Object("python.slice", (value.start, value.stop, value.step)),
    str: lambda value: Object("python.str", value.encode("utf-8", "surrogatepass")),
}

DECODERS: dict[str, DecoderMaker] = {
    "python.dict": _dict_decoder(dict),
    "python.OrderedDict": _dict_decoder(OrderedDict),
    "python.defaultdict": _dict_decoder(defaultdict),
    "python.namedtuple": _namedtuple_decoder,
    "python.dataclass": _dataclass_decoder,
    "python.enum": _enum_decoder,
    "python.flag": _flag_decoder,
    "python.set": no_arguments(_set_decoder(set)),
    "python.frozenset": no_arguments(_set_decoder(frozenset)),
    "python.deque": _deque_decoder,
    "python.range": no_arguments(_range),
    "python.slice": no_arguments(_slice),
    "python.str": no_arguments(
        lambda payload: expect(payload, bytes).decode("utf-8", "surrogatepass")
    ),
}
