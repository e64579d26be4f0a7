"""The names of ``torch.distributed.checkpoint._pg_transport``, for programs that use them.

``PGTransport`` is Wherry's. The functions return what torch's functions return. Wherry's transport
uses none of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed._shard.sharded_tensor.metadata import ShardedTensorMetadata
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.utils._pytree import KeyPath, TreeSpec, tree_flatten_with_path

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


def _layout(tensor: torch.Tensor) -> _TensorMeta:
    nbytes = tensor.untyped_storage().nbytes()
    return _TensorMeta(
        tensor.shape, tensor.dtype, int(tensor.storage_offset()), tensor.stride(), nbytes
    )


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    if type(tensor) is not torch.Tensor:
        raise AssertionError(f"only a torch.Tensor can be cast, not a {type(tensor)}")
    if tensor.layout is not torch.strided:
        raise NotImplementedError(
            f"a tensor of the layout {tensor.layout} has no storage that could be cast"
        )
    return tensor


def _cast_tensor(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The whole storage of a tensor as a one-dimensional tensor of another dtype. No copy."""
    storage = _plain(tensor).untyped_storage()
    if storage.nbytes() % dtype.itemsize:
        raise AssertionError(f"a storage of {storage.nbytes()} bytes cannot be read as {dtype}")
    count = storage.nbytes() // dtype.itemsize
    return torch.empty(0, dtype=dtype, device=tensor.device).set_(storage, 0, (count,), (1,))


def _prepare_tensor(tensor: torch.Tensor) -> tuple[torch.Tensor, _TensorMeta]:
    """The bytes of a tensor's storage, and the layout of the tensor in it."""
    return _cast_tensor(tensor, torch.uint8), _layout(tensor)


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
    tensors = []
    described: list[object | _TensorMeta | _DTensorMeta | _ShardedTensorMeta] = []
    for _, leaf in leaves:
        prepared = [_prepare_tensor(part) for part in _parts(leaf)]
        own = [meta for _, meta in prepared]
        tensors += [data for data, _ in prepared]
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
