"""A group that this process has joined, with its transport; and serving a state over it.

Invariants:
1. No thread is inside a call of the library when the group is left. So calls are counted, and
   closing cancels running transfers, waits for them, and then leaves.
2. A group is left once: by close(), when the last reference goes, or when the interpreter exits.
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
from typing import Any

from wherry import _core
from wherry._transfer import Deadline, Outcome, Stats, log_sent
from wherry.errors import Closed, Error, InvalidArgument, PeerLost

logger = logging.getLogger("wherry")

#: How long closing waits for the transfers that it has cancelled.
PATIENCE_SECONDS = 5.0

#: A process that leaves a group but lives on sends this message: peers may find it elsewhere.
_LEFT_TAG = 0x6661_7265
_LEFT_MS = 200

#: How long a rank that was lost without that message gets to join again, and how often to look.
_RETURN_SECONDS = 1.0
_LOOK_SECONDS = 0.005

#: The first and the longest pause of a server between two looks for receivers.
_PAUSE_SECONDS = (0.001, 0.02)

_exiting = threading.Event()


class _Inner:
    """What the finalizer needs. It does not refer to the Connection, which must be collectable."""

    def __init__(self, group: _core.Group, tells_peers: bool) -> None:
        self.process = os.getpid()
        self.group = group
        self.transport = _core.Transport(group)
        self.tells_peers = tells_peers
        self.changed = threading.Condition()
        self.inside = 0  # calls
        self.threads: collections.Counter[int] = collections.Counter()  # calls per thread
        self.cancels: set[_core.Cancel] = set()
        self.closed = False
        self.retired = False
        self.ended = False

    @contextlib.contextmanager
    def use(self, cancel: _core.Cancel | None = None) -> Iterator[None]:
        if os.getpid() != self.process:
            raise Closed("this process is a fork of the one that joined the group: join again here")
        me = threading.get_ident()
        with self.changed:
            if self.closed:
                raise Closed("this process has left the group: join again")
            self.inside += 1
            self.threads[me] += 1
            if cancel is not None:
                self.cancels.add(cancel)
        try:
            yield
        finally:
            with self.changed:
                self.inside -= 1
                self.threads[me] -= 1
                if not self.threads[me]:
                    del self.threads[me]
                if cancel is not None:
                    self.cancels.discard(cancel)
                self.changed.notify_all()
                last = self.retired and self.inside == 0
            if last:
                self.end()

    @property
    def called_from_inside(self) -> bool:
        """True if this thread is inside a call, that is, in its progress function."""
        with self.changed:
            return threading.get_ident() in self.threads

    def retire(self) -> None:
        with self.changed:
            self.retired = True
            idle = self.inside == 0
        if idle:
            self.end()

    def end(self) -> bool:
        """Leaves the group. Returns False if a call is still inside after a while."""
        if os.getpid() != self.process:
            return True
        with self.changed:
            self.closed = True
            for cancel in self.cancels:
                cancel.request()
            if not self.changed.wait_for(lambda: self.inside == 0, PATIENCE_SECONDS):
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
            "rank %d cannot leave a group: another thread still transfers over it", inner.group.rank
        )


# atexit runs functions in reverse order. weakref registers its own with the first finalizer, so
# with one made here, _exiting is set before any finalizer runs.
weakref.finalize(_finish, lambda: None)
atexit.register(_exiting.set)


class Connection:
    """A group that this process has joined, and its transport. Any thread may call it.

    ``tells_peers``: closing tells the other ranks that this process lives on.
    """

    def __init__(self, group: _core.Group, tells_peers: bool = False) -> None:
        self._inner = _Inner(group, tells_peers)
        self._finalizer = weakref.finalize(self, _finish, self._inner)
        self.rank = group.rank
        self.size = group.size

    @property
    def usable(self) -> bool:
        """True if it is open, and belongs to this process."""
        return os.getpid() == self._inner.process and not self._inner.closed

    @property
    def meeting(self) -> str:
        """The address at which others can join."""
        with self._inner.use():
            return self._inner.group.meeting

    def alive(self, rank: int) -> bool:
        """True if the rank is there, as far as is known."""
        with self._inner.use():
            return self._inner.group.alive(rank)

    @contextlib.contextmanager
    def group(self) -> Iterator[_core.Group]:
        """The group, for a short call."""
        with self._inner.use():
            yield self._inner.group

    def waiting(self) -> list[int]:
        """The ranks that have asked for a checkpoint and wait for a send."""
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
        """Sends to several ranks. Raises only if no rank could be served.

        ``again``: waits for a rank that closed its connection before it asked, but lives on.
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
        return [Outcome(rank, error, Stats._from_core(stats)) for rank, error, stats in found]

    def recv(
        self, rank: int, target: _core.State | None, codec: Any, options: Mapping[str, Any]
    ) -> tuple[Any, Stats]:
        """Receives from a rank."""
        with self._cancellable(options) as options:
            try:
                value, stats = self._inner.transport.recv(rank, target, codec, options)
            except Error as error:
                error.rank = rank if error.rank is None else error.rank
                if isinstance(error.stats, Mapping):
                    error.stats = Stats._from_core(error.stats)
                raise
        return value, Stats._from_core(stats)

    @contextlib.contextmanager
    def _cancellable(self, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Adds a Cancel, so that close() can end the transfer, unless the caller has passed one."""
        cancel = options.get("cancel") or _core.Cancel()
        with self._inner.use(None if options.get("cancel") else cancel):
            yield {**options, "cancel": cancel}

    def left(self, rank: int) -> bool:
        """True if a lost rank has closed its connection, but its process lives on."""
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
        """Waits until at least one lost rank is back, or is known to live on. Empty: none is.

        A rank that left during the handshake could not say so, and gets a moment to join again.
        ``moments`` keeps these deadlines between calls.
        """
        moments = {} if moments is None else moments
        for rank in lost:
            moments.setdefault(rank, Deadline(min(deadline.left, _RETURN_SECONDS)))
        while True:
            # When a rank joins again, the old process's message is dropped: look before and after.
            back = [r for r in lost if self.alive(r) or self.left(r) or self.alive(r)]
            pending = max((moments[rank].left for rank in lost), default=0.0)
            if back or pending <= 0 or (cancel is not None and cancel.requested):
                for rank in back:
                    del moments[rank]
                return back
            time.sleep(min(_LOOK_SECONDS, pending))

    def close_when_idle(self) -> None:
        """Leaves the group as soon as no call is inside."""
        self._inner.retire()

    def close(self) -> None:
        """Cancels running transfers, waits for them, and leaves the group. Safe to call twice."""
        if self._inner.called_from_inside:
            raise InvalidArgument(
                "a group cannot be left from inside a transfer, for example by its progress "
                "function: raise an exception there, and leave after the transfer has ended"
            )
        if not self._inner.end():
            raise InvalidArgument(
                "a transfer over this group still runs: call request() of its Cancel, then leave"
            )
        self._finalizer.detach()


# ---- serving ----


def _join(thread: threading.Thread) -> None:
    """Waits for a thread, unless it is this one: the garbage collector runs in any thread."""
    if thread is not threading.current_thread():
        thread.join()


class _Client:
    """The send to one rank, in its own thread, so that a slow one does not delay the others."""

    def __init__(
        self, connection: Connection, rank: int, state: _core.State, options: Mapping[str, Any]
    ) -> None:
        self.rank = rank
        self.cancel = _core.Cancel()
        arguments = (connection, state, {**options, "cancel": self.cancel})
        self._thread = threading.Thread(
            target=self._run, args=arguments, name="wherry-send", daemon=True
        )
        self._thread.start()

    def _run(self, connection: Connection, state: _core.State, options: Mapping[str, Any]) -> None:
        try:
            outcomes = connection.send([self.rank], state, options)
            log_sent(outcomes)
            error = next((one.error for one in outcomes if one.error), None)
        except Error as raised:
            error = raised
        if error is not None:
            logger.warning("sending to client %d failed: %s", self.rank, error)

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def join(self) -> None:
        _join(self._thread)


class Server:
    """Serves a state, in background threads, to every rank that asks, until end()."""

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
        """Starts a send to each rank that has asked since the last look."""
        self._clients = [one for one in self._clients if not one.done]
        busy = {one.rank for one in self._clients}
        connection = self._connection
        asking = [
            rank for rank in connection.waiting() if rank not in busy and connection.alive(rank)
        ]
        self._clients += [_Client(connection, rank, self._state, self._options) for rank in asking]
        self._cancel_lost()
        return bool(asking)

    def _cancel_lost(self) -> None:
        """Ends sends to lost ranks. They would wait, but a client does not come back."""
        for one in self._clients:
            if not self._connection.alive(one.rank):
                one.cancel.request()

    def end(self, patiently: bool = True) -> None:
        """Stops serving. When it returns, nobody reads the state.

        Ranks that only wait go on waiting. Running transfers may finish within the time limit of a
        transfer, if ``patiently``; then they are revoked, and the receivers get an error.
        """
        self._stop.set()
        _join(self._thread)
        until = time.monotonic() + (self._seconds if patiently else 0)
        while any(not one.done for one in self._clients) and time.monotonic() < until:
            self._cancel_lost()
            time.sleep(0.002)
        for one in self._clients:
            one.cancel.request()
        for one in self._clients:
            one.join()
        self._clients = []
