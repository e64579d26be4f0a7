"""Type names, and the encoders and decoders of Python's own types.

A type name is a name, or a name, one space and its arguments: a JSON object in ASCII, without
spaces, its keys sorted. Examples: `python.set`, `python.namedtuple {"class":"mod.Point"}`.
docs/python-types.md lists them. Nothing in a name is imported or executed: a class is found only if
this process has already imported it.

An encoder turns a value into a node. It is made once per type. A decoder turns a payload into a
value. It is made from the arguments of the type name, so names are checked before the payload is
there. Sets, and dicts with keys that are not scalars, are in _codec.
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
Refuse = Callable[[object, str], Any]

_MISSING = object()


def hostile(text: str) -> Malformed:
    """The error for bytes that no sound sender sends."""
    return Malformed(f"{text}; the sender is broken or hostile")


def _other_program(text: str) -> Malformed:
    return Malformed(f"{text}; both sides must run the same version of the program")


# ---- type names ----


def format_type_name(name: str, **arguments: object) -> str:
    """The text of a type name. Arguments that are None are left out."""
    given = {key: value for key, value in arguments.items() if value is not None}
    if not given:
        return name
    return f"{name} {json.dumps(given, sort_keys=True, separators=(',', ':'), allow_nan=False)}"


def parse_type_name(text: str) -> tuple[str, dict[str, Any]]:
    """Name and arguments of a received text. Raises ValueError or RecursionError if it is bad."""

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
    """Refuses unknown arguments: they may matter."""
    for name in arguments:
        if name not in allowed:
            raise Unsupported(
                f"its type name has an argument {name!r:.80} that this version does not know; "
                "update wherry here"
            )


def no_arguments(decoder: Decoder) -> DecoderMaker:
    """The maker for a type name without arguments."""

    def make(arguments: dict[str, Any]) -> Decoder:
        check_arguments(arguments)
        return decoder

    return make


def expect(payload: object, *types: type) -> Any:
    """The payload, if it has exactly one of these types."""
    if type(payload) not in types:
        raise hostile(f"its payload is a {type(payload).__name__}, not a {types[0].__name__}")
    return payload


# ---- classes ----


def full_name(cls: type) -> str:
    """The name of a class in messages."""
    module = cls.__module__
    return cls.__qualname__ if module == "builtins" else f"{module}.{cls.__qualname__}"


def importable_name(cls: type) -> str | None:
    """The name by which another process finds the class; None if there is none."""
    name = f"{cls.__module__}.{cls.__qualname__}"
    return name if _look_up(name) is cls else None


def find_class(name: object, base: type, what: str) -> type:
    """The class with that name in this process, a subclass of ``base``. ``what`` is for errors."""
    if type(name) is not str:
        raise hostile(f"the type name of a {what} has no class")
    cls = _look_up(name)
    if cls is None:
        raise Unsupported(
            f"the {what} has the class {name}, which this process does not have; import the module "
            "that defines it before receiving (the class must be at the top of its module or in "
            "another class)"
        )
    if not issubclass(cls, base):
        raise _other_program(f"the class {name} is not a {what} here")
    return cls


def _look_up(name: str) -> type | None:
    # Uses the dicts of modules and classes: getattr could run a __getattr__ that imports.
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


def hidden_class(cls: type, refuse: Refuse) -> Encoder:
    """The encoder for a class that the other side could not find."""
    reason = (
        f"the other side could not find {full_name(cls)} by that name: "
        "define the class at the top of its module"
    )
    return lambda value: refuse(value, reason)


# ---- JSON with a few more types: an object with the key "$" names its type ----


def to_json(value: Any) -> Any:
    """A value of plain types as JSON that keeps types and order. Raises TypeError for others."""
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
    # The keys of a JSON object are sorted, which must not change their order.
    if cls is dict and all(type(key) is str for key in keys):
        if keys == sorted(keys) and "$" not in value:
            return {key: to_json(item) for key, item in value.items()}
    pairs = [[to_json(key), to_json(item)] for key, item in value.items()]
    return {"$": cls.__name__, "items": pairs}


def from_json(value: Any) -> Any:
    """The inverse of to_json(). Raises ValueError, TypeError or KeyError if the value is bad."""
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


# ---- attributes of instances. They are in the type name: paths lead through the payload. ----


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


def may_set(cls: Any, name: object) -> bool:
    """True if another process may set this attribute: it must not replace a method or
    descriptor."""
    if type(name) is not str or not name.isidentifier():
        return False
    if name.startswith("__") and name.endswith("__"):
        return False
    if name in _slots(cls):
        return True
    known = inspect.getattr_static(cls, name, None)
    kind = type(known)
    return not (callable(known) or hasattr(kind, "__set__") or hasattr(kind, "__func__"))


def set_attributes(value: object, attributes: dict[str, object], what: str) -> None:
    """Sets the attributes of a new instance without running code of its class."""
    cls: Any = type(value)
    for name, item in attributes.items():
        if not may_set(cls, name):
            raise hostile(
                f"the {what} has an attribute {name!r:.80} that {full_name(cls)} cannot have"
            )
        if name in _slots(cls):
            object.__setattr__(value, name, item)
        else:
            vars(value)[name] = item


def attributes_json(attributes: dict[str, object], cls: type) -> Any:
    """The attributes as JSON, or None if there are none. Raises TypeError with the reason."""
    made = {}
    for name, item in attributes.items():
        if not may_set(cls, name):
            raise TypeError(f"its attribute {name!r} hides something that the class defines")
        try:
            made[name] = to_json(item)
        except TypeError as error:
            raise TypeError(f"its attribute {name!r} is not a plain value ({error})") from None
        except RecursionError:
            raise TypeError(f"its attribute {name!r} is nested too deeply") from None
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


def dict_encoder(cls: type, refuse: Refuse) -> Encoder | None:
    """The encoder for dict and its subclasses."""
    base: Any = next(one for one in _DICT_BASES if issubclass(cls, one))
    class_name = None if cls is base else importable_name(cls)
    if cls is not base and class_name is None:
        return hidden_class(cls, refuse)

    def encode(value: Any) -> Any:
        attributes = attributes_of(value)
        factory = value.default_factory if base is defaultdict else None
        factory_name = _FACTORY_NAMES.get(id(factory))
        if factory is not None and factory_name is None:
            return refuse(
                value,
                f"its default_factory is {factory!r}, but must be one of {', '.join(FACTORIES)} "
                "or None: send dict(value)",
            )
        try:
            packed = attributes_json(attributes, cls) if attributes else None
        except TypeError as error:
            return refuse(value, f"{error}: delete it, or send dict(value)")
        arguments = {"class": class_name, "factory": factory_name, "attributes": packed}
        type_name = format_type_name("python." + base.__name__, **arguments)
        return Object(type_name, dict(base.items(value)))

    return encode


def _dict_decoder(base: Any) -> DecoderMaker:
    def make(arguments: dict[str, Any]) -> Decoder:
        check_arguments(arguments, "class", "factory", "attributes")
        cls = base
        if "class" in arguments:
            cls = find_class(arguments["class"], base, base.__name__)
        factory = None
        if arguments.get("factory") is not None:
            factory = FACTORIES[arguments["factory"]]
        if factory is not None and base is not defaultdict:
            raise hostile(f"a {base.__name__} has no factory")
        attributes_from(arguments)

        def decode(payload: Any) -> Any:
            # Methods of the base: those of the class must not run.
            made: Any = base.__new__(cls)
            if factory is not None:
                defaultdict.__init__(made, factory)
            for key, item in expect(payload, dict).items():
                base.__setitem__(made, key, item)
            # Decoded for each value: two values must not share the attributes.
            set_attributes(made, attributes_from(arguments), base.__name__)
            return made

        return decode

    return make


# ---- classes with fields ----


def namedtuple_encoder(cls: Any, refuse: Refuse) -> Encoder | None:
    """The encoder for a named tuple; None for other subclasses of tuple."""
    fields = getattr(cls, "_fields", None)
    if type(fields) is not tuple or not all(type(field) is str for field in fields):
        return None
    class_name = importable_name(cls)
    if class_name is None:
        return hidden_class(cls, refuse)
    type_name = format_type_name("python.namedtuple", **{"class": class_name})

    def encode(value: Any) -> Any:
        if len(value) != len(fields):
            return refuse(value, f"it has {len(value)} items, but its class {len(fields)} fields")
        if attributes := attributes_of(value):
            extra = next(iter(attributes))
            return refuse(value, f"it has an attribute {extra!r} that is not a field: delete it")
        return Object(type_name, dict(zip(fields, tuple.__iter__(value))))

    return encode


def _namedtuple_decoder(arguments: dict[str, Any]) -> Decoder:
    check_arguments(arguments, "class")
    cls = find_class(arguments.get("class"), tuple, "namedtuple")
    fields = getattr(cls, "_fields", None)
    if type(fields) is not tuple:
        raise _other_program(f"the class {full_name(cls)} is not a namedtuple here")

    def decode(payload: Any) -> Any:
        _check_fields(cls, expect(payload, dict), set(fields))
        return tuple.__new__(cls, [payload[field] for field in fields])

    return decode


def _check_fields(cls: type, payload: dict[Any, Any], fields: set[str], more: bool = False) -> None:
    missing = fields - payload.keys()
    extra = set() if more else payload.keys() - fields
    if missing or extra:
        lacks = f" lacks {sorted(missing)}" if missing else ""
        has = f" has {sorted(map(str, extra))}" if extra else ""
        both = " and" if lacks and has else ""
        raise _other_program(f"the {full_name(cls)} that was sent{lacks}{both}{has}")


def dataclass_encoder(cls: type, refuse: Refuse) -> Encoder | None:
    """The encoder for a dataclass: its fields, and other attributes of the instance."""
    if not dataclasses.is_dataclass(cls):
        return None
    class_name = importable_name(cls)
    if class_name is None:
        return hidden_class(cls, refuse)
    try:
        object.__new__(cls)
    except TypeError:
        return lambda value: refuse(value, "it is a dataclass and a builtin type at once")
    fields = tuple(field.name for field in dataclasses.fields(cls))
    type_name = format_type_name("python.dataclass", **{"class": class_name})

    def encode(value: Any) -> Any:
        found = attributes_of(value)
        try:
            payload = {
                field: found.pop(field) if field in found else getattr(value, field)
                for field in fields
            }
        except AttributeError as error:
            return refuse(value, f"it has a field without a value ({error}): give it one")
        for name in found:
            if not may_set(cls, name):
                reason = f"its attribute {name!r} hides something that the class defines"
                return refuse(value, reason)
        payload.update(found)
        return Object(type_name, payload)

    return encode


def _dataclass_decoder(arguments: dict[str, Any]) -> Decoder:
    check_arguments(arguments, "class")
    cls = find_class(arguments.get("class"), object, "dataclass")
    if not dataclasses.is_dataclass(cls):
        raise _other_program(f"the class {full_name(cls)} is not a dataclass here")
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


def enum_encoder(cls: Any, refuse: Refuse) -> Encoder | None:
    """The encoder for an enum: members by name; flags, which may be combined, by value."""
    class_name = importable_name(cls)
    if class_name is None:
        return hidden_class(cls, refuse)
    if issubclass(cls, enum.Flag):
        flag = format_type_name("python.flag", **{"class": class_name})
        return lambda value: Object(flag, int(value._value_))
    member = format_type_name("python.enum", **{"class": class_name})
    return lambda value: Object(member, value._name_)


def _enum_decoder(arguments: dict[str, Any]) -> Decoder:
    check_arguments(arguments, "class")
    cls: Any = find_class(arguments.get("class"), enum.Enum, "enumeration")

    def decode(payload: Any) -> Any:
        member = cls._member_map_.get(expect(payload, str))
        if member is None:
            raise _other_program(f"{full_name(cls)} has no member {payload!r:.80} here")
        return member

    return decode


def _flag_decoder(arguments: dict[str, Any]) -> Decoder:
    check_arguments(arguments, "class")
    cls: Any = find_class(arguments.get("class"), enum.Flag, "flag")
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


#: By exact type. The core reads strings, except those with lone surrogates.
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
