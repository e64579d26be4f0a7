"""Telling how far a transfer is: to a function, on a tqdm bar, or in the log."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, Union

from wherry.errors import InvalidArgument

logger = logging.getLogger("wherry")

#: How often a transfer without tqdm says how far it is.
LOG_EVERY_SECONDS = 1.0


class Progress(NamedTuple):
    """How far a transfer is."""

    #: The other rank.
    peer: int
    #: Bytes that have moved, of so many.
    bytes: int
    total: int
    #: Bytes a second since the first.
    rate: float
    #: Receiver: a tensor that is being received; "" where that is not known.
    path: str
    #: The lane's name.
    lane: str


#: True: a bar, or lines in the log. A function: called ten times a second at most, by the thread inside the call.
ProgressOption = Union[bool, Callable[[Progress], object], None]

#: What the core calls.
Report = Callable[[int, int, int, float, str, str], None]


class _Bar(Protocol):
    n: float
    total: float | None

    def update(self, n: float) -> object: ...
    def refresh(self) -> object: ...
    def close(self) -> None: ...


@contextlib.contextmanager
def reporting(progress: ProgressOption, verb: str) -> Iterator[Report | None]:
    """What to hand to the core for an option `progress`; a bar is closed at the end, however that comes."""
    if progress is None or progress is False:
        yield None
    elif progress is True:
        make = _find_tqdm()
        if make is None:
            yield _LogLines(verb)
        else:
            with _Bars(make, verb) as bars:
                yield bars
    elif not callable(progress):
        raise InvalidArgument(f"progress is True, or a function of a wherry.Progress, not {progress!r}")
    else:
        tell = progress

        def report(peer: int, done: int, total: int, rate: float, path: str, lane: str) -> None:
            tell(Progress(peer, done, total, rate, path, lane))

        yield report


def _find_tqdm() -> Callable[..., _Bar] | None:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    make: Callable[..., _Bar] = tqdm
    return make


class _LogLines:
    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._last: dict[int, float] = {}

    def __call__(self, peer: int, done: int, total: int, rate: float, path: str, lane: str) -> None:
        now = time.monotonic()
        if now - self._last.setdefault(peer, now - LOG_EVERY_SECONDS) >= LOG_EVERY_SECONDS or done == total:
            self._last[peer] = now
            share = 100 * done // total if total else 100
            logger.info("%s rank %d: %d%% of %.1f MB, %.2f GB/s, %s", self._verb, peer, share, total / 1e6, rate / 1e9, lane)


class _Bars:
    """A bar a peer."""

    def __init__(self, make: Callable[..., _Bar], verb: str) -> None:
        self._make = make
        self._verb = verb
        self._bars: dict[int, _Bar] = {}

    def __call__(self, peer: int, done: int, total: int, rate: float, path: str, lane: str) -> None:
        bar = self._bars.get(peer)
        if bar is None:
            bar = self._make(total=total, desc=f"{self._verb} rank {peer}", unit="B", unit_scale=True)
            self._bars[peer] = bar
        bar.total = total
        bar.update(done - bar.n)
        if done == total:
            bar.refresh()

    def __enter__(self) -> _Bars:
        return self

    def __exit__(self, *_: Any) -> None:
        for bar in self._bars.values():
            bar.close()
