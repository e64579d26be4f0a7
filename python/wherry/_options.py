"""Arguments of the public calls, checked and turned into what the core takes."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Union

from wherry import _core
from wherry.errors import InvalidArgument

#: Seconds, or a timedelta.
Duration = Union[float, timedelta]

#: The longest time limit for the core, in milliseconds: 24 days.
_MOST_MS = 2**31 - 1


def seconds_of(timeout: Duration, name: str = "timeout") -> float:
    """Seconds of a duration that was given as such or as a timedelta."""
    if isinstance(timeout, timedelta):
        seconds = timeout.total_seconds()
    elif isinstance(timeout, (int, float)) and not isinstance(timeout, bool):
        seconds = float(timeout)
    else:
        raise InvalidArgument(f"{name} is seconds or a timedelta, not {type(timeout).__name__}")
    if math.isnan(seconds) or seconds < 0:
        raise InvalidArgument(f"{name} is not negative, and this is {timeout!r}; give float('inf') to wait for ever")
    return seconds


class Deadline:
    """The end of a call, fixed when it begins."""

    def __init__(self, timeout: Duration) -> None:
        self.seconds = seconds_of(timeout)
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


def ranks_of(ranks: int | Iterable[int], size: int, own: int) -> list[int]:
    """The destinations of a send, checked: each of the group, none twice, this rank not among them."""
    several = ranks if isinstance(ranks, Iterable) else [ranks]
    found: list[int] = []
    for rank in map(operator.index, several):
        if not 0 <= rank < size:
            raise InvalidArgument(f"rank {rank} is not of this group, which has ranks 0 to {size - 1}", rank=rank)
        if rank == own:
            raise InvalidArgument(f"rank {rank} is this process itself: leave it out of the destinations", rank=rank)
        if rank in found:
            raise InvalidArgument(f"rank {rank} is twice among the destinations: name each once", rank=rank)
        found.append(rank)
    return found


def source_of(rank: int, size: int, own: int) -> int:
    """The source of a receive, checked."""
    rank = operator.index(rank)
    if not 0 <= rank < size:
        raise InvalidArgument(f"rank {rank} is not of this group, which has ranks 0 to {size - 1}", rank=rank)
    if rank == own:
        raise InvalidArgument(f"rank {rank} is this process itself: it has its own state already", rank=rank)
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
        raise InvalidArgument(f"threads is 0 (as many as there are processors) or more, and this is {threads}")
    return {"step": step, "lanes": lanes, "threads": threads, "verify": verify, "cancel": cancel, **more}
