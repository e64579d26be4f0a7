"""How a receiver finds and reaches a source without the help of other ranks.

A source has a listener: a group that it hosts alone, at a port that the system chooses, with its
own secret. A ticket is a short text with everything that a receiver needs to connect. A receiver
with the ticket joins the group as a client, under its own rank. No other rank has to do anything,
and nobody can connect without the secret.

If the environment has a secret for the job (WHERRY_SECRET or WHERRY_SECRET_FILE), the listener uses
that secret, and the ticket contains none. Reading the ticket in a log or a store is then not enough
to connect. A ticket that is logged never contains a secret: if the environment has none, the key of
the user protects the listener, which only processes of this user on this host can then reach.
"""

from __future__ import annotations

import copy
import fcntl
import ipaddress
import logging
import os
import re
import secrets
import socket
import struct
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import NamedTuple

from wherry import _core
from wherry._connection import Connection
from wherry._transfer import Deadline, LongWait
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

#: Stands in a ticket for a secret, or certificates, in the environment.
_NO_SECRET = "-"

#: Stands in a ticket before the host, if the key of the user protects the listener.
_USER_KEY = "@"

_FORM = re.compile(
    rf"{_VERSION} (tcp://[0-9A-Za-z.:%\[\]_-]{{3,280}}) ([0-9]{{1,7}}) ([0-9]{{1,7}}) "
    r"([0-9a-f]{64}|-|@[0-9]{1,20}/[0-9a-f-]{36})"
)

#: Time limit for opening a listener. It should not take long, because no other rank is needed.
_LISTEN_SECONDS = 30.0


class Ticket(NamedTuple):
    """How to connect to a listener. Anyone with the secret can receive the states it offers."""

    address: str
    size: int
    rank: int
    #: None: the secret is in the environment of both sides, or is the key of the user.
    secret: bytes | None
    #: The host that only processes of this user can connect from. "": any.
    host: str = ""

    def text(self) -> str:
        """The ticket as text."""
        open_to = _USER_KEY + self.host if self.host else _NO_SECRET
        secret = open_to if self.secret is None else self.secret.hex()
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
        key = found[4]
        secret = None if key[0] in (_NO_SECRET, _USER_KEY) else bytes.fromhex(key)
        host = key.removeprefix(_USER_KEY) if key[0] == _USER_KEY else ""
        return cls(found[1], int(found[2]), int(found[3]), secret, host)


def _environment_has(*names: str) -> bool:
    return any(os.environ.get(name) for name in names)


def reaches_other_hosts() -> bool:
    """True if the environment has what protects a group between hosts."""
    return _environment_has("WHERRY_SECRET", "WHERRY_SECRET_FILE", "WHERRY_TLS_CERT")


