"""How a receiver finds and reaches a source, when only these two take part.

A source has a harbour: a group that it hosts alone, at a port of the system's choice, with a secret of its own. What one
needs to enter is on its card, a short text. A receiver that has the card joins that group as a guest, under its own rank,
and asks there. Nobody else has to do anything, and nobody without the card gets in.

Where the environment has a secret of the job, WHERRY_SECRET or WHERRY_SECRET_FILE, that one is taken, and cards have none:
whoever reads a card in a log or a store gets nowhere with it alone.
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

#: The card's first word. Another version of Wherry with other cards has another.
_VERSION = "wherry-card-1"

#: More than any card has: who reads one from elsewhere reads no further.
TICKET_MAX = 1024

_SECRET_BYTES = 32

#: In the place of the secret on a card: it is that of the environment.
_NO_SECRET = "-"

_FORM = re.compile(
    rf"{_VERSION} (tcp://[0-9A-Za-z.:%\[\]_-]{{3,280}}) ([0-9]{{1,7}}) ([0-9]{{1,7}}) ([0-9a-f]{{64}}|-)"
)

#: Time for hosting a harbour, which waits for nobody.
_HOSTING_SECONDS = 30.0


class Ticket(NamedTuple):
    """What one needs to enter a harbour. Who can read one with a secret can fetch the states that are sent there."""

    address: str
    size: int
    rank: int
    #: None: that of the environment, which both sides have.
    secret: bytes | None

    def text(self) -> str:
        """The card in writing."""
        secret = _NO_SECRET if self.secret is None else self.secret.hex()
        return f"{_VERSION} {self.address} {self.size} {self.rank} {secret}"

    @classmethod
    def read(cls, text: str) -> Ticket:
        """Reads a card that came from elsewhere. Raises Malformed; the text itself is not repeated, it has a secret."""
        found = _FORM.fullmatch(text) if len(text) <= TICKET_MAX else None
        if found is None or not int(found[3]) < int(found[2]):
            raise Malformed(
                f"this is not a card of Wherry's ({len(text)} characters, which should begin with '{_VERSION} tcp://'): "
                "use the same version of Wherry on both sides"
            )
        secret = None if found[4] == _NO_SECRET else bytes.fromhex(found[4])
        return cls(found[1], int(found[2]), int(found[3]), secret)


def _environment_has_secret() -> bool:
    return bool(os.environ.get("WHERRY_SECRET") or os.environ.get("WHERRY_SECRET_FILE"))


class Listener:
    """A group that this process hosts for whoever has the card."""

    def __init__(self, host: str, rank: int, size: int) -> None:
        secret = None if _environment_has_secret() else secrets.token_bytes(_SECRET_BYTES)
        at = f"[{host}]" if ":" in host else host
        options = {"timeout_ms": int(_HOSTING_SECONDS * 1000), "secret": secret, "wait_for": 1}
        self.connection = Connection(
            _core.Group.join(f"tcp://{at}:0?rank={rank}&size={size}", options), tells_peers=True
        )
        self.ticket = Ticket(self.connection.meeting, size, rank, secret)


def connect(card: Ticket, rank: int, timeout_ms: int) -> Connection:
    """Joins a harbour as a guest, under a rank that no other guest has. Never without a secret."""
    if card.secret is None and not _environment_has_secret():
        raise InvalidArgument(
            f"rank {card.rank} proves itself by the secret of its environment, and this process has none: set WHERRY_SECRET or "
            "WHERRY_SECRET_FILE here as there",
            rank=card.rank,
        )
    options = {"timeout_ms": timeout_ms, "secret": card.secret, "wait_for": 2, "client": True}
    return Connection(
        _core.Group.join(f"{card.address}?rank={rank}&size={card.size}", options), tells_peers=True
    )


class Backoff:
    """Pauses that grow from a millisecond to a tenth of a second."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._pause = 0.001

    def wait(self) -> None:
        """Sleeps, at most until the deadline. A signal ends it."""
        time.sleep(min(self._pause, self._deadline.left))
        self._pause = min(self._pause * 1.5, 0.1)


def connect_to_source(
    read: Callable[[], str | None], source: int, rank: int, deadline: Deadline
) -> tuple[str, Connection]:
    """Waits for the card of a source, and enters its harbour.

    `read` gives the card that is there now, or None. It is read again while nobody answers at its address: a source that
    died leaves its card behind, and the process that takes its place brings another.
    """
    poll = Backoff(deadline)
    patience = 0.25
    trouble: Error | None = None
    refused: str | None = None
    while True:
        text = read()
        if text is not None:
            try:
                return text, connect(Ticket.read(text), rank, deadline.slice_ms(patience))
            except (Timeout, PeerError, SystemFailure, BadBytes, Mismatch) as error:
                # The last try may have no time to hear once more that the card has the wrong secret.
                if not isinstance(error, Timeout) or text != refused:
                    trouble = error
                    refused = text if isinstance(error, BadSecret) else None
                patience = min(patience * 2, 2.0)
        if deadline.passed:
            raise _explain(source, deadline, trouble)
        poll.wait()


def _explain(source: int, deadline: Deadline, trouble: Error | None) -> Error:
    if trouble is None:
        return Timeout(
            f"timed out after {deadline.seconds:g} s: rank {source} has offered no state in this time; it must call "
            "send_checkpoint with this rank among the destinations",
            rank=source,
        )
    if isinstance(trouble, Timeout):
        return Timeout(
            f"timed out after {deadline.seconds:g} s: rank {source} cannot be reached where it said that it is, so it has "
            f"died or is cut off: {trouble.message}",
            rank=source,
        )
    trouble.rank = source
    return trouble


def is_loopback(host: str) -> bool:
    """Whether a name or an address of a host is this host's own, reachable from nowhere else."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host.rstrip(".").lower() in (
            "localhost",
            "ip6-localhost",
            "ip6-loopback",
        ) or host.endswith(".localhost")


def address_towards(host: str) -> str | None:
    """The address that this host has on its way to another; None where there is no way. No packet is sent."""
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, protocol, _, place in found:
        try:
            with socket.socket(family, kind, protocol) as way:
                way.connect(place)
                return str(way.getsockname()[0])
        except OSError:
            continue
    return None


#: Addresses that are nobody's, for documents: the way there is the default route.
_ELSEWHERE = ("192.0.2.1", "2001:db8::1")

_SIOCGIFADDR = 0x8915


def _interface_address(name: str) -> str | None:
    """The IPv4 address of an interface; None where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            found = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("16s24x", name.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(found[20:24])


def address_for_others(towards: str, remedy: str) -> str:
    """The address at which other hosts reach this one; `towards` is the name of a host that all of them know.

    That of the interface which WHERRY_INTERFACE names, else that on the way there. A host's own name may lead to loopback, as
    Debian has it in /etc/hosts: then that of the default route. Where there is none either, loopback, with a warning that
    says what to set.
    """
    interface = os.environ.get("WHERRY_INTERFACE")
    found = _interface_address(interface) if interface else None
    for host in (towards, *_ELSEWHERE):
        found = found or address_towards(host)
        if found is not None and not is_loopback(found):
            return found
        found = None
    logger.warning(
        "'%s' leads to no address of this host that others can reach, and there is no default route: only processes of this host "
        "can fetch from this one, at 127.0.0.1; %s",
        towards,
        remedy,
    )
    return "127.0.0.1"
