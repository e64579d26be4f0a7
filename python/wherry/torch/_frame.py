"""The card of a harbour in a frame of fixed size, through a process group of torch.

Some backends carry the memory of an accelerator alone and heed no tags. So the frame is a tensor of bytes on whichever
device the group carries, always of the same size, and the n-th frame from one rank to another meets the n-th receive.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from wherry._harbour import CARD_MAX
from wherry._options import Deadline
from wherry.errors import Malformed, PeerLost, Timeout
from wherry.torch._pg import condition_of
from wherry.torch._table import Operation
from wherry.torch._turns import abort, finish

FRAME_BYTES = 4096
_MAGIC = b"WHERRYCARD1\n"

#: For backends that heed tags: one that programs are unlikely to use.
_TAG = 0x57_4852

#: How long a thread may take to come back from a wait that was ended.
_WAKING = 1.0

#: How much later than the deadline torch itself would give up: which of the two ended a wait decides what it is called.
_LATER = 1.0

#: How long the end of a send may take whose frame the other side has already.
_GRACE = 1.0


def pack(card: str) -> bytes:
    """A card as a frame."""
    data = card.encode("ascii")
    return (_MAGIC + len(data).to_bytes(2, "big") + data).ljust(FRAME_BYTES, b"\0")


def unpack(frame: bytes, source: int) -> str:
    """The card in a frame, which came from elsewhere."""
    head = len(_MAGIC)
    size = int.from_bytes(frame[head : head + 2], "big")
    if not frame.startswith(_MAGIC) or size > CARD_MAX or any(frame[head + 2 + size :]):
        raise Malformed(
            f"rank {source} sent something else through the process group than a card of Wherry's: both ranks must use "
            "Wherry for this transfer, and nothing else may send to this rank meanwhile",
            rank=source,
        )
    return frame[head + 2 : head + 2 + size].decode("ascii", "replace")


class Frames:
    """Sends and receives cards through a group. One that ends too late leaves the group out of step: it is broken then."""

    def __init__(self, pg: Any, device: torch.device) -> None:
        self._pg = pg
        self._device = device
        self._condition = condition_of(pg)
        self._lock = threading.Lock()  # no finalizer takes it
        self._kept: list[tuple[Any, torch.Tensor]] = []

    def send(self, ranks: Sequence[int], card: str) -> dict[int, Any]:
        """Begins to send a card to some ranks. What is under way stays here: a rank may take it much later."""
        self._condition.check()
        frame = torch.frombuffer(bytearray(pack(card)), dtype=torch.uint8).to(self._device)
        begun = {rank: self._begin("send", frame, rank) for rank in ranks}
        with self._lock:
            self._kept += [(work, frame) for work in begun.values()]
        return begun

    def settle(self, work: Any, rank: int, deadline: Deadline) -> None:
        """Ends the sending of a card that has arrived, also where no time is left."""
        with self._lock:
            frame = next(frame for one, frame in self._kept if one is work)
        self._finish(work, frame, rank, "taking its card", Deadline(max(deadline.left, _GRACE)))
        with self._lock:
            self._kept = [(one, frame) for one, frame in self._kept if one is not work]

    def end(self) -> None:
        """The harbour is closed: a rank that takes one of its cards after all would look for it in vain."""
        if self._kept:
            self._condition.broken = self._condition.broken or "the card of a harbour that is closed was never taken"

    def receive(self, source: int, deadline: Deadline) -> str:
        """Waits for the card of a source."""
        self._condition.check()
        frame = torch.zeros(FRAME_BYTES, dtype=torch.uint8, device=self._device)
        self._finish(self._begin("recv", frame, source), frame, source, "sending its card", deadline)
        return unpack(bytes(frame.cpu().tolist()), source)

    def _begin(self, what: str, frame: torch.Tensor, rank: int) -> Any:
        try:
            return getattr(self._pg, what)([frame], rank, _TAG)
        except RuntimeError as error:
            self._condition.broken = str(error)
            raise PeerLost(f"rank {rank} cannot be reached through the process group: {error}", rank=rank) from error

    def _finish(self, work: Any, frame: torch.Tensor, rank: int, what: str, deadline: Deadline) -> None:
        """Waits in another thread: a wait in torch cannot be interrupted. Whoever gives up ends that thread too."""
        operation = Operation([work], frame, rank, timedelta(seconds=min(deadline.left, 1e8) + _LATER))
        if frame.device.type != "cpu":
            return self._look(work, operation, what, deadline)
        waiter = threading.Thread(target=operation.wait, name="wherry-card", daemon=True)
        try:
            waiter.start()
            while not operation.done(min(0.05, deadline.left)) and not deadline.passed:
                pass
        except BaseException:
            self._condition.broken = f"a wait for rank {rank} was interrupted"
            raise
        finally:
            if not operation.done(0):
                operation.end()
            if waiter.is_alive():
                waiter.join(_WAKING)
        self._judge(operation, what, deadline)

    def _look(self, work: Any, operation: Operation, what: str, deadline: Deadline) -> None:
        """Waits in this thread: an operation on an accelerator can be looked at. Whoever gives up ends the group."""
        try:
            finish(work, operation.tensor, operation.limit, lambda: deadline.passed)
        except Exception as error:
            operation.trouble = error
            abort(self._pg)
        except BaseException:
            self._condition.broken = f"a wait for rank {operation.rank} was interrupted"
            abort(self._pg)
            raise
        self._judge(operation, what, deadline)

    def _judge(self, operation: Operation, what: str, deadline: Deadline) -> None:
        rank = operation.rank
        if operation.trouble and deadline.passed:
            self._condition.broken = f"rank {rank} was not done with {what} in time"
            raise Timeout(
                f"timed out after {deadline.seconds:g} s: rank {rank} was not done with {what} through the process group, "
                "which must be made again now",
                rank=rank,
            )
        if operation.trouble:
            self._condition.broken = str(operation.trouble)
            raise PeerLost(f"rank {rank} was lost while {what} through the process group: {operation.trouble}", rank=rank)
