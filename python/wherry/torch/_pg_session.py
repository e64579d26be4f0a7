"""Sends control messages and bytes over a gloo process group, for `lanes="group"`.

A session lasts for one call and connects the ranks of that call. Messages are sent in frames of
fixed size. If a message does not fit into a frame, the frame has only its size, and the message
follows in a second tensor. Bytes of tensors move as blocks, without extra copies.

Invariants:

1. Each peer has three threads: one reads, one writes and one waits for blocks. A wait inside torch
   can be neither polled nor interrupted.
2. A session that ends normally sends a last frame, and both sides read up to it. So it leaves
   nothing in the group that the next session could receive.
3. A session that cannot end normally (timeout, cancel, lost peer) breaks the group: `broken` says
   why. Gloo closes all connections of a group when one operation times out, and end() uses that to
   end all running operations.
4. No memory of a caller is used after its operation is done or ended.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch

from wherry import _core
from wherry.errors import Closed, PeerLost

FRAME_BYTES = 4 << 10
_HEADER_BYTES = 5  # Four bytes for the length, and a flag that is 1 in the last frame.
_INLINE_BYTES = FRAME_BYTES - _HEADER_BYTES
_MESSAGE_MAX = 8 << 20
_QUEUED_MESSAGES = 8  # operations per peer

#: The tag of frames. Blocks of channel N have the tag _TAG + N + 1. Other code of the program is
#: unlikely to use the same tags.
_TAG = 0x5748_0000

#: A block moves in pieces of this size. The receiver starts all receives at once, and the sender
#: sends one piece after the other. The sending thread writes pieces of this size itself. If pieces
#: were larger, gloo's own thread would write a part of them, which is slower.
_PIECE_BYTES = 4 << 20

#: How long the other side may take to send its last frame after a session without failure.
_PARTING_SECONDS = 10.0

#: Frames get this much more time than the call. Normally, end() ends them before that.
_MARGIN = timedelta(seconds=30)

#: How long each piece of a block may take.
_BLOCK_LIMIT = timedelta(seconds=30)

#: At exit, the interpreter waits for a thread inside torch if its wait ends within this time.
_EXIT_SECONDS = 5.0

#: Why a process group can no longer be used. A timeout inside a gloo group breaks it permanently.
_broken: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def _loss(rank: int, error: Exception) -> PeerLost:
    return PeerLost(f"the process group reports: {_first_line(error)}", rank=rank)


def _first_line(error: Exception) -> str:
    """The first line of torch's message, without the source file at its start."""
    first = (str(error).splitlines() or [type(error).__name__])[0]
    return first.partition("] ")[2] or first if first.startswith("[/") else first


class Operation:
    """A send or a receive in torch, of one or more pieces.

    `begun` has the pieces that have been started. Iterating over `more` starts the others. Each is
    started when the piece before it is done.
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
        self._lock = threading.Lock()  # protects _begun, _more and _given_up
        self._done = threading.Event()

    def wait(self) -> None:
        """Waits for all pieces. Called in a thread of the peer."""
        if self.done(0):  # end() was called before.
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
        """Returns a piece, and starts it if necessary. None after the last one."""
        with self._lock:
            if self._given_up:
                raise Closed("the operation was abandoned")
            if number == len(self._begun):
                self._begun += itertools.islice(self._more, 1)
            return self._begun[number] if number < len(self._begun) else None

    def done(self, seconds: float) -> bool:
        return self._done.wait(seconds)

    def end(self) -> None:
        """Ends the operation by a wait that times out.

        The timeout closes the group's connections, after which gloo does not access the memory. It
        usually wakes the waiting thread too. If the other side died while a piece was moving, gloo
        does not wake that thread. The thread then ends at its time limit, or at process exit.
        """
        with self._lock:
            self._given_up = True
        try:
            for piece in self._begun:  # This works even if another thread waits for the same piece.
                piece.wait(timedelta(milliseconds=1))
        except Exception as error:  # This is the timeout.
            self.error = self.error or error
        self._done.set()


#: The operations for which a thread is waiting inside torch.
_waiting: set[Operation] = set()


def _end_waits() -> None:
    """Ends all operations when the interpreter exits.

    A thread that returns from torch during the exit would abort the process. So this function waits
    for threads that do not wake, but only if their time limit ends within _EXIT_SECONDS.
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
    """The threads and queues for one other rank."""

    def __init__(self, session: PgSession, rank: int) -> None:
        self._session = session
        self.rank = rank
        # None means the last frame.
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
                raise Closed(
                    f"rank {self.rank} sent bytes that are not a valid frame: use the same version "
                    "of Wherry on all ranks"
                )
            last = flag == 1
            inline = frame[_HEADER_BYTES : _HEADER_BYTES + size]
            message = inline if size <= _INLINE_BYTES else self._receive(size)
            if not last:
                self._session.incoming.put((self.rank, message))

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
        if self._session.broken:  # end() of the peer may have run before the operation began.
            operation.end()
        operation.wait()
        if operation.error:
            raise operation.error

    def _wait_for_blocks(self) -> None:
        while (operation := self.blocks.get()) is not None:
            operation.wait()

    def join_waiter(self) -> None:
        """Ends the thread that waits for blocks. No block may be moving."""
        self.blocks.put(None)
        self._waiter.join(1)

    def join(self, seconds: float) -> bool:
        """Waits for the threads that read and write. True if both have ended in time."""
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def end(self) -> None:
        """Ends the current read and write."""
        for operation in (self._reading, self._writing):
            if operation and not operation.done(0):
                operation.end()
        try:
            self.outgoing.put_nowait(None)  # This wakes the writer.
        except queue.Full:
            pass


