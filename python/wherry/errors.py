"""What can go wrong: one class a status of the library, in groups by what the caller can do next.

Every error has ``rank`` (the rank that it is about, or None), ``path`` (of the value that it is about, or None) and
``status`` (the name in docs/errors.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from wherry import _core

if TYPE_CHECKING:
    from wherry._transfer import Outcome, Stats


class Error(Exception):
    """Anything that Wherry raises."""

    status: str = "INTERNAL"

    def __init__(
        self, message: str, *, rank: int | None = None, path: str | None = None, errno: int = 0
    ) -> None:
        super().__init__(message)
        self.message = message
        self.rank = rank
        self.path = path
        self.errno: int | None = errno
        #: Of a send to several ranks: how it went for each.
        self.outcomes: Sequence[Outcome] = ()
        #: Of a receive: its figures so far.
        self.stats: Stats | None = None
        #: Of a receive that failed after the first byte: the paths of tensors that are "complete", "partial", "untouched".
        self.report: Mapping[str, Sequence[str]] | None = None


class InvalidArgument(Error, ValueError):
    """The call is wrong: change it and call again."""

    status = "INVALID_ARGUMENT"


class Unsupported(Error, TypeError):
    """Not supported by this build, on this machine, or for a value of this type."""

    status = "UNSUPPORTED"


class NotFound(Error, LookupError):
    """Nothing is at that path or key."""

    status = "NOT_FOUND"


class DuplicateKey(Error, ValueError):
    """The dict has that key already."""

    status = "DUPLICATE_KEY"


class BadPath(Error, ValueError):
    """The text is not a path."""

    status = "BAD_PATH"


class Mismatch(Error, ValueError):
    """Source and target differ; nothing was touched."""

    status = "MISMATCH"


class NoMemory(Error, MemoryError):
    """There is no memory."""

    status = "NO_MEMORY"


class SystemFailure(Error, OSError):
    """A system call failed; ``errno`` says how."""

    status = "SYSTEM"


class BadBytes(Error):
    """Bytes from elsewhere are bad: ask for them anew, or from somebody else."""


class Truncated(BadBytes):
    """The bytes end too early."""

    status = "TRUNCATED"


class Malformed(BadBytes):
    """The bytes are not of the form that is specified."""

    status = "MALFORMED"


class NotCanonical(BadBytes):
    """The bytes are not in canonical form."""

    status = "NOT_CANONICAL"


class BadVersion(BadBytes):
    """Written by a version that this one does not read."""

    status = "BAD_VERSION"


class LimitExceeded(BadBytes):
    """The bytes claim more than the limits allow."""

    status = "LIMIT"


class OutOfBounds(BadBytes):
    """A range lies outside what it is a part of."""

    status = "OUT_OF_BOUNDS"


class RepeatedKey(BadBytes):
    """A dict in the bytes has the same key twice."""

    status = "REPEATED_KEY"


class TrailingBytes(BadBytes):
    """There are bytes after the end."""

    status = "TRAILING_BYTES"


class Corrupt(BadBytes):
    """Bytes arrived damaged, again and again."""

    status = "CORRUPT"


class PeerError(Error, ConnectionError):
    """Another rank, or the way to it, is at fault: go on with the others, or wait for it."""


class Refused(PeerError):
    """The other side refused."""

    status = "REFUSED"


class BadSecret(PeerError):
    """The secrets differ."""

    status = "BAD_SECRET"


class PeerLost(PeerError):
    """A rank died, or cannot be reached."""

    status = "PEER_LOST"


class Revoked(PeerError):
    """The source took its offer back: what was received is not valid."""

    status = "REVOKED"


class Aborted(PeerError):
    """The other side gave up, for a reason of its own."""

    status = "ABORTED"


class Timeout(Error, TimeoutError):
    """There was no answer in time."""

    status = "TIMED_OUT"


class Cancelled(Error):
    """Cancelled from this process."""

    status = "CANCELLED"


class Closed(Error):
    """The group is of no more use here: it was left, or another incarnation took the place."""

    status = "CLOSED"


class InternalError(Error, RuntimeError):
    """A bug in Wherry: report it, with the message."""

    status = "INTERNAL"


def _subclasses(base: type[Error]) -> list[type[Error]]:
    return [base, *(found for one in base.__subclasses__() for found in _subclasses(one))]


_BY_NAME = {cls.status: cls for cls in _subclasses(Error) if "status" in vars(cls)}
_BY_VALUE = {value: _BY_NAME.get(name, Error) for name, value, _, _ in _core.STATUSES}


def _make(status: int, message: str, rank: int | None, path: str | None, errno: int) -> Error:
    return _BY_VALUE.get(status, InternalError)(message, rank=rank, path=path, errno=errno)


_core.set_error_class(_make)
