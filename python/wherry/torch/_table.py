"""Control and bytes over a process group of torch itself: what `lanes="group"` stands on.

A session lasts for one call, with the ranks that take part in it. Messages go in frames of one size, and what does not fit
there in a second tensor behind it, of the size that the frame says; through a thread a rank each way, since a wait inside
torch cannot be looked at from outside. Bytes go straight from and into the memory of tensors: gloo heeds tags and
lets go of memory that is given up.

Whoever ends a session in order says so with a last frame, and both sides read up to that one: so nothing is left in the
group for the next call to find. Where that cannot be, after a timeout, a cancel or a death, the group is broken: gloo closes
all its connections on any timeout, and this is used to end whatever is still under way.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch

from wherry import _core
from wherry.errors import Closed, PeerLost

FRAME_BYTES = 4 << 10
_HEAD = 5  # the length, and whether it is the last
_INLINE = FRAME_BYTES - _HEAD  # what fits into the frame itself
_BLOCK = 8 << 20
_QUEUE = 8  # messages that wait to be sent to a rank

#: Tags that programs are unlikely to use: of the frames, and behind it those of the channels.
_TAG = 0x5748_0000

#: A block goes in messages of so many bytes: all are received ahead, and sent one after the other. The thread that sends one writes what the socket
#: takes at once, which is about this; of longer ones gloo's own thread writes the rest, and a GiB takes a fifth longer.
_PIECE = 4 << 20

#: How long the other side may take to end a session that went well.
_PARTING = 10.0

#: How much longer than the call itself a message may be under way, should nobody end it; and how long a block may be.
_MARGIN = timedelta(seconds=30)
_BLOCK_LIMIT = timedelta(seconds=30)

#: How long the interpreter may take to be taken apart.
_EXIT = 5.0


def _words(error: Exception) -> str:
    """What torch says, without the file of its own that says it."""
    return re.sub(r"^\[[^]]*\]\s*", "", str(error)).split("\n")[0]


def _loss(rank: int, error: Exception) -> PeerLost:
    return PeerLost(f"the process group says: {_words(error)}", rank=rank)


class Operation:
    """Something that is under way in torch, in one piece or several, and the thread that waits for it.

    @param begun  the pieces that are under way already.
    @param more   begins the others, one at a time: each when the one before is through.
    """

    def __init__(self, begun: list[Any], tensor: torch.Tensor, rank: int, limit: timedelta, more: Iterable[Any] = ()) -> None:
        self.limit = limit  # of each piece
        self.tensor = tensor  # kept until it is done
        self.rank = rank
        self.trouble: Exception | None = None
        self.waiter: threading.Thread | None = None
        self.ends = 0.0  # the wait, at the latest
        self._begun = begun
        self._more = iter(more)
        self._given_up = False
        self._lock = threading.Lock()  # of the three
        self._done = threading.Event()

    def wait(self) -> None:
        """In a thread of its own."""
        if self.done(0):  # given up before its turn
            return
        self.waiter = threading.current_thread()
        _waits.add(self)
        try:
            for number in itertools.count():
                piece = self._piece(number)
                if piece is None:
                    break
                self.ends = time.monotonic() + self.limit.total_seconds()
                piece.wait(self.limit)
        except Exception as error:
            self.trouble = self.trouble or error
        self._done.set()
        _waits.discard(self)

    def _piece(self, number: int) -> Any:
        """A piece that is under way; None: there are no more."""
        with self._lock:
            if self._given_up:
                raise Closed("it was given up")
            if number == len(self._begun):
                self._begun += itertools.islice(self._more, 1)
            return self._begun[number] if number < len(self._begun) else None

    def done(self, seconds: float) -> bool:
        return self._done.wait(seconds)

    def end(self) -> None:
        """Ends it, and with it the group's connections: a wait that times out closes them. Then its memory is left alone.

        The thread that waits for it notices, but for a piece that was just being moved when the other side died: gloo wakes
        nobody then, and that thread ends with its limit, or with the process.
        """
        with self._lock:
            self._given_up = True  # so that nothing more begins
        try:
            for piece in self._begun:  # one that was waited for already times out too
                piece.wait(timedelta(milliseconds=1))
        except Exception as error:  # it is meant to
            self.trouble = self.trouble or error
        self._done.set()


#: What a thread waits for inside torch now.
_waits: set[Operation] = set()


def _let_waits_end() -> None:
    """A thread that comes back from torch while the interpreter is being taken apart aborts the process.

    So what is under way is ended now. A thread that nothing wakes stays there: it is waited for where its limit comes soon, and
    otherwise just ends with the process.
    """
    for operation in list(_waits):
        left = operation.ends - time.monotonic()
        patience = max(0.0, left) + 1 if left < _EXIT else 0.0
        if not operation.done(0):
            operation.end()
            patience = max(patience, 1.0)
        if operation.waiter is not None:
            operation.waiter.join(patience)


atexit.register(_let_waits_end)


class Peer:
    """Frames to and from one rank."""

    def __init__(self, session: PgSession, rank: int) -> None:
        self._session = session
        self.rank = rank
        self.outgoing: queue.Queue[bytes | None] = queue.Queue(_QUEUE)
        self.reading: Operation | None = None
        self.writing: Operation | None = None
        self.parted = False  # the other side has said its last
        self.blocks: queue.SimpleQueue[Operation | None] = queue.SimpleQueue()  # of this rank alone: it may stand still
        self._waiter = self._start("blocks", self._wait_for_blocks)
        self._threads = [self._start("read", self._read), self._start("write", self._write)]

    def _start(self, name: str, body: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=self._guard, args=(body,), name=f"wherry-{name}-{self.rank}", daemon=True)
        thread.start()
        return thread

    def _guard(self, body: Callable[[], None]) -> None:
        try:
            body()
        except Exception as error:
            self._session.lose(self.rank, error)

    def _run(self, what: str, frame: torch.Tensor) -> Operation:
        operation = self._session.begin(what, frame, self.rank)
        setattr(self, "reading" if what == "recv" else "writing", operation)
        if self._session.broken:  # nobody else would end it
            operation.end()
        operation.wait()
        if operation.trouble:
            raise operation.trouble
        return operation

    def _receive(self, size: int) -> bytes:
        frame = torch.empty(size, dtype=torch.uint8)
        self._run("recv", frame)
        return frame.numpy().tobytes()

    def _read(self) -> None:
        while not self.parted:
            frame = self._receive(FRAME_BYTES)
            size = int.from_bytes(frame[: _HEAD - 1], "big")
            if size > _BLOCK or frame[_HEAD - 1] > 1:
                raise Closed(f"rank {self.rank} sent something else than a frame of Wherry's through the process group")
            self.parted = frame[_HEAD - 1] == 1
            block = frame[_HEAD : _HEAD + size] if size <= _INLINE else self._receive(size)
            self._session.deliver(self.rank, None if self.parted else block)

    def _transmit(self, data: bytes) -> None:
        self._run("send", torch.frombuffer(bytearray(data), dtype=torch.uint8))

    def _write(self) -> None:
        block: bytes | None = b""
        while block is not None:
            block = self.outgoing.get()
            content = block or b""
            head = len(content).to_bytes(_HEAD - 1, "big") + bytes([block is None])
            inside = content if len(content) <= _INLINE else b""
            self._transmit((head + inside).ljust(FRAME_BYTES, b"\0"))
            if content and not inside:
                self._transmit(content)

    def _wait_for_blocks(self) -> None:
        while (operation := self.blocks.get()) is not None:
            operation.wait()

    def join_waiter(self) -> None:
        """When no block is under way any more."""
        self.blocks.put(None)
        self._waiter.join(1)

    def join(self, seconds: float) -> bool:
        """Whether all has been said, both ways."""
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def end(self) -> None:
        """Ends what is under way."""
        for operation in (self.reading, self.writing):
            if operation and not operation.done(0):
                operation.end()
        try:
            self.outgoing.put_nowait(None)  # for a writer that waits
        except queue.Full:
            pass


class _Table:
    """The functions that the library calls, in the thread that is inside a call of it."""

    def __init__(self, session: PgSession) -> None:
        self._session = session

    def send(self, rank: int, block: bytes, timeout_ms: int) -> bool:
        peer = self._session.peers.get(rank)
        if peer is None:  # takes no part in this call
            return False
        self._session.check(rank)
        try:
            peer.outgoing.put(block, timeout=timeout_ms / 1000) if timeout_ms else peer.outgoing.put_nowait(block)
        except queue.Full:
            return False
        return True

    def receive(self, timeout_ms: int) -> list[tuple[int, bytes]]:
        return self._session.take(timeout_ms / 1000)

    def destroy(self) -> None:
        pass

    def put(self, rank: int, channel: int, pointer: int, size: int) -> Operation:
        return self._session.begin_block("send", rank, channel, pointer, size)

    def get(self, rank: int, channel: int, pointer: int, size: int) -> Operation:
        return self._session.begin_block("recv", rank, channel, pointer, size)

    def finish(self, operation: Operation, timeout_ms: int) -> bool:
        if not operation.done(timeout_ms / 1000):
            return False
        if operation.trouble:
            rank = operation.rank
            raise PeerLost(f"the process group says: {_words(operation.trouble)}", rank=rank)
        return True

    def abandon(self, operation: Operation) -> None:
        if not operation.done(0):
            self._session.broken = self._session.broken or f"a block to or from rank {operation.rank} was given up"
            operation.end()


class PgSession:
    """A group over a process group, for one call with some ranks.

    `group` is what to make a transport of. `close` ends the session; `broken` then says why the process group must be made
    again, or is empty.
    """

    def __init__(self, pg: Any, peers: Sequence[int], timeout: timedelta) -> None:
        self._pg = pg
        self.limit = timeout + _MARGIN
        self.broken = ""
        self._lost: dict[int, Exception] = {}
        self._incoming: queue.SimpleQueue[tuple[int, bytes | Exception]] = queue.SimpleQueue()
        self.peers: dict[int, Peer] = {}
        try:
            for rank in peers:
                self.peers[rank] = Peer(self, rank)
            self.group = self._join(pg)
        except BaseException:
            self.broken = self.broken or "a transfer over it could not begin"
            self._end_peers()
            raise

    def _join(self, pg: Any) -> _core.Group:
        return _core.Group.from_table(_Table(self), "torch", pg.rank(), pg.size(), _BLOCK, True)

    # ---- for the peers and the table ----

    def begin(self, what: str, tensor: torch.Tensor, rank: int) -> Operation:
        return Operation([self.start(what, tensor, rank)], tensor, rank, self.limit)

    def start(self, what: str, tensor: torch.Tensor, rank: int) -> Any:
        return getattr(self._pg, what)([tensor], rank, _TAG)

    def begin_block(self, what: str, rank: int, channel: int, pointer: int, size: int) -> Operation:
        self.check(rank)
        memory = (ctypes.c_char * size).from_address(pointer)
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        start = getattr(self._pg, what)
        pieces = (start([whole[at : at + _PIECE]], rank, _TAG + 1 + channel) for at in range(0, size, _PIECE))
        begun: list[Any] = []
        operation = Operation(begun, whole, rank, _BLOCK_LIMIT, pieces)
        try:
            if what == "recv":  # what comes finds its place
                begun.extend(pieces)
        except BaseException as error:  # nobody but this knows of those that have begun
            operation.end()
            if isinstance(error, RuntimeError):
                raise _loss(rank, error) from error
            raise
        self.peers[rank].blocks.put(operation)
        return operation

    def deliver(self, rank: int, block: bytes | None) -> None:
        if block is not None:
            self._incoming.put((rank, block))

    def lose(self, rank: int, error: Exception) -> None:
        self._lost.setdefault(rank, error)
        self.broken = self.broken or f"rank {rank} was lost: {_words(error)}"
        self._incoming.put((rank, error))

    def check(self, rank: int) -> None:
        """Whether something can be sent to a rank. What happened to it is told also where the call had not got as far as that."""
        if rank in self._lost:
            raise _loss(rank, self._lost[rank])
        if self.broken:
            raise Closed(f"this process group cannot be used any more, make it again: {self.broken}")

    def take(self, seconds: float) -> list[tuple[int, bytes]]:
        """What has come, at least one block or after so long."""
        found: list[tuple[int, bytes]] = []
        try:
            rank, block = self._incoming.get(timeout=seconds) if seconds else self._incoming.get_nowait()
            while True:
                if isinstance(block, Exception):
                    if found:  # those first
                        self._incoming.put((rank, block))
                        return found
                    raise _loss(rank, block)
                found.append((rank, block))
                rank, block = self._incoming.get_nowait()
        except queue.Empty:
            return found

    # ---- the end ----

    def close(self, failed: bool) -> None:
        """Leaves the group and ends all threads.

        @param failed  the call ended with something under way: there is no parting, and the process group is broken.
        """
        self.group.leave()
        if failed and not self.broken:
            self.broken = "a transfer over it ended early"
        if not self.broken:
            for peer in self.peers.values():
                peer.outgoing.put(None)
            end = time.monotonic() + _PARTING
            if not all(peer.join(max(0.0, end - time.monotonic())) for peer in self.peers.values()) and not self.broken:
                self.broken = "another rank did not end the transfer"
        self._end_peers()

    def _end_peers(self) -> None:
        if self.broken:
            for peer in self.peers.values():
                peer.end()
            for peer in self.peers.values():
                peer.join(1)
        for peer in self.peers.values():
            peer.join_waiter()
