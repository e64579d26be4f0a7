"""Offering a state in the background to whoever asks for it, until that is ended."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

from wherry import _core
from wherry._link import Link
from wherry._report import tell_sent
from wherry.errors import Closed, Error

logger = logging.getLogger("wherry")

#: The pauses between two looks for whoever asks: the first, and the longest.
_PAUSE_SECONDS = (0.001, 0.02)


def _join(thread: threading.Thread) -> None:
    """Waits for a thread, unless it is this one: the garbage collector runs in whichever thread it likes."""
    if thread is not threading.current_thread():
        thread.join()


class _Errand:
    """The sending to one rank, in a thread of its own: one that is slow must not keep the others waiting."""

    def __init__(self, link: Link, rank: int, state: _core.State, options: Mapping[str, Any]) -> None:
        self.rank = rank
        self.cancel = _core.Cancel()
        self._thread = threading.Thread(
            target=self._run, args=(link, state, {**options, "cancel": self.cancel}), name="wherry-send", daemon=True
        )
        self._thread.start()

    def _run(self, link: Link, state: _core.State, options: Mapping[str, Any]) -> None:
        try:
            outcomes = link.send([self.rank], state, options)
            tell_sent(outcomes)
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


class Serving:
    """Serves a state to every rank that asks over a link, from threads of its own, until `end`."""

    def __init__(self, link: Link, state: _core.State, options: Mapping[str, Any], seconds: float) -> None:
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
        asking = [rank for rank in self._link.waiting() if rank not in busy and self._link.alive(rank)]
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
