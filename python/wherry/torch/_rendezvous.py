"""How the ranks of a process group connect to each other, to send and to receive.

There are three ways, one class each:

- `StoreRendezvous`, the default: a source stores the ticket of its listener in the group's store.
- `AddressRendezvous`: all ranks of the job join an ordinary group at an address.
- `GroupRendezvous`: messages and bytes go over the process group itself (`lanes="group"`, gloo
  only).

Invariants:

1. In a process, all transports that connect over one process group in the same way share a
   rendezvous. The last transport closes it.
2. A finalizer may call release() in any thread, even in one that holds `_lock`. So `_lock` is
   reentrant, and is never held during slow work.
3. Code that may block holds `_opening`, a lock of `_connecting` or `_turn` instead. No finalizer
   takes these.
4. A forked process uses no object of its parent: `usable` is false there.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined, unused-ignore]

from wherry import _core, errors
from wherry._connection import Connection, Source
from wherry._rendezvous import Backoff, Listener, connect_to_all, connect_to_source
from wherry._transfer import Deadline
from wherry.errors import Error, PeerLost
from wherry.torch import _process_group
from wherry.torch._pg_session import PgSession

#: How many connections to sources a receiver keeps for the next transfer, if it has not received
#: from more of them at once.
_KEPT_CONNECTIONS = 2

#: Prefix of Wherry's keys in a store.
_KEY_PREFIX = "wherry/"

#: A thread waits for a lock in steps of this many seconds, so that Python can handle signals.
_LOCK_STEP = 0.05

#: After these errors, no operation is running on either side, so the process group stays usable.
_CLEAN_FAILURES = (
    errors.Mismatch,
    errors.Aborted,
    errors.Unsupported,
    errors.BadBytes,
    errors.NoMemory,
)


#: How some ranks are reached. At a source, all of them have the same connection. A receiver may not
#: reach some of several sources, and has an error for these instead.
Ends = Sequence[Source | Error]


class Rendezvous(abc.ABC):
    """How this process connects to the other ranks of a process group."""

    def __init__(self, pg: Any) -> None:
        self.pg = pg
        self.rank = int(pg.rank())
        self.size = int(pg.size())
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._opening = threading.Lock()
        self._own: Connection | None = None  # from _open()
        self._users = 0
        self._closed = False

    @abc.abstractmethod
    def route(
        self, peers: Sequence[int], deadline: Deadline, sending: bool, all_required: bool = False
    ) -> contextlib.AbstractContextManager[Ends]:
        """Source: the ends of a route over which these ranks will connect. Receiver: its sources.

        An exception in the ``with`` block means that the transfer failed.
        """

    def should_retry(self, source: int, end: Source, error: Error, deadline: Deadline) -> bool:
        """True if a failed receive should be repeated, because the source may be back."""
        return False

    @property
    def usable(self) -> bool:
        """True if this object was made in this process, not its parent, and is not closed."""
        return self._process == os.getpid() and not self._closed

    def check(self) -> None:
        """Raises Closed if this object is not usable."""
        if not self.usable:
            raise errors.Closed("this PGTransport was closed: create a new one")

    def _open(self, make: Callable[[], Connection], deadline: Deadline) -> Connection:
        """This process's own connection: its listener, or a group. The first call makes it."""
        with _held(self._opening, self.rank, deadline):
            self.check()
            if self._own is not None:
                return self._own
            made = make()
            with self._lock:
                if self.usable:
                    self._own = made
                    return made
            made.close()
            self.check()
            return made

    def end(self) -> None:
        """Closes all connections. release() calls this once."""
        with self._lock:
            own, self._own = self._own, None
        if own is not None:
            own.close()

    def take(self) -> bool:
        """Adds a user. Returns False if the rendezvous was closed meanwhile."""
        with self._lock:
            if not self.usable:
                return False
            self._users += 1
            return True

    def release(self) -> None:
        """Removes a user. The last one closes the rendezvous."""
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
                f"timed out: another thread still opens or uses the connection for rank {source}",
                rank=source,
            )
    try:
        yield
    finally:
        lock.release()


