"""A group that this process has joined, its transport, and a server that sends a state over it.

Invariants:
1. No thread is inside a call of the library when this process leaves the group. So a Connection
   counts its calls, and close() cancels transfers, waits for all calls, and only then leaves.
2. The process leaves a group once: in close(), after close_when_idle(), in the finalizer of the
   Connection, or when the interpreter exits.
3. A forked process never touches the connection of its parent: calls raise Closed.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import dataclasses
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from wherry import _core
from wherry._transfer import Deadline, Outcome, SourceStats, Stats
from wherry.errors import Cancelled, Closed, Error, InvalidArgument, PeerLost

logger = logging.getLogger("wherry")

#: How long closing waits for running calls, after it has cancelled the transfers.
PATIENCE_SECONDS = 5.0

#: A process that leaves a group without exiting sends a message with this tag to the ranks in
#: ``tells``, so that they wait for it to join again. The time limit is per rank.
_LEFT_TAG = 0x6661_7265
_LEFT_MS = 200

#: How long to wait for the return of a rank that sent no such message, and how often to check.
_RETURN_SECONDS = 1.0
_LOOK_SECONDS = 0.005

_exiting = threading.Event()


class _Inner:
    """The part of a Connection that its finalizer needs. It has no reference to the Connection."""

    def __init__(self, group: _core.Group, tells: Sequence[int]) -> None:
        self.process = os.getpid()
        self.group = group
        self.transport = _core.Transport(group)
        self.tells = tells
        self.changed = threading.Condition()
        # number of calls that are running now, per thread
        self.calls: collections.Counter[int] = collections.Counter()
        self.cancels: set[_core.Cancel] = set()
        self.closed = False
        self.retired = False
        self.ended = False

    @contextlib.contextmanager
    def use(self, cancel: _core.Cancel | None = None) -> Iterator[_core.Group]:
        if os.getpid() != self.process:
            raise Closed("this process is a forked child of the one that joined: join again here")
        me = threading.get_ident()
        with self.changed:
            if self.closed:
                raise Closed("this process has left the group: join again")
            self.calls[me] += 1
            if cancel is not None:
                self.cancels.add(cancel)
        try:
            yield self.group
        finally:
            with self.changed:
                self.calls[me] -= 1
                if not self.calls[me]:
                    del self.calls[me]
                if cancel is not None:
                    self.cancels.discard(cancel)
                self.changed.notify_all()
                last = self.retired and not self.calls
            if last:
                self.end()

    def end(self) -> bool:
        """Leaves the group. Returns False if a call still runs after PATIENCE_SECONDS."""
        if os.getpid() != self.process:
            return True
        with self.changed:
            self.closed = True
            for cancel in self.cancels:
                cancel.request()
            if not self.changed.wait_for(lambda: not self.calls, PATIENCE_SECONDS):
                return False
            if self.ended:
                return True
            self.ended = True
        if not _exiting.is_set():
            # A listener has thousands of slots, most of them empty.
            for rank in filter(self.group.alive, self.tells):
                if rank != self.group.rank:
                    with contextlib.suppress(Error):
                        self.group.send(rank, _LEFT_TAG, b"", _LEFT_MS)
        self.transport.close()
        self.group.leave()
        return True


def _finish(inner: _Inner) -> None:
    if not inner.end():
        logger.warning(
            "rank %d cannot leave its group, because another thread is still using it",
            inner.group.rank,
        )


# atexit runs functions in reverse order, and weakref registers its function when the first
# finalizer is created. So create one here: then _exiting is set before any finalizer runs.
weakref.finalize(_finish, lambda: None)
atexit.register(_exiting.set)


class Connection:
    """A group that this process has joined, and its transport. Any thread may call it.

    ``tells``: the ranks that close() tells that this process has left, but not exited.
    ``ticket`` is set by connect_to_source().
    """

    def __init__(self, group: _core.Group, tells: Sequence[int] = ()) -> None:
        self._inner = _Inner(group, tells)
        self._finalizer = weakref.finalize(self, _finish, self._inner)
        self.transport = self._inner.transport
        self.rank = group.rank
        self.size = group.size
        self.ticket = ""

    @property
    def usable(self) -> bool:
        """True if the connection is open and this process, not its parent, has joined."""
        return os.getpid() == self._inner.process and not self._inner.closed

    @property
    def meeting(self) -> str:
        """The address at which other ranks can join."""
        with self.use() as group:
            return group.meeting

    def alive(self, rank: int) -> bool:
        """True if the rank is alive, as far as this process knows."""
        with self.use() as group:
            return group.alive(rank)

    def use(
        self, cancel: _core.Cancel | None = None
    ) -> contextlib.AbstractContextManager[_core.Group]:
        """The group and `transport`, for one call. close() requests ``cancel``, and waits."""
        return self._inner.use(cancel)

    def send(
        self,
        ranks: Sequence[int],
        state: _core.State,
        options: Mapping[str, Any],
        *,
        again: bool = False,
    ) -> list[Outcome]:
        """Sends to several ranks. The error of a rank is in its outcome, and is not raised.

        ``again``: if a rank closed its connection, but its process has not exited, wait until it
        joins again, and send to it then.
        """
        ms = options["timeout_ms"]
        deadline = Deadline(ms / 1000 if ms >= 0 else math.inf)
        found = {one.rank: one for one in self._send(ranks, state, options)}
        moments: dict[int, Deadline] = {}
        while again and not deadline.passed:
            lost = [one.rank for one in found.values() if isinstance(one.error, PeerLost)]
            back = self.returned(lost, deadline, moments, options.get("cancel"))
            if not back:
                break
            more = self._send(back, state, {**options, "timeout_ms": deadline.left_ms})
            found.update((one.rank, one) for one in more)
        return [found[rank] for rank in ranks]

    def _send(
        self, ranks: Sequence[int], state: _core.State, options: Mapping[str, Any]
    ) -> list[Outcome]:
        cancel = options.get("cancel") or _core.Cancel()
        with self.use(None if options.get("cancel") else cancel):
            found = self.transport.send(ranks, state, {**options, "cancel": cancel})
        return [
            Outcome(rank, error, Stats._from_core(stats), not_needed)
            for rank, error, stats, not_needed in found
        ]

    def serve(self, state: _core.State, withdraw: _core.Cancel, options: Mapping[str, Any]) -> None:
        """Sends to every rank that asks, until ``withdraw`` is requested and all have ended."""
        with self.use(options["cancel"]):
            self.transport.serve(state, withdraw, options)

    def left(self, rank: int) -> bool:
        """True if a lost rank said that it left without exiting. Consumes its message."""
        try:
            with self.use() as group:
                group.receive(rank, _LEFT_TAG, 0)
        except Error:
            return False
        return True

    def returned(
        self,
        lost: Sequence[int],
        deadline: Deadline,
        moments: dict[int, Deadline] | None = None,
        cancel: _core.Cancel | None = None,
    ) -> list[int]:
        """Returns the lost ranks that are back, or that have left without exiting.

        Waits until there is at least one, but at most _RETURN_SECONDS per rank: a rank that left
        during the handshake could not send a message, and may join again. ``moments`` keeps the
        deadline of each rank between calls.
        """
        moments = {} if moments is None else moments
        for rank in lost:
            moments.setdefault(rank, Deadline(min(deadline.left, _RETURN_SECONDS)))
        while True:
            # When a rank joins again, its message about leaving is dropped. So check alive()
            # before and after looking for the message.
            back = [r for r in lost if self.alive(r) or self.left(r) or self.alive(r)]
            pending = max((moments[rank].left for rank in lost), default=0.0)
            if back or pending <= 0 or (cancel is not None and cancel.requested):
                for rank in back:
                    del moments[rank]
                return back
            time.sleep(min(_LOOK_SECONDS, pending))

    def close_when_idle(self) -> None:
        """Leaves the group as soon as no call runs."""
        with self._inner.changed:
            self._inner.retired = True
            idle = not self._inner.calls
        if idle:
            self._inner.end()

    def close(self) -> None:
        """Cancels transfers, except those with a caller's Cancel, and leaves the group. Safe to
        call twice."""
        if threading.get_ident() in self._inner.calls:
            raise InvalidArgument(
                "this process cannot leave the group from inside a transfer, for example in its "
                "progress function: raise an exception there, and leave after the transfer"
            )
        if not self._inner.end():
            raise InvalidArgument(
                "a transfer over this group is still running: call request() of its Cancel, then "
                "leave"
            )
        self._finalizer.detach()


class Source(NamedTuple):
    """A rank to receive from."""

    connection: Connection
    rank: int
    #: How messages name it; None: "rank N".
    name: str | None = None


def receive_from(
    ends: Sequence[Source | Error],
    numbers: Sequence[int],
    target: _core.State | None,
    codec: Any,
    options: Mapping[str, Any],
) -> tuple[Any, Stats]:
    """Receives a state from one or more sources, which may be in different groups.

    An end is a source, or the reason why it cannot be reached. Errors and statistics name sources
    by ``numbers``. Adds the statistics to errors and to exceptions of callbacks.
    """
    sources = [one for one in ends if isinstance(one, Source)]
    reached = [number for number, one in zip(numbers, ends) if isinstance(one, Source)]
    cancel = options.get("cancel") or _core.Cancel()

    def figures(found: Mapping[str, Any]) -> Stats:
        stats = Stats._from_core(found)
        known = dict(zip(reached, stats.sources))
        rows = tuple(
            SourceStats(number, error=type(one), reason=one.message)
            if isinstance(one, Error)
            else known.get(number, SourceStats(number))._replace(rank=number)
            for number, one in zip(numbers, ends)
        )
        return dataclasses.replace(stats, sources=rows)

    with contextlib.ExitStack() as stack:
        for one in {source.connection for source in sources}:
            stack.enter_context(one.use(None if options.get("cancel") else cancel))
        rows = tuple((one.connection.transport, one.rank, one.name) for one in sources)
        try:
            value, stats = _core.Transport.recv(rows, target, codec, {**options, "cancel": cancel})
        except BaseException as error:
            if isinstance(error, Error):
                ranks = dict(zip((one.rank for one in sources), reached))
                error.rank = ranks.get(-1 if error.rank is None else error.rank, reached[0])
            if isinstance(found := getattr(error, "stats", None), Mapping):
                error.stats = figures(found)  # type: ignore[attr-defined]
            raise
    return value, figures(stats)


# ---- serving ----


class Server:
    """Sends a state, in a background thread, to every rank that requests it, until end()."""

    def __init__(
        self, connection: Connection, state: _core.State, options: Mapping[str, Any], seconds: float
    ) -> None:
        self._connection = connection
        self._seconds = seconds
        self._withdraw = _core.Cancel()
        self._cancel = _core.Cancel()
        self._thread = threading.Thread(
            target=self._run, args=(state, options), name="wherry-serve", daemon=True
        )
        self._thread.start()

    def _run(self, state: _core.State, options: Mapping[str, Any]) -> None:
        try:
            self._connection.serve(state, self._withdraw, {**options, "cancel": self._cancel})
        except (Cancelled, Closed):
            pass
        except Error as error:
            logger.warning("serving a state has failed: %s", error)

    def end(self, patiently: bool = True) -> None:
        """Stops serving. When this returns, no transfer reads the state any more.

        If ``patiently``, running transfers get ``seconds`` to finish. Those still running are then
        cancelled, and their receivers get an error. Ranks whose transfer has not started keep
        waiting.
        """
        if threading.current_thread() is self._thread:  # A finalizer may run there.
            self._cancel.request()
            return
        self._withdraw.request()
        try:
            if patiently:
                self._thread.join(min(self._seconds, threading.TIMEOUT_MAX))
        finally:  # Even after a KeyboardInterrupt, nothing may continue to read the state.
            self._cancel.request()
            self._thread.join()
