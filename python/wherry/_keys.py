"""Canonical texts of keys, and what travels under them: dicts with keys that are no scalars, sets, and registered classes.

A receiver finds the place of a tensor by its path. So what lies under a key must have a path that says which key that is, and
not in which place of its dict it came. The text of a key follows from its encoded form alone: the same in every process, and
another for every other key. Keys that hold memory have no such text, nor have pickles: what lies under these is numbered, and
cannot be received into.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from wherry._buffers import CannotTravel
from wherry._nodes import Object
from wherry._types import Encoder, expect
from wherry.errors import Malformed

#: What a process without torch takes for its payload: a text must not tell the two apart.
_PLAIN = frozenset(("torch.Size", "torch.dtype", "torch.device", "torch.layout", "torch.memory_format"))

#: Longer ints are written in base 16: Python refuses to write very long ones in base 10.
_BITS_MAX = 4096


class NoText(Exception):
    """The value has no text of its own."""


class Keys:
    """The texts of keys, by the rules of a codec.

    `opaque` says of a type whether its values are to have no text: those of which a text is made when they are encoded, since that
    would double the work with each level.
    """

    def __init__(self, encode: Callable[[Any], Any], opaque: Callable[[type], bool], target: bool) -> None:
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
            return "{" + ",".join(sorted(f"{self.text(key)}:{self.text(item)}" for key, item in value.items())) + "}"
        if cls is set or cls is frozenset:
            return f"python.{cls.__name__}({','.join(sorted(map(self.text, value)))})"
        if self._opaque(cls):
            raise NoText
        node = self._encode(value)
        if type(node) is not Object or node.type_name == "python.pickle":
            raise NoText
        inside = self.text(node.payload)
        return inside if node.type_name in _PLAIN else f"{node.type_name.replace(' ', '', 1)}({inside})"

    def texts(self, values: Iterable[Any], what: str) -> list[str]:
        """The texts of some values, each another; those that have none are numbered. Raises CannotTravel."""
        made: dict[str, None] = {}
        for number, value in enumerate(values):
            try:
                text = self.text(value)
            except NoText:
                if self._target:
                    raise CannotTravel(
                        f"a {what} of it holds memory or needs a pickle, so that nothing tells which {what} of the source it is; use "
                        "names or numbers, as a state_dict() does"
                    ) from None
                text = f"#{number}"
            if text in made:
                raise CannotTravel(f"two {what}s of it cannot be told apart by what they hold, {text:.80}")
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
            dict: lambda value: Object("python.items", dict(zip(self.texts(value, "key"), value.items()))),
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
            raise Malformed("a registered class is sent as its context and its children; the sender is broken or hostile")
        context = payload["context"]
        (place,) = payload.keys() - {"context"}
        if not expect(place, str).startswith(f"{name}(") or not place.endswith(")"):
            raise Malformed("the children lie under the text of another class; the sender is broken or hostile")
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
