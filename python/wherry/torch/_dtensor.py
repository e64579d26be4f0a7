"""DTensor: a local tensor with a mesh and placements, and back."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor as TorchDTensor
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor.placement_types import _StridedShard

from wherry._nodes import (
    PARTIAL,
    REPLICATE,
    SHARD,
    STRIDED_SHARD,
    TENSOR_REQUIRES_GRAD,
    DTensor,
    Placement,
)
from wherry._types import Refuse
from wherry.errors import Malformed
from wherry.torch import _mesh
from wherry.torch._tensors import parameter


def encode(value: Any, dtypes: dict[Any, int], refuse: Refuse) -> Any:
    """The node of a DTensor."""
    spec = value._spec
    local = value._local_tensor
    meta = spec.tensor_meta
    if type(local) is not torch.Tensor:
        return refuse(
            value, f"its local part is of the type {type(local).__name__}: redistribute it, or wait for its part, first"
        )
    if local.is_meta:
        return refuse(
            value,
            "it has no memory, being on the device meta: give it some first, with module.to_empty(device='cpu'), say",
        )
    if meta is None:
        return refuse(value, "its global shape is not known: make it by DTensor.from_local or distribute_tensor")
    placements = tuple([_placement_node(placement) for placement in spec.placements])
    if None in placements:
        return refuse(
            value,
            f"its placements are {spec.placements}, and only Replicate, Shard and Partial travel: redistribute it first",
        )
    # Only where one dimension is cut more than once may the order of the cuts be another than that of the mesh.
    if sum(placement.kind in (SHARD, STRIDED_SHARD) for placement in placements) > 1 and not _is_usual(spec):
        return refuse(value, "it is cut in another order than that of its mesh: redistribute it first")
    flags = TENSOR_REQUIRES_GRAD if value.requires_grad else 0
    mesh = _mesh.node_of(spec.mesh)
    if mesh.dim_names == _mesh.POINT:
        placements = (_placement_node(Replicate()),)
    node = DTensor(local, mesh, placements, dtypes[meta.dtype], flags, tuple(meta.shape), tuple(meta.stride))
    return parameter(value, node)


def _is_usual(spec: Any) -> bool:
    return bool(DTensorSpec(spec.mesh, spec.placements, tensor_meta=spec.tensor_meta) == spec)


def _placement_node(placement: Any) -> Any:
    cls = type(placement)
    if cls is Replicate:
        return Placement(REPLICATE, 0, 0, None)
    if cls is Shard:
        return Placement(SHARD, placement.dim, 0, None)
    if cls is _StridedShard:
        return Placement(STRIDED_SHARD, placement.dim, placement.split_factor, None)
    if cls is Partial:
        return Placement(PARTIAL, 0, 0, placement.reduce_op)
    return None


def _placement(node: Placement) -> Any:
    if node.kind == REPLICATE:
        return Replicate()
    if node.kind == SHARD:
        return Shard(node.dim)
    if node.kind == STRIDED_SHARD:
        return _StridedShard(node.dim, split_factor=node.split_factor)
    return Partial(node.reduce_op or "sum")


def restore(node: DTensor, dtype: torch.dtype, rank: int | None) -> Any:
    """A DTensor over a mesh of this process; rank: this process, where torch does not know."""
    mesh = _mesh.mesh_of(node.mesh, rank)
    try:
        meta = TensorMeta(torch.Size(node.shape), tuple(node.strides), dtype)
        placements = () if node.mesh.dim_names == _mesh.POINT else tuple(map(_placement, node.placements))
        spec = DTensorSpec(mesh, placements, tensor_meta=meta)
        requires_grad = bool(node.flags & TENSOR_REQUIRES_GRAD)
        return TorchDTensor(node.local, spec, requires_grad=requires_grad)  # type: ignore[no-untyped-call, unused-ignore]
    except Exception as error:
        raise Malformed(f"torch cannot make the DTensor that was sent: {error}") from error
