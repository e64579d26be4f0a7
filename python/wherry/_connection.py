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
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from wherry import _core
from wherry._transfer import Deadline, Outcome, Stats, log_sent, raise_first
from wherry.errors import Closed, Error, InvalidArgument, PeerLost

logger = logging.getLogger("wherry")

#: How long closing waits for running calls, after it has cancelled the transfers.
PATIENCE_SECONDS = 5.0

#: With ``tells_peers``, a process that leaves a group without exiting sends a message with this tag
#: to each peer, so that the peers wait for it to join again. The time limit is per peer.
_LEFT_TAG = 0x6661_7265
_LEFT_MS = 200

#: How long to wait for the return of a rank that sent no such message, and how often to check.
_RETURN_SECONDS = 1.0
_LOOK_SECONDS = 0.005

#: A server checks for new receivers at growing intervals. These are the shortest and the longest.
_PAUSE_SECONDS = (0.001, 0.02)

_exiting = threading.Event()


class _Inner:
    """The part of a Connection that its finalizer needs. It has no reference to the Connection."""

    def __init__(self, group: _core.Group, tells_peers: bool) -> None:
        self.process = os.getpid()
        self.group = group
        self.transport = _core.Transport(group)
        self.tells_peers = tells_peers
        self.changed = threading.Condition()
        self.calls: collections.Counter[int] = collections.Counter()  # running now, per thread
        self.cancels: set[_core.Cancel] = set()
        self.closed = False
        self.retired = False
        self.ended = False

    @contextlib.contextmanager
    def use(self, cancel: _core.Cancel | None = None) -> Iterator[None]:
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
            yield
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
        if self.tells_peers and not _exiting.is_set():
            for rank in range(self.group.size):
                with contextlib.suppress(Error):
                    if rank != self.group.rank and self.group.alive(rank):
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

    ``tells_peers``: close() tells the other ranks that this process has left, but not exited.
    ``ticket`` is set by connect_to_source().
    """

    def __init__(self, group: _core.Group, tells_peers: bool = False) -> None:
        self._inner = _Inner(group, tells_peers)
        self._finalizer = weakref.finalize(self, _finish, self._inner)
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
        with self._inner.use():
            return self._inner.group.meeting

    def alive(self, rank: int) -> bool:
        """True if the rank is alive, as far as this process knows."""
        with self._inner.use():
            return self._inner.group.alive(rank)

    @contextlib.contextmanager
    def group(self) -> Iterator[_core.Group]:
        """Yields the group for a short call. close() waits until the block ends."""
        with self._inner.use():
            yield self._inner.group

    def waiting(self) -> list[int]:
        """The ranks that have requested a state and wait for a send, at most 256."""
        with self._inner.use():
            return self._inner.transport.waiting()

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
        with self._cancellable(options) as options:
            found = self._inner.transport.send(ranks, state, options)
        return [
            Outcome(rank, error, Stats._from_core(stats), not_needed)
            for rank, error, stats, not_needed in found
        ]

    def recv(
        self,
        ranks: Sequence[int],
        target: _core.State | None,
        codec: Any,
        options: Mapping[str, Any],
    ) -> tuple[Any, Stats]:
        """Receives a state. Adds the first rank and the statistics to errors."""
        with self._cancellable(options) as options:
            try:
                value, stats = self._inner.transport.recv(ranks, target, codec, options)
            except Error as error:
                error.rank = ranks[0] if error.rank is None else error.rank
                if isinstance(error.stats, Mapping):
                    error.stats = Stats._from_core(error.stats)
                raise
        return value, Stats._from_core(stats)

    @contextlib.contextmanager
    def _cancellable(self, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Adds a Cancel with which close() can end the transfer, unless the caller passed one."""
        cancel = options.get("cancel") or _core.Cancel()
        with self._inner.use(None if options.get("cancel") else cancel):
            yield {**options, "cancel": cancel}

    def left(self, rank: int) -> bool:
        """True if a lost rank said that it left without exiting. Consumes its message."""
        try:
            with self._inner.use():
                self._inner.group.receive(rank, _LEFT_TAG, 0)
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
        """Cancels transfers, except those with a caller's Cancel. Leaves. Safe to call twice."""
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


# ---- serving ----


def _join(thread: threading.Thread) -> None:
    """Waits until a thread ends. Does nothing in that thread itself: a finalizer may run there."""
    if thread is not threading.current_thread():
        thread.join()


class _Client(NamedTuple):
    """The send to one rank. It has its own thread, so that a slow rank does not delay others."""

    rank: int
    cancel: _core.Cancel
    thread: threading.Thread


class Server:
    """Sends a state, in background threads, to every rank that requests it, until end()."""

    def __init__(
        self, connection: Connection, state: _core.State, options: Mapping[str, Any], seconds: float
    ) -> None:
        self._connection = connection
        self._state = state
        self._options = options
        self._seconds = seconds
        self._stop = threading.Event()
        self._clients: list[_Client] = []
        self._thread = threading.Thread(target=self._run, name="wherry-serve", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pause = _PAUSE_SECONDS[0]
        with contextlib.suppress(Closed):
            while not self._stop.wait(pause):
                found = self._look()
                pause = _PAUSE_SECONDS[0] if found else min(pause * 1.5, _PAUSE_SECONDS[1])

    def _look(self) -> bool:
        """Starts a send to each new rank that waits for one. Returns True if there was any."""
        self._clients = [one for one in self._clients if one.thread.is_alive()]
        busy = {one.rank for one in self._clients}
        found = False
        for rank in self._connection.waiting():
            if rank not in busy and self._connection.alive(rank):
                self._clients.append(self._start_send(rank))
                found = True
        self._cancel_lost()
        return found

    def _start_send(self, rank: int) -> _Client:
        cancel = _core.Cancel()

        def send() -> None:
            try:
                options = {**self._options, "cancel": cancel}
                outcomes = self._connection.send([rank], self._state, options)
                log_sent(outcomes)
                raise_first(outcomes)
            except Error as error:
                logger.warning("sending to client %d failed: %s", rank, error)

        thread = threading.Thread(target=send, name="wherry-send", daemon=True)
        thread.start()
        return _Client(rank, cancel, thread)

    def _cancel_lost(self) -> None:
        """Cancels sends to lost ranks. Otherwise they would wait for ranks that do not return."""
        for one in self._clients:
            if not self._connection.alive(one.rank):
                one.cancel.request()

    def end(self, patiently: bool = True) -> None:
        """Stops serving. When this returns, no transfer reads the state any more.

        If ``patiently``, running transfers get ``seconds`` to finish. Those still running are then
        cancelled, and their receivers get an error. Ranks whose transfer has not started keep
        waiting.
        """
        self._stop.set()
        _join(self._thread)
        until = time.monotonic() + (self._seconds if patiently else 0)
        while any(one.thread.is_alive() for one in self._clients) and time.monotonic() < until:
            self._cancel_lost()
            time.sleep(0.002)
        for one in self._clients:
            one.cancel.request()
        for one in self._clients:
            _join(one.thread)
        self._clients = []
