"""How a receiver finds and reaches a source without the help of other ranks.

A source has a listener: a group that it hosts alone, at a port that the system chooses, with its
own secret. A ticket, a short text, has all that is needed to connect. A receiver with the ticket
joins the group as a client, under its own rank. No other rank has to do anything, and nobody can
connect without the ticket.

If the environment has a secret of the job (WHERRY_SECRET or WHERRY_SECRET_FILE), the listener uses
that one and the ticket contains none: reading a ticket in a log or a store is then not enough.
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

#: The first word of a ticket, as other versions of Wherry know it.
_VERSION = "wherry-card-1"

#: No ticket is longer, so no more is read from outside.
TICKET_MAX = 1024

_SECRET_BYTES = 32

#: In a ticket, instead of the secret: the secret is in the environment.
_NO_SECRET = "-"

_FORM = re.compile(
    rf"{_VERSION} (tcp://[0-9A-Za-z.:%\[\]_-]{{3,280}}) ([0-9]{{1,7}}) ([0-9]{{1,7}}) "
    r"([0-9a-f]{64}|-)"
)

#: Time limit for opening a listener, which waits for nobody.
_LISTEN_SECONDS = 30.0


class Ticket(NamedTuple):
    """What is needed to connect to a listener. With its secret, one can fetch the states there."""

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
        """Reads a ticket from outside. Errors do not show the text, which may have a secret."""
        found = _FORM.fullmatch(text) if len(text) <= TICKET_MAX else None
        if found is None or not int(found[3]) < int(found[2]):
            raise Malformed(
                f"this is not a ticket of Wherry ({len(text)} characters; it must begin with "
                f"'{_VERSION} tcp://'): use the same version of Wherry on both sides"
            )
        secret = None if found[4] == _NO_SECRET else bytes.fromhex(found[4])
        return cls(found[1], int(found[2]), int(found[3]), secret)


def _environment_has_secret() -> bool:
    return bool(os.environ.get("WHERRY_SECRET") or os.environ.get("WHERRY_SECRET_FILE"))


class Listener:
    """A group that this process hosts for everyone with the ticket."""

    def __init__(self, host: str, rank: int, size: int) -> None:
        secret = None if _environment_has_secret() else secrets.token_bytes(_SECRET_BYTES)
        at = f"[{host}]" if ":" in host else host
        options = {"timeout_ms": int(_LISTEN_SECONDS * 1000), "secret": secret, "wait_for": 1}
        group = _core.Group.join(f"tcp://{at}:0?rank={rank}&size={size}", options)
        self.connection = Connection(group, tells_peers=True)
        self.ticket = Ticket(self.connection.meeting, size, rank, secret)


def connect(ticket: Ticket, rank: int, timeout_ms: int) -> Connection:
    """Connects to a listener as a client, under a rank that no other client has."""
    if ticket.secret is None and not _environment_has_secret():
        raise InvalidArgument(
            f"rank {ticket.rank} uses the secret of its environment, but this process has none: "
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
        """Sleeps, at most until the deadline. A signal ends the sleep."""
        time.sleep(min(self._pause, self._deadline.left))
        self._pause = min(self._pause * 1.5, 0.1)


def connect_to_source(
    read: Callable[[], str | None], source: int, rank: int, deadline: Deadline
) -> tuple[str, Connection]:
    """Waits for the ticket of a source, and connects to it.

    ``read`` returns the current ticket, or None. It is read again while nobody answers: a source
    that died leaves its ticket behind, and the process that replaces it publishes another.
    """
    backoff = Backoff(deadline)
    patience = 0.25
    trouble: Error | None = None
    refused: str | None = None
    while True:
        text = read()
        if text is not None:
            try:
                return text, connect(Ticket.read(text), rank, deadline.slice_ms(patience))
            except (Timeout, PeerError, SystemFailure, BadBytes, Mismatch) as error:
                # The last try may be too short to learn again that the ticket's secret is wrong.
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
            "must call send_checkpoint with this rank among the destinations",
            rank=source,
        )
    if isinstance(trouble, Timeout):
        return Timeout(
            f"timed out after {deadline.seconds:g} s: rank {source} does not answer at its address,"
            f" so it has died or is cut off: {trouble.message}",
            rank=source,
        )
    trouble.rank = source
    return trouble


# ---- addresses of this host ----

#: Addresses reserved for documentation: the route to them is the default route.
_ELSEWHERE = ("192.0.2.1", "2001:db8::1")

_SIOCGIFADDR = 0x8915


def is_loopback(host: str) -> bool:
    """True if only this host can reach a name or an address."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        name = host.rstrip(".").lower()
        local = ("localhost", "ip6-localhost", "ip6-loopback")
        return name in local or host.endswith(".localhost")


def address_towards(host: str) -> str | None:
    """This host's address on the route to another; None if there is no route. Sends no packet."""
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
    """The IPv4 address of an interface; None if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            request = struct.pack("16s24x", name.encode()[:15])
            found = fcntl.ioctl(any_socket, _SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(found[20:24])


def address_for_others(towards: str, remedy: str) -> str:
    """The address at which other hosts reach this one. They all know the host ``towards``.

    1. The address of the interface that WHERRY_INTERFACE names.
    2. The address on the route to ``towards``, unless that is loopback: Debian's /etc/hosts maps a
       host's own name to loopback.
    3. The address of the default route.
    4. Loopback, with a warning that contains ``remedy``.
    """
    interface = os.environ.get("WHERRY_INTERFACE")
    found = _interface_address(interface) if interface else None
    for host in (towards, *_ELSEWHERE):
        found = found or address_towards(host)
        if found is not None and not is_loopback(found):
            return found
        found = None
    logger.warning(
        "'%s' leads to no address of this host that others can reach, and there is no default "
        "route: only processes on this host can fetch from this one, at 127.0.0.1; %s",
        towards,
        remedy,
    )
    return "127.0.0.1"
