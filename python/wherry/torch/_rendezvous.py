"""How the ranks of a process group meet, to send and to receive.

There are three ways, one class each:

- `StoreRendezvous`, the usual one: a source leaves the ticket of its listener in the group's store.
- `AddressRendezvous`: all ranks of the job join an ordinary group at an address.
- `GroupRendezvous`: control and bytes go over the process group itself (`lanes="group"`, gloo
  only).

Invariants:

1. Transports of one process over one process group share a rendezvous. It ends with the last of
them. 2. A finalizer may call release() in any thread, even in one that holds `_lock`. So `_lock` is
   reentrant, and nothing slow happens under it.
3. Whatever may block holds `_opening`, a source's lock or `_turn` instead. No finalizer takes
these. 4. A forked process uses nothing of its parent's: `usable` is false there.
"""

from __future__ import annotations

import abc
import contextlib
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store

from wherry import _core, errors
from wherry._connection import Connection
from wherry._rendezvous import Backoff, Listener, connect_to_source
from wherry._transfer import Deadline, Outcome
from wherry.errors import Error, PeerLost
from wherry.torch import _process_group
from wherry.torch._pg_session import PgSession

#: How many connections to sources a receiver keeps for the next transfer.
_KEPT_CONNECTIONS = 2

#: Prefix of Wherry's keys in a store.
_KEY_PREFIX = "wherry/"

#: A thread waits for a lock in steps of this many seconds, so that it notices signals.
_LOCK_STEP = 0.05

#: Failures after which neither side has anything under way, so that the process group can be used
#: again.
_CLEAN_FAILURES = (
    errors.Mismatch,
    errors.Aborted,
    errors.Unsupported,
    errors.BadBytes,
    errors.NoMemory,
)


@dataclass
class Route:
    """A connection to some ranks, and these ranks as the connection numbers them."""

    connection: Connection
    ranks: list[int]
    outcomes: Sequence[Outcome] = ()  # a source fills them in


class Rendezvous(abc.ABC):
    """How this process meets the other ranks of a process group."""

    def __init__(self, pg: Any) -> None:
        self.pg = pg
        self.rank = int(pg.rank())
        self.size = int(pg.size())
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._opening = threading.Lock()
        self._users = 0
        self._closed = False

    @abc.abstractmethod
    def route(
        self, peers: Sequence[int], deadline: Deadline, sending: bool
    ) -> contextlib.AbstractContextManager[Route]:
        """A route on which these ranks will ask, for a source; a route to its source otherwise."""

    @abc.abstractmethod
    def end(self) -> None:
        """Closes what is open. Called once."""

    def should_retry(self, source: int, route: Route, error: Error, deadline: Deadline) -> bool:
        """True if a failed receive should be tried again, because the source may be elsewhere."""
        return False

    @property
    def usable(self) -> bool:
        """True if it belongs to this process and is not closed."""
        return self._process == os.getpid() and not self._closed

    def check(self) -> None:
        """Raises Closed if it is not usable."""
        if not self.usable:
            raise errors.Closed("this PGTransport was closed: make another")

    def take(self) -> bool:
        """Counts one more user. False if it was closed meanwhile."""
        with self._lock:
            if not self.usable:
                return False
            self._users += 1
            return True

    def release(self) -> None:
        """One user less. The last one closes it."""
        if self._process != os.getpid():
            return
        with self._lock:
            self._users -= 1
            last = self._users == 0 and not self._closed
            self._closed = self._closed or last
        if last:
            self.end()


@contextlib.contextmanager
def _held(lock: threading.Lock, source: int, deadline: Deadline) -> Iterator[None]:
    while not lock.acquire(timeout=min(_LOCK_STEP, deadline.left)):
        if deadline.passed:
            raise errors.Timeout(
                f"timed out: another thread is still looking for rank {source}", rank=source
            )
    try:
        yield
    finally:
        lock.release()


