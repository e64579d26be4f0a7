"""Names of types as they travel: `python.OrderedDict`, `python.namedtuple {"class":"mod.Point"}`.

A name, and where it has arguments one space and a JSON object in ASCII, without spaces, its keys sorted. docs/python-types.md has the
list. Nothing that a name says is imported or executed: a class is found only where this process has it already.
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

# ---- py ----

_MISSING = object()


def format_type_name(name: str, **arguments: object) -> str:
    """The text of a type name. Arguments that are None are left out."""
    given = {key: value for key, value in arguments.items() if value is not None}
    if not given:
        return name
    return name + " " + json.dumps(given, sort_keys=True, separators=(",", ":"), allow_nan=False)


def parse_type_name(text: str) -> tuple[str, dict[str, Any]]:
    """Name and arguments of a text from elsewhere. Raises ValueError or RecursionError where it is not of that form."""
    name, space, rest = text.partition(" ")
    if not space:
        return name, {}
    arguments = json.loads(rest, object_pairs_hook=_unique, parse_constant=_no_constant)
    if type(arguments) is not dict:
        raise ValueError("the arguments are not a JSON object")
    return name, arguments


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def full_name(cls: type) -> str:
    """What people know a class by."""
    module = cls.__module__
    return cls.__qualname__ if module == "builtins" else f"{module}.{cls.__qualname__}"


def importable_name(cls: type) -> str | None:
    """The name by which another process finds the class, or None where this one could not find it by that either."""
    name = f"{cls.__module__}.{cls.__qualname__}"
    return name if _look_up(name) is cls else None


def find_class(name: object, base: type, what: str) -> type:
    """The class of that name which this process has, and which is a subclass of base; what: in words, for errors."""
    if type(name) is not str:
        raise Malformed(
            f"the type name of a {what} names no class; the sender is broken or hostile"
        )
    cls = _look_up(name)
    if cls is None:
        raise Unsupported(
            f"the {what} is of the class {name}, which is not known in this process; import the module that defines it "
            "before receiving (a class can only be found under its own name, at the top of its module or in another class)"
        )
    if not issubclass(cls, base):
        raise Malformed(
            f"the class {name} is no {what} here; both sides must run the same version of the program"
        )
    return cls


def _look_up(name: str) -> type | None:
    # Through the dicts of modules and classes, not by getattr: a module may have a __getattr__ that imports.
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


# JSON of a few more types. An object whose key "$" is there says which type it is.


def to_json(value: Any) -> Any:
    """A value of plain types as JSON that keeps types and order. Raises TypeError for any other."""
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
    if cls is dict or cls is OrderedDict:
        return _dict_to_json(value)
    raise TypeError(full_name(cls))


def _dict_to_json(value: Any) -> Any:
    if type(value) is OrderedDict and vars(value):
        raise TypeError("an OrderedDict with attributes")
    keys = list(value)
    # Sorting the keys must not lose their order.
    if (
        type(value) is dict
        and all(type(key) is str for key in keys)
        and keys == sorted(keys)
        and "$" not in value
    ):
        return {key: to_json(item) for key, item in value.items()}
    return {
        "$": type(value).__name__,
        "items": [[to_json(key), to_json(item)] for key, item in value.items()],
    }


def from_json(value: Any) -> Any:
    """The reverse. Raises ValueError, TypeError or KeyError where it is not of that form."""
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


# Attributes of an instance: what is in its __dict__ and its slots.


def attributes_of(value: object) -> dict[str, object]:
    """Every attribute that the instance itself has."""
    found = dict(getattr(value, "__dict__", ()))
    cls: Any = type(value)
    for name in _slots(cls):
        item = getattr(value, name, _MISSING)
        if item is not _MISSING:
            found[name] = item
    return found


@functools.lru_cache(maxsize=1024)
def _slots(cls: Any) -> tuple[str, ...]:
    return tuple(copyreg._slotnames(cls))  # type: ignore[attr-defined]  # pickle's own list; the stubs leave it out


def may_set(cls: Any, name: object) -> bool:
    """Whether an attribute of an instance may come from another process: none that stands for a method or a rule."""
    if (
        type(name) is not str
        or not name.isidentifier()
        or (name.startswith("__") and name.endswith("__"))
    ):
        return False
    if name in _slots(cls):
        return True
    known = inspect.getattr_static(cls, name, None)
    return (
        not callable(known)
        and not hasattr(type(known), "__set__")
        and not hasattr(type(known), "__func__")
    )


def set_attributes(value: object, attributes: dict[str, object], what: str) -> None:
    """Gives a new instance its attributes, without running code of its class."""
    cls: Any = type(value)
    for name, item in attributes.items():
        if not may_set(cls, name):
            raise Malformed(
                f"the {what} has an attribute {name!r:.80} that {full_name(cls)} cannot have; the sender is broken or hostile"
            )
        if name in _slots(cls):
            object.__setattr__(value, name, item)
        else:
            vars(value)[name] = item


Encoder = Callable[[Any], Any]
Decoder = Callable[[Any], Any]
Refuse = Callable[[object, str], Any]

#: What a defaultdict may make its values by.
FACTORIES: dict[str, Callable[[], object]] = {
    cls.__name__: cls
    for cls in (
        bool,
        bytes,
        bytearray,
        complex,
        dict,
        float,
        frozenset,
        int,
        list,
        set,
        str,
        tuple,
        OrderedDict,
        collections.Counter,
        deque,
    )
}
_FACTORY_NAMES = {id(factory): name for name, factory in FACTORIES.items()}


def expect(payload: object, *types: type) -> Any:
    """The payload, where it is of one of the exact types."""
    if type(payload) not in types:
        raise Malformed(
            f"its payload is a {type(payload).__name__}, not a {types[0].__name__}; the sender is broken or hostile"
        )
    return payload


def no_arguments(decoder: Decoder) -> Callable[[dict[str, Any]], Decoder]:
    """Of a type whose name has no arguments."""

    def make(arguments: dict[str, Any]) -> Decoder:
        check_arguments(arguments)
        return decoder

    return make


def check_arguments(arguments: dict[str, Any], *allowed: str) -> None:
    """Refuses arguments that a type does not have: they may say something that must not be overlooked."""
    for name in arguments:
        if name not in allowed:
            raise Unsupported(
                f"its type name has an argument {name!r:.80} that this version does not know; update wherry here"
            )


# Attributes: they travel in the type name, since paths lead through the payload.


def attributes_json(attributes: dict[str, object], cls: type) -> Any:
    """The attributes as JSON, None where there are none. Raises TypeError with the reason where they cannot travel."""
    made = {}
    for name, item in attributes.items():
        if not may_set(cls, name):
            raise TypeError(
                f"its attribute {name!r} stands in the place of something that the class defines"
            )
        try:
            made[name] = to_json(item)
        except TypeError as error:
            raise TypeError(f"its attribute {name!r} is more than plain values ({error})") from None
        except RecursionError:
            raise TypeError(f"its attribute {name!r} is nested too deeply") from None
    return made or None


def attributes_from(arguments: dict[str, Any]) -> dict[str, Any]:
    """The reverse."""
    return {
        name: from_json(item)
        for name, item in expect(arguments.get("attributes", {}), dict).items()
    }


# Dicts.

_DICT_BASES: tuple[type, ...] = (OrderedDict, defaultdict, dict)


def dict_encoder(cls: type, refuse: Refuse) -> Encoder | None:
    """For a subclass of dict."""
    base: Any = next(one for one in _DICT_BASES if issubclass(cls, one))
    class_name = None if cls is base else importable_name(cls)
    name = "python." + base.__name__
    if cls is not base and class_name is None:
        return hidden_class(cls, refuse)

    def encode(value: Any) -> Any:
        attributes = attributes_of(value)
        factory = value.default_factory if base is defaultdict else None
        factory_name = _FACTORY_NAMES.get(id(factory))
        if factory is not None and factory_name is None:
            return refuse(
                value,
                f"its default_factory is {factory!r}, and only {', '.join(FACTORIES)} and None travel: send dict(value)",
            )
        try:
            packed = attributes_json(attributes, cls) if attributes else None
        except TypeError as error:
            return refuse(value, f"{error}: delete it, or send dict(value)")
        type_name = format_type_name(
            name, **{"class": class_name, "factory": factory_name, "attributes": packed}
        )
        return Object(type_name, dict(base.items(value)))

    return encode


def hidden_class(cls: type, refuse: Refuse) -> Encoder:
    """For a class that the other side could not find."""
    reason = (
        f"{full_name(cls)} cannot be found under that name, as the other side must find it: define the class at the top of "
        "its module"
    )
    return lambda value: refuse(value, reason)


def _dict_decoder(base: Any) -> Callable[[dict[str, Any]], Decoder]:
    def make(arguments: dict[str, Any]) -> Decoder:
        check_arguments(arguments, "class", "factory", "attributes")
        cls = find_class(arguments["class"], base, base.__name__) if "class" in arguments else base
        factory = FACTORIES[arguments["factory"]] if arguments.get("factory") is not None else None
        if factory is not None and base is not defaultdict:
            raise Malformed(f"a {base.__name__} has no factory; the sender is broken or hostile")
        attributes_from(arguments)

        def decode(payload: Any) -> Any:
            # Straight from the base: a class may have a __new__, an __init__ or an update of its own.
            made: Any = base.__new__(cls)
            if factory is not None:
                defaultdict.__init__(made, factory)
            for key, item in expect(payload, dict).items():
                base.__setitem__(made, key, item)
            # Read anew each time: two values must not share what an attribute holds.
            set_attributes(made, attributes_from(arguments), base.__name__)
            return made

        return decode

    return make


# Classes with fields.


def namedtuple_encoder(cls: Any, refuse: Refuse) -> Encoder | None:
    """For a subclass of tuple with fields."""
    fields = getattr(cls, "_fields", None)
    if type(fields) is not tuple or not all(type(field) is str for field in fields):
        return None
    class_name = importable_name(cls)
    if class_name is None:
        return hidden_class(cls, refuse)
    type_name = format_type_name("python.namedtuple", **{"class": class_name})

    def encode(value: Any) -> Any:
        if len(value) != len(fields):
            return refuse(value, f"it has {len(value)} items and its class {len(fields)} fields")
        attributes = attributes_of(value)
        if attributes:
            return refuse(
                value,
                f"it has an attribute {next(iter(attributes))!r} beside its fields: delete it",
            )
        return Object(type_name, dict(zip(fields, tuple.__iter__(value))))

    return encode


def _namedtuple_decoder(arguments: dict[str, Any]) -> Decoder:
    check_arguments(arguments, "class")
    cls = find_class(arguments.get("class"), tuple, "namedtuple")
    fields = getattr(cls, "_fields", None)
    if type(fields) is not tuple:
        raise Malformed(
            f"the class {full_name(cls)} is no namedtuple here; both sides must run the same version of the program"
        )

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
        raise Malformed(
            f"the {full_name(cls)} that was sent{lacks}{' and' if lacks and has else ''}{has}; both sides must run the same "
            "version of the program"
        )


def dataclass_encoder(cls: type, refuse: Refuse) -> Encoder | None:
    """For a dataclass: its fields and whatever other attributes the instance has."""
    if not dataclasses.is_dataclass(cls):
        return None
    class_name = importable_name(cls)
    if class_name is None:
        return hidden_class(cls, refuse)
    try:
        object.__new__(cls)
    except TypeError:
        return lambda value: refuse(
            value, "it is a dataclass that has memory of another type as well"
        )
    fields = tuple(field.name for field in dataclasses.fields(cls))
    type_name = format_type_name("python.dataclass", **{"class": class_name})

    def encode(value: Any) -> Any:
        attributes = attributes_of(value)
        try:
            payload = {
                field: attributes.pop(field) if field in attributes else getattr(value, field)
                for field in fields
            }
        except AttributeError as error:
            return refuse(value, f"it has a field without a value ({error}): give it one")
        for name in attributes:
            if not may_set(cls, name):
                return refuse(
                    value,
                    f"its attribute {name!r} stands in the place of something that the class defines",
                )
        payload.update(attributes)
        return Object(type_name, payload)

    return encode


def _dataclass_decoder(arguments: dict[str, Any]) -> Decoder:
    check_arguments(arguments, "class")
    cls = find_class(arguments.get("class"), object, "dataclass")
    if not dataclasses.is_dataclass(cls):
        raise Malformed(
            f"the class {full_name(cls)} is no dataclass here; both sides must run the same version of the program"
        )
    fields = {field.name for field in dataclasses.fields(cls)}

    def decode(payload: Any) -> Any:
        _check_fields(cls, expect(payload, dict), fields, more=True)
        made = object.__new__(cls)
        for name in fields:
            object.__setattr__(made, name, payload[name])
        set_attributes(
            made, {name: item for name, item in payload.items() if name not in fields}, "dataclass"
        )
        return made

    return decode


def enum_encoder(cls: Any, refuse: Refuse) -> Encoder | None:
    """For members of an enumeration: by name; flags, which may be combined, by value."""
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
            raise Malformed(
                f"{full_name(cls)} has no member {payload!r:.80} here; both sides must run the same version of the program"
            )
        return member

    return decode


def _flag_decoder(arguments: dict[str, Any]) -> Decoder:
    check_arguments(arguments, "class")
    cls: Any = find_class(arguments.get("class"), enum.Flag, "flag")
    return lambda payload: cls(expect(payload, int))


# The rest.


def _set_decoder(cls: Callable[[list[Any]], Any]) -> Decoder:
    def decode(payload: Any) -> Any:
        made = cls(expect(payload, list))
        if len(made) != len(payload):
            raise Malformed("an element occurs twice; the sender is broken or hostile")
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


#: Exact types.
ENCODERS: dict[type, Encoder] = {
    deque: lambda value: Object(format_type_name("python.deque", maxlen=value.maxlen), list(value)),
    range: lambda value: Object("python.range", (value.start, value.stop, value.step)),
    slice: lambda value: Object("python.slice", (value.start, value.stop, value.step)),
    # The core reads every other str by itself: this one has halves of surrogate pairs in it.
    str: lambda value: Object("python.str", value.encode("utf-8", "surrogatepass")),
}

#: From a name to what makes the decoder of its arguments.
DECODERS: dict[str, Callable[[dict[str, Any]], Decoder]] = {
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
