"""What every transfer has: options, a deadline, progress, statistics, and lines in the log."""

from __future__ import annotations

import contextlib
import logging
import math
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from wherry import _core
from wherry.errors import Error, InvalidArgument

logger = logging.getLogger("wherry")

# ---- time ----

#: Seconds, or a timedelta.
Duration = float | timedelta

#: The longest time limit that the core accepts, in milliseconds: 24 days.
_MAX_MS = 2**31 - 1


def to_seconds(timeout: Duration, name: str = "timeout") -> float:
    """A duration in seconds."""
    if isinstance(timeout, timedelta):
        seconds = timeout.total_seconds()
    elif isinstance(timeout, (int, float)) and not isinstance(timeout, bool):
        seconds = float(timeout)
    else:
        raise InvalidArgument(
            f"{name} must be seconds or a timedelta, not a {type(timeout).__name__}"
        )
    if math.isnan(seconds) or seconds < 0:
        raise InvalidArgument(
            f"{name} is {timeout!r}, but must not be negative; pass float('inf') to wait forever"
        )
    return seconds


class Deadline:
    """The end of a call, fixed when the call begins."""

    def __init__(self, timeout: Duration) -> None:
        self.seconds = to_seconds(timeout)
        self._end = time.monotonic() + self.seconds

    @property
    def left(self) -> float:
        """The seconds that are left, at least 0."""
        return max(0.0, self._end - time.monotonic())

    @property
    def passed(self) -> bool:
        """True if no time is left."""
        return time.monotonic() >= self._end

    def slice_ms(self, most: float = _MAX_MS / 1000) -> int:
        """Milliseconds to wait: until the deadline, but at most ``most`` seconds."""
        return math.ceil(min(self.left, most) * 1000)

    @property
    def left_ms(self) -> int:
        """The milliseconds that are left, rounded up, for the core; -1 for an endless deadline."""
        return -1 if math.isinf(self._end) else min(math.ceil(self.left * 1000), _MAX_MS)


# ---- arguments ----


def _check_rank(rank: int, size: int) -> int:
    rank = operator.index(rank)
    if not 0 <= rank < size:
        raise InvalidArgument(
            f"rank {rank} is not in this group, which has ranks 0 to {size - 1}", rank=rank
        )
    return rank


def check_destinations(ranks: int | Iterable[int], size: int, own: int) -> list[int]:
    """The destinations of a send, after checking them."""
    found: list[int] = []
    for one in ranks if isinstance(ranks, Iterable) else [ranks]:
        rank = _check_rank(one, size)
        if rank == own:
            raise InvalidArgument(
                f"rank {rank} is this process: remove it from the destinations", rank=rank
            )
        if rank in found:
            raise InvalidArgument(f"rank {rank} occurs twice in the destinations", rank=rank)
        found.append(rank)
    return found


def check_source(rank: int, size: int, own: int) -> int:
    """The source of a receive, after checking it."""
    rank = _check_rank(rank, size)
    if rank == own:
        raise InvalidArgument(
            f"rank {rank} is this process, which has its state already", rank=rank
        )
    return rank


