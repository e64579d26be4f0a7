"""All private and undocumented names of torch that Wherry uses. Other modules use documented ones.

If this version of torch lacks one, the call that needs it raises Unsupported, which names it.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from typing import Any

import torch
import torch.distributed as dist

from wherry.errors import Unsupported

_SHARD = "torch.distributed._shard"

#: The names by module of torch. A module is imported when a name is first used, because some of
#: these modules are slow to import.
NAMES = {
    "torch": "_neg_view",
    "torch._C": "DisableTorchFunctionSubclass",
    "torch._C._functorch": "is_functorch_wrapped_tensor",
    "torch.utils._pytree": "ConstantNode SUPPORTED_NODES",
    f"{_SHARD}.metadata": "ShardMetadata",
    f"{_SHARD}.sharded_tensor.api": "ShardedTensor",
    f"{_SHARD}.sharded_tensor.metadata": "ShardedTensorMetadata TensorProperties",
    f"{_SHARD}.sharded_tensor.shard": "Shard",
    f"{_SHARD}.sharding_spec.api": "EnumerableShardingSpec",
    f"{_SHARD}.sharding_spec.chunk_sharding_spec": "ChunkShardingSpec",
    "torch.distributed.remote_device": "_remote_device",
    "torch.distributed.tensor._dtensor_spec": "DTensorSpec TensorMeta",
    "torch.distributed.tensor.placement_types": "_StridedShard",
    "torch.distributed.distributed_c10d": "_get_default_group _world",
    "torch.distributed.checkpoint._pg_transport": "_DTensorMeta _ShardedTensorMeta _StateDictMeta "
    "_TensorMeta _cast_tensor _prepare_state_dict _prepare_tensor _timeit",
}
_MODULES = {name: module for module, names in NAMES.items() for name in names.split()}


def _lacks(name: str) -> Unsupported:
    return Unsupported(
        f"torch {torch.__version__} has no {name}, which Wherry uses: install a version of Wherry "
        "that was tested with this torch"
    )


def _name(name: str) -> Any:
    return globals()[name] if name in globals() else __getattr__(name)


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise _lacks(f"{module}.{name}") from error
    globals()[name] = found
    return found


def _read(owner: object, name: str) -> Any:
    """A private attribute of an object or a class of torch."""
    try:
        return getattr(owner, name)
    except AttributeError as error:
        kind = owner if isinstance(owner, type) else type(owner)
        raise _lacks(f"{kind.__module__}.{kind.__qualname__}.{name}") from error


# ---- tensors ----


def is_fake(cls: type) -> bool:
    """True if tensors of this class have no memory. Only a program that uses them has the class."""
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return module is not None and issubclass(cls, _read(module, "FakeTensor"))


def make_subclass(cls: type, plain: torch.Tensor) -> Any:
    """The same tensor as an instance of a subclass, without a call of the subclass's __new__."""
    return _read(torch.Tensor, "_make_subclass")(cls, plain.detach(), plain.requires_grad)


def coo_parts(value: torch.Tensor) -> dict[str, torch.Tensor]:
    """Indices and values of a sparse tensor. The documented methods need a coalesced one."""
    return {"indices": _read(value, "_indices")(), "values": _read(value, "_values")()}


def mark_as_parameter(value: Any) -> Any:
    """What nn.Parameter() does to a tensor of another class, without an operator of that class."""
    value._is_param = True
    return value


# ---- process groups ----


def groups() -> Any:
    """The groups that torch has created and not destroyed, with (backend, store) for each."""
    return _read(_name("_world"), "pg_map")


def cpu_backend(pg: Any) -> str:
    """The name of the backend for tensors in host memory; "" if the group has none."""
    try:
        return str(pg._get_backend(torch.device("cpu")).name())
    except (AttributeError, RuntimeError):
        return ""


# ---- meshes and DTensors ----


def groups_of_mesh(mesh: Any) -> list[Any]:
    """The groups with which a mesh was made; empty if this version of torch does not keep them."""
    root = getattr(mesh, "_root_mesh", None) or mesh
    return list(getattr(root, "_pg_registry", {}).values())


def rank_of_mesh(mesh: Any) -> int | None:
    """The rank for which a mesh was made; None if unknown."""
    found = getattr(mesh, "_rank", None)
    return None if found is None else int(found)


def mesh_without_groups(
    device: str, ranks: torch.Tensor, names: tuple[str, ...] | None, rank: int
) -> Any:
    """A mesh that cannot communicate."""
    make: Any = dist.device_mesh.DeviceMesh
    for argument in ("_init_backend", "_rank"):
        if argument not in inspect.signature(make).parameters:
            raise _lacks(f"argument {argument} of DeviceMesh")
    return make(device, ranks, mesh_dim_names=names, _init_backend=False, _rank=rank)


def spec_of(value: Any) -> Any:
    """The DTensorSpec of a DTensor."""
    return _read(value, "_spec")


def local_tensor_of(value: Any) -> Any:
    """The local tensor of a DTensor. to_local() would wait for communication."""
    return _read(value, "_local_tensor")


def sharded_tensor_class() -> Any:
    """ShardedTensor; None if the program has not imported it."""
    module = sys.modules.get("torch.distributed._shard.sharded_tensor")
    return None if module is None else _read(module, "ShardedTensor")


def enumerable_spec(shards: list[Any]) -> Any:
    """An EnumerableShardingSpec, without the constructor, which compares all pairs of shards."""
    cls = _name("EnumerableShardingSpec")
    spec = cls.__new__(cls)
    spec.shards = shards
    return spec


def sharded_tensor(
    shape: torch.Size, properties: Any, spec: Any, shards: list[Any], local: list[Any]
) -> Any:
    """A ShardedTensor, without torch's constructors.

    They require a process group, as many local shards as the metadata has for this rank, and pinned
    memory if the sender's was pinned.
    """
    made = _read(torch.Tensor, "_make_wrapper_subclass")(
        _name("ShardedTensor"),
        shape,
        dtype=properties.dtype,
        layout=properties.layout,
        requires_grad=properties.requires_grad,
    )
    made._sharding_spec = spec
    made._metadata = _name("ShardedTensorMetadata")(shards, shape, properties)
    made._local_shards = local
    made._init_rrefs = False
    made._sharded_tensor_id = None
    made._remote_shards = {}
    made._process_group = dist.group.WORLD if dist.is_initialized() else None
    return made