class StoreRendezvous(Rendezvous):
    """Connects ranks through listeners whose tickets are in the store.

    This process may have a listener, and connections to the listeners of other ranks.
    """

    def __init__(self, pg: Any, store: Store) -> None:
        super().__init__(pg)
        self._store = store
        self._connections: OrderedDict[int, Connection] = OrderedDict()  # connections by source
        self._connecting: dict[int, threading.Lock] = {}
        self._most_kept = _KEPT_CONNECTIONS

    @contextlib.contextmanager
    def route(
        self, peers: Sequence[int], deadline: Deadline, sending: bool, all_required: bool = False
    ) -> Iterator[Ends]:
        found: Sequence[Connection | Error]
        if sending:
            found = [self._open(self._listen, deadline)] * len(peers)
        else:
            with self._lock:
                self._most_kept = max(self._most_kept, len(peers))
            ways = [functools.partial(self._connect, peer) for peer in peers]
            # A connection that comes too late stays open for the next transfer.
            found = connect_to_all(ways, deadline, all_required, drop=lambda late: None)
        yield [
            one if isinstance(one, Error) else Source(one, rank) for one, rank in zip(found, peers)
        ]

    def _listen(self) -> Connection:
        made = Listener(_process_group.host_for(self.pg, self._store), self.rank, self.size)
        try:
            with _store_errors():
                self._store.set(f"{_KEY_PREFIX}{self.rank}", made.ticket.text())
        except BaseException:
            made.connection.close()
            raise
        return made.connection

    def _read_ticket(self, rank: int) -> str | None:
        """The ticket of a rank; None if it has published none."""
        self.check()
        key = f"{_KEY_PREFIX}{rank}"
        with _store_errors(rank):
            # Without the key, get() would wait, and Ctrl-C could not interrupt it.
            found: bytes | None = self._store.get(key) if self._store.check([key]) else None
        return None if found is None else found.decode("ascii", "replace")

    def _connect(self, source: int, deadline: Deadline) -> Connection:
        with self._lock:
            connecting = self._connecting.setdefault(source, threading.Lock())
        # One thread at a time, because this rank has one slot in the source's listener.
        with _held(connecting, source, deadline):
            with self._lock:
                connection = self._connections.get(source)
            if connection is not None and not self._is_current(source, connection):
                self._forget(source, connection)
                connection = None
            if connection is None:
                connection = connect_to_source(
                    lambda: self._read_ticket(source), source, self.rank, deadline
                )
            self._keep(source, connection)
        return connection

    def _is_current(self, source: int, connection: Connection) -> bool:
        """True if the source is still alive, and has not published another ticket."""
        there = connection.usable and connection.alive(source)
        return there and self._read_ticket(source) == connection.ticket

    def _keep(self, source: int, connection: Connection) -> None:
        old = []
        with self._lock:
            if self._closed:
                old.append(connection)
            else:
                self._connections[source] = connection
                self._connections.move_to_end(source)
            while len(self._connections) > self._most_kept:
                old.append(self._connections.popitem(last=False)[1])
        for one in old:
            one.close_when_idle()
        self.check()

    def _forget(self, source: int, connection: Connection) -> None:
        with self._lock:
            if self._connections.get(source) is connection:
                del self._connections[source]
        connection.close_when_idle()

    def should_retry(self, source: int, end: Source, error: Error, deadline: Deadline) -> bool:
        connection = end.connection
        # Another thread closed this connection: there was a new ticket, or too many connections.
        if isinstance(error, errors.Closed) and not connection.usable:
            return self.usable
        if not isinstance(error, PeerLost):
            return False
        left = connection.left(source)
        self._forget(source, connection)
        return left or self._read_ticket(source) not in (None, connection.ticket)

    def end(self) -> None:
        with self._lock:
            connections = list(self._connections.values())
            self._connections.clear()
        for connection in connections:
            connection.close()
        super().end()


@contextlib.contextmanager
def _store_errors(rank: int | None = None) -> Iterator[None]:
    """Turns errors of the store into PeerLost. ``rank`` is the rank whose ticket is read."""
    try:
        yield
    except RuntimeError as error:
        ticket = "" if rank is None else f", which has the ticket of rank {rank},"
        raise PeerLost(
            f"the store of the process group{ticket} does not answer: {error}; create a new "
            "process group",
            rank=rank,
        ) from error


