"""Arguments of the public calls, checked and turned into what the core takes."""

from __future__ import annotations

import contextlib
import logging
import math
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, NamedTuple, Protocol, Union

from wherry import _core
from wherry.errors import Error, InvalidArgument

#: Seconds, or a timedelta.
Duration = Union[float, timedelta]

#: The longest time limit for the core, in milliseconds: 24 days.
_MOST_MS = 2**31 - 1


def to_seconds(timeout: Duration, name: str = "timeout") -> float:
    """Seconds of a duration that was given as such or as a timedelta."""
    if isinstance(timeout, timedelta):
        seconds = timeout.total_seconds()
    elif isinstance(timeout, (int, float)) and not isinstance(timeout, bool):
        seconds = float(timeout)
    else:
        raise InvalidArgument(f"{name} is seconds or a timedelta, not {type(timeout).__name__}")
    if math.isnan(seconds) or seconds < 0:
        raise InvalidArgument(
            f"{name} is not negative, and this is {timeout!r}; give float('inf') to wait for ever"
        )
    return seconds


class Deadline:
    """The end of a call, fixed when it begins."""

    def __init__(self, timeout: Duration) -> None:
        self.seconds = to_seconds(timeout)
        self._end = time.monotonic() + self.seconds

    @property
    def left(self) -> float:
        """Seconds that are left, not below 0."""
        return max(0.0, self._end - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether it is over."""
        return time.monotonic() >= self._end

    def slice_ms(self, most: float = _MOST_MS / 1000) -> int:
        """Milliseconds of a wait that ends with the deadline and takes `most` seconds at the longest."""
        return math.ceil(min(self.left, most) * 1000)

    @property
    def left_ms(self) -> int:
        """Milliseconds that are left, rounded up, for the core: -1 where it never ends."""
        return -1 if math.isinf(self._end) else min(math.ceil(self.left * 1000), _MOST_MS)


def check_destinations(ranks: int | Iterable[int], size: int, own: int) -> list[int]:
    """The destinations of a send, checked: each of the group, none twice, this rank not among them."""
    several = ranks if isinstance(ranks, Iterable) else [ranks]
    found: list[int] = []
    for rank in map(operator.index, several):
        if not 0 <= rank < size:
            raise InvalidArgument(
                f"rank {rank} is not of this group, which has ranks 0 to {size - 1}", rank=rank
            )
        if rank == own:
            raise InvalidArgument(
                f"rank {rank} is this process itself: leave it out of the destinations", rank=rank
            )
        if rank in found:
            raise InvalidArgument(
                f"rank {rank} is twice among the destinations: name each once", rank=rank
            )
        found.append(rank)
    return found


def check_source(rank: int, size: int, own: int) -> int:
    """The source of a receive, checked."""
    rank = operator.index(rank)
    if not 0 <= rank < size:
        raise InvalidArgument(
            f"rank {rank} is not of this group, which has ranks 0 to {size - 1}", rank=rank
        )
    if rank == own:
        raise InvalidArgument(
            f"rank {rank} is this process itself: it has its own state already", rank=rank
        )
    return rank


def check_callback(state_dict: object) -> None:
    """Refuses a state dict where a function that returns one is wanted."""
    if state_dict is not None and not callable(state_dict):
        raise InvalidArgument(
            f"state_dict is a function that returns a state dict, not a {type(state_dict).__name__}: give lambda: it"
        )


def transfer_options(
    *,
    step: int | None = None,
    lanes: str | None = None,
    threads: int = 0,
    verify: bool | None = None,
    cancel: _core.Cancel | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Options of a transfer for the core, but for its time limit and its progress. None means the default."""
    if step is not None and (step := operator.index(step)) < 0:
        raise InvalidArgument(f"a step is 0 or more, and this is {step}")
    if threads < 0:
        raise InvalidArgument(
            f"threads is 0 (as many as there are processors) or more, and this is {threads}"
        )
    return {
        "step": step,
        "lanes": lanes,
        "threads": threads,
        "verify": verify,
        "cancel": cancel,
        **more,
    }


@dataclass(frozen=True)
class Stats:
    """The figures of one transfer between two ranks. Seconds are of this side's clock."""

    #: The lane that was taken: "cma", "ring", "stream" ...; "" where no byte had to move.
    lane: str = ""
    #: Why others were not: "cma: Operation not permitted ...; ring: ...".
    reasons: str = ""
    #: How the lane took the bytes, where its name does not say all: "UCX 1.13.1 over tcp/eth0".
    detail: str = ""
    #: Tensors that were received.
    tensors: int = 0
    #: Bytes that the receiver asked for, and bytes that came, those that came again included.
    bytes_wanted: int = 0
    bytes_moved: int = 0
    chunks: int = 0
    #: Control messages of this side.
    messages: int = 0
    #: Threads that moved bytes on this side.
    workers: int = 0
    #: Chunks that came damaged and were asked for again.
    retries: int = 0
    #: Whether digests were checked.
    verified: bool = False
    #: Source: reading the state. Receiver: from asking until the source answered; source: until the receiver asked.
    prepare_seconds: float = 0.0
    offer_seconds: float = 0.0
    #: Checking, planning, choosing a lane.
    plan_seconds: float = 0.0
    #: Moving the bytes, and of that what was spent on digests after the last one.
    data_seconds: float = 0.0
    verify_seconds: float = 0.0
    #: Receiver: from then until the source confirmed.
    release_seconds: float = 0.0
    #: The whole call; for a source, until this destination was done.
    total_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Bytes a second while bytes moved; 0.0 where none did."""
        return self.bytes_moved / self.data_seconds if self.data_seconds > 0 else 0.0

    @classmethod
    def _from_core(cls, found: Mapping[str, Any]) -> Stats:
        known = {one.name: found[one.name] for one in fields(cls) if one.name in found}
        return cls(**{**known, "verified": bool(known.get("verified", False))})

    def slow_because(self) -> str:
        """Why a lane between two processes of one host did not work, where one should have; else "".

        That the ranks are on two hosts, or that a lane was not allowed, is no such reason.
        """
        if self.lane in ("", "cma", "ring"):
            return ""
        refused = [one for one in self.reasons.split("; ") if one.startswith(("cma: ", "ring: "))]
        if len(refused) < 2 or any(
            "another host" in one or "not allowed here" in one for one in refused
        ):
            return ""
        return "; ".join(refused)


@dataclass(frozen=True)
class Outcome:
    """How a send went for one destination."""

    rank: int
    #: None where the receiver has everything and may rely on it.
    error: Error | None
    stats: Stats

    @property
    def ok(self) -> bool:
        """Whether the receiver has everything and may rely on it."""
        return self.error is None


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
        raise InvalidArgument(
            f"progress is True, or a function of a wherry.Progress, not {progress!r}"
        )
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
        if (
            now - self._last.setdefault(peer, now - LOG_EVERY_SECONDS) >= LOG_EVERY_SECONDS
            or done == total
        ):
            self._last[peer] = now
            share = 100 * done // total if total else 100
            logger.info(
                "%s rank %d: %d%% of %.1f MB, %.2f GB/s, %s",
                self._verb,
                peer,
                share,
                total / 1e6,
                rate / 1e9,
                lane,
            )


class _Bars:
    """A bar a peer."""

    def __init__(self, make: Callable[..., _Bar], verb: str) -> None:
        self._make = make
        self._verb = verb
        self._bars: dict[int, _Bar] = {}

    def __call__(self, peer: int, done: int, total: int, rate: float, path: str, lane: str) -> None:
        bar = self._bars.get(peer)
        if bar is None:
            bar = self._make(
                total=total, desc=f"{self._verb} rank {peer}", unit="B", unit_scale=True
            )
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


logger = logging.getLogger("wherry")


def _figures(stats: Stats) -> str:
    if not stats.lane:
        return f"nothing had to move; {stats.total_seconds:.3f} s in all"
    return (
        f"{stats.bytes_moved / 1e6:.1f} MB in {stats.data_seconds:.3f} s, {stats.rate / 1e9:.2f} GB/s over {stats.lane}; "
        f"{stats.total_seconds:.3f} s in all"
    )


def _warn_of_slowness(peer: int, stats: Stats) -> None:
    if because := stats.slow_because():
        logger.warning(
            "rank %d is on this host and is reached by '%s' all the same, which is slower: %s",
            peer,
            stats.lane,
            because,
        )


def log_received(peer: int, stats: Stats) -> None:
    """Says what a receive did."""
    logger.info("received from rank %d: %s", peer, _figures(stats))
    _warn_of_slowness(peer, stats)


def log_sent(outcomes: Sequence[Outcome]) -> None:
    """Says what a send did."""
    for one in outcomes:
        if one.error is None:
            logger.info("sent to rank %d: %s", one.rank, _figures(one.stats))
            _warn_of_slowness(one.rank, one.stats)


def raise_first(outcomes: Sequence[Outcome]) -> None:
    """Raises the first failure, with the outcomes of all."""
    for one in outcomes:
        if one.error is not None:
            one.error.outcomes = tuple(outcomes)
            raise one.error
