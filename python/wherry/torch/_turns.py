"""Frames over backends that carry the memory of an accelerator alone, such as NCCL and XCCL.

These heed no tags, and what two ranks do with each other runs in the order in which it was begun, on one stream: a receive that waits
keeps the sends behind it waiting, so that two ranks that both listen never hear anything. So here the two take turns. A round is a frame
each way, that of the lower rank first, and then what did not fit into the frames. Rounds follow each other as long as the session lasts,
with pauses while nobody has anything to say. Two ranks alone do it: other ranks of the group need not know.

Nothing that is under way can be given up but with the whole group: it is aborted then, and must be made again.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch

from wherry.errors import Closed

FRAME_BYTES = 16 << 10
_HEAD = 5  # the length, and what it is
_INLINE = FRAME_BYTES - _HEAD  # what fits into the frame itself
_IDLE, _BLOCK, _LAST = 0, 1, 2
_QUEUE = 8  # messages that wait to be sent to a rank

#: The pauses after a round in which nobody said anything: the first, and the longest.
_PAUSES = (0.0001, 0.002)

#: Between two looks at what is under way.
_LOOK = 0.00002


class Session(Protocol):
    """What a peer needs of the session it is in."""

    device: torch.device
    own: int
    longest: int
    limit: timedelta

    def start(self, what: str, tensor: torch.Tensor, rank: int) -> Any: ...
    def deliver(self, rank: int, block: bytes | None) -> None: ...
    def lose(self, rank: int, error: Exception) -> None: ...


def finish(work: Any, tensor: torch.Tensor, limit: timedelta, given_up: Callable[[], bool]) -> None:
    """Waits for something that is under way: by looking, since a wait inside torch can neither be looked at nor be ended."""
    if tensor.device.type == "cpu":
        work.wait(limit)  # gloo tells only those who wait
        return
    until = time.monotonic() + limit.total_seconds()
    while not work.is_completed():
        if given_up():
            raise Closed("it was given up")
        if time.monotonic() > until:
            raise TimeoutError("nothing came of it in time")
        time.sleep(_LOOK)
    work.wait()  # raises what went wrong


def abort(pg: Any) -> None:
    """Ends what is under way in a group, and the group with it."""
    with contextlib.suppress(Exception):
        pg.abort()


class TurnPeer:
    """Frames to and from one rank, in turns."""

    def __init__(self, session: Session, rank: int) -> None:
        self._session = session
        self.rank = rank
        self.outgoing: queue.Queue[bytes | None] = queue.Queue(_QUEUE)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"wherry-turns-{rank}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            device = self._session.device
            if device.type == "cuda":  # not behind what the program does on its own streams
                with torch.cuda.stream(torch.cuda.Stream(device)):  # type: ignore[no-untyped-call, unused-ignore]
                    self._converse()
            else:
                self._converse()
        except Exception as error:
            self._session.lose(self.rank, error)

    def _converse(self) -> None:
        said_last = heard_last = False
        pause = 0.0
        while not (said_last and heard_last):
            kind, block = (_IDLE, b"") if said_last else self._next(pause)
            said_last = said_last or kind == _LAST
            heard, content = self._round(kind, block)
            heard_last = heard_last or heard == _LAST
            if heard == _BLOCK:
                self._session.deliver(self.rank, content)
            pause = 0.0 if _BLOCK in (kind, heard) else min(max(2 * pause, _PAUSES[0]), _PAUSES[1])

    def _next(self, pause: float) -> tuple[int, bytes]:
        """What to say in this round."""
        try:
            block = self.outgoing.get(timeout=pause) if pause else self.outgoing.get_nowait()
        except queue.Empty:
            return _IDLE, b""
        return (_LAST, b"") if block is None else (_BLOCK, block)

    def _round(self, kind: int, block: bytes) -> tuple[int, bytes]:
        """One frame each way, and the rest of both."""
        inside = block if len(block) <= _INLINE else b""
        head = len(block).to_bytes(_HEAD - 1, "big") + bytes([kind])
        theirs = self._exchange((head + inside).ljust(FRAME_BYTES, b"\0"), FRAME_BYTES)
        size, heard = int.from_bytes(theirs[: _HEAD - 1], "big"), theirs[_HEAD - 1]
        if size > self._session.longest or heard > _LAST:
            raise Closed(f"rank {self.rank} sent something else than a frame of Wherry's through the process group")
        rest = self._exchange(block[len(inside) :], size if size > _INLINE else 0)
        return heard, rest if size > _INLINE else theirs[_HEAD : _HEAD + size]

    def _exchange(self, mine: bytes, size: int) -> bytes:
        """So many bytes each way, none where there are none: the lower rank's first."""
        content = b""
        for sends in (self._session.own < self.rank, self._session.own > self.rank):
            if sends and mine:
                self._move("send", torch.frombuffer(bytearray(mine), dtype=torch.uint8).to(self._session.device))
            elif not sends and size:
                frame = torch.empty(size, dtype=torch.uint8, device=self._session.device)
                self._move("recv", frame)
                content = frame.cpu().numpy().tobytes()
        return content

    def _move(self, what: str, tensor: torch.Tensor) -> None:
        if self._ended.is_set():
            raise Closed("the session was ended")
        finish(self._session.start(what, tensor, self.rank), tensor, self._session.limit, self._ended.is_set)

    def join(self, seconds: float) -> bool:
        """Whether all has been said, both ways."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def end(self) -> None:
        """Gives up what is under way. Over gloo it ends with the group's connections."""
        self._ended.set()

    def join_waiter(self) -> None:
        """There are no blocks to wait for."""