class AddressRendezvous(Rendezvous):
    """Connects ranks through an ordinary group of all ranks of the job, at an address."""

    def __init__(self, pg: Any, address: str) -> None:
        super().__init__(pg)
        self._address = address
        self._ranks, self._world = _process_group.global_ranks(pg)

    @contextlib.contextmanager
    def route(
        self, peers: Sequence[int], deadline: Deadline, sending: bool, all_required: bool = False
    ) -> Iterator[Ends]:
        def join() -> Connection:
            joint = "&" if "?" in self._address else "?"
            address = f"{self._address}{joint}rank={self._ranks[self.rank]}&size={self._world}"
            options = {"timeout_ms": deadline.slice_ms(), "wait_for": 1}
            return Connection(_core.Group.join(address, options), tells=range(self._world))

        connection = self._open(join, deadline)
        yield [Source(connection, self._ranks[rank]) for rank in peers]

    def should_retry(self, source: int, end: Source, error: Error, deadline: Deadline) -> bool:
        """If the source has left the group, but not exited, waits until it joins again."""
        if not isinstance(error, PeerLost) or not end.connection.returned([end.rank], deadline):
            return False
        backoff = Backoff(deadline, f"rank {source}, which has left the group, to join it again")
        while not end.connection.alive(end.rank):
            if deadline.passed:
                raise errors.Timeout(
                    f"rank {source} left the group and did not join again in time", rank=source
                ) from error
            backoff.wait()
        return True


class GroupRendezvous(Rendezvous):
    """Sends messages and bytes over the process group itself, one call at a time."""

    def __init__(self, pg: Any) -> None:
        super().__init__(pg)
        self._turn = threading.Lock()

    @contextlib.contextmanager
    def route(
        self, peers: Sequence[int], deadline: Deadline, sending: bool, all_required: bool = False
    ) -> Iterator[Ends]:
        with _held(self._turn, peers[0], deadline):
            session = PgSession(self.pg, peers, timedelta(seconds=min(deadline.left, 1e8)))
            connection = Connection(session.group)
            failed = True
            try:
                yield [Source(connection, rank) for rank in peers]
                failed = False
            except _CLEAN_FAILURES as error:
                failures = [one.error for one in error.outcomes if one.error is not None]
                failed = not all(isinstance(one, _CLEAN_FAILURES) for one in failures)
                raise
            finally:
                connection.close()
                session.close(failed)


# ---- choosing a rendezvous ----

#: Keys: the id of the process group, which the rendezvous keeps alive, and the name of the way.
_known: weakref.WeakValueDictionary[tuple[int, str], Rendezvous] = weakref.WeakValueDictionary()
_known_lock = threading.Lock()


def _forget_in_child() -> None:
    """Replaces the lock, because a thread of the parent may have held it during the fork."""
    global _known, _known_lock
    _known, _known_lock = weakref.WeakValueDictionary(), threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)


def find_rendezvous(pg: Any, address: str | None, over_group: bool) -> Rendezvous:
    """This process's rendezvous for an unwrapped process group. The caller must release it."""
    name, make = _choose(pg, address, over_group)
    with _known_lock:
        found = _known.get((id(pg), name))
        if found is None or not found.take():
            _known[id(pg), name] = found = make()
            found.take()
        return found


def _choose(pg: Any, address: str | None, over_group: bool) -> tuple[str, Callable[[], Rendezvous]]:
    if over_group:
        if not _process_group.is_gloo(pg):
            raise errors.InvalidArgument(
                "lanes='group' works with gloo only, but the backend of this process group is "
                f"{_process_group.backend_of(pg)}: omit lanes= to connect through the group's store"
            )
        return "group", functools.partial(GroupRendezvous, pg)
    if address is None and (from_environment := os.environ.get("WHERRY_RENDEZVOUS")):
        address = f"tcp://{from_environment}"
    if address is not None:
        return f"address {address}", functools.partial(AddressRendezvous, pg, address)
    store = _process_group.store_of(pg)
    if store is None:
        raise errors.InvalidArgument(
            f"this process group, a {type(pg).__name__}, has no store, so its ranks cannot find "
            "each other: pass address='tcp://HOST:PORT', the same on all ranks, or set "
            "WHERRY_RENDEZVOUS"
        )
    return "store", functools.partial(StoreRendezvous, pg, store)
