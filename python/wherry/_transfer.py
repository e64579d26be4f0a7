"""Common to all transfers: options, deadlines, progress, statistics and log messages."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import math
import operator
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, NamedTuple, TextIO

from wherry import _core
from wherry.errors import Error, InvalidArgument, class_of, in_python

logger = logging.getLogger("wherry")


def _log(level: int, line: str) -> None:
    # 1 to 4 are error, warning, info and debug in the library; in Python, 40 to 10.
    if line.startswith(_WAITING):
        log_wait(line.removeprefix(_WAITING))
    else:
        logger.log(10 * (5 - level), "%s", in_python(line))


#: The beginning of the lines that say what a call waits for.
_WAITING = "waiting for "


class LongWait:
    """A wait that is logged after 3 s, then every 30 s."""

    def __init__(self) -> None:
        self._say_at = time.monotonic() + 3

    def goes_on(self, what: str) -> None:
        """Call this again and again. Logs what the caller waits for, if it is time to do so."""
        if time.monotonic() >= self._say_at:
            self._say_at += 30
            log_wait(what)


def log_wait(what: str) -> None:
    """Logs what a call waits for, at level info. If the program has not set up logging, the line
    goes to standard error, as it does without Python."""
    line = _WAITING + in_python(what)
    if logger.hasHandlers() or os.environ.get("WHERRY_LOG"):
        logger.info("%s", line)
    else:
        record = logger.makeRecord(logger.name, logging.INFO, __file__, 0, line, (), None)
        _Fallback().handle(record)


class _Fallback(logging.StreamHandler[TextIO]):
    """Writes to standard error, as the library does without Python, until the program sets up
    logging."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        level = "warn" if record.levelno == logging.WARNING else record.levelname.lower()
        return f"wherry: {level}: {record.getMessage()}"


if os.environ.get("WHERRY_LOG"):
    logger.addHandler(_Fallback())
    logger.setLevel(logging.DEBUG)  # The library leaves out the lines that WHERRY_LOG excludes.

_core.set_log_function(_log)
atexit.register(_core.set_log_function, None)

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

    def expire(self) -> None:
        """Ends the time now, for all threads that look at this object."""
        self._end = 0.0

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


def check_integer(value: object, name: str, most: float = math.inf) -> int:
    """Returns an integer from 0 to ``most``. ``name`` is the argument's name in error messages."""
    try:
        found = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidArgument(f"{name} must be an integer, not a {type(value).__name__}") from None
    if not 0 <= found <= most:
        limit = "0 or more" if most == math.inf else f"from 0 to {most}"
        raise InvalidArgument(f"{name} is {found}, but must be {limit}")
    return found


def check_ranks(ranks: int | Iterable[int], size: int, own: int) -> list[int]:
    """Returns the destinations of a send, or the sources of a receive. Raises if one is wrong."""
    found: list[int] = []
    one_alone = isinstance(ranks, (int, str)) or not isinstance(ranks, Iterable)
    every: Iterable[Any] = [ranks] if one_alone else ranks  # type: ignore[assignment]
    for one in every:
        try:
            rank = operator.index(one)
        except TypeError:
            kind = type(one).__name__
            raise InvalidArgument(f"a rank must be an integer, not a {kind}") from None
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
    step = None if step is None else check_integer(step, "step", 2**63 - 1)
    threads = check_integer(threads, "threads")
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

    #: The lane's name, for example "cma".
    name: str
    #: "unsupported": this build, machine or state cannot use the lane. "failed": the lane should
    #: have worked, and is worth fixing. "not allowed": excluded by ``lanes`` or WHERRY_LANES. "not
    #: offered": the source does not offer the lane. "other host": it works within one host only.
    reason: str
    #: The reason in words, for log messages.
    text: str


