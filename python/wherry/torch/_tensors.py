"""Encodes tensors that the core cannot read: subclasses, wrappers and sparse tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined, unused-ignore]

from wherry import _types
from wherry._nodes import Object
from wherry._types import CannotSend, Decoder, DecoderMaker, Encoder, attributes_from
from wherry._types import check_arguments, expect, full_name, hostile, no_arguments, other_program
from wherry.errors import Unsupported
from wherry.torch import _private

_NO_DISPATCH = torch.Tensor.__torch_dispatch__


def tensor_encoder(cls: Any) -> Encoder:
    """The encoder for a subclass of torch.Tensor, or for a tensor that the core could not read."""
    if cls is torch.Tensor or cls is nn.Parameter:
        return _encode_unusual
    if issubclass(cls, UninitializedTensorMixin):
        raise CannotSend(
            "it has no shape and no memory yet: first initialize the module, or run it once"
        )
    if _private.is_fake(cls):
        raise Unsupported("a FakeTensor has no memory: send the real tensor")
    if _is_plain(cls):
        return _subclass_encoder(cls)
    if _is_wrapper(cls):
        return _wrapper_encoder(cls)
    raise CannotSend("Wherry cannot split it into tensors: send the tensors that it contains")


def _is_plain(cls: Any) -> bool:
    return cls.__torch_dispatch__ is _NO_DISPATCH and not issubclass(cls, UninitializedTensorMixin)


def _is_wrapper(cls: Any) -> bool:
    # Torch's own wrappers have special rules, or are valid in one process only.
    if cls.__module__.startswith("torch.") and not cls.__module__.startswith("torch.testing."):
        return False
    return callable(getattr(cls, "__tensor_flatten__", None)) and callable(
        getattr(cls, "__tensor_unflatten__", None)
    )


def parameter(value: torch.Tensor, node: Any) -> Any:
    """The node, wrapped as torch.Parameter if the tensor is an nn.Parameter."""
    return Object("torch.Parameter", node) if isinstance(value, nn.Parameter) else node


def as_plain(value: torch.Tensor) -> torch.Tensor:
    """A detached torch.Tensor, without the subclass, over the same memory."""
    with _private.DisableTorchFunctionSubclass():
        plain = value.detach().as_subclass(torch.Tensor)
        return plain.requires_grad_() if value.requires_grad else plain


# ---- subclasses that add only a name, methods and attributes ----


def _subclass_encoder(cls: type) -> Encoder:
    class_name = _types.importable_name(cls)
    plain = "value.as_subclass(torch.Tensor)"

    def encode(value: Any) -> Any:
        if value.layout is not torch.strided:
            raise CannotSend(f"it is a subclass with the layout {value.layout}: send {plain}")
        arguments = {"class": class_name, "attributes": _types.attributes_json(value, plain)}
        return Object(_types.format_type_name("torch.subclass", **arguments), as_plain(value))

    return encode


def _subclass_decoder(arguments: dict[str, Any]) -> Decoder:
    cls = _types.find_class(arguments, torch.Tensor, "subclass of torch.Tensor", "attributes")
    if not _is_plain(cls):
        raise other_program(f"{full_name(cls)} is not a plain subclass of torch.Tensor here")
    attributes_from(arguments)

    def decode(payload: Any) -> Any:
        if payload is None:
            return None
        plain = expect(payload, torch.Tensor)
        made = _private.make_subclass(cls, plain)
        _types.set_attributes(made, attributes_from(arguments), "tensor")
        return made

    return decode


# ---- wrappers: classes with __tensor_flatten__ and __tensor_unflatten__ ----


def _wrapper_encoder(cls: Any) -> Encoder:
    class_name = _types.importable_name(cls)

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
    cls = _types.find_class(arguments, torch.Tensor, "subclass of torch.Tensor", "requires_grad")
    if not _is_wrapper(cls):
        raise other_program(f"{full_name(cls)} does not wrap tensors here")
    requires_grad = arguments.get("requires_grad", False) is True

    def decode(payload: Any) -> Any:
        if expect(payload, dict).keys() != {"tensors", "context", "size", "stride"}:
            raise hostile("a wrapper was not sent as tensors, context, size and stride")
        tensors = expect(payload["tensors"], dict)
        if any(item is None for item in tensors.values()):
            return None
        if not all(isinstance(item, torch.Tensor) for item in tensors.values()):
            raise hostile("a part of a wrapper is not a tensor")
        size = torch.Size([expect(item, int) for item in expect(payload["size"], tuple)])
        stride = tuple(expect(item, int) for item in expect(payload["stride"], tuple))
        made = cls.__tensor_unflatten__(tensors, payload["context"], size, stride)
        if not isinstance(made, cls):
            raise other_program(
                f"{full_name(cls)}.__tensor_unflatten__ returned a {full_name(type(made))}, not a "
                f"{full_name(cls)}"
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


#: The reason why a tensor on the meta device cannot be sent.
ON_META = (
    "it has no data, because it is on the meta device: allocate it on another device first, for "
    "example with module.to_empty(device='cpu'), and initialize it"
)


def _encode_unusual(value: Any) -> Any:
    """Encodes a sparse tensor. Raises CannotSend for other tensors that the core cannot read."""
    if _private.is_functorch_wrapped_tensor(value):
        reason = (
            "it exists only inside a torch.func transform: read the state outside the transform"
        )
    elif value.is_nested:
        reason = "it is nested: send list(value.unbind())"
    elif value.device.type == "meta":
        reason = ON_META
    elif value.is_quantized:
        reason = (
            "it is quantized: send value.dequantize(), or value.int_repr() and its scale and "
            "zero point"
        )
    elif value.layout is torch.sparse_coo or value.layout in _COMPRESSED:
        return parameter(value, _encode_sparse(value))
    elif value.layout is not torch.strided:
        reason = f"its layout {value.layout} is not supported: send value.to_dense()"
    else:
        reason = (
            f"its memory ({value.dtype} on {value.device}) cannot be read: send value.cpu() or "
            "value.clone()"
        )
    raise CannotSend(reason)


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
            return Object(name, _private.coo_parts(value))
        kind, outer, inner = _COMPRESSED[value.layout]
        parts = {
            outer: getattr(value, outer)(),
            inner: getattr(value, inner)(),
            "values": value.values().detach(),
        }
        return Object(_types.format_type_name(kind, **arguments), parts)


def _sparse_decoder(name: str) -> DecoderMaker:
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
            # Torch's operators do not check indices, so received ones must be checked here.
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


def _decode_parameter(payload: Any) -> Any:
    if payload is None:
        return None
    if not isinstance(payload, torch.Tensor):
        raise hostile(f"a parameter was sent as a {type(payload).__name__}, not as a tensor")
    if type(payload) is torch.Tensor:
        return nn.Parameter(payload, payload.requires_grad)
    # For other types, nn.Parameter() also sets this attribute, but first calls an operator of the
    # tensor. For a DTensor, the result could then have another mesh, from a cache of torch.
    return _private.mark_as_parameter(payload)


DECODERS: dict[str, DecoderMaker] = {
    "torch.Parameter": no_arguments(_decode_parameter),
    "torch.subclass": _subclass_decoder,
    "torch.wrapper": _wrapper_decoder,
    **{name: _sparse_decoder(name) for name in ("torch.sparse_coo", *_LAYOUTS)},
}
