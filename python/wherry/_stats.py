"""What a transfer did: its figures, and how it went for each destination."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from wherry.errors import Error


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
        if len(refused) < 2 or any("another host" in one or "not allowed here" in one for one in refused):
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