class SourceStats(NamedTuple):
    """One source of a receive."""

    #: Its rank, or in torchft its place in the metadata.
    rank: int
    #: Bytes that arrived from it, and chunks of the received state that came from it.
    bytes: int = 0
    chunks: int = 0
    #: Bytes per second while it had something to send; 0.0 if it sent nothing.
    rate: float = 0.0
    #: The lane that was used last; "" if none was.
    lane: str = ""
    #: None if the source was used to the end, or was not needed. Otherwise the class of the error
    #: for which the receive went on without it, or failed, and its text.
    error: type[Error] | None = None
    reason: str = ""


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
    #: The number of chunks that arrived.
    chunks: int = 0
    #: The number of control messages that this side sent.
    messages: int = 0
    #: The number of threads that moved bytes on this side.
    workers: int = 0
    #: The number of chunks that arrived damaged and were requested again.
    retries: int = 0
    #: True if the data was checked: by digests, or by encryption.
    checked: bool = False
    #: True if all data came over encrypted and authenticated connections (``encrypt="all"``).
    verified: bool = False
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
        """Says why neither cma nor ring, the fast lanes within one host, was used.

        Returns:
            The reasons; "" if one of the two was used or was not allowed, if no byte moved, or if
            the ranks are on two hosts.
        """
        if self.lane in ("", "cma", "ring"):
            return ""
        fast = [one for one in self.lanes_not_used if one.name in ("cma", "ring")]
        if len(fast) < 2 or any(one.reason in ("other host", "not allowed") for one in fast):
            return ""
        return "; ".join(f"{one.name}: {one.text}" for one in fast)

    def __str__(self) -> str:
        if not self.lane:
            return f"no bytes in {1e3 * self.total_seconds:.1f} ms"
        moved = f"{_bytes(self.bytes_moved)} in {1e3 * self.data_seconds:.1f} ms"
        speed = f" ({_bytes(self.rate)}/s)" if self.bytes_moved >= 1e6 else ""
        return f"{moved}{speed} over {self.lane}; {1e3 * self.total_seconds:.1f} ms in total"


@dataclass(frozen=True)
class Outcome:
    """The result of a send for one destination."""

    #: The destination.
    rank: int
    #: None if the receiver has the complete state.
    error: Error | None
    stats: Stats
    #: True if the receiver took nothing from this source, because other sources had sent it
    #: everything.
    not_needed: bool = False

    @property
    def ok(self) -> bool:
        """True if the receiver has the complete state."""
        return self.error is None


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} B"


def warn_if_slow(rank: int, stats: Stats) -> None:
    """Logs a warning if a slow lane was used within this host. The library logs all the rest."""
    if because := stats.slow_because():
        slow = "rank %d is on this host, but '%s' is used, which is slower, because: %s"
        logger.warning(slow, rank, stats.lane, because)


def settle(outcomes: Sequence[Outcome]) -> None:
    """Raises the first error, if any. Its attribute ``outcomes`` has all outcomes."""
    for one in outcomes:
        if one.error is None:
            warn_if_slow(one.rank, one.stats)
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


@functools.cache  # It logs once per process.
def _find_tqdm() -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        logger.warning(
            "no progress bar, because tqdm is missing: pip install tqdm; the log has a line per "
            "second instead, at level INFO"
        )
        return None
    return tqdm


def _log_lines(verb: str) -> Report:
    last: dict[int, float] = {}  # the bars, by peer

    def report(peer: int, done: int, total: int, rate: float, path: str, lane: str) -> None:
        now = time.monotonic()
        if done == total or now - last.get(peer, -math.inf) >= LOG_EVERY_SECONDS:
            last[peer] = now
            percent = 100 * done // total if total else 100
            line = "%s rank %d: %d%% of %s, %s/s, %s"
            logger.info(line, verb, peer, percent, _bytes(total), _bytes(rate), lane)

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
    options["stream"] = codec.stream(target.cuda_devices() if target else ())
    with reporting(progress, "from") as report:
        options["progress"] = report
        value, stats = fetch(target, options)
    target_codec.bring_back()
    return value, stats
