"""Small types of torch, and classes that a program has registered with torch.utils._pytree."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree

from wherry import _types
from wherry._codec import Keys
from wherry._nodes import Object
from wherry._types import (
    Decoder,
    Encoder,
    Refuse,
    check_arguments,
    expect,
    hidden_class,
    no_arguments,
)
from wherry.errors import Unsupported

# Values that have a name: torch.float32, torch.strided, torch.channels_last.


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
            raise Unsupported(f"this version of torch has no {type_name} {payload!r:.80}: update it here")
        return found

    return decode


def _size(payload: Any) -> torch.Size:
    return torch.Size([expect(size, int) for size in expect(payload, tuple)])


ENCODERS: dict[type, Encoder] = {
    torch.Size: lambda value: Object("torch.Size", tuple(value)),
    torch.device: lambda value: Object("torch.device", str(value)),
    torch.dtype: lambda value: Object("torch.dtype", str(value)),
    torch.layout: lambda value: Object("torch.layout", str(value)),
    torch.memory_format: lambda value: Object("torch.memory_format", str(value)),
}

DECODERS: dict[str, Callable[[dict[str, Any]], Decoder]] = {
    "torch.Size": no_arguments(_size),
    "torch.device": no_arguments(lambda payload: torch.device(expect(payload, str))),
    **{name: no_arguments(_named_decoder(name)) for name in _BY_NAME},
}


# Registered classes.

#: Registered by torch itself, and of no concern here.
_OWN = frozenset((tuple, list, dict, OrderedDict, defaultdict, deque, torch.Size))


def _registered(cls: type) -> Any:
    """The registration of a class; None where there is none, or where it is for torch's own use."""
    if cls in _OWN or cls.__module__.startswith("torch._"):
        return None
    return _pytree.SUPPORTED_NODES.get(cls)


def is_registered(cls: type) -> bool:
    """Whether values of a class travel as what its registration makes of them."""
    return _registered(cls) is not None


def node_encoder(cls: type, refuse: Refuse, keys: Keys) -> Encoder | None:
    """For a class that is registered."""
    node = _registered(cls)
    if node is None:
        return None
    class_name = _types.importable_name(cls)
    if class_name is None:
        return hidden_class(cls, refuse)
    name = class_name
    type_name = _types.format_type_name("torch.pytree", **{"class": name})

    def encode(value: Any) -> Any:
        children, context = node.flatten_fn(value)
        if isinstance(context, _pytree.ConstantNode):
            return refuse(value, "it is registered as a constant, without anything to send")
        return Object(type_name, keys.pack(name, context, list(children)))

    return encode


def node_decoder(keys: Keys) -> Callable[[dict[str, Any]], Decoder]:
    """The reverse."""

    def make(arguments: dict[str, Any]) -> Decoder:
        check_arguments(arguments, "class")
        cls = _types.find_class(arguments.get("class"), object, "registered class")
        node = _registered(cls)
        if node is None:
            raise Unsupported(
                f"the class {_types.full_name(cls)} is not registered in this process: call "
                "torch.utils._pytree.register_pytree_node here as in the sender"
            )

        def decode(payload: Any) -> Any:
            children, context = keys.unpack(arguments["class"], payload)
            return node.unflatten_fn(children, context)

        return decode

    return make