class PgSession:
    """A group of Wherry over a process group, for one call with some of its ranks.

    The library calls the methods of this class through `group` (see group_type.c). `broken` says
    why the process group can no longer be used; "" if it can be used.
    """

    def __init__(self, pg: Any, peers: Sequence[int], timeout: timedelta) -> None:
        self._pg = pg
        self._limit = timeout + _MARGIN
        self._lost: dict[int, Exception] = {}
        self.incoming: queue.SimpleQueue[tuple[int, bytes | Exception]] = queue.SimpleQueue()
        self.peers: dict[int, _Peer] = {}
        self._check()
        try:
            for rank in peers:
                self.peers[rank] = _Peer(self, rank)
            rank, size = pg.rank(), pg.size()
            self.group = _core.Group.from_table(self, "torch", rank, size, _MESSAGE_MAX, True)
        except BaseException:
            self._break("a transfer over it could not start")
            self._end_peers()
            raise

    @property
    def broken(self) -> str:
        return _broken.get(self._pg, "")

    def _break(self, reason: str) -> None:
        _broken.setdefault(self._pg, reason)  # This keeps the first reason.

    # The library calls these functions, in the thread that called the library.

    def send(self, rank: int, message: bytes, timeout_ms: int) -> bool:
        peer = self.peers.get(rank)
        if peer is None:  # The rank takes no part in this call.
            return False
        self._check(rank)
        try:
            peer.outgoing.put(message, block=timeout_ms > 0, timeout=timeout_ms / 1000 or None)
        except queue.Full:
            return False
        return True

    def receive(self, timeout_ms: int) -> list[tuple[int, bytes]]:
        """Returns all messages that have arrived. If there is none, waits for one."""
        found: list[tuple[int, bytes]] = []
        try:
            rank, message = self.incoming.get(timeout_ms > 0, timeout_ms / 1000 or None)
            while True:
                if isinstance(message, Exception):
                    if found:  # Return these first. A later call raises.
                        self.incoming.put((rank, message))
                        return found
                    raise _loss(rank, message)
                found.append((rank, message))
                rank, message = self.incoming.get_nowait()
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
            self._break(f"a block to or from rank {operation.rank} was abandoned")
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
        except BaseException as error:  # Only this function knows the pieces that have begun.
            operation.end()
            if isinstance(error, RuntimeError):
                raise _loss(rank, error) from error
            raise
        self.peers[rank].blocks.put(operation)
        return operation

    def _check(self, rank: int | None = None) -> None:
        """Raises if the rank was lost, or if the process group can no longer be used."""
        if rank is not None and rank in self._lost:
            raise _loss(rank, self._lost[rank])
        if self.broken:
            raise Closed(
                f"this process group can no longer be used ({self.broken}): create a new one"
            )

    # For the threads of the peers.

    def begin(self, what: str, tensor: torch.Tensor, rank: int) -> Operation:
        """Starts to send or receive a tensor. `what` is "send" or "recv"."""
        work = getattr(self._pg, what)([tensor], rank, _TAG)
        return Operation([work], tensor, rank, self._limit)

    def lose(self, rank: int, error: Exception) -> None:
        self._lost.setdefault(rank, error)
        self._break(f"rank {rank} was lost: {_first_line(error)}")
        self.incoming.put((rank, error))

    # ---- the end ----

    def close(self, failed: bool) -> None:
        """Leaves the group and ends all threads. `failed`: operations may still be running."""
        self.group.leave()
        if failed:
            self._break("a transfer over it ended early")
        if not self.broken:
            for peer in self.peers.values():
                peer.outgoing.put(None)
            end = time.monotonic() + _PARTING_SECONDS
            if not all(peer.join(max(0.0, end - time.monotonic())) for peer in self.peers.values()):
                self._break("another rank did not end the transfer in time")
        self._end_peers()

    def _end_peers(self) -> None:
        if self.broken:
            for peer in self.peers.values():
                peer.end()
            for peer in self.peers.values():
                peer.join(1)
        for peer in self.peers.values():
            peer.join_waiter()
