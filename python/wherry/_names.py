"""Names of types as they travel: `python.OrderedDict`, `python.namedtuple {"class":"mod.Point"}`.

A name, and where it has arguments one space and a JSON object in ASCII, without spaces, its keys sorted. docs/python-types.md has the
list. Nothing that a name says is imported or executed: a class is found only where this process has it already.
"""

from __future__ import annotations

import copyreg
import functools
import inspect
import json
import math
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NoReturn

from wherry.errors import Malformed, Unsupported

_MISSING = object()


def write(name: str, **arguments: object) -> str:
    """The text of a type name. Arguments that are None are left out."""
    given = {key: value for key, value in arguments.items() if value is not None}
    if not given:
        return name
    return name + " " + json.dumps(given, sort_keys=True, separators=(",", ":"), allow_nan=False)


def read(text: str) -> tuple[str, dict[str, Any]]:
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


def name_of(cls: type) -> str:
    """What people know a class by."""
    module = cls.__module__
    return cls.__qualname__ if module == "builtins" else f"{module}.{cls.__qualname__}"


def travelling_name(cls: type) -> str | None:
    """The name by which another process finds the class, or None where this one could not find it by that either."""
    name = f"{cls.__module__}.{cls.__qualname__}"
    return name if _look_up(name) is cls else None


def find_class(name: object, base: type, what: str) -> type:
    """The class of that name which this process has, and which is a subclass of base; what: in words, for errors."""
    if type(name) is not str:
        raise Malformed(f"the type name of a {what} names no class; the sender is broken or hostile")
    cls = _look_up(name)
    if cls is None:
        raise Unsupported(
            f"the {what} is of the class {name}, which is not known in this process; import the module that defines it "
            "before receiving (a class can only be found under its own name, at the top of its module or in another class)"
        )
    if not issubclass(cls, base):
        raise Malformed(f"the class {name} is no {what} here; both sides must run the same version of the program")
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
    raise TypeError(name_of(cls))


def _dict_to_json(value: Any) -> Any:
    if type(value) is OrderedDict and vars(value):
        raise TypeError("an OrderedDict with attributes")
    keys = list(value)
    # Sorting the keys must not lose their order.
    if type(value) is dict and all(type(key) is str for key in keys) and keys == sorted(keys) and "$" not in value:
        return {key: to_json(item) for key, item in value.items()}
    return {"$": type(value).__name__, "items": [[to_json(key), to_json(item)] for key, item in value.items()]}


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
    if type(name) is not str or not name.isidentifier() or (name.startswith("__") and name.endswith("__")):
        return False
    if name in _slots(cls):
        return True
    known = inspect.getattr_static(cls, name, None)
    return not callable(known) and not hasattr(type(known), "__set__") and not hasattr(type(known), "__func__")


def set_attributes(value: object, attributes: dict[str, object], what: str) -> None:
    """Gives a new instance its attributes, without running code of its class."""
    cls: Any = type(value)
    for name, item in attributes.items():
        if not may_set(cls, name):
            raise Malformed(
                f"the {what} has an attribute {name!r:.80} that {name_of(cls)} cannot have; the sender is broken or hostile"
            )
        if name in _slots(cls):
            object.__setattr__(value, name, item)
        else:
            vars(value)[name] = item
