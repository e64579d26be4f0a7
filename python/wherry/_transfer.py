"""Common to all transfers: options, deadlines, progress, statistics and log messages."""

from __future__ import annotations

import contextlib
import logging
import math
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, NamedTuple

from wherry import _core
from wherry.errors import Error, InvalidArgument, class_of

logger = logging.getLogger("wherry")

# ---- time ----

#: A number of seconds, or a timedelta.
Duration = float | timedelta

#: The longest time limit that the core accepts, in milliseconds: 24 days.
_MAX_MS = 2**31 - 1


def to_seconds(timeout: Duration, name: str = "timeout") -> float:
    """Converts a duration to seconds. ``name`` is the argument's name in error messages."""
    if isinstance(timeout, timedelta):
        seconds = timeout.total_seconds()
    elif isinstance(timeout, (int, float)) and not isinstance(timeout, bool):
        seconds = float(timeout)
    else:
        raise InvalidArgument(
            f"{name} must be a number of seconds or a timedelta, not a {type(timeout).__name__}"
        )
    if math.isnan(seconds) or seconds < 0:
        raise InvalidArgument(
            f"{name} is {timeout!r}, but must be 0 or more; pass float('inf') to wait forever"
        )
    return seconds


class Deadline:
    """The time at which a call must end. It is fixed when the call begins."""

    def __init__(self, timeout: Duration) -> None:
        self.seconds = to_seconds(timeout)
        self._end = time.monotonic() + self.seconds

    @property
    def left(self) -> float:
        """The number of seconds left, at least 0."""
        return max(0.0, self._end - time.monotonic())

    @property
    def passed(self) -> bool:
        """True if no time is left."""
        return time.monotonic() >= self._end

    def slice_ms(self, most: float = _MAX_MS / 1000) -> int:
        """The milliseconds until the deadline, rounded up, but at most ``most`` seconds."""
        return math.ceil(min(self.left, most) * 1000)

    @property
    def left_ms(self) -> int:
        """The milliseconds left, rounded up, at most _MAX_MS; -1 (no limit) if infinite."""
        return -1 if math.isinf(self._end) else min(math.ceil(self.left * 1000), _MAX_MS)


# ---- arguments ----


def check_ranks(ranks: int | Iterable[int], size: int, own: int) -> list[int]:
    """Returns the destinations of a send, or the sources of a receive. Raises if one is wrong."""
    found: list[int] = []
    for one in ranks if isinstance(ranks, Iterable) else [ranks]:
        rank = operator.index(one)
        if not 0 <= rank < size:
            wrong = f"is not in this group, which has ranks 0 to {size - 1}"
        elif rank == own:
            wrong = "is this process: remove it from the list"
        elif rank in found:
            wrong = "occurs twice in the list"
        else:
            found.append(rank)
            continue
        raise InvalidArgument(f"rank {rank} {wrong}", rank=rank)
    return found


def check_sources(ranks: int | Iterable[int], size: int, own: int, step: int | None) -> list[int]:
    """Returns the sources of a receive. Several sources need a step."""
    found = check_ranks(ranks, size, own)
    if not found:
        raise InvalidArgument("the list of ranks to receive from is empty")
    if len(found) > 1 and step is None:
        raise InvalidArgument(
            "receiving from several ranks needs the step, so that all send the same state: pass "
            "step= here and to each send"
        )
    return found


def check_callback(state_dict: object) -> None:
    """Raises unless ``state_dict`` is a function or None. Passing the state is a common mistake."""
    if state_dict is not None and not callable(state_dict):
        raise InvalidArgument(
            "state_dict must be a function that returns a state dict, not a "
            f"{type(state_dict).__name__}: pass lambda: state_dict"
        )


#: Check the data against digests: True, False, None (if it crosses a network), or "all".
VerifyOption = bool | str | None

#: Names for the values of wherry_require in the C headers.
_REQUIRE = ("any", "all")


def transfer_options(
    *,
    step: int | None = None,
    lanes: str | None = None,
    threads: int = 0,
    verify: VerifyOption = None,
    cancel: _core.Cancel | None = None,
    require: str = "any",
    **more: Any,
) -> dict[str, Any]:
    """Checks options, and returns them for the core. Time limit and progress are added later."""
    if step is not None and (step := operator.index(step)) < 0:
        raise InvalidArgument(f"step is {step}, but must be 0 or more")
    if threads < 0:
        raise InvalidArgument(f"threads is {threads}, but must be 0 (the default) or more")
    if require not in _REQUIRE:
        raise InvalidArgument(f"require is {require!r}, but must be 'any' or 'all'")
    if isinstance(verify, str) and verify != "all":
        raise InvalidArgument(f"verify is {verify!r}, but must be True, False, None or 'all'")
    more.update(step=step, lanes=lanes, threads=threads, cancel=cancel)
    more["verify"] = 0 if verify is None else 3 if verify == "all" else 1 if verify else 2
    more["require"] = _REQUIRE.index(require)
    return more


