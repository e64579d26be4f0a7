"""The greeting of two members, written from docs/group-protocol.md and src/group/hello.h alone, and
TLS by the command openssl."""

from __future__ import annotations

import base64
import dataclasses
import hmac
import re
import select
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator

HELLO, PROOF, ACCEPT, REFUSE, PING, ATTACH, PONG = 1, 2, 3, 4, 18, 19, 20
NONE, BY_SECRET, BY_USER_KEY, BY_TLS, BY_TICKET, BY_READER = range(6)  # methods
FOR_CONTROL, FOR_DATA = 0, 1  # purposes
VERSION, BAD_SECRET, STALE, OTHER, USED = 1, 3, 6, 8, 11  # reasons to refuse
EXPORTER = "EXPORTER-wherry-greeting"


# ---- keys ----


def hkdf(secret: bytes, label: bytes, size: int) -> bytes:
    """RFC 5869 without a salt, with SHA-256."""
    key = hmac.digest(bytes(32), secret, "sha256")
    block, result = b"", b""
    while len(result) < size:
        block = hmac.digest(key, block + label + bytes([len(result) // 32 + 1]), "sha256")
        result += block
    return result[:size]


@dataclasses.dataclass
class Keys:
    """The keys that are derived from a secret."""

    number: int
    proof: bytes
    psk: bytes

    @property
    def identity(self) -> str:
        return f"wherry-{self.number:016x}"


def keys_of(secret: str | bytes) -> Keys:
    secret = secret.encode() if isinstance(secret, str) else secret
    number = int.from_bytes(hkdf(secret, b"wherry key id 1", 8), "big") | 1
    return Keys(number, hkdf(secret, b"wherry proof 1", 32), hkdf(secret, b"wherry tls psk 1", 32))


def reader_of(token: str) -> bytes:
    """The secret of the readers in a token."""
    whole = base64.urlsafe_b64decode(token.removeprefix("wherry1-") + "==")
    return whole[32:48]


# ---- frames ----


def frame(kind: int, body: bytes = b"") -> bytes:
    return struct.pack(">IB", len(body), kind) + body


def frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The type and the body of each whole frame."""
    while len(data) >= 5:
        size, kind = struct.unpack(">IB", data[:5])
        if len(data) < 5 + size:
            return
        yield kind, data[5 : 5 + size]
        data = data[5 + size :]


def hello(
    *,
    version: int = 2,
    lowest: int = 2,
    method: int = NONE,
    purpose: int = FOR_CONTROL,
    rank: int = 1,
    size: int = 2,
    incarnation: int | None = None,
    job: bytes = b"",
    key: int = 0,
    nonce: bytes = bytes(range(32)),
) -> bytes:
    """A HELLO as a frame."""
    numbers = struct.pack(
        ">4sHHHBBIIQ", b"WHRY", version, lowest, 0, method, purpose, rank, size,
        time.time_ns() if incarnation is None else incarnation,
    )  # fmt: skip
    texts = struct.pack(">H", len(job)) + job + bytes(2)
    return frame(HELLO, numbers + nonce + texts + bytes(8) + struct.pack(">Q", key))


def refusal(reason: int, text: bytes = b"") -> bytes:
    return frame(REFUSE, bytes([reason]) + text)


def stale() -> bytes:
    """A refusal that tells a member that another process has just taken its rank."""
    return refusal(STALE, b"a newer one: incarnation %d" % (time.time_ns() + 10**9))


def proof(key: bytes, own: bytes, other: bytes, binding: bytes = b"") -> bytes:
    """The PROOF of the side that has dialled, as a frame."""
    return frame(PROOF, hmac.digest(key, b"\0" + own + other + binding, "sha256"))


def ticket(key: bytes, number: int) -> bytes:
    """The ticket with a number. Its key came with an ACCEPT."""
    return hmac.digest(key, struct.pack(">Q", number), "sha256")


# ---- connections ----


class Clear:
    """A connection in clear text."""

    def __init__(self, target: tuple[str, int], seconds: float = 10):
        self.connection = socket.create_connection(target, seconds)
        self.came = b""

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def read(self) -> bytes:
        try:
            return self.connection.recv(1 << 16)
        except ConnectionError:
            return b""

    def frame(self) -> tuple[int, bytes] | None:
        """The next frame; None at the end."""
        while not (found := next(frames(self.came), None)):
            part = self.read()
            if not part:
                return None
            self.came += part
        self.came = self.came[5 + len(found[1]) :]
        return found

    def rest(self) -> bytes:
        """Returns the bytes that arrive until the other side ends the connection."""
        while part := self.read():
            self.came += part
        return self.came

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Clear:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Tls(Clear):
    """Like Clear, but over `openssl s_client`, which also prints the value of the exporter."""

    def __init__(self, target: tuple[str, int], *arguments: str, commands: bool = False):
        """
        :param commands: s_client takes the letters of `command`.
        """
        self.process = subprocess.Popen(
            ["openssl", "s_client", "-connect", f"{target[0]}:{target[1]}"]
            + [
                *([] if commands else ["-nocommands", "-ign_eof"]),
                "-keymatexport",
                EXPORTER,
                "-keymatexportlen",
                "32",
            ]
            + [*([] if "-tls1_2" in arguments else ["-tls1_3"]), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if commands else subprocess.STDOUT,
        )
        assert self.process.stdin and self.process.stdout
        self.limit = threading.Timer(20, self.process.kill)
        self.limit.start()
        self.came = b""
        self.said = b""
        self.binding = b""
        pattern = re.compile(rb"Keying material: ([0-9A-F]{64})\n---\n", re.S)
        while not (found := pattern.search(self.said)) and (part := self.read()):
            self.said += part
        if found:
            self.binding = bytes.fromhex(found[1].decode())
            self.said, self.came = self.said[: found.end()], self.said[found.end() :]

    def send(self, data: bytes) -> None:
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def command(self, letter: str, answer: bytes) -> None:
        """Gives s_client a command, and waits until it confirms the command."""
        self.send(letter.encode() + b"\n")
        told = b""
        while not told.endswith(answer + b"\n"):
            part = self.process.stderr.read1(1 << 16)
            assert part, told
            told += part

    def read(self) -> bytes:
        return self.process.stdout.read1(1 << 16)

    def skip(self) -> None:
        """Skips frames until none has come for a while."""
        while self.came or select.select([self.process.stdout], [], [], 0.3)[0]:
            if not self.frame():
                return

    def close(self) -> None:
        self.limit.cancel()
        self.process.kill()
        self.process.communicate()


def by_psk(target: tuple[str, int], keys: Keys, *arguments: str, commands: bool = False) -> Tls:
    own = ["-psk", keys.psk.hex(), "-psk_identity", keys.identity]
    return Tls(target, *own, *arguments, commands=commands)
