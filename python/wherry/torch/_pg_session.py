"""Control and bytes over a gloo process group: what `lanes="group"` uses.

A session lasts for one call and connects the ranks that take part in it. Messages go in frames of
one size. A message that does not fit into a frame follows it in a second tensor, whose size the
frame gives. Bytes of tensors move as blocks, straight from and into their memory.

Invariants:

1. Each peer has a thread that reads, one that writes and one that waits for blocks, because a wait
   inside torch can be neither polled nor interrupted.
2. A session that ends in order sends a last frame, and both sides read up to it. So it leaves
   nothing in the group for the next session to find.
3. A session that cannot end in order (timeout, cancel, lost peer) breaks the group: `broken` says
   why. Gloo closes all connections of a group when one operation times out, and end() uses that to
   end everything that is under way.
4. No memory of a caller is used after its operation is done or ended.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch

from wherry import _core
from wherry.errors import Closed, PeerLost

FRAME_BYTES = 4 << 10
_HEADER_BYTES = 5  # the length, and 1 in the last frame
_INLINE_BYTES = FRAME_BYTES - _HEADER_BYTES
_MESSAGE_MAX = 8 << 20
_QUEUED_MESSAGES = 8  # per peer

#: The tag of frames. Blocks of channel N use this plus N + 1. Programs are unlikely to use the same
#: tags.
_TAG = 0x5748_0000

#: A block moves in pieces of this size. All are received ahead, and sent one after the other. The
#: sending thread writes what the socket takes at once, which is about this much; gloo's own thread
#: writes the rest of longer ones, which is slower.
_PIECE_BYTES = 4 << 20

#: How long the other side may take to end a session that went well.
_PARTING_SECONDS = 10.0

#: How much longer than the call a message may be under way, if nobody ends it; and how long a block
#: may be.
_MARGIN = timedelta(seconds=30)
_BLOCK_LIMIT = timedelta(seconds=30)

#: At exit, a thread inside torch is waited for if its limit ends within this time.
_EXIT_SECONDS = 5.0


def _loss(rank: int, error: Exception) -> PeerLost:
    return PeerLost(f"the process group reports: {_first_line(error)}", rank=rank)


def _first_line(error: Exception) -> str:
    """The first line of what torch says, without the source file that it names first."""
    first = (str(error).splitlines() or [type(error).__name__])[0]
    return first.partition("] ")[2] or first if first.startswith("[/") else first


class Operation:
    """A send or a receive that is under way in torch, in one piece or several.

    `begun` are the pieces that are under way already. `more` begins the others, each when the one
    before it is done.
    """

    def __init__(
        self,
        begun: list[Any],
        tensor: torch.Tensor,
        rank: int,
        limit: timedelta,
        more: Iterable[Any] = (),
    ) -> None:
        self.limit = limit  # per piece
        self.tensor = tensor  # kept alive until the operation is done
        self.rank = rank
        self.error: Exception | None = None
        self.waiter: threading.Thread | None = None
        self.waits_until = 0.0
        self._begun = begun
        self._more = iter(more)
        self._given_up = False
        self._lock = threading.Lock()  # for the three above
        self._done = threading.Event()

    def wait(self) -> None:
        """Waits for all pieces, in a thread for this purpose."""
        if self.done(0):  # given up before it began
            return
        self.waiter = threading.current_thread()
        _waiting.add(self)
        try:
            for number in itertools.count():
                piece = self._piece(number)
                if piece is None:
                    break
                self.waits_until = time.monotonic() + self.limit.total_seconds()
                piece.wait(self.limit)
        except Exception as error:
            self.error = self.error or error
        self._done.set()
        _waiting.discard(self)

    def _piece(self, number: int) -> Any:
        """A piece that is under way, or None after the last one."""
        with self._lock:
            if self._given_up:
                raise Closed("it was given up")
            if number == len(self._begun):
                self._begun += itertools.islice(self._more, 1)
            return self._begun[number] if number < len(self._begun) else None

    def done(self, seconds: float) -> bool:
        return self._done.wait(seconds)

    def end(self) -> None:
        """Ends the operation.

        A wait that times out closes the group's connections, and then gloo leaves the memory alone.

        The waiting thread usually notices. It does not if the other side died while a piece was
        moving: gloo wakes nobody then, and the thread ends with its limit, or with the process.
        """
        with self._lock:
            self._given_up = True
        try:
            for piece in self._begun:  # a piece that another thread waits for times out too
                piece.wait(timedelta(milliseconds=1))
        except Exception as error:  # as intended
            self.error = self.error or error
        self._done.set()


#: Operations that a thread is waiting for inside torch.
_waiting: set[Operation] = set()


def _end_waits() -> None:
    """Ends what is under way when the interpreter exits.

    A thread that returns from torch after that aborts the process. A thread that nothing wakes is
    waited for if its limit comes soon; otherwise it ends with the process.
    """
    for operation in list(_waiting):
        left = operation.waits_until - time.monotonic()
        patience = max(0.0, left) + 1 if left < _EXIT_SECONDS else 0.0
        if not operation.done(0):
            operation.end()
            patience = max(patience, 1.0)
        if operation.waiter is not None:
            operation.waiter.join(patience)


atexit.register(_end_waits)


class _Peer:
    """The threads and queues of one rank."""

    def __init__(self, session: PgSession, rank: int) -> None:
        self._session = session
        self.rank = rank
        # None stands for the last frame.
        self.outgoing: queue.Queue[bytes | None] = queue.Queue(_QUEUED_MESSAGES)
        self.blocks: queue.SimpleQueue[Operation | None] = queue.SimpleQueue()
        self._reading: Operation | None = None
        self._writing: Operation | None = None
        self._waiter = self._start("blocks", self._wait_for_blocks)
        self._threads = [self._start("read", self._read), self._start("write", self._write)]

    def _start(self, name: str, body: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                body()
            except Exception as error:
                self._session.lose(self.rank, error)

        thread = threading.Thread(target=run, name=f"wherry-{name}-{self.rank}", daemon=True)
        thread.start()
        return thread

    def _read(self) -> None:
        last = False
        while not last:
            frame = self._receive(FRAME_BYTES)
            size, flag = int.from_bytes(frame[: _HEADER_BYTES - 1], "big"), frame[_HEADER_BYTES - 1]
            if size > _MESSAGE_MAX or flag > 1:
                raise Closed(f"rank {self.rank} sent something that is not a frame of Wherry")
            last = flag == 1
            inline = frame[_HEADER_BYTES : _HEADER_BYTES + size]
            message = inline if size <= _INLINE_BYTES else self._receive(size)
            if not last:
                self._session.deliver(self.rank, message)

    def _receive(self, size: int) -> bytes:
        tensor = torch.empty(size, dtype=torch.uint8)
        self._reading = operation = self._session.begin("recv", tensor, self.rank)
        self._finish(operation)
        return tensor.numpy().tobytes()

    def _write(self) -> None:
        message: bytes | None = b""
        while message is not None:
            message = self.outgoing.get()
            content = message or b""
            header = len(content).to_bytes(_HEADER_BYTES - 1, "big") + bytes([message is None])
            inline = content if len(content) <= _INLINE_BYTES else b""
            self._send((header + inline).ljust(FRAME_BYTES, b"\0"))
            if content and not inline:
                self._send(content)

    def _send(self, data: bytes) -> None:
        tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._writing = operation = self._session.begin("send", tensor, self.rank)
        self._finish(operation)

    def _finish(self, operation: Operation) -> None:
        if self._session.broken:  # nobody else would end it
            operation.end()
        operation.wait()
        if operation.error:
            raise operation.error

    def _wait_for_blocks(self) -> None:
        while (operation := self.blocks.get()) is not None:
            operation.wait()

    def join_waiter(self) -> None:
        """Ends the thread that waits for blocks. No block may be under way."""
        self.blocks.put(None)
        self._waiter.join(1)

    def join(self, seconds: float) -> bool:
        """True if both sides have sent their last frame in time."""
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def end(self) -> None:
        """Ends what is under way."""
        for operation in (self._reading, self._writing):
            if operation and not operation.done(0):
                operation.end()
        try:
            self.outgoing.put_nowait(None)  # wakes the writer
        except queue.Full:
            pass


class PgSession:
    """A group over a process group, for one call with some ranks.

    It is the table of functions behind `group`, of which a transport can be made. After close(),
    `broken` says why the process group must be made again, or is empty.
    """

    def __init__(self, pg: Any, peers: Sequence[int], timeout: timedelta) -> None:
        self._pg = pg
        self._limit = timeout + _MARGIN
        self.broken = ""
        self._lost: dict[int, Exception] = {}
        self._incoming: queue.SimpleQueue[tuple[int, bytes | Exception]] = queue.SimpleQueue()
        self.peers: dict[int, _Peer] = {}
        try:
            for rank in peers:
                self.peers[rank] = _Peer(self, rank)
            rank, size = pg.rank(), pg.size()
            self.group = _core.Group.from_table(self, "torch", rank, size, _MESSAGE_MAX, True)
        except BaseException:
            self._break("a transfer over it could not begin")
            self._end_peers()
            raise

    def _break(self, reason: str) -> None:
        """Keeps the first reason."""
        self.broken = self.broken or reason

    # The functions that the library calls, in the thread that called it.

    def send(self, rank: int, message: bytes, timeout_ms: int) -> bool:
        peer = self.peers.get(rank)
        if peer is None:  # it takes no part in this call
            return False
        self._check(rank)
        try:
            peer.outgoing.put(message, block=timeout_ms > 0, timeout=timeout_ms / 1000 or None)
        except queue.Full:
            return False
        return True

    def receive(self, timeout_ms: int) -> list[tuple[int, bytes]]:
        """All messages that have arrived; waits for the first one."""
        found: list[tuple[int, bytes]] = []
        try:
            rank, message = self._incoming.get(timeout_ms > 0, timeout_ms / 1000 or None)
            while True:
                if isinstance(message, Exception):
                    if found:  # deliver those first
                        self._incoming.put((rank, message))
                        return found
                    raise _loss(rank, message)
                found.append((rank, message))
                rank, message = self._incoming.get_nowait()
        except queue.Empty:
            return found

    def put(self, rank: int, channel: int, pointer: int, size: int) -> Operation:
        return self._begin_block("send", rank, channel, pointer, size)

    def get(self, rank: int, channel: int, pointer: int, size: int) -> Operation:
        return self._begin_block("recv", rank, channel, pointer, size)

    def finish(self, operation: Operation, timeout_ms: int) -> bool:
        if not operation.done(timeout_ms / 1000):
            return False
        if operation.error:
            raise _loss(operation.rank, operation.error)
        return True

    def abandon(self, operation: Operation) -> None:
        if not operation.done(0):
            self._break(f"a block to or from rank {operation.rank} was given up")
            operation.end()

    def destroy(self) -> None:
        pass

    def _begin_block(
        self, what: str, rank: int, channel: int, pointer: int, size: int
    ) -> Operation:
        self._check(rank)
        whole = torch.frombuffer((ctypes.c_char * size).from_address(pointer), dtype=torch.uint8)
        start = getattr(self._pg, what)
        pieces = (
            start([whole[at : at + _PIECE_BYTES]], rank, _TAG + 1 + channel)
            for at in range(0, size, _PIECE_BYTES)
        )
        begun: list[Any] = []
        operation = Operation(begun, whole, rank, _BLOCK_LIMIT, pieces)
        try:
            if what == "recv":
                begun.extend(pieces)
        except BaseException as error:  # nobody else knows of the pieces that have begun
            operation.end()
            if isinstance(error, RuntimeError):
                raise _loss(rank, error) from error
            raise
        self.peers[rank].blocks.put(operation)
        return operation

    def _check(self, rank: int) -> None:
        """Raises if nothing can be sent to a rank, with the reason if that rank was lost."""
        if rank in self._lost:
            raise _loss(rank, self._lost[rank])
        if self.broken:
            raise Closed(
                f"this process group cannot be used any more, make it again: {self.broken}"
            )

    # For the threads of the peers.

    def begin(self, what: str, tensor: torch.Tensor, rank: int) -> Operation:
        """Begins to send or receive a tensor. `what` is "send" or "recv"."""
        work = getattr(self._pg, what)([tensor], rank, _TAG)
        return Operation([work], tensor, rank, self._limit)

    def deliver(self, rank: int, message: bytes) -> None:
        self._incoming.put((rank, message))

    def lose(self, rank: int, error: Exception) -> None:
        self._lost.setdefault(rank, error)
        self._break(f"rank {rank} was lost: {_first_line(error)}")
        self._incoming.put((rank, error))

    # The end.

    def close(self, failed: bool) -> None:
        """Leaves the group and ends all threads.

        `failed`: something is under way, so that the process group breaks.
        """
        self.group.leave()
        if failed:
            self._break("a transfer over it ended early")
        if not self.broken:
            for peer in self.peers.values():
                peer.outgoing.put(None)
            end = time.monotonic() + _PARTING_SECONDS
            if not all(peer.join(max(0.0, end - time.monotonic())) for peer in self.peers.values()):
                self._break("another rank did not end the transfer")
        self._end_peers()

    def _end_peers(self) -> None:
        if self.broken:
            for peer in self.peers.values():
                peer.end()
            for peer in self.peers.values():
                peer.join(1)
        for peer in self.peers.values():
            peer.join_waiter()
