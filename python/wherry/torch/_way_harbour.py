"""Ways by harbours: a source opens one, and a receiver enters it with its card."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch._C._distributed_c10d import Store

from wherry._connection import Connection
from wherry._rendezvous import Listener, connect_to_source
from wherry._transfer import Deadline
from wherry.errors import Closed, Error, PeerLost
from wherry.torch import _pg
from wherry.torch._way import Berth, Way, held

#: How many sources a receiver stays with for the next time.
_KEPT = 2

#: The names of Wherry's keys in a store begin with this.
_PREFIX = "wherry/"


class HarbourWay(Way):
    """The harbour of this process, and those of others that it is in."""

    def __init__(self, pg: Any) -> None:
        super().__init__(pg)
        self._harbour: Listener | None = None
        self._visits: OrderedDict[int, tuple[str, Connection]] = OrderedDict()
        self._entering: dict[int, threading.Lock] = {}

    def _open(self, host: Callable[[], str], publish: Callable[[str], None], deadline: Deadline) -> Listener:
        """The harbour of this process, opened where there is none. Its card is published before others see it."""
        with held(self._opening, self.rank, deadline):
            self.check()
            if self._harbour is not None:
                return self._harbour
            made = Listener(host(), self.rank, self.size)
            try:
                publish(made.ticket.text())
                with self._lock:
                    self.check()
                    self._harbour = made
            except BaseException:
                made.connection.close()
                raise
            return made

    def _entrance(self, source: int, deadline: Deadline) -> contextlib.AbstractContextManager[None]:
        """One thread at a time enters the harbour of a source: under one rank there is one guest."""
        with self._lock:
            entering = self._entering.setdefault(source, threading.Lock())
        return held(entering, source, deadline)

    def _known(self, source: int) -> tuple[str, Connection | None]:
        """The card and the link of last time, where the source is still there."""
        with self._lock:
            card, link = self._visits.get(source, ("", None))
        if link is None or (link.usable and link.alive(source)):
            return card, link
        self._forget(source, link)
        return "", None

    def _keep(self, source: int, card: str, link: Connection) -> None:
        with self._lock:
            if self._closed:
                old = [link]
            else:
                self._visits[source] = (card, link)
                self._visits.move_to_end(source)
                others = [one for one in self._visits if one != source][: max(0, len(self._visits) - _KEPT)]
                old = [self._visits.pop(one)[1] for one in others]
        for one in old:
            one.close_when_idle()
        self.check()

    def _forget(self, source: int, link: Connection) -> str:
        """Closes a link. @return the card that it was made with."""
        with self._lock:
            card, known = self._visits.get(source, ("", None))
            if known is link:
                del self._visits[source]
        link.close_when_idle()
        return card

    def look_again(self, source: int, link: Connection, error: Error, deadline: Deadline) -> bool:
        # Another thread has found that the source is elsewhere, or has taken this link's place.
        if isinstance(error, Closed) and not link.usable:
            return self.usable
        if not isinstance(error, PeerLost):
            return False
        left = link.left(source)
        card = self._forget(source, link)
        return self._is_elsewhere(source, card, left)

    def _is_elsewhere(self, source: int, card: str, left: bool) -> bool:
        """Whether a source that was lost is to be found by another card than this one."""
        return left

    def end(self) -> None:
        with self._lock:
            links = [link for _, link in self._visits.values()]
            self._visits.clear()
            if self._harbour is not None:
                links.append(self._harbour.connection)
                self._harbour = None
        for link in links:
            link.close()


class StoreWay(HarbourWay):
    """A source leaves the card of its harbour in the group's store."""

    def __init__(self, pg: Any, store: Store) -> None:
        super().__init__(pg)
        self._store = store

    def _read(self, rank: int) -> str | None:
        """Asks whether there is a key before it gets it: a get that has to wait cannot be ended."""
        self.check()
        key = f"{_PREFIX}{rank}"
        try:
            found: bytes | None = self._store.get(key) if self._store.check([key]) else None
        except RuntimeError as error:
            raise PeerLost(
                f"the store of the process group, where rank {rank} is looked up, does not answer: {error}; make the group again",
                rank=rank,
            ) from error
        return None if found is None else found.decode("ascii", "replace")

    @contextlib.contextmanager
    def serving(self, ranks: Sequence[int], deadline: Deadline) -> Iterator[Berth]:
        harbour = self._open(lambda: _pg.host_for(self.pg, self._store), self._publish, deadline)
        yield Berth(harbour.connection, list(ranks))

    def _publish(self, card: str) -> None:
        try:
            self._store.set(f"{_PREFIX}{self.rank}", card)
        except RuntimeError as error:
            raise PeerLost(f"the store of the process group does not answer: {error}; make the group again") from error

    @contextlib.contextmanager
    def asking(self, source: int, deadline: Deadline) -> Iterator[Berth]:
        with self._entrance(source, deadline):
            card, link = self._known(source)
            if link is not None and self._read(source) != card:
                self._forget(source, link)
                link = None
            if link is None:
                card, link = connect_to_source(lambda: self._read(source), source, self.rank, deadline)
            self._keep(source, card, link)
        yield Berth(link, [source])

    def _is_elsewhere(self, source: int, card: str, left: bool) -> bool:
        return left or self._read(source) not in (None, card)