def _this_host() -> str:
    """Identifies this host, until it is booted again, and this process's network within it."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{os.stat('/proc/self/ns/net').st_ino}/{file.read().strip()}"


class Listener:
    """A group that this process hosts. The ticket says how to join it.

    ``logged``: others can read the ticket, so it has no secret. Then, if the environment has none
    either, ``host`` must be loopback.
    """

    def __init__(self, host: str, rank: int, size: int, logged: bool = False) -> None:
        given = logged or _environment_has("WHERRY_SECRET", "WHERRY_SECRET_FILE")
        secret = None if given else secrets.token_bytes(_SECRET_BYTES)
        only = "" if secret or reaches_other_hosts() else _this_host()
        at = f"[{host}]" if ":" in host else host
        options = {"timeout_ms": int(_LISTEN_SECONDS * 1000), "secret": secret, "wait_for": 1}
        group = _core.Group.join(f"tcp://{at}:0?rank={rank}&size={size}", options)
        self.connection = Connection(group, tells=range(size))
        self.ticket = Ticket(self.connection.meeting, size, rank, secret, only)


def connect(ticket: Ticket, rank: int, timeout_ms: int) -> Connection:
    """Connects to a listener as a client. No other client may have the same ``rank``."""
    if ticket.secret is None and reaches_other_hosts() == bool(ticket.host):
        with_one, without = f"rank {ticket.rank}", "this process"
        if ticket.host:
            with_one, without = without, with_one
        raise InvalidArgument(
            f"{with_one} uses a secret from its environment, but {without} has none: set the same "
            "WHERRY_SECRET or WHERRY_SECRET_FILE on both sides",
            rank=ticket.rank,
        )
    if ticket.host and ticket.host != _this_host():
        raise InvalidArgument(
            f"rank {ticket.rank} is on another host or in another container, and its environment "
            "has no secret, so only this user's processes there can reach it: set WHERRY_SECRET or "
            "WHERRY_SECRET_FILE to the same secret in all processes",
            rank=ticket.rank,
        )
    options = {"timeout_ms": timeout_ms, "secret": ticket.secret, "wait_for": 2, "client": True}
    group = _core.Group.join(f"{ticket.address}?rank={rank}&size={ticket.size}", options)
    return Connection(group, tells=[ticket.rank])


class Backoff:
    """Pauses that grow from 1 ms to 100 ms. ``what`` is logged if the wait takes long."""

    def __init__(self, deadline: Deadline, what: str) -> None:
        self._deadline = deadline
        self._what = what
        self._pause = 0.001
        self._long = LongWait()

    def wait(self) -> None:
        """Sleeps, at most until the deadline."""
        time.sleep(min(self._pause, self._deadline.left))
        self._pause = min(self._pause * 1.5, 0.1)
        self._long.goes_on(self._what)


def connect_to_source(
    read: Callable[[], str | None], source: int, rank: int, deadline: Deadline
) -> Connection:
    """Waits for the ticket of a source, and connects to it.

    ``read`` returns the current ticket, or None. It is called again after each failed attempt,
    because the ticket of a dead source stays until a new process publishes another one.
    """
    backoff = Backoff(deadline, f"rank {source}, which must call send_checkpoint")
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


#: After the first of several sources has been reached, the others get this much time.
_MORE_SECONDS = 1.0

Way = Callable[[Deadline], Connection]


def connect_to_all(
    ways: Sequence[Way],
    deadline: Deadline,
    all_required: bool,
    drop: Callable[[Connection], None] = Connection.close,
) -> list[Connection | Error]:
    """Connects to several sources at once. Returns a connection or an error for each of them.

    Does not wait long for more sources once one has been reached, unless ``all_required``. If none
    can be reached, raises the error of the first. ``drop`` gets connections that come too late.
    """
    if len(ways) == 1:
        return [ways[0](deadline)]

    def drop_late(done: Future[Connection]) -> None:
        if done.exception() is None:
            drop(done.result())

    limit = copy.copy(deadline)
    pool = ThreadPoolExecutor(len(ways), "wherry-connect")
    threads = [pool.submit(way, limit) for way in ways]
    pool.shutdown(wait=False)
    kept: set[Future[Connection]] = set()
    try:
        pending, until = set(threads), deadline
        while pending and not until.passed:
            done, pending = wait(pending, until.slice_ms() / 1000, FIRST_COMPLETED)
            if until is deadline and not all_required and any(not one.exception() for one in done):
                until = Deadline(min(deadline.left, _MORE_SECONDS))
        if until is deadline:  # The threads notice it, too, and have better messages.
            pending = wait(pending, _MORE_SECONDS).not_done
        found: list[Connection | Error] = []
        for one in threads:
            error = Timeout("it did not answer in time") if one in pending else one.exception()
            if error is not None and not isinstance(error, Error):
                raise error
            found.append(error or one.result())
        failed = [one for one in found if isinstance(one, Error)]
        if len(failed) == len(found) or (failed and all_required):
            raise failed[0]
        kept = set(threads) - pending
    finally:
        limit.expire()
        for one in set(threads) - kept:
            one.add_done_callback(drop_late)
    return found


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
