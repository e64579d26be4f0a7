"""A membership of a group with its transport: for any number of threads, and ended once, when the last of them is out.

The library wants that no thread is inside a call when a group is left. So each call is counted here, and whoever closes
ends the transfers that run, waits for them, and leaves then. The same happens when the last reference goes, and when the
interpreter ends. A process that was forked has a copy that it must not touch: calls on that one are refused.
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

#: How long a close waits for transfers that it has cancelled.
PATIENCE_SECONDS = 5.0

#: The message of a process that leaves a group and lives on: whoever waits for it may find it elsewhere.
_FAREWELL_TAG = 0x6661_7265
_FAREWELL_MS = 200

#: How long a rank that was lost without a word may take to join again, which a process that crashed seldom does, and how
#: often that is looked for.
_BACK_SECONDS = 1.0
_LOOK_SECONDS = 0.005

_exiting = threading.Event()


class _Inner:
    """All that a finalizer needs. Knows nothing of the link, which could not be collected otherwise."""

    def __init__(self, group: _core.Group, tells_peers: bool) -> None:
        self.process = os.getpid()
        self.group = group
        self.transport = _core.Transport(group)
        self.tells_peers = tells_peers
        self.changed = threading.Condition()
        self.inside = 0
        self.threads: collections.Counter[int] = collections.Counter()  # those inside, and how deep
        self.cancels: set[_core.Cancel] = set()
        self.closed = False
        self.retired = False
        self.ended = False

    @contextlib.contextmanager
    def use(self, cancel: _core.Cancel | None = None) -> Iterator[None]:
        if os.getpid() != self.process:
            raise Closed(
                "this group was joined by another process, of which this one is a fork: join it anew here"
            )
        me = threading.get_ident()
        with self.changed:
            if self.closed:
                raise Closed("the group was left in this process: join it again")
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
        """Whether this thread is inside a call: then a progress function of that call runs, which must return first."""
        with self.changed:
            return threading.get_ident() in self.threads

    def retire(self) -> None:
        with self.changed:
            self.retired = True
            idle = self.inside == 0
        if idle:
            self.end()

    def end(self) -> bool:
        """@return whether nobody is inside any more, and the group was left."""
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
            self.say_farewell()
        self.transport.close()
        self.group.leave()
        return True

    def say_farewell(self) -> None:
        for rank in range(self.group.size):
            with contextlib.suppress(Error):
                if rank != self.group.rank and self.group.alive(rank):
                    self.group.send(rank, _FAREWELL_TAG, b"", _FAREWELL_MS)


def _finish(inner: _Inner) -> None:
    if not inner.end():
        logger.warning(
            "a group of rank %d is not left: a transfer over it goes on in another thread",
            inner.group.rank,
        )


# Finalizers run at exit when atexit comes to them, which is in the reverse order of registering. Once there was one of
# them, what is registered comes before.
weakref.finalize(_finish, lambda: None)
atexit.register(_exiting.set)


class Connection:
    """A group that this process has joined, and its transport. `farewell`: tell the others when it is closed."""

    def __init__(self, group: _core.Group, tells_peers: bool = False) -> None:
        self._inner = _Inner(group, tells_peers)
        self._finalizer = weakref.finalize(self, _finish, self._inner)
        self.rank = group.rank
        self.size = group.size

    @property
    def usable(self) -> bool:
        """Whether calls are possible: of this process, and not closed."""
        return os.getpid() == self._inner.process and not self._inner.closed

    @property
    def meeting(self) -> str:
        """Where others can join."""
        with self._inner.use():
            return self._inner.group.meeting

    def alive(self, rank: int) -> bool:
        """Whether a rank is there, as far as is known."""
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
        """Sends to several ranks; says how it went for each, and raises only where nobody could be served at all.

        `again`: a rank that closed its link before it asked, and lives on, is waited for until it asks by another.
        """
        deadline = Deadline(
            options["timeout_ms"] / 1000 if options["timeout_ms"] >= 0 else math.inf
        )
        found = {one.rank: one for one in self._send(ranks, state, options)}
        moments: dict[int, Deadline] = {}
        while again and not deadline.passed:
            lost = [one.rank for one in found.values() if isinstance(one.error, PeerLost)]
            back = self.returned(lost, deadline, moments, options.get("cancel"))
            if not back:
                break
            found.update(
                (one.rank, one)
                for one in self._send(back, state, {**options, "timeout_ms": deadline.left_ms})
            )
        return [found[rank] for rank in ranks]

    def _send(
        self, ranks: Sequence[int], state: _core.State, options: Mapping[str, Any]
    ) -> list[Outcome]:
        cancel = options.get("cancel") or _core.Cancel()
        own = None if options.get("cancel") else cancel
        with self._inner.use(own):
            found = self._inner.transport.send(ranks, state, {**options, "cancel": cancel})
        return [Outcome(rank, error, Stats._from_core(stats)) for rank, error, stats in found]

    def recv(
        self, rank: int, target: _core.State | None, codec: Any, options: Mapping[str, Any]
    ) -> tuple[Any, Stats]:
        """Receives from a rank."""
        cancel = options.get("cancel") or _core.Cancel()
        own = None if options.get("cancel") else cancel
        with self._inner.use(own):
            try:
                value, stats = self._inner.transport.recv(
                    rank, target, codec, {**options, "cancel": cancel}
                )
            except Error as error:
                error.rank = rank if error.rank is None else error.rank
                if isinstance(error.stats, Mapping):
                    error.stats = Stats._from_core(error.stats)
                raise
        return value, Stats._from_core(stats)

    def left(self, rank: int) -> bool:
        """Whether a rank that was lost has said farewell: it has closed its link, and its process lives on."""
        try:
            with self._inner.use():
                self._inner.group.receive(rank, _FAREWELL_TAG, 0)
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
        """Those of some ranks that were lost which have left and live on, or are back: as soon as it is one of them.

        One that left while it was greeted could not say so, and is given a moment to join again, which `moments` keeps from
        call to call. None is left: none comes back.
        """
        moments = {} if moments is None else moments
        for rank in lost:
            moments.setdefault(rank, Deadline(min(deadline.left, _BACK_SECONDS)))
        while True:
            # What a process said is forgotten as soon as another takes its place: so that is looked for before and after.
            back = [
                rank for rank in lost if self.alive(rank) or self.left(rank) or self.alive(rank)
            ]
            pending = max((moments[rank].left for rank in lost), default=0.0)
            if back or pending <= 0 or (cancel is not None and cancel.requested):
                for rank in back:
                    del moments[rank]
                return back
            time.sleep(min(_LOOK_SECONDS, pending))

    def close_when_idle(self) -> None:
        """Leaves as soon as no call is inside."""
        self._inner.retire()

    def close(self) -> None:
        """Ends the transfers that run over it, waits for them, and leaves the group. Again: nothing."""
        if self._inner.called_from_inside:
            raise InvalidArgument(
                "a group cannot be left from inside a transfer over it, which a progress function is: raise an exception there to "
                "end the transfer, and leave when that has returned"
            )
        if not self._inner.end():
            raise InvalidArgument(
                "a transfer with a Cancel of its own still runs over this group: request that first, then leave"
            )
        self._finalizer.detach()


logger = logging.getLogger("wherry")

#: The pauses between two looks for whoever asks: the first, and the longest.
_PAUSE_SECONDS = (0.001, 0.02)


def _join(thread: threading.Thread) -> None:
    """Waits for a thread, unless it is this one: the garbage collector runs in whichever thread it likes."""
    if thread is not threading.current_thread():
        thread.join()


class _Errand:
    """The sending to one rank, in a thread of its own: one that is slow must not keep the others waiting."""

    def __init__(
        self, link: Connection, rank: int, state: _core.State, options: Mapping[str, Any]
    ) -> None:
        self.rank = rank
        self.cancel = _core.Cancel()
        self._thread = threading.Thread(
            target=self._run,
            args=(link, state, {**options, "cancel": self.cancel}),
            name="wherry-send",
            daemon=True,
        )
        self._thread.start()

    def _run(self, link: Connection, state: _core.State, options: Mapping[str, Any]) -> None:
        try:
            outcomes = link.send([self.rank], state, options)
            log_sent(outcomes)
            for one in outcomes:
                if one.error is not None:
                    logger.warning("sending to guest %d failed: %s", one.rank, one.error)
        except Error as error:
            logger.warning("sending to guest %d failed: %s", self.rank, error)

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def join(self) -> None:
        _join(self._thread)


class Server:
    """Serves a state to every rank that asks over a link, from threads of its own, until `end`."""

    def __init__(
        self, link: Connection, state: _core.State, options: Mapping[str, Any], seconds: float
    ) -> None:
        self._link = link
        self._state = state
        self._options = options
        self._seconds = seconds
        self._stop = threading.Event()
        self._errands: list[_Errand] = []
        self._thread = threading.Thread(target=self._run, name="wherry-serve", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pause = _PAUSE_SECONDS[0]
        try:
            while not self._stop.wait(pause):
                began = self._look()
                pause = _PAUSE_SECONDS[0] if began else min(pause * 1.5, _PAUSE_SECONDS[1])
        except Closed:
            return

    def _look(self) -> bool:
        """Begins to send to whoever has asked since the last look; gives up those that are gone."""
        self._errands = [one for one in self._errands if not one.done]
        busy = {one.rank for one in self._errands}
        asking = [
            rank for rank in self._link.waiting() if rank not in busy and self._link.alive(rank)
        ]
        self._errands += [_Errand(self._link, rank, self._state, self._options) for rank in asking]
        self._give_up_the_lost()
        return bool(asking)

    def _give_up_the_lost(self) -> None:
        """A rank that was lost before its send began would be waited for: it may come back, but not as a guest."""
        for one in self._errands:
            if not self._link.alive(one.rank):
                one.cancel.request()

    def end(self, patiently: bool = True) -> None:
        """Ends it; returns when nobody reads the state any more.

        Whoever only waits is left waiting. What runs may finish within the time limit of a transfer, unless this is
        impatient; then it is revoked, and the receiver knows that what it has is not valid.
        """
        self._stop.set()
        _join(self._thread)
        until = time.monotonic() + (self._seconds if patiently else 0)
        while any(not one.done for one in self._errands) and time.monotonic() < until:
            self._give_up_the_lost()
            time.sleep(0.002)
        for one in self._errands:
            one.cancel.request()
        for one in self._errands:
            one.join()
        self._errands = []
