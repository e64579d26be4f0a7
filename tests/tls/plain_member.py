"""A second member of a group, written from docs/group-protocol.md alone: it joins, tells what it
knows, answers, sends and receives messages, and meets others at a barrier. It does not listen."""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
import time

from protocol import (
    ACCEPT,
    BY_TLS,
    HELLO,
    NONE,
    PING,
    PONG,
    PROOF,
    Clear,
    Tls,
    by_psk,
    frame,
    hello,
    keys_of,
)

MESSAGE, TABLE, IDLE, ARRIVED, MISSING = 16, 17, 21, 22, 23
PART = 200 << 10
PROGRAM = 1 << 32  # added to the tags of a program's messages
MASK = (1 << 64) - 1


def xxh64(data: bytes) -> int:
    """XXH64 with the seed 0, of less than 32 bytes."""
    p1, p2, p3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
    p4, p5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5

    def rotate(value: int, by: int) -> int:
        return ((value << by) | (value >> (64 - by))) & MASK

    value = (p5 + len(data)) & MASK
    while len(data) >= 8:
        lane = rotate(int.from_bytes(data[:8], "little") * p2 & MASK, 31) * p1 & MASK
        value = (rotate(value ^ lane, 27) * p1 + p4) & MASK
        data = data[8:]
    if len(data) >= 4:
        value ^= int.from_bytes(data[:4], "little") * p1 & MASK
        value = (rotate(value, 23) * p2 + p3) & MASK
        data = data[4:]
    for byte in data:
        value = rotate(value ^ (byte * p5 & MASK), 11) * p1 & MASK
    value = (value ^ (value >> 33)) * p2 & MASK
    value = (value ^ (value >> 29)) * p3 & MASK
    return value ^ (value >> 32)


class Member:
    """A rank of a group that meets over TCP."""

    def __init__(self, target: tuple[str, int], rank: int, size: int, secret: str | None):
        self.rank, self.size, self.incarnation = rank, size, time.time_ns()
        self.table: dict[int, int] = {rank: self.incarnation}
        self.reached = dict.fromkeys(range(size), 0)
        self.hashes: list[int] = []
        self.messages: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
        self.parts = b""
        self.changed = threading.Condition()
        self.peer = by_psk(target, keys_of(secret)) if secret else Clear(target)
        kind, body = self.peer.frame() if secret else (HELLO, b"")
        own = hello(method=BY_TLS if secret else NONE, rank=rank, size=size,
                    incarnation=self.incarnation)  # fmt: skip
        self.peer.send(own + frame(PROOF))
        if not secret:
            kind, body = self.peer.frame()
        assert kind == HELLO
        self.learn(*struct.unpack(">IQ", body[12:16] + body[20:28]))
        assert self.peer.frame() == (PROOF, b"")
        self.peer.send(frame(ACCEPT))
        kind, key = self.peer.frame()
        assert kind == ACCEPT and len(key) == (32 if secret else 0)
        self.closing = threading.Event()
        self.threads = [threading.Thread(target=one, daemon=True)
                        for one in (self._read, self._ping)]  # fmt: skip
        for thread in self.threads:
            thread.start()

    def learn(self, rank: int, incarnation: int) -> None:
        self.table[rank] = max(incarnation, self.table.get(rank, 0))

    def hash(self) -> int:
        return sum(xxh64(struct.pack(">IQ", *entry)) for entry in self.table.items()) & MASK

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while found := self.peer.frame():
                with self.changed:
                    self._take(*found)
                    self.changed.notify_all()

    def _ping(self) -> None:
        """The side that dialled keeps the connection alive."""
        with contextlib.suppress(OSError):
            while not self.closing.wait(1):
                with self.changed:
                    self.peer.send(frame(PING, struct.pack(">Q", self.hash())))

    def _take(self, kind: int, body: bytes) -> None:
        if kind == MESSAGE:
            tag, to_come = struct.unpack(">QQ", body[:16])
            self.parts += body[16:]
            if not to_come:
                self.messages.put((tag ^ PROGRAM, self.parts))
                self.parts = b""
        elif kind == TABLE:
            self._take_table(body)
        elif kind == PING:
            self.hashes.append(*struct.unpack(">Q", body))
            self.peer.send(frame(PONG, struct.pack(">Q", self.hash())))
        elif kind == PONG and body:
            self.hashes.append(*struct.unpack(">Q", body))
        elif kind == IDLE:
            self.peer.send(frame(IDLE))
        elif kind == ARRIVED and not body:
            self._tell(max(self.reached.values()))
        elif kind == ARRIVED:
            for first, count, number in struct.iter_unpack(">IIQ", body):
                for rank in range(first, first + count):
                    self.reached[rank] = max(self.reached[rank], number)

    def _take_table(self, body: bytes) -> None:
        while body:
            rank, incarnation, form = struct.unpack(">IQB", body[:13])
            body = body[13:]
            if form == 0:
                body = body[2 + struct.unpack(">H", body[:2])[0] :]
            else:
                body = body[{1: 6, 2: 18, 0x81: 38, 0x82: 50}[form] :]
            self.learn(rank, incarnation)

    def ping(self) -> int:
        """The hash of the other side's table."""
        with self.changed:
            before = len(self.hashes)
            self.peer.send(frame(PING, struct.pack(">Q", self.hash())))
            assert self.changed.wait_for(lambda: len(self.hashes) > before, 10)
            return self.hashes[-1]

    def send(self, tag: int, text: bytes) -> None:
        pieces = [text[at : at + PART] for at in range(0, len(text), PART)] or [b""]
        left = len(text)
        for piece in pieces:
            left -= len(piece)
            with self.changed:
                self.peer.send(frame(MESSAGE, struct.pack(">QQ", tag | PROGRAM, left) + piece))

    def _tell(self, number: int) -> None:
        self.peer.send(frame(ARRIVED, struct.pack(">IIQ", self.rank, 1, number)))

    def barrier(self, number: int) -> None:
        """In a group of two, the other rank is the only one at a distance of 2^k."""
        with self.changed:
            self.reached[self.rank] = number
            self._tell(number)
            assert self.changed.wait_for(lambda: min(self.reached.values()) >= number, 10)

    def close(self) -> None:
        if not self.closing.is_set():
            self.closing.set()
            if not isinstance(self.peer, Tls):
                self.peer.connection.shutdown(socket.SHUT_RDWR)
            self.peer.close()
            for thread in self.threads:
                thread.join()
