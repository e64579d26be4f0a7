"""How the ranks of a process group of torch meet, for sending and for receiving.

There are three ways, a class each, here and in _way_harbour:

- Through the group's store, the usual one: a source leaves the card of its harbour there.
- At an address that was given: an ordinary group of all ranks.
- Over the group itself, if that is gloo: control and bytes, for `lanes="group"`.

Transports of one process over one process group share a way. It ends with the last of them.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from wherry import _core
from wherry._connection import Connection
from wherry._rendezvous import Backoff
from wherry._transfer import Deadline
from wherry.errors import (
    Aborted,
    BadBytes,
    Error,
    InvalidArgument,
    Mismatch,
    NoMemory,
    PeerLost,
    Timeout,
    Unsupported,
)
from wherry.torch import _pg
from wherry.torch._way import Berth, Way, held
from wherry.torch._way_harbour import StoreWay


class AddressWay(Way):
    """An ordinary group of all ranks of the job, at an address."""

    def __init__(self, pg: Any, address: str) -> None:
        super().__init__(pg)
        self._address = address
        self._ranks, self._world = _pg.global_ranks(pg)
        self._link: Connection | None = None

    def _join(self, deadline: Deadline) -> Connection:
        with held(self._opening, self.rank, deadline):
            self.check()
            if self._link is not None:
                return self._link
            joint = "&" if "?" in self._address else "?"
            address = f"{self._address}{joint}rank={self._ranks[self.rank]}&size={self._world}"
            options = {"timeout_ms": deadline.slice_ms(), "wait_for": 1}
            made = Connection(_core.Group.join(address, options), tells_peers=True)
            with self._lock:
                if self.usable:
                    self._link = made
            if self._link is None:
                made.close()
            self.check()
            return made

    @contextlib.contextmanager
    def serving(self, ranks: Sequence[int], deadline: Deadline) -> Iterator[Berth]:
        yield Berth(self._join(deadline), [self._ranks[rank] for rank in ranks])

    @contextlib.contextmanager
    def asking(self, source: int, deadline: Deadline) -> Iterator[Berth]:
        yield Berth(self._join(deadline), [self._ranks[source]])

    def look_again(self, source: int, link: Connection, error: Error, deadline: Deadline) -> bool:
        """A source that has left, and lives on, is waited for until it joins again."""
        rank = self._ranks[source]
        if not isinstance(error, PeerLost) or not link.returned([rank], deadline):
            return False
        poll = Backoff(deadline)
        while not link.alive(rank):
            if deadline.passed:
                raise Timeout(f"rank {source} has left the group, and did not come back in time", rank=source) from error
            poll.wait()
        return True

    def end(self) -> None:
        with self._lock:
            link = self._link
        if link is not None:
            link.close()


class GroupWay(Way):
    """Control and bytes over the group itself, one call at a time."""

    def __init__(self, pg: Any) -> None:
        super().__init__(pg)
        self._turn = threading.Lock()
        self._condition = _pg.condition_of(pg)

    def serving(self, ranks: Sequence[int], deadline: Deadline) -> contextlib.AbstractContextManager[Berth]:
        return self._session(list(ranks), deadline)

    def asking(self, source: int, deadline: Deadline) -> contextlib.AbstractContextManager[Berth]:
        return self._session([source], deadline)

    @contextlib.contextmanager
    def _session(self, peers: list[int], deadline: Deadline) -> Iterator[Berth]:
        from wherry.torch._table import PgSession

        with held(self._turn, peers[0], deadline):
            self._condition.check()
            try:
                session = PgSession(self.pg, peers, timedelta(seconds=min(deadline.left, 1e8)))
            except BaseException:
                self._condition.broken = "a transfer over it could not begin"  # what had begun was ended with the connections
                raise
            berth = Berth(Connection(session.group), peers)
            failed = True
            try:
                yield berth
                failed = not all(one.error is None or isinstance(one.error, _IN_ORDER) for one in berth.outcomes)
            except _IN_ORDER:
                failed = False
                raise
            finally:
                berth.link.close()
                session.close(failed)
                self._condition.broken = session.broken

    def end(self) -> None:
        pass


#: Failures after which nothing is under way between the two sides.
_IN_ORDER = (Mismatch, Aborted, Unsupported, BadBytes, NoMemory)


_ways: weakref.WeakKeyDictionary[Any, weakref.WeakValueDictionary[str, Way]] = weakref.WeakKeyDictionary()
_ways_lock = threading.Lock()


def _forget_in_child() -> None:
    """A fork has none of its parent's ways, and perhaps a lock that a thread of the parent's held."""
    global _ways, _ways_lock
    _ways, _ways_lock = weakref.WeakKeyDictionary(), threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)


def find_way(pg: Any, address: str | None, over_group: bool) -> Way:
    """The way of this process over a group, taken: it must be released. `pg` is what unwrap() gave."""
    name, make = _choose(pg, address, over_group)
    with _ways_lock:
        try:
            named = _ways.setdefault(pg, weakref.WeakValueDictionary())
        except TypeError:  # cannot be hashed, or not be referred to weakly
            named = weakref.WeakValueDictionary()
        way = named.get(name)
        if way is None or not way.take():
            named[name] = way = make()
            way.take()
        return way


def _choose(pg: Any, address: str | None, over_group: bool) -> tuple[str, Callable[[], Way]]:
    if over_group:
        if not _pg.is_gloo(pg):
            raise InvalidArgument(
                f"lanes='group' works over gloo only, and this process group is {_pg.backend_of(pg)}: leave lanes= out, and the "
                "ranks meet through its store"
            )
        return "group", lambda: GroupWay(pg)
    if address is None and (rendezvous := os.environ.get("WHERRY_RENDEZVOUS")):
        address = f"tcp://{rendezvous}"
    if address is not None:
        found = address
        return f"address {found}", lambda: AddressWay(pg, found)
    store = _pg.store_of(pg)
    if store is None:
        raise InvalidArgument(
            f"this process group, a {type(pg).__name__}, has no store through which its ranks could meet: pass "
            "address='tcp://HOST:PORT', the same on all ranks, or set WHERRY_RENDEZVOUS"
        )
    kept = store
    return "store", lambda: StoreWay(pg, kept)