def check_callback(state_dict: object) -> None:
    """Raises if ``state_dict`` is not a function: passing the state itself is a likely mistake."""
    if state_dict is not None and not callable(state_dict):
        raise InvalidArgument(
            "state_dict must be a function that returns a state dict, not a "
            f"{type(state_dict).__name__}: pass lambda: state_dict"
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
    """The options of a transfer for the core, without time limit and progress."""
    if step is not None and (step := operator.index(step)) < 0:
        raise InvalidArgument(f"step is {step}, but must be 0 or more")
    if threads < 0:
        raise InvalidArgument(f"threads is {threads}, but must be 0 (one per processor) or more")
    return {
        "step": step,
        "lanes": lanes,
        "threads": threads,
        "verify": verify,
        "cancel": cancel,
        **more,
    }


# ---- statistics ----

#: wherry_lane_reason of the C headers, by value.
_LANE_REASONS = ("unsupported", "failed", "not allowed", "not offered", "other host")


class SkippedLane(NamedTuple):
    """A lane that was not used."""

    name: str
    #: For programs. "unsupported": this build, machine or state cannot use the lane. "failed": it
    #: should have worked; worth fixing. "not allowed": excluded by ``lanes`` or WHERRY_LANES.
    #: "not offered": the source does not offer it. "other host": it works within one host only.
    reason: str
    #: For people.
    text: str


@dataclass(frozen=True)
class Stats:
    """The figures of one transfer between two ranks, measured on this side."""

    #: The lane that was used: "cma", "ring", "stream"; "" if no byte moved.
    lane: str = ""
    #: Why other lanes were not used, as text: "cma: Operation not permitted; ring: ...".
    reasons: str = ""
    #: The same, one record per lane.
    lanes_not_used: tuple[SkippedLane, ...] = ()
    #: More about the lane, if any: "UCX 1.22.0 over tcp/eth0".
    detail: str = ""
    #: Tensors that were received.
    tensors: int = 0
    #: Bytes that the receiver requested, and bytes that arrived, including repeated ones.
    bytes_wanted: int = 0
    bytes_moved: int = 0
    chunks: int = 0
    #: Control messages that this side sent.
    messages: int = 0
    #: Threads that moved bytes on this side.
    workers: int = 0
    #: Chunks that arrived damaged and were requested again.
    retries: int = 0
    #: True if the data was checked by digests.
    verified: bool = False
    #: Source: reading the state.
    prepare_seconds: float = 0.0
    #: Receiver: from the request to the answer. Source: until the request came.
    offer_seconds: float = 0.0
    #: Checking, planning and choosing a lane.
    plan_seconds: float = 0.0
    #: Moving the bytes, and the part of it that went to digests after the last byte.
    data_seconds: float = 0.0
    verify_seconds: float = 0.0
    #: Receiver: from then until the source confirmed.
    release_seconds: float = 0.0
    #: The whole call. Source: until this destination was done.
    total_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Bytes per second while bytes moved; 0.0 if none did."""
        return self.bytes_moved / self.data_seconds if self.data_seconds > 0 else 0.0

    @classmethod
    def _from_core(cls, found: Mapping[str, Any]) -> Stats:
        known = {one.name: found[one.name] for one in fields(cls) if one.name in found}
        known["lanes_not_used"] = tuple(
            SkippedLane(name, _LANE_REASONS[reason], text)
            for name, reason, text in found.get("lanes_not_used", ())
        )
        return cls(**known)

    def slow_because(self) -> str:
        """Why both fast lanes within one host did not work; "" if that was to be expected.

        It is expected if the ranks are on two hosts, or if a lane was not allowed.
        """
        if self.lane in ("", "cma", "ring"):
            return ""
        fast = [one for one in self.lanes_not_used if one.name in ("cma", "ring")]
        if len(fast) < 2 or any(one.reason in ("other host", "not allowed") for one in fast):
            return ""
        return "; ".join(f"{one.name}: {one.text}" for one in fast)

    def __str__(self) -> str:
        moved = "no bytes had to move"
        if self.lane:
            moved = (
                f"{self.bytes_moved / 1e6:.1f} MB in {self.data_seconds:.3f} s, "
                f"{self.rate / 1e9:.2f} GB/s over {self.lane}"
            )
        return f"{moved}; {self.total_seconds:.3f} s in total"


@dataclass(frozen=True)
class Outcome:
    """The result of a send for one destination."""

    rank: int
    #: None if the receiver has the complete state.
    error: Error | None
    stats: Stats

    @property
    def ok(self) -> bool:
        """True if the receiver has the complete state."""
        return self.error is None


def _warn_if_slow(peer: int, stats: Stats) -> None:
    if because := stats.slow_because():
        logger.warning(
            "rank %d is on this host, but '%s' is used, which is slower, because: %s",
            peer,
            stats.lane,
            because,
        )


def log_received(peer: int, stats: Stats) -> None:
    """Logs a receive."""
    logger.info("received from rank %d: %s", peer, stats)
    _warn_if_slow(peer, stats)


def log_sent(outcomes: Sequence[Outcome]) -> None:
    """Logs a send."""
    for one in outcomes:
        if one.error is None:
            logger.info("sent to rank %d: %s", one.rank, one.stats)
            _warn_if_slow(one.rank, one.stats)


def raise_first(outcomes: Sequence[Outcome]) -> None:
    """Raises the first failure, if any, with all outcomes."""
    for one in outcomes:
        if one.error is not None:
            one.error.outcomes = tuple(outcomes)
            raise one.error


# ---- progress ----

#: How often a transfer writes its progress to the log if tqdm is not installed.
LOG_EVERY_SECONDS = 1.0


class Progress(NamedTuple):
    """How far a transfer is."""

    #: The other rank.
    peer: int
    #: Bytes moved so far, and bytes to move.
    bytes: int
    total: int
    #: Bytes per second since the first byte.
    rate: float
    #: Receiver: a tensor that is arriving; "" if unknown.
    path: str
    #: The lane's name.
    lane: str


#: True: a tqdm bar, or lines in the log. A function: the thread inside the call calls it at most
#: ten times per second.
ProgressOption = bool | Callable[[Progress], object] | None

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
    """Yields the function to pass to the core for an option ``progress``. Closes bars at the
    end."""
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
            f"progress must be True or a function of a wherry.Progress, not {progress!r}"
        )
    else:
        function = progress

        def report(*values: Any) -> None:
            function(Progress(*values))

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
        if done == total or now - self._last.get(peer, -math.inf) >= LOG_EVERY_SECONDS:
            self._last[peer] = now
            logger.info(
                "%s rank %d: %d%% of %.1f MB, %.2f GB/s, %s",
                self._verb,
                peer,
                100 * done // total if total else 100,
                total / 1e6,
                rate / 1e9,
                lane,
            )


class _Bars:
    """One bar per peer."""

    def __init__(self, make: Callable[..., _Bar], verb: str) -> None:
        self._make = make
        self._verb = verb
        self._bars: dict[int, _Bar] = {}

    def __call__(self, peer: int, done: int, total: int, rate: float, path: str, lane: str) -> None:
        bar = self._bars.get(peer)
        if bar is None:
            desc = f"{self._verb} rank {peer}"
            bar = self._make(total=total, desc=desc, unit="B", unit_scale=True)
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
