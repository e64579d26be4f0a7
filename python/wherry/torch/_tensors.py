"""Tensors that the core does not read: subclasses, wrappers of other tensors, sparse tensors.

Also the reasons why some tensors cannot be sent.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined, unused-ignore]

from wherry import _types
from wherry._nodes import Object
from wherry._types import (
    Decoder,
    Encoder,
    Refuse,
    attributes_from,
    attributes_json,
    check_arguments,
    expect,
    hidden_class,
)
from wherry.errors import Malformed, Unsupported

_NO_DISPATCH = torch.Tensor.__torch_dispatch__


def tensor_encoder(cls: Any, refuse: Refuse) -> Encoder:
    """For a subclass of torch.Tensor, and for a plain tensor that the core could not read."""
    if cls is torch.Tensor or cls is nn.Parameter:
        return lambda value: _encode_unusual(value, refuse)
    if issubclass(cls, UninitializedTensorMixin):
        return lambda value: refuse(
            value,
            "it has no shape and no memory yet: run the module once, or initialize it, first",
        )
    if _is_fake(cls):
        return _refuse_fake
    if _is_plain(cls):
        return _subclass_encoder(cls, refuse)
    if _is_wrapper(cls):
        return _wrapper_encoder(cls, refuse)
    return lambda value: refuse(
        value, "torch cannot take it apart: send the tensors that it is made of"
    )


def _is_fake(cls: type) -> bool:
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return module is not None and issubclass(cls, module.FakeTensor)


def _refuse_fake(value: object) -> Any:
    raise Unsupported("a FakeTensor has no memory: send the tensor that it stands for")


def _is_plain(cls: Any) -> bool:
    return cls.__torch_dispatch__ is _NO_DISPATCH and not issubclass(cls, UninitializedTensorMixin)


def _is_wrapper(cls: Any) -> bool:
    # Torch's own wrappers have rules of their own, or exist in one process only.
    if cls.__module__.startswith("torch.") and not cls.__module__.startswith("torch.testing."):
        return False
    return callable(getattr(cls, "__tensor_flatten__", None)) and callable(
        getattr(cls, "__tensor_unflatten__", None)
    )


def parameter(value: torch.Tensor, node: Any) -> Any:
    """The node, marked as a parameter if the tensor is one."""
    return Object("torch.Parameter", node) if isinstance(value, nn.Parameter) else node


def as_plain(value: torch.Tensor) -> torch.Tensor:
    """The same memory as a plain torch.Tensor, detached."""
    with torch._C.DisableTorchFunctionSubclass():
        plain = value.detach().as_subclass(torch.Tensor)
        return plain.requires_grad_() if value.requires_grad else plain


# ---- subclasses that add only a name, methods and attributes ----


def _subclass_encoder(cls: type, refuse: Refuse) -> Encoder:
    class_name = _types.importable_name(cls)
    if class_name is None:
        return hidden_class(cls, refuse)

    def encode(value: Any) -> Any:
        if value.layout is not torch.strided:
            return refuse(
                value,
                f"it is a subclass with the layout {value.layout}: send "
                "value.as_subclass(torch.Tensor)",
            )
        try:
            attributes = attributes_json(_types.attributes_of(value), cls)
        except TypeError as error:
            return refuse(value, f"{error}: delete it, or send value.as_subclass(torch.Tensor)")
        return Object(
            _types.format_type_name(
                "torch.subclass", **{"class": class_name, "attributes": attributes}
            ),
            as_plain(value),
        )

    return encode


def _subclass_decoder(arguments: dict[str, Any]) -> Decoder:
    check_arguments(arguments, "class", "attributes")
    cls: Any = _types.find_class(arguments.get("class"), torch.Tensor, "subclass of torch.Tensor")
    if not _is_plain(cls):
        raise Malformed(
            f"{_types.full_name(cls)} is not a plain subclass of torch.Tensor here; both sides "
            "must run the same version of the program"
        )
    attributes_from(arguments)

    def decode(payload: Any) -> Any:
        if payload is None:
            return None
        plain = expect(payload, torch.Tensor)
        made = torch.Tensor._make_subclass(cls, plain.detach(), plain.requires_grad)
        _types.set_attributes(made, attributes_from(arguments), "tensor")
        return made

    return decode


# ---- wrappers: classes with __tensor_flatten__ and __tensor_unflatten__ ----


def _wrapper_encoder(cls: Any, refuse: Refuse) -> Encoder:
    class_name = _types.importable_name(cls)
    if class_name is None:
        return hidden_class(cls, refuse)

    def encode(value: Any) -> Any:
        names, context = value.__tensor_flatten__()
        type_name = _types.format_type_name(
            "torch.wrapper", **{"class": class_name, "requires_grad": value.requires_grad or None}
        )
        payload = {
            "tensors": {name: getattr(value, name) for name in names},
            "context": context,
            "size": tuple(value.size()),
            "stride": tuple(value.stride()),
        }
        return parameter(value, Object(type_name, payload))

    return encode


def _wrapper_decoder(arguments: dict[str, Any]) -> Decoder:
    check_arguments(arguments, "class", "requires_grad")
    cls: Any = _types.find_class(arguments.get("class"), torch.Tensor, "subclass of torch.Tensor")
    if not _is_wrapper(cls):
        raise Malformed(
            f"{_types.full_name(cls)} does not wrap tensors here; both sides must run the same "
            "version of the program"
        )
    requires_grad = arguments.get("requires_grad", False) is True

    def decode(payload: Any) -> Any:
        if expect(payload, dict).keys() != {"tensors", "context", "size", "stride"}:
            raise Malformed(
                "a wrapper is sent as tensors, context, size and stride; the sender is broken or "
                "hostile"
            )
        tensors = expect(payload["tensors"], dict)
        if any(item is None for item in tensors.values()):
            return None
        if not all(isinstance(item, torch.Tensor) for item in tensors.values()):
            raise Malformed("a wrapper is made of tensors; the sender is broken or hostile")
        size = torch.Size([expect(item, int) for item in expect(payload["size"], tuple)])
        stride = tuple(expect(item, int) for item in expect(payload["stride"], tuple))
        made = cls.__tensor_unflatten__(tensors, payload["context"], size, stride)
        if not isinstance(made, cls):
            raise Malformed(
                f"{_types.full_name(cls)} made a {_types.full_name(type(made))} of its parts; both "
                "sides must run the same version of the program"
            )
        return made.requires_grad_() if requires_grad and made.is_leaf else made

    return decode


# ---- sparse tensors, and tensors that cannot be sent ----

_COMPRESSED: dict[Any, tuple[str, str, str]] = {
    torch.sparse_csr: ("torch.sparse_csr", "crow_indices", "col_indices"),
    torch.sparse_csc: ("torch.sparse_csc", "ccol_indices", "row_indices"),
    torch.sparse_bsr: ("torch.sparse_bsr", "crow_indices", "col_indices"),
    torch.sparse_bsc: ("torch.sparse_bsc", "ccol_indices", "row_indices"),
}
_LAYOUTS = {name: (layout, outer, inner) for layout, (name, outer, inner) in _COMPRESSED.items()}


def _encode_unusual(value: Any, refuse: Refuse) -> Any:
    reason = _why_not(value)
    if reason is not None:
        return refuse(value, reason)
    return parameter(value, _encode_sparse(value))


def _why_not(value: Any) -> str | None:
    if torch._C._functorch.is_functorch_wrapped_tensor(value):
        return "it exists only inside a transformation of torch.func: take the state outside of it"
    if value.is_nested:
        return "it is nested: send list(value.unbind())"
    if value.device.type == "meta":
        return (
            "it has no memory, because it is on the device meta: give it some first, for example "
            "with module.to_empty(device='cpu')"
        )
    if value.is_quantized:
        return (
            "it is quantized: send value.dequantize(), or value.int_repr() and its scale and "
            "zero point"
        )
    if value.layout is torch.sparse_coo or value.layout in _COMPRESSED:
        return None
    if value.layout is not torch.strided:
        return f"it has the layout {value.layout}, which only torch reads: send value.to_dense()"
    return (
        f"its memory, {value.dtype} on {value.device}, cannot be read: send value.cpu(), or "
        "value.clone()"
    )


def _encode_sparse(value: Any) -> Object:
    arguments: dict[str, object] = {
        "requires_grad": value.requires_grad or None,
        "size": list(value.shape),
    }
    with torch.no_grad():
        if value.layout is torch.sparse_coo:
            name = _types.format_type_name(
                "torch.sparse_coo", coalesced=value.is_coalesced() or None, **arguments
            )
            return Object(name, {"indices": value._indices(), "values": value._values()})
        kind, outer, inner = _COMPRESSED[value.layout]
        parts = {
            outer: getattr(value, outer)(),
            inner: getattr(value, inner)(),
            "values": value.values().detach(),
        }
        return Object(_types.format_type_name(kind, **arguments), parts)


def _sparse_decoder(name: str) -> Callable[[dict[str, Any]], Decoder]:
    layout, outer, inner = _LAYOUTS.get(name, (torch.sparse_coo, "indices", "indices"))

    def make(arguments: dict[str, Any]) -> Decoder:
        check_arguments(arguments, "size", "requires_grad", "coalesced")
        size = [expect(item, int) for item in expect(arguments.get("size"), list)]
        requires_grad = arguments.get("requires_grad", False) is True
        coalesced = arguments.get("coalesced", False) is True

        def decode(payload: Any) -> Any:
            parts = expect(payload, dict)
            if any(item is None for item in parts.values()):
                return None
            first, second, values = (
                expect(parts[part], torch.Tensor) for part in (outer, inner, "values")
            )
            # Indices from elsewhere are checked: operators of torch trust them.
            if layout is torch.sparse_coo:
                made = torch.sparse_coo_tensor(
                    first, values, size, is_coalesced=coalesced, check_invariants=True
                )
            else:
                made = torch.sparse_compressed_tensor(
                    first, second, values, size, layout=layout, check_invariants=True
                )
            return made.requires_grad_() if requires_grad else made

        return decode

    return make


def _parameter_decoder(arguments: dict[str, Any]) -> Decoder:
    check_arguments(arguments)

    def decode(payload: Any) -> Any:
        if payload is None:
            return None
        if not isinstance(payload, torch.Tensor):
            raise Malformed("a parameter is made of a tensor; the sender is broken or hostile")
        if type(payload) is torch.Tensor:
            return nn.Parameter(payload, payload.requires_grad)
        # What nn.Parameter does for other types, without an operator: those of DTensor answer with
        # a mesh from a cache.
        payload._is_param = True
        return payload

    return decode


DECODERS: dict[str, Callable[[dict[str, Any]], Decoder]] = {
    "torch.Parameter": _parameter_decoder,
    "torch.subclass": _subclass_decoder,
    "torch.wrapper": _wrapper_decoder,
    **{name: _sparse_decoder(name) for name in ("torch.sparse_coo", *_LAYOUTS)},
}