class StoreRendezvous(Rendezvous):
    """Listeners whose tickets are in the store.

    This process may have a listener, and connections to the listeners of other ranks.
    """

    def __init__(self, pg: Any, store: Store) -> None:
        super().__init__(pg)
        self._store = store
        self._listener: Listener | None = None
        self._connections: OrderedDict[int, tuple[str, Connection]] = (
            OrderedDict()
        )  # by source, with tickets
        self._connecting: dict[int, threading.Lock] = {}

    @contextlib.contextmanager
    def route(self, peers: Sequence[int], deadline: Deadline, sending: bool) -> Iterator[Route]:
        if sending:
            yield Route(self._listen(deadline).connection, list(peers))
        else:
            yield Route(self._connect(peers[0], deadline), list(peers))

    def _listen(self, deadline: Deadline) -> Listener:
        with _held(self._opening, self.rank, deadline):
            self.check()
            if self._listener is not None:
                return self._listener
            made = Listener(_process_group.host_for(self.pg, self._store), self.rank, self.size)
            try:
                self._publish(made.ticket.text())
                with self._lock:
                    self.check()
                    self._listener = made
            except BaseException:
                made.connection.close()
                raise
            return made

    def _publish(self, ticket: str) -> None:
        try:
            self._store.set(f"{_KEY_PREFIX}{self.rank}", ticket)
        except RuntimeError as error:
            raise PeerLost(
                f"the store of the process group does not answer: {error}; make the group again"
            ) from error

    def _read_ticket(self, rank: int) -> str | None:
        """Checks for the key before it gets it: a get that has to wait cannot be interrupted."""
        self.check()
        key = f"{_KEY_PREFIX}{rank}"
        try:
            found: bytes | None = self._store.get(key) if self._store.check([key]) else None
        except RuntimeError as error:
            raise PeerLost(
                f"the store of the process group, where the ticket of rank {rank} is kept, does "
                f"not answer: {error}; make the group again",
                rank=rank,
            ) from error
        return None if found is None else found.decode("ascii", "replace")

    def _connect(self, source: int, deadline: Deadline) -> Connection:
        with self._lock:
            connecting = self._connecting.setdefault(source, threading.Lock())
        # One thread at a time: this rank has one slot in the source's listener.
        with _held(connecting, source, deadline):
            ticket, connection = self._known(source)
            if connection is not None and self._read_ticket(source) != ticket:
                self._forget(source, connection)
                connection = None
            if connection is None:
                ticket, connection = connect_to_source(
                    lambda: self._read_ticket(source), source, self.rank, deadline
                )
            self._keep(source, ticket, connection)
        return connection

    def _known(self, source: int) -> tuple[str, Connection | None]:
        """The ticket and the connection of last time, if the source is still there."""
        with self._lock:
            ticket, connection = self._connections.get(source, ("", None))
        if connection is None or (connection.usable and connection.alive(source)):
            return ticket, connection
        self._forget(source, connection)
        return "", None

    def _keep(self, source: int, ticket: str, connection: Connection) -> None:
        with self._lock:
            if self._closed:
                old = [connection]
            else:
                self._connections[source] = (ticket, connection)
                self._connections.move_to_end(source)
                extra = max(0, len(self._connections) - _KEPT_CONNECTIONS)
                others = [one for one in self._connections if one != source][:extra]
                old = [self._connections.pop(one)[1] for one in others]
        for one in old:
            one.close_when_idle()
        self.check()

    def _forget(self, source: int, connection: Connection) -> str:
        """Closes a connection. Returns the ticket that it was made with."""
        with self._lock:
            ticket, known = self._connections.get(source, ("", None))
            if known is connection:
                del self._connections[source]
        connection.close_when_idle()
        return ticket

    def should_retry(self, source: int, route: Route, error: Error, deadline: Deadline) -> bool:
        connection = route.connection
        # Another thread has found the source elsewhere, or has closed this connection to make room.
        if isinstance(error, errors.Closed) and not connection.usable:
            return self.usable
        if not isinstance(error, PeerLost):
            return False
        left = connection.left(source)
        ticket = self._forget(source, connection)
        return left or self._read_ticket(source) not in (None, ticket)

    def end(self) -> None:
        with self._lock:
            connections = [connection for _, connection in self._connections.values()]
            self._connections.clear()
            if self._listener is not None:
                connections.append(self._listener.connection)
                self._listener = None
        for connection in connections:
            connection.close()


