"""How a receiver finds and reaches a source without the help of other ranks.

A source has a listener: a group that it hosts alone, at a port that the system chooses, with its
own secret. A ticket is a short text with everything that a receiver needs to connect. A receiver
with the ticket joins the group as a client, under its own rank. No other rank has to do anything,
and nobody can connect without the secret.

If the environment has a secret for the job (WHERRY_SECRET or WHERRY_SECRET_FILE), the listener uses
that secret, and the ticket contains none. Reading the ticket in a log or a store is then not enough
to connect.
"""

from __future__ import annotations

import fcntl
import ipaddress
import logging
import os
import re
import secrets
import socket
import struct
import time
from collections.abc import Callable
from typing import NamedTuple

from wherry import _core
from wherry._connection import Connection
from wherry._transfer import Deadline
from wherry.errors import (
    BadBytes,
    BadSecret,
    Error,
    InvalidArgument,
    Malformed,
    Mismatch,
    PeerError,
    SystemFailure,
    Timeout,
)

logger = logging.getLogger("wherry")

# ---- tickets, listeners and connections ----

#: The first word of a ticket. Other versions of Wherry expect it, so it must not change.
_VERSION = "wherry-card-1"

#: The most characters that a ticket can have. Longer texts are refused without parsing them.
TICKET_MAX = 1024

_SECRET_BYTES = 32

#: Stands in a ticket for a secret that is in the environment.
_NO_SECRET = "-"

_FORM = re.compile(
    rf"{_VERSION} (tcp://[0-9A-Za-z.:%\[\]_-]{{3,280}}) ([0-9]{{1,7}}) ([0-9]{{1,7}}) "
    r"([0-9a-f]{64}|-)"
)

#: Time limit for opening a listener. It should not take long, because no other rank is needed.
_LISTEN_SECONDS = 30.0


class Ticket(NamedTuple):
    """How to connect to a listener. Anyone with the secret can receive the states it offers."""

    address: str
    size: int
    rank: int
    #: None: the secret is in the environment of both sides.
    secret: bytes | None

    def text(self) -> str:
        """The ticket as text."""
        secret = _NO_SECRET if self.secret is None else self.secret.hex()
        return f"{_VERSION} {self.address} {self.size} {self.rank} {secret}"

    @classmethod
    def read(cls, text: str) -> Ticket:
        """Parses a ticket. Errors do not show the text, because it may contain a secret."""
        found = _FORM.fullmatch(text) if len(text) <= TICKET_MAX else None
        if found is None or not int(found[3]) < int(found[2]):
            raise Malformed(
                f"this text of {len(text)} characters is not a valid ticket, which begins with "
                f"'{_VERSION} tcp://': use the same version of Wherry on both sides"
            )
        secret = None if found[4] == _NO_SECRET else bytes.fromhex(found[4])
        return cls(found[1], int(found[2]), int(found[3]), secret)


def _environment_has_secret() -> bool:
    return bool(os.environ.get("WHERRY_SECRET") or os.environ.get("WHERRY_SECRET_FILE"))


class Listener:
    """A group that this process hosts. The ticket says how to join it."""

    def __init__(self, host: str, rank: int, size: int) -> None:
        secret = None if _environment_has_secret() else secrets.token_bytes(_SECRET_BYTES)
        at = f"[{host}]" if ":" in host else host
        options = {"timeout_ms": int(_LISTEN_SECONDS * 1000), "secret": secret, "wait_for": 1}
        group = _core.Group.join(f"tcp://{at}:0?rank={rank}&size={size}", options)
        self.connection = Connection(group, tells_peers=True)
        self.ticket = Ticket(self.connection.meeting, size, rank, secret)


def connect(ticket: Ticket, rank: int, timeout_ms: int) -> Connection:
    """Connects to a listener as a client. No other client may have the same ``rank``."""
    if ticket.secret is None and not _environment_has_secret():
        raise InvalidArgument(
            f"rank {ticket.rank} uses a secret from its environment, but this process has none: "
            "set WHERRY_SECRET or WHERRY_SECRET_FILE on both sides",
            rank=ticket.rank,
        )
    options = {"timeout_ms": timeout_ms, "secret": ticket.secret, "wait_for": 2, "client": True}
    group = _core.Group.join(f"{ticket.address}?rank={rank}&size={ticket.size}", options)
    return Connection(group, tells_peers=True)


