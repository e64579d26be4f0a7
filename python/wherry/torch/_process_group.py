"""Reads properties of a torch process group: its backend, store, ranks and hosts."""

from __future__ import annotations

import os
import socket
from typing import Any

import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined, unused-ignore]
    FileStore,
    HashStore,
    PrefixStore,
    Store,
    TCPStore,
)

from wherry._rendezvous import address_for_others, is_loopback
from wherry.errors import InvalidArgument
from wherry.torch import _private

#: The attributes in which wrapper classes store the process group that they wrap.
_INNER_NAMES = ("parent", "_pg", "pg", "_process_group", "process_group", "_wrapped")

#: Wrappers can be nested. More levels than this mean a cycle.
_MAX_DEPTH = 8


def unwrap(pg: Any) -> Any:
    """The process group inside wrappers such as torchft's. A wrapper may replace it at any time.

    A wrapper's own rank() and store belong to an empty group, so they are never used.
    """
    if pg is None:
        pg = _private._get_default_group()
    for _ in range(_MAX_DEPTH):
        inner = _inside(pg)
        if inner is None:
            _check_rank(pg)
            return pg
        pg = inner
    raise InvalidArgument(f"a {type(pg).__name__} wraps itself: pass the process group inside")


def _inside(pg: Any) -> Any:
    for name in _INNER_NAMES:
        try:
            inner = getattr(pg, name, None)
        except AssertionError as error:  # torchft raises this if the wrapper has no group yet.
            raise InvalidArgument(f"the process group cannot be used yet: {error}") from error
        if inner is None or inner is pg:
            continue
        if all(hasattr(inner, one) for one in ("rank", "size", "send", "recv")):
            return inner
    return None


def _check_rank(pg: Any) -> None:
    """Raises for a class that has a size but no rank, such as torchft's for remote groups."""
    base, own = dist.ProcessGroup, type(pg)
    if not isinstance(pg, base) or own.rank is not base.rank or own.size is base.size:
        return
    if base.size(pg) != pg.size():
        raise InvalidArgument(
            f"a {own.__name__} does not provide the rank of this process: pass a process group "
            "that does, or, with torchft, use wherry.torchft.Transport"
        )


def is_registered(pg: Any) -> bool:
    """True if torch created the group, and has not destroyed it."""
    try:
        return pg in _private.groups()
    except TypeError:  # The object cannot be hashed.
        return False


def store_of(pg: Any) -> Store | None:
    """The store that the ranks of a group share, or None."""
    found: Store | None = None
    if hasattr(pg, "get_group_store"):
        try:
            found = pg.get_group_store()
        except RuntimeError:
            found = None
    if found is None and is_registered(pg):
        found = _private.groups()[pg][1]
    return found


def backend_of(pg: Any) -> str:
    """The name of the backend for tensors in host memory, for example "gloo"."""
    if found := _private.cpu_backend(pg):
        return found.lower()
    try:
        return str(pg.name()).lower()
    except (AttributeError, RuntimeError):
        return type(pg).__name__


def is_gloo(pg: Any) -> bool:
    """True if transfers can use the group itself (`lanes="group"`).

    Only gloo supports tags and also stops accessing the memory of an abandoned operation.
    """
    return backend_of(pg) == "gloo"


def global_ranks(pg: Any) -> tuple[list[int], int]:
    """The global rank of each member of a group, and the number of ranks in the job."""
    size = pg.size()
    if dist.is_initialized() and is_registered(pg):
        return list(dist.get_process_group_ranks(pg)), dist.get_world_size()
    return list(range(size)), size


def own_rank(pg: Any) -> int:
    """The global rank of this process, which meshes and shard placements use."""
    return dist.get_rank() if dist.is_initialized() else int(pg.rank())


def host_for(pg: Any, store: Store | None) -> str:
    """The address at which the other ranks of the group reach this process.

    It is loopback if on_one_host(). Otherwise it is the address of this host on the route to the
    store's host.
    """
    known = _store_host(pg, store)
    if known is None:
        return "127.0.0.1"
    return address_for_others(
        known,
        "set MASTER_ADDR to an address that all hosts can reach, or WHERRY_INTERFACE to the name "
        "of a network interface",
    )


def on_one_host(pg: Any) -> bool:
    """True if all ranks of the group are on this host, as far as this process knows."""
    return _store_host(pg, store_of(pg)) is None


def _store_host(pg: Any, store: Store | None) -> str | None:
    """A host that all ranks can reach, or None if all ranks are on this host."""
    base = store
    while isinstance(base, PrefixStore):
        base = base.underlying_store
    here, everywhere = os.environ.get("LOCAL_WORLD_SIZE"), os.environ.get("WORLD_SIZE")
    if isinstance(base, HashStore):
        return None
    # The launcher's variables count its own ranks, so use them only for groups of these ranks.
    if (
        here is not None
        and here == everywhere
        and is_registered(pg)
        and str(dist.get_world_size()) == everywhere
    ):
        return None
    several = here is not None and everywhere is not None and here != everywhere
    if isinstance(base, TCPStore):
        known = base.host
    elif isinstance(base, FileStore) and not several:
        return None
    else:
        known = os.environ.get("MASTER_ADDR", "")
    if not known:
        return socket.gethostname() if several else None
    return None if is_loopback(known) else known