class AddressRendezvous(Rendezvous):
    """An ordinary group of all ranks of the job, at an address."""

    def __init__(self, pg: Any, address: str) -> None:
        super().__init__(pg)
        self._address = address
        self._ranks, self._world = _process_group.global_ranks(pg)
        self._connection: Connection | None = None

    @contextlib.contextmanager
    def route(self, peers: Sequence[int], deadline: Deadline, sending: bool) -> Iterator[Route]:
        yield Route(self._join(deadline), [self._ranks[rank] for rank in peers])

    def _join(self, deadline: Deadline) -> Connection:
        with _held(self._opening, self.rank, deadline):
            self.check()
            if self._connection is not None:
                return self._connection
            joint = "&" if "?" in self._address else "?"
            address = f"{self._address}{joint}rank={self._ranks[self.rank]}&size={self._world}"
            options = {"timeout_ms": deadline.slice_ms(), "wait_for": 1}
            made = Connection(_core.Group.join(address, options), tells_peers=True)
            with self._lock:
                if self.usable:
                    self._connection = made
            if self._connection is None:
                made.close()
            self.check()
            return made

    def should_retry(self, source: int, route: Route, error: Error, deadline: Deadline) -> bool:
        """Waits for a source that has left the group and lives on, until it joins again."""
        if not isinstance(error, PeerLost) or not route.connection.returned(route.ranks, deadline):
            return False
        backoff = Backoff(deadline)
        while not route.connection.alive(route.ranks[0]):
            if deadline.passed:
                raise errors.Timeout(
                    f"rank {source} has left the group and did not come back in time", rank=source
                ) from error
            backoff.wait()
        return True

    def end(self) -> None:
        with self._lock:
            connection = self._connection
        if connection is not None:
            connection.close()


#: Why process groups cannot be used any more. A timeout inside a gloo group breaks it for good.
_broken: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


class GroupRendezvous(Rendezvous):
    """Control and bytes over the process group itself, one call at a time."""

    def __init__(self, pg: Any) -> None:
        super().__init__(pg)
        self._turn = threading.Lock()

    @contextlib.contextmanager
    def route(self, peers: Sequence[int], deadline: Deadline, sending: bool) -> Iterator[Route]:
        with _held(self._turn, peers[0], deadline):
            if reason := _broken.get(self.pg):
                raise errors.Closed(
                    f"this process group cannot be used any more, make it again: {reason}"
                )
            try:
                session = PgSession(self.pg, peers, timedelta(seconds=min(deadline.left, 1e8)))
            except BaseException:
                # Ending the operations that had begun has closed the group's connections.
                _broken[self.pg] = "a transfer over it could not begin"
                raise
            route = Route(Connection(session.group), list(peers))
            failed = True
            try:
                yield route
                failures = [one.error for one in route.outcomes if one.error is not None]
                failed = not all(isinstance(one, _CLEAN_FAILURES) for one in failures)
            except _CLEAN_FAILURES:
                failed = False
                raise
            finally:
                route.connection.close()
                session.close(failed)
                _broken[self.pg] = session.broken

    def end(self) -> None:
        pass


# ---- which one ----

_known: weakref.WeakKeyDictionary[Any, weakref.WeakValueDictionary[str, Rendezvous]]
_known = weakref.WeakKeyDictionary()
_known_lock = threading.Lock()


def _forget_in_child() -> None:
    """A thread of the parent may have held the lock during the fork."""
    global _known, _known_lock
    _known, _known_lock = weakref.WeakKeyDictionary(), threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)


def find_rendezvous(pg: Any, address: str | None, over_group: bool) -> Rendezvous:
    """The rendezvous of this process for a group, taken: the caller must release it.

    `pg` is what unwrap() gave.
    """
    name, make = _choose(pg, address, over_group)
    with _known_lock:
        try:
            by_name = _known.setdefault(pg, weakref.WeakValueDictionary())
        except TypeError:  # pg cannot be hashed or weakly referenced
            by_name = weakref.WeakValueDictionary()
        found = by_name.get(name)
        if found is None or not found.take():
            by_name[name] = found = make()
            found.take()
        return found


def _choose(pg: Any, address: str | None, over_group: bool) -> tuple[str, Callable[[], Rendezvous]]:
    if over_group:
        if not _process_group.is_gloo(pg):
            raise errors.InvalidArgument(
                "lanes='group' works over gloo only, and this process group is "
                f"{_process_group.backend_of(pg)}: leave lanes= out, and the ranks meet through "
                "its store"
            )
        return "group", lambda: GroupRendezvous(pg)
    if address is None and (from_environment := os.environ.get("WHERRY_RENDEZVOUS")):
        address = f"tcp://{from_environment}"
    if address is not None:
        chosen = address
        return f"address {chosen}", lambda: AddressRendezvous(pg, chosen)
    store = _process_group.store_of(pg)
    if store is None:
        raise errors.InvalidArgument(
            f"this process group, a {type(pg).__name__}, has no store through which its ranks "
            "could meet: pass address='tcp://HOST:PORT', the same on all ranks, or set "
            "WHERRY_RENDEZVOUS"
        )
    shared = store
    return "store", lambda: StoreRendezvous(pg, shared)