class Backoff:
    """Pauses that grow from 1 ms to 100 ms."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._pause = 0.001

    def wait(self) -> None:
        """Sleeps, at most until the deadline."""
        time.sleep(min(self._pause, self._deadline.left))
        self._pause = min(self._pause * 1.5, 0.1)


def connect_to_source(
    read: Callable[[], str | None], source: int, rank: int, deadline: Deadline
) -> Connection:
    """Waits for the ticket of a source, and connects to it.

    ``read`` returns the current ticket, or None. It is called again after each failed attempt,
    because the ticket of a dead source stays until a new process publishes another one.
    """
    backoff = Backoff(deadline)
    patience = 0.25
    trouble: Error | None = None
    refused: str | None = None
    while True:
        text = read()
        if text is not None:
            try:
                connection = connect(Ticket.read(text), rank, deadline.slice_ms(patience))
                connection.ticket = text
                return connection
            except (Timeout, PeerError, SystemFailure, BadBytes, Mismatch) as error:
                # After a wrong secret, the next attempt may time out before it detects the wrong
                # secret again. Then keep the first error.
                if not isinstance(error, Timeout) or text != refused:
                    trouble = error
                    refused = text if isinstance(error, BadSecret) else None
                patience = min(patience * 2, 2.0)
        if deadline.passed:
            raise _explain(source, deadline, trouble)
        backoff.wait()


def _explain(source: int, deadline: Deadline, trouble: Error | None) -> Error:
    if trouble is None:
        return Timeout(
            f"timed out after {deadline.seconds:g} s: rank {source} has not offered a state; it "
            "must call send_checkpoint with this rank as a destination",
            rank=source,
        )
    if isinstance(trouble, Timeout):
        return Timeout(
            f"timed out after {deadline.seconds:g} s: rank {source} does not answer at its address;"
            f" it has exited or cannot be reached: {trouble.message}",
            rank=source,
        )
    trouble.rank = source
    return trouble


# ---- addresses of this host ----

#: Addresses reserved for documentation. No host has them, so packets to them take the default
#: route.
_ELSEWHERE = ("192.0.2.1", "2001:db8::1")

_SIOCGIFADDR = 0x8915


def is_loopback(host: str) -> bool:
    """True if ``host``, a name or an address, means loopback."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        name = host.rstrip(".").lower()
        local = ("localhost", "ip6-localhost", "ip6-loopback")
        return name in local or host.endswith(".localhost")


def address_towards(host: str) -> str | None:
    """This host's address on the route to ``host``; None if there is no route, or no such name."""
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return None


def _interface_address(name: str) -> str | None:
    """The IPv4 address of a network interface; None if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            request = struct.pack("16s24x", name.encode()[:15])
            found = fcntl.ioctl(any_socket, _SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(found[20:24])


def address_for_others(towards: str, remedy: str) -> str:
    """The address at which other hosts reach this one. ``towards`` is a host that all can reach.

    Returns the first of these that exists and is not loopback:

    1. The address of the interface that WHERRY_INTERFACE names.
    2. The address on the route to ``towards``. It can be loopback, because Debian's /etc/hosts maps
       a host's own name to loopback.
    3. The address of the default route.

    If there is none, logs a warning that contains ``remedy``, and returns 127.0.0.1.
    """
    interface = os.environ.get("WHERRY_INTERFACE")
    found = _interface_address(interface) if interface else None
    for host in (towards, *_ELSEWHERE):
        found = found or address_towards(host)
        if found is not None and not is_loopback(found):
            return found
        found = None
    logger.warning(
        "found no address at which other hosts can reach this one: the route to '%s' does not give "
        "one, and there is no default route; only processes on this host can receive, at "
        "127.0.0.1; %s",
        towards,
        remedy,
    )
    return "127.0.0.1"
