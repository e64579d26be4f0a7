"""The names of ``torch.distributed.checkpoint._pg_transport``, for programs that use them.

``PGTransport`` is Wherry's. The functions return what torch's functions return, but take it from
what Wherry reads: the tensors and storages of ``wherry._core.build``. Wherry's transport uses none
of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed._shard.sharded_tensor.metadata import ShardedTensorMetadata
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.utils._pytree import KeyPath, TreeSpec, tree_flatten_with_path

from wherry import _core
from wherry.torch._codec import DTYPES, TorchCodec
from wherry.torch.pg_transport import PGTransport

__all__ = [
    "PGTransport",
    "_DTensorMeta",
    "_ShardedTensorMeta",
    "_StateDictMeta",
    "_TensorMeta",
    "_cast_tensor",
    "_prepare_state_dict",
    "_prepare_tensor",
    "_timeit",
]

logger = logging.getLogger(__name__)

_BY_CODE: dict[int, torch.dtype] = {code: dtype for dtype, code in DTYPES.items()}


@dataclass
class _TensorMeta:
    """The layout of a tensor in its storage, and the size of the storage."""

    shape: torch.Size
    dtype: torch.dtype
    storage_offset: int
    stride: tuple[int, ...]
    nbytes: int


@dataclass
class _DTensorMeta:
    """A DTensor: its local part and its spec."""

    local: _TensorMeta
    spec: DTensorSpec


@dataclass
class _ShardedTensorMeta:
    """A ShardedTensor: its local shards, and the metadata of all shards."""

    local_shards_meta: list[_TensorMeta]
    local_shards_shard_metadata: list[ShardMetadata]
    sharded_tensor_metadata: ShardedTensorMetadata


@dataclass
class _StateDictMeta:
    """A state without the bytes of its tensors: its tree, and the path and value of each leaf."""

    treespec: TreeSpec
    paths: list[KeyPath]
    non_tensor_leaves: list[object | _TensorMeta | _DTensorMeta | _ShardedTensorMeta]


@contextmanager
def _timeit(name: str) -> Generator[None, None, None]:
    """Logs how long something took."""
    begin = time.perf_counter()
    yield
    logger.info("%s took %ss", name, time.perf_counter() - begin)


def _read(values: list[Any]) -> Iterator[tuple[_TensorMeta, int]]:
    """The layout of each tensor, or shard, as the core reads it, and the address of its storage."""
    state = _core.build(values, TorchCodec())
    storages = state.storages()
    for _, dtype, shape, strides, offset, number, _ in state.tensors():
        address, nbytes, _ = storages[number]
        yield (
            _TensorMeta(torch.Size(shape), _BY_CODE[dtype], offset, tuple(strides), nbytes),
            address,
        )


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    if type(tensor) is not torch.Tensor:
        raise AssertionError(f"only a torch.Tensor can be cast, not a {type(tensor)}")
    if tensor.layout is not torch.strided:
        raise NotImplementedError(
            f"a tensor of the layout {tensor.layout} has no storage that could be cast"
        )
    return tensor


def _whole(
    tensor: torch.Tensor, meta: _TensorMeta, address: int, dtype: torch.dtype
) -> torch.Tensor:
    """The storage of a tensor as a one-dimensional tensor of another dtype."""
    storage = tensor.untyped_storage()
    if storage.data_ptr() != address or meta.nbytes % dtype.itemsize:
        raise AssertionError(
            f"a storage of {meta.nbytes} bytes at {address:#x} cannot be read as {dtype}"
        )
    count = meta.nbytes // dtype.itemsize
    return torch.empty(0, dtype=dtype, device=tensor.device).set_(storage, 0, (count,), (1,))


def _cast_tensor(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The whole storage of a tensor as a one-dimensional tensor of another dtype. No copy."""
    ((meta, address),) = _read([_plain(tensor)])
    return _whole(tensor, meta, address, dtype)


def _prepare_tensor(tensor: torch.Tensor) -> tuple[torch.Tensor, _TensorMeta]:
    """The bytes of a tensor's storage, and the layout of the tensor in it."""
    ((meta, address),) = _read([_plain(tensor)])
    return _whole(tensor, meta, address, torch.uint8), meta


def _parts(leaf: object) -> list[torch.Tensor]:
    """The tensors that a leaf has in this process."""
    if isinstance(leaf, DTensor):
        return [leaf._local_tensor]
    if isinstance(leaf, ShardedTensor):
        return [shard.tensor for shard in leaf.local_shards()]
    return [leaf] if isinstance(leaf, torch.Tensor) else []


def _prepare_state_dict(
    state_dict: object, device: torch.device
) -> tuple[_StateDictMeta, list[torch.Tensor]]:
    """Describes a state, and gives the bytes of its tensors in the order of the leaves.

    `device` is not used; torch's function has it.
    """
    leaves, treespec = tree_flatten_with_path(state_dict)
    parts = [_plain(part) for _, leaf in leaves for part in _parts(leaf)]
    read = list(_read(list(parts)))
    tensors = [
        _whole(part, meta, address, torch.uint8) for part, (meta, address) in zip(parts, read)
    ]
    metas = iter([meta for meta, _ in read])
    described: list[object | _TensorMeta | _DTensorMeta | _ShardedTensorMeta] = []
    for _, leaf in leaves:
        own = [next(metas) for _ in _parts(leaf)]
        if isinstance(leaf, DTensor):
            described.append(_DTensorMeta(own[0], leaf._spec))
        elif isinstance(leaf, ShardedTensor):
            described.append(
                _ShardedTensorMeta(
                    own, [shard.metadata for shard in leaf.local_shards()], leaf.metadata()
                )
            )
        else:
            described.append(own[0] if own else leaf)
    return _StateDictMeta(treespec, [path for path, _ in leaves], described), tensors
