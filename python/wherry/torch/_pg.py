"""What one can learn of a process group of torch: the group inside a wrapper, its store, its ranks, its host."""

from __future__ import annotations

import os
import socket
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, HashStore, PrefixStore, Store, TCPStore
from torch.distributed import distributed_c10d

from wherry._rendezvous import address_for_others, is_loopback
from wherry.errors import Closed, InvalidArgument

#: Where wrappers of a process group keep it.
_INSIDE = ("parent", "_pg", "pg", "_process_group", "process_group", "_wrapped")

#: A wrapper around a wrapper is known; more than this is a circle.
_DEPTH = 8


def unwrap(pg: Any) -> Any:
    """The process group inside wrappers such as torchft's, which may hold another one each time.

    A wrapper's own rank() and store are those of an empty group, so they are never asked for.
    """
    if pg is None:
        pg = distributed_c10d._get_default_group()
    for _ in range(_DEPTH):
        inner = _inside(pg)
        if inner is None:
            _check_rank(pg)
            return pg
        pg = inner
    raise InvalidArgument(f"a {type(pg).__name__} wraps itself: give the process group inside")


def _inside(pg: Any) -> Any:
    for name in _INSIDE:
        try:
            inner = getattr(pg, name, None)
        except AssertionError as error:  # how torchft says that there is none yet
            raise InvalidArgument(f"the process group cannot be used yet: {error}") from error
        if inner is not None and inner is not pg and all(hasattr(inner, one) for one in ("rank", "size", "send", "recv")):
            return inner
    return None


def _check_rank(pg: Any) -> None:
    """Refuses a class that tells its size and not its rank, such as torchft's for groups in another process."""
    base, own = dist.ProcessGroup, type(pg)
    if isinstance(pg, base) and own.rank is base.rank and own.size is not base.size and base.size(pg) != pg.size():
        raise InvalidArgument(
            f"a {own.__name__} does not tell which rank this process has in it: give a process group that does, or, with torchft, "
            "use wherry.torchft.Transport"
        )


def is_registered(pg: Any) -> bool:
    """Whether torch made the group, and has not destroyed it since."""
    try:
        return pg in distributed_c10d._world.pg_map
    except TypeError:  # cannot be hashed
        return False


def store_of(pg: Any) -> Store | None:
    """The store that the ranks of a group share; None where there is none."""
    found: Store | None = None
    if hasattr(pg, "get_group_store"):
        try:
            found = pg.get_group_store()
        except RuntimeError:
            found = None
    if found is None and is_registered(pg):
        found = distributed_c10d._world.pg_map[pg][1]
    return found


def global_ranks(pg: Any) -> tuple[list[int], int]:
    """The rank of each member in the whole job, by its rank in the group; and the size of the job."""
    size = pg.size()
    if dist.is_initialized() and is_registered(pg):
        return list(dist.get_process_group_ranks(pg)), dist.get_world_size()
    return list(range(size)), size


def own_rank(pg: Any) -> int:
    """This process as meshes and places of shards name it: its rank in the whole job."""
    return dist.get_rank() if dist.is_initialized() else int(pg.rank())


class Condition:
    """Whether a group can still carry something, for all who use it: after a timeout inside it, it cannot."""

    def __init__(self) -> None:
        self.broken = ""  # else: why

    def check(self) -> None:
        """Raises where it is broken."""
        if self.broken:
            raise Closed(f"this process group cannot be used any more, make it again: {self.broken}")


_conditions: weakref.WeakKeyDictionary[Any, Condition] = weakref.WeakKeyDictionary()


def condition_of(pg: Any) -> Condition:
    """The condition of a group, one for all."""
    try:
        return _conditions.setdefault(pg, Condition())
    except TypeError:  # cannot be hashed, or not be referred to weakly
        return Condition()


def backend_of(pg: Any) -> str:
    """The name of the backend that carries tensors in host memory: "gloo"."""
    try:
        return str(pg._get_backend(torch.device("cpu")).name()).lower()
    except (AttributeError, RuntimeError):
        pass
    try:
        return str(pg.name()).lower()
    except (AttributeError, RuntimeError):
        return type(pg).__name__


def is_gloo(pg: Any) -> bool:
    """True if the group keeps messages with different tags apart and lets go of memory that is given up: gloo alone does both."""
    return backend_of(pg) == "gloo"


def host_for(pg: Any, store: Store | None) -> str:
    """The address at which the other ranks of the group reach this process.

    Loopback where all are on one host as far as that is known; else that of this host on the way to the store's host.
    """
    towards = _host_of_store(pg, store)
    if towards is None:
        return "127.0.0.1"
    return address_for_others(towards, "set MASTER_ADDR to an address that all hosts reach, or WHERRY_INTERFACE to an interface")


def _host_of_store(pg: Any, store: Store | None) -> str | None:
    """The host that all ranks know; None where all of them are on this one."""
    base = store
    while isinstance(base, PrefixStore):
        base = base.underlying_store
    if _all_on_one_host(pg) or isinstance(base, HashStore):
        return None
    several = _said_to_be_on_several_hosts()
    if isinstance(base, TCPStore):
        known = base.host
    elif isinstance(base, FileStore) and not several:
        return None
    else:
        known = os.environ.get("MASTER_ADDR", "")
    if not known:
        return socket.gethostname() if several else None
    return None if is_loopback(known) else known


def on_one_host(pg: Any) -> bool:
    """Whether all ranks of the group are on this host, as far as is known."""
    return _host_of_store(pg, store_of(pg)) is None


def _all_on_one_host(pg: Any) -> bool:
    """What the launcher says holds for the groups that torch made of its ranks, and for no others."""
    here, everywhere = os.environ.get("LOCAL_WORLD_SIZE"), os.environ.get("WORLD_SIZE")
    return here is not None and here == everywhere and is_registered(pg) and str(dist.get_world_size()) == everywhere


def _said_to_be_on_several_hosts() -> bool:
    here, everywhere = os.environ.get("LOCAL_WORLD_SIZE"), os.environ.get("WORLD_SIZE")
    return here is not None and everywhere is not None and here != everywhere