# ---- statistics ----

#: Names for the values of wherry_lane_reason in the C headers.
_LANE_REASONS = ("unsupported", "failed", "not allowed", "not offered", "other host")


class SkippedLane(NamedTuple):
    """A lane that was not used."""

    name: str
    #: "unsupported": this build, machine or state cannot use the lane. "failed": the lane should
    #: have worked, and is worth fixing. "not allowed": excluded by ``lanes`` or WHERRY_LANES. "not
    #: offered": the source does not offer the lane. "other host": it works within one host only.
    reason: str
    #: The reason in words, for log messages.
    text: str


class SourceStats(NamedTuple):
    """One source of a receive."""

    rank: int
    #: Bytes that arrived from it, and chunks of the received state that came from it.
    bytes: int
    chunks: int
    #: Bytes per second while it had something to send; 0.0 if it sent nothing.
    rate: float
    #: The lane that was used last; "" if none was.
    lane: str
    #: None if the source was used to the end, or was not needed. Otherwise the class of the error
    #: for which the receive went on without it, or failed, and its text.
    error: type[Error] | None
    reason: str


@dataclass(frozen=True)
class Stats:
    """The statistics of one transfer, measured on this side."""

    #: The lane that was used, for example "cma", "ring" or "stream"; "" if no byte moved.
    lane: str = ""
    #: Why other lanes were not used, as text: "cma: Operation not permitted; ring: ...".
    reasons: str = ""
    #: The same reasons, with one record per lane.
    lanes_not_used: tuple[SkippedLane, ...] = ()
    #: Details of the lane, if any, for example "UCX 1.22.0 over tcp/eth0".
    detail: str = ""
    #: Receiver: the sources, in the order in which the caller named them.
    sources: tuple[SourceStats, ...] = ()
    #: The number of tensors received.
    tensors: int = 0
    #: Bytes that the receiver requested, and bytes that arrived, including repeated ones.
    bytes_wanted: int = 0
    bytes_moved: int = 0
    chunks: int = 0
    #: The number of control messages that this side sent.
    messages: int = 0
    #: The number of threads that moved bytes on this side.
    workers: int = 0
    #: The number of chunks that arrived damaged and were requested again.
    retries: int = 0
    #: True if the data was checked against digests.
    checked: bool = False
    #: Source: time to read the state.
    prepare_seconds: float = 0.0
    #: Receiver: time from the request to the answer. Source: time until the request arrived.
    offer_seconds: float = 0.0
    #: Receiver: time to check, plan and choose a lane. Source: time to wait for the plan.
    plan_seconds: float = 0.0
    #: Time for moving the bytes, and the part of it that digests took after the last byte.
    data_seconds: float = 0.0
    check_seconds: float = 0.0
    #: Receiver: time from the end of data_seconds until the source confirmed.
    release_seconds: float = 0.0
    #: Time for the whole call. Source: until the transfer to this destination ended.
    total_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Bytes per second, during data_seconds; 0.0 if no byte moved."""
        return self.bytes_moved / self.data_seconds if self.data_seconds > 0 else 0.0

    @classmethod
    def _from_core(cls, found: Mapping[str, Any]) -> Stats:
        known = {one.name: found[one.name] for one in fields(cls) if one.name in found}
        known["lanes_not_used"] = tuple(
            SkippedLane(name, _LANE_REASONS[reason], text)
            for name, reason, text in found.get("lanes_not_used", ())
        )
        known["sources"] = tuple(
            SourceStats(rank, size, chunks, rate, lane, class_of(bad) if bad else None, reason)
            for rank, size, chunks, rate, lane, bad, reason in found.get("sources", ())
        )
        return cls(**known)

    def slow_because(self) -> str:
        """Why neither cma nor ring, the fast lanes within one host, was used.

        "" if one of them was used or not allowed, no byte moved, or the ranks are on two hosts.
        """
        if self.lane in ("", "cma", "ring"):
            return ""
        fast = [one for one in self.lanes_not_used if one.name in ("cma", "ring")]
        if len(fast) < 2 or any(one.reason in ("other host", "not allowed") for one in fast):
            return ""
        return "; ".join(f"{one.name}: {one.text}" for one in fast)

    def __str__(self) -> str:
        moved = "no bytes were moved"
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
    #: True if the receiver took nothing from here, because other sources had sent it everything.
    not_needed: bool = False

    @property
    def ok(self) -> bool:
        """True if the receiver has the complete state."""
        return self.error is None


def log_received(peers: Sequence[int], stats: Stats, what: str = "received from") -> None:
    """Logs a receive, and a warning if a slow lane was used."""
    several = len(peers) > 1
    ranks = f"rank{'s' * several} {', '.join(map(str, peers))}"
    logger.info("%s %s: %s", what, ranks, stats)
    for one in stats.sources if several else ():
        if one.error is not None:
            logger.warning("received without rank %d: %s", one.rank, one.reason)
    if not several and (because := stats.slow_because()):
        slow = "%s is on this host, but '%s' is used, which is slower, because: %s"
        logger.warning(slow, ranks, stats.lane, because)


def log_sent(outcomes: Sequence[Outcome]) -> None:
    """Logs the successful outcomes of a send, as log_received() does."""
    for one in outcomes:
        if one.error is None:
            log_received([one.rank], one.stats, "sent to")


def raise_first(outcomes: Sequence[Outcome]) -> None:
    """Raises the first error, if any. Its attribute ``outcomes`` has all outcomes."""
    for one in outcomes:
        if one.error is not None:
            one.error.outcomes = tuple(outcomes)
            raise one.error


# ---- progress ----

#: How often a transfer logs its progress if tqdm is not installed.
LOG_EVERY_SECONDS = 1.0


class Progress(NamedTuple):
    """The progress of a transfer."""

    #: The other rank.
    peer: int
    #: The number of bytes moved so far, and of all bytes to move.
    bytes: int
    total: int
    #: Bytes per second since the first byte.
    rate: float
    #: Receiver: the path of a tensor that is arriving; "" if unknown.
    path: str
    #: The lane's name.
    lane: str


#: True: a tqdm bar, or log messages if tqdm is not installed. A function is called at most ten
#: times per second, and once at the end, in the thread that runs the transfer.
ProgressOption = bool | Callable[[Progress], object] | None

#: The function that the core calls with the fields of a Progress.
Report = Callable[..., object]


@contextlib.contextmanager
def reporting(progress: ProgressOption, verb: str) -> Iterator[Report | None]:
    """Yields the function that the core calls for ``progress``. Closes the bars at the end."""
    if progress is None or progress is False:
        yield None
    elif progress is True:
        tqdm = _find_tqdm()
        with contextlib.ExitStack() as stack:
            yield _log_lines(verb) if tqdm is None else _bars(verb, tqdm, stack)
    elif callable(progress):
        function = progress
        yield lambda *values: function(Progress(*values))
    else:
        raise InvalidArgument(
            f"progress must be True or a function that takes a wherry.Progress, not {progress!r}"
        )


def _find_tqdm() -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm


def _log_lines(verb: str) -> Report:
    last: dict[int, float] = {}  # by peer

    def report(peer: int, done: int, total: int, rate: float, path: str, lane: str) -> None:
        now = time.monotonic()
        if done == total or now - last.get(peer, -math.inf) >= LOG_EVERY_SECONDS:
            last[peer] = now
            percent = 100 * done // total if total else 100
            line = "%s rank %d: %d%% of %.1f MB, %.2f GB/s, %s"
            logger.info(line, verb, peer, percent, total / 1e6, rate / 1e9, lane)

    return report


def _bars(verb: str, tqdm: Any, stack: contextlib.ExitStack) -> Report:
    """One bar per peer. ``stack`` closes them."""
    bars: dict[int, Any] = {}

    def report(peer: int, done: int, total: int, rate: float, path: str, lane: str) -> None:
        if peer not in bars:
            bar = tqdm(total=total, desc=f"{verb} rank {peer}", unit="B", unit_scale=True)
            bars[peer] = stack.enter_context(bar)
        bars[peer].total = total
        bars[peer].update(done - bars[peer].n)
        if done == total:
            bars[peer].refresh()

    return report


# ---- receiving ----


def receive(
    fetch: Callable[[_core.State | None, dict[str, Any]], tuple[Any, Stats]],
    codec: Any,
    into: Callable[[], object] | None,
    options: dict[str, Any],
    progress: ProgressOption,
) -> tuple[Any, Stats]:
    """Receives a state. Contains the steps common to all ways of receiving.

    ``into`` returns the state to receive into; None if there is none. ``fetch`` is called with the
    target built from that state (or None) and the complete options, and moves the bytes.
    """
    target_codec = codec.for_target()
    target = None if into is None else _core.build(into(), target_codec)
    options.update(
        new=target is not None,
        any_device=True,
        stream=codec.stream(target.cuda_devices() if target else ()),
    )
    with reporting(progress, "from") as report:
        options["progress"] = report
        value, stats = fetch(target, options)
    target_codec.bring_back()
    return value, stats
