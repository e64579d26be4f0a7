"""What every way to meet the other ranks of a process group has."""

from __future__ import annotations

import abc
import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from wherry._connection import Connection
from wherry._transfer import Deadline, Outcome
from wherry.errors import Closed, Error, Timeout


@dataclass
class Berth:
    """A link, and the ranks that were asked for as it names them. A source notes how it went, before it goes."""

    link: Connection
    ranks: list[int]
    outcomes: Sequence[Outcome] = ()


class Way(abc.ABC):
    """A way to meet the other ranks of a process group."""

    def __init__(self, pg: Any) -> None:
        self.pg = pg
        self.rank = int(pg.rank())
        self.size = int(pg.size())
        self.process = os.getpid()
        # Finalizers take it too, in whichever thread the collector runs, also inside it: so nothing that takes long is done there.
        self._lock = threading.RLock()
        self._opening = threading.Lock()  # for what takes long; no finalizer takes it
        self._users = 0
        self._closed = False

    @abc.abstractmethod
    def serving(self, ranks: Sequence[int], deadline: Deadline) -> contextlib.AbstractContextManager[Berth]:
        """For a source: a link on which these ranks will ask."""

    @abc.abstractmethod
    def asking(self, source: int, deadline: Deadline) -> contextlib.AbstractContextManager[Berth]:
        """For a receiver: a link that reaches a source."""

    @abc.abstractmethod
    def end(self) -> None:
        """Closes what is open. Called once."""

    def look_again(self, source: int, link: Connection, error: Error, deadline: Deadline) -> bool:
        """Whether a receive that failed over a link is worth another try: the source may be elsewhere now."""
        return False

    @property
    def usable(self) -> bool:
        """Whether it is of this process, and not closed."""
        return self.process == os.getpid() and not self._closed

    def check(self) -> None:
        """Raises where it was closed, for those that wait for somebody."""
        if not self.usable:
            raise Closed("this PGTransport was closed: make another")

    def take(self) -> bool:
        """Counts a transport that uses it. @return False where it was closed meanwhile."""
        with self._lock:
            if not self.usable:
                return False
            self._users += 1
            return True

    def release(self) -> None:
        """The transport is gone; with the last one the way ends. In a fork of the process nothing is touched."""
        if self.process != os.getpid():
            return
        with self._lock:
            self._users -= 1
            last = self._users == 0 and not self._closed
            self._closed = self._closed or last
        if last:
            self.end()


@contextlib.contextmanager
def held(lock: threading.Lock, source: int, deadline: Deadline) -> Iterator[None]:
    """A lock, waited for in slices that a signal can end."""
    while not lock.acquire(timeout=min(0.05, deadline.left)):
        if deadline.passed:
            raise Timeout(f"timed out: another thread is still looking for rank {source}", rank=source)
    try:
        yield
    finally:
        lock.release()
