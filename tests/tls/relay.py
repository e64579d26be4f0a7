"""An attacker between two processes: forwards their TCP connections and changes the bytes in any
way.

    with relay.Relay() as between:
        between.target = ("127.0.0.1", port)                   # dial between.port instead
        between.attack(0, relay.UP, relay.alter(100))          # one byte of the first connection
        between.attack(1, relay.DOWN, relay.records(repeat(3)))  # a record of the second one

Connections are numbered in the order in which they were dialled, from 0. UP is what the dialling
side sends. An attack takes the bytes of one direction of one connection, and gives the bytes to
pass on, which are passed on in the same pieces. All other bytes are passed on unchanged."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator

import plain_file

UP, DOWN = "up", "down"
RECORD_HEADER = 5
CHANGE_CIPHER_SPEC, ALERT, HANDSHAKE, APPLICATION = 20, 21, 22, 23
CONNECT_SECONDS = 10

#: Takes the bytes that have come, None at the end. Gives the bytes to pass on.
Attack = Callable[[bytes | None], Iterable[bytes]]

#: Takes the number and the bytes of a record. Gives the bytes to pass on.
Edit = Callable[[int, bytes], Iterable[bytes]]


class Cut(Exception):
    """Raised by an attack: ends the connection, in both directions."""

    def __init__(self, reset: bool = False):
        self.reset = reset


# ---- attacks ----


def alter(at: int, mask: int = 1) -> Attack:
    """Changes the byte at a position."""
    passed = 0

    def attack(data: bytes | None) -> Iterator[bytes]:
        nonlocal passed
        if data is None:
            return
        if passed <= at < passed + len(data):
            attack.done = True
            data = data[: at - passed] + bytes([data[at - passed] ^ mask]) + data[at - passed + 1 :]
        passed += len(data)
        yield data

    attack.done = False
    return attack


def cut(at: int, *, reset: bool = False) -> Attack:
    """Ends the connection after this many bytes."""
    left = at

    def attack(data: bytes | None) -> Iterator[bytes]:
        nonlocal left
        if data is None:
            return
        if len(data) >= left:
            attack.done = True
            yield data[:left]
            raise Cut(reset)
        left -= len(data)
        yield data

    attack.done = False
    return attack


def pieces(size: int = 1) -> Attack:
    """Passes everything on in pieces of this size."""

    def attack(data: bytes | None) -> Iterator[bytes]:
        for at in range(0, len(data or b""), size):
            yield data[at : at + size]

    return attack


def records(edit: Edit) -> Attack:
    """Calls `edit` with the number and the bytes of each TLS record. Passes on the result."""
    waiting = b""
    number = 0

    def attack(data: bytes | None) -> Iterator[bytes]:
        nonlocal waiting, number
        waiting += data or b""
        while len(waiting) >= RECORD_HEADER:
            size = RECORD_HEADER + int.from_bytes(waiting[3:5], "big")
            if len(waiting) < size:
                break
            record, waiting = waiting[:size], waiting[size:]
            edited = list(edit(number, record))
            attack.done = attack.done or edited != [record]
            yield from edited
            number += 1
        if data is None and waiting:
            yield waiting

    attack.done = False
    return attack


def encrypted(edit: Edit) -> Attack:
    """Like `records`, but only for the encrypted records. They are counted from 0."""
    count = 0

    def only(_: int, record: bytes) -> Iterator[bytes]:
        nonlocal count
        if record[0] != APPLICATION:
            yield record
            return
        yield from edit(count, record)
        count += 1

    return records(only)


# ---- edits of records: each changes the record with a given number ----


def replay(at: int) -> Edit:
    return lambda number, record: [record, record] if number == at else [record]


def drop(at: int) -> Edit:
    return lambda number, record: [] if number == at else [record]


def reorder(at: int) -> Edit:
    kept = []

    def edit(number: int, record: bytes) -> list[bytes]:
        if number == at:
            kept.append(record)
            return []
        return [record, kept.pop()] if kept else [record]

    return edit


def frames(edit: Callable[[int, bytes], Iterable[bytes]]) -> Attack:
    """Calls `edit` with the type and the bytes of ATTACH and of each frame of a greeting in clear
    text. Passes on the result. The direction must carry nothing else."""
    waiting = b""

    def attack(data: bytes | None) -> Iterator[bytes]:
        nonlocal waiting
        waiting += data or b""
        while len(waiting) >= 5 and len(waiting) >= 5 + int.from_bytes(waiting[:4], "big"):
            size = 5 + int.from_bytes(waiting[:4], "big")
            one, waiting = waiting[:size], waiting[size:]
            yield from edit(one[4], one)
        if data is None and waiting:
            yield waiting

    return attack


def chunks(edit: Callable[[int, bytes], bytes]) -> Attack:
    """Replaces chunks on their way to the receiver over a data connection that is not encrypted,
    and their digests, so that they still match. `edit` gets the number and the bytes of a chunk."""
    return _Chunks(edit)


class _Chunks:
    """The frames of the greeting, then one byte, then the frames of
    src/lane/stream/stream_frame.h."""

    ACCEPT = 3
    HEADER = 64
    DIGEST_FOLLOWS = 1 << 63

    def __init__(self, edit: Callable[[int, bytes], bytes]):
        self.edit = edit
        self.waiting = b""
        self.digest = b""  # the digest of the previous chunk, if that was replaced
        self.greeting = True
        self.done = False

    def __call__(self, data: bytes | None) -> Iterator[bytes]:
        self.waiting += data or b""
        while part := self._frame() if self.greeting else self._chunk():
            yield part

    def _take(self, size: int) -> bytes:
        taken, self.waiting = self.waiting[:size], self.waiting[size:]
        return taken

    def _frame(self) -> bytes:
        size = 5 + int.from_bytes(self.waiting[:4], "big")
        if len(self.waiting) < size + 1:
            return b""
        if self.waiting[4] == self.ACCEPT:
            self.greeting = False
            size += 1  # one more byte, which is the answer to ATTACH
        return self._take(size)

    def _chunk(self) -> bytes:
        if len(self.waiting) < self.HEADER:
            return b""
        number, length = struct.unpack(">QQ", self.waiting[16:32])
        size = length & ~self.DIGEST_FOLLOWS
        if len(self.waiting) < self.HEADER + size:
            return b""
        header, body = self._take(self.HEADER), self._take(size)
        if self.digest:
            header, self.digest = self.digest + header[16:], b""
        if size:
            replaced = self.edit(number, body)
            self.done = self.done or replaced != body
            self.digest = plain_file.xxh3_128(replaced) if length & self.DIGEST_FOLLOWS else b""
            body = replaced
        return header + body


# ---- the relay ----


@dataclasses.dataclass
class Way:
    """One direction of a connection."""

    source: socket.socket
    sink: socket.socket
    attack: Attack | None
    keep: bool
    passed: int = 0  # bytes that have come
    sent: bytes = b""  # what has come, if it is kept
    ended: bool = False  # its source has ended or is gone

    def run(self, other: Callable[[bool], None]) -> None:
        try:
            while True:
                data = self.source.recv(1 << 18)
                if self.keep:
                    self.sent += data
                self.passed += len(data)
                for piece in self.attack(data or None) if self.attack else [data]:
                    self.sink.sendall(piece)
                if not data:
                    self.ended = True
                    self.sink.shutdown(socket.SHUT_WR)
                    return
        except Cut as end:
            other(end.reset)
        except OSError:
            self.ended = True
            other(True)


class Connection:
    """One connection through the relay."""

    def __init__(
        self, near: socket.socket, far: socket.socket, plan: dict[str, Attack], keep: bool
    ):
        self.near, self.far = near, far
        for one in (near, far):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.ways = {
            UP: Way(near, far, plan.get(UP), keep),
            DOWN: Way(far, near, plan.get(DOWN), keep),
        }
        self.threads = [
            threading.Thread(target=way.run, args=(self.end,), daemon=True)
            for way in self.ways.values()
        ]

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def end(self, reset: bool = False) -> None:
        for one in (self.near, self.far):
            with contextlib.suppress(OSError):
                if reset:
                    linger = struct.pack("ii", 1, 0)
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                one.shutdown(socket.SHUT_RDWR)

    def wait(self, seconds: float) -> bool:
        """Waits until both sides have ended the connection. False if they have not."""
        for thread in self.threads:
            thread.join(seconds)
        return not any(thread.is_alive() for thread in self.threads)

    def close(self) -> None:
        self.end()
        for thread in self.threads:
            thread.join()
        self.near.close()
        self.far.close()


class Relay:
    """Listens at a port of loopback, and forwards each connection to `target`."""

    def __init__(self, target: tuple[str, int] | None = None, *, keep: bool = False):
        """
        :param keep: keep the bytes that have come, in Way.sent.
        """
        self.target = target
        self.keep = keep
        self.plans: dict[int, dict[str, Attack]] = {}
        self.connections: list[Connection] = []
        self.closing = False
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    def attack(self, number: int, way: str, attack: Attack) -> Attack:
        """Attacks a connection that has not been dialled yet."""
        self.plans.setdefault(number, {})[way] = attack
        return attack

    def forget(self) -> None:
        """Ends all connections and attacks. The next connection has the number 0."""
        with self.lock:
            ended, self.connections, self.plans = self.connections, [], {}
        for one in ended:
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            with self.lock:
                if self.closing:
                    near.close()
                    return
                try:
                    far = socket.create_connection(self.target, CONNECT_SECONDS)
                    far.settimeout(None)
                except OSError:
                    near.close()
                    continue
                plan = self.plans.get(len(self.connections), {})
                one = Connection(near, far, plan, self.keep)
                # Do this before any byte passes, because a test may wait for the byte.
                self.connections.append(one)
                one.start()

    def close(self) -> None:
        with self.lock:
            self.closing = True
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()
        self.forget()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
