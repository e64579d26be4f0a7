"""Meshes of ranks: found again in this process by what they are, or made without a word to the other ranks."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections import deque

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _resolve_process_group
from torch.distributed.device_mesh import DeviceMesh

from wherry._nodes import Mesh
from wherry.errors import Malformed

#: How often all objects of the process are looked through in vain within some seconds. Each look takes some 0.1 s, and a sender
#: decides how many meshes there are to look for.
_LOOKS_MAX = 64
_LOOKS_SECONDS = 60.0

#: The name of the only dimension of a mesh that has none, being a single rank: the library wants one at least.
POINT = ("(a single rank)",)

_lock = threading.Lock()
_nodes: weakref.WeakKeyDictionary[DeviceMesh, Mesh] = weakref.WeakKeyDictionary()
_meshes: weakref.WeakValueDictionary[Mesh, DeviceMesh] = weakref.WeakValueDictionary()
_looks: deque[float] = deque(maxlen=_LOOKS_MAX)  # when the last ones in vain were


def node_of(mesh: DeviceMesh) -> Mesh:
    """What a mesh is made of. The mesh is remembered."""
    node = _nodes.get(mesh)
    if node is None:
        ranks = mesh.mesh
        names = mesh.mesh_dim_names if ranks.ndim else POINT
        shape = tuple(ranks.shape) or (1,)
        node = Mesh(mesh.device_type, shape, tuple(ranks.flatten().tolist()), tuple(names) if names else None)
        with _lock:
            _nodes[mesh] = node
    known = _meshes.get(node)
    # Of equal ones one that can communicate: after a failure a program makes its groups, and its meshes, again.
    if known is not mesh and (known is None or _worth(mesh) > _worth(known)):
        with _lock:
            _meshes[node] = mesh
    return node


def _worth(mesh: DeviceMesh) -> int:
    """2: its process groups are there; 1: it has none; 0: they are gone, though others may have their names by now."""
    names = getattr(mesh, "_dim_group_names", None)
    if not names:
        return 1
    groups = (getattr(mesh, "_root_mesh", None) or mesh).__dict__.get("_pg_registry", {})
    try:
        for name in names:
            group = _resolve_process_group(name)
            if groups.get(name, group) is not group:
                return 0
    except Exception:
        return 0
    return 2


def mesh_of(node: Mesh, rank: int | None) -> DeviceMesh:
    """A mesh of this process, with its process groups where it has some; rank: this process, where torch does not know."""
    if dist.is_initialized():
        rank = dist.get_rank()
    found = _meshes.get(node)
    if found is None or not _fits(found, rank):
        found = _look_for(node, rank) or _make(node, rank)
        with _lock:
            _meshes[node] = found
    return found


def _fits(mesh: DeviceMesh, rank: int | None) -> bool:
    # A mesh says which of its ranks this process is.
    return _worth(mesh) > 0 and (rank is None or getattr(mesh, "_rank", rank) == rank)


def _look_for(node: Mesh, rank: int | None) -> DeviceMesh | None:
    # torch keeps no list of its meshes. One that the program has made can communicate; one that is made here cannot.
    if len(_looks) >= _LOOKS_MAX and time.monotonic() - _looks[0] < _LOOKS_SECONDS:
        return None
    found = []
    for item in gc.get_objects():
        if type(item) is DeviceMesh:
            try:
                if node_of(item) == node and _fits(item, rank):
                    found.append(item)
            except Exception:
                continue  # a part of a mesh that this process is not in, or one that is being made
    if found:
        return max(found, key=_worth)
    _looks.append(time.monotonic())
    return None


def _make(node: Mesh, rank: int | None) -> DeviceMesh:
    try:
        point = node.dim_names == POINT
        ranks = torch.tensor(node.ranks, dtype=torch.int, device="cpu").reshape(() if point else node.shape)
        return DeviceMesh(
            node.device,
            ranks,
            mesh_dim_names=None if point else node.dim_names,
            _init_backend=False,
            _rank=-1 if rank is None else rank,
        )
    except Exception as error:
        raise Malformed(f"torch cannot make a mesh of shape {node.shape} for {node.device!r}: {error}") from error


def forget() -> None:
    """Forgets all meshes: for tests."""
    with _lock:
        _nodes.clear()
        _meshes.clear()
        _looks.clear()
