"""The exceptions: one class per status of the library, grouped by what the caller can do next.

Every error has ``rank`` (the rank that it is about, or None), ``path`` (of the value that it is
about, or None) and ``status`` (the name in docs/errors.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from wherry import _core

if TYPE_CHECKING:
    from wherry._transfer import Outcome, Stats

__all__ = ["Aborted", "BadBytes", "BadPath", "BadSecret", "BadVersion", "Cancelled", "Closed"]
__all__ += ["Corrupt", "DuplicateKey", "Error", "InternalError", "InvalidArgument"]
__all__ += ["LimitExceeded", "Malformed", "Mismatch", "NoMemory", "NotCanonical", "NotFound"]
__all__ += ["OutOfBounds", "PeerError", "PeerLost", "Refused", "RepeatedKey", "Revoked"]
__all__ += ["SystemFailure", "Timeout", "TrailingBytes", "Truncated", "Unsupported"]

_BY_STATUS: dict[str, type[Error]] = {}


class Error(Exception):
    """The base class of all exceptions of Wherry."""

    status: str = "INTERNAL"

    def __init__(
        self, message: str, *, rank: int | None = None, path: str | None = None, errno: int = 0
    ) -> None:
        super().__init__(message)
        self.message = message
        self.rank = rank
        self.path = path
        self.errno: int | None = errno
        #: After a send: the outcome per destination.
        self.outcomes: Sequence[Outcome] = ()
        #: After a receive: its statistics so far.
        self.stats: Stats | None = None
        #: After a receive in place that failed in the middle: the paths of the tensors that are
        #: "complete", "partial" or "untouched".
        self.report: Mapping[str, Sequence[str]] | None = None

    def __init_subclass__(cls, status: str = "") -> None:
        if status:
            cls.status = status
            _BY_STATUS[status] = cls


class InvalidArgument(Error, ValueError, status="INVALID_ARGUMENT"):
    """The call is wrong. Change it and call again."""


class Unsupported(Error, TypeError, status="UNSUPPORTED"):
    """This build or machine does not support it, or values of this type cannot be sent."""


class NotFound(Error, LookupError, status="NOT_FOUND"):
    """Nothing is at that path or key."""


class DuplicateKey(Error, ValueError, status="DUPLICATE_KEY"):
    """The dict already has that key."""


class BadPath(Error, ValueError, status="BAD_PATH"):
    """The text is not a path."""


class Mismatch(Error, ValueError, status="MISMATCH"):
    """Source and target differ. Nothing was changed."""


class NoMemory(Error, MemoryError, status="NO_MEMORY"):
    """Out of memory."""


class SystemFailure(Error, OSError, status="SYSTEM"):
    """A system call failed; ``errno`` says how."""


class BadBytes(Error):
    """Bytes from outside are bad. Request them again, or from another rank."""


class Truncated(BadBytes, status="TRUNCATED"):
    """The bytes end too early."""


class Malformed(BadBytes, status="MALFORMED"):
    """The bytes do not follow the specification."""


class NotCanonical(BadBytes, status="NOT_CANONICAL"):
    """The bytes are not in canonical form."""


class BadVersion(BadBytes, status="BAD_VERSION"):
    """A version wrote them that this one cannot read."""


class LimitExceeded(BadBytes, status="LIMIT"):
    """The bytes claim more than the limits allow."""


class OutOfBounds(BadBytes, status="OUT_OF_BOUNDS"):
    """A range is outside of its storage or tensor."""


class RepeatedKey(BadBytes, status="REPEATED_KEY"):
    """A dict in the bytes has the same key twice."""


class TrailingBytes(BadBytes, status="TRAILING_BYTES"):
    """There are bytes after the end."""


class Corrupt(BadBytes, status="CORRUPT"):
    """Bytes arrived damaged several times."""


class PeerError(Error, ConnectionError):
    """Another rank, or the connection to it, failed. Go on with the others, or wait for it."""


class Refused(PeerError, status="REFUSED"):
    """The other side refused."""


class BadSecret(PeerError, status="BAD_SECRET"):
    """The secrets differ."""


class PeerLost(PeerError, status="PEER_LOST"):
    """A rank died, or cannot be reached."""


class Revoked(PeerError, status="REVOKED"):
    """The source withdrew its state: what was received is not valid."""


class Aborted(PeerError, status="ABORTED"):
    """The other side gave up."""


class Timeout(Error, TimeoutError, status="TIMED_OUT"):
    """There was no answer in time."""


class Cancelled(Error, status="CANCELLED"):
    """This process cancelled the call."""


class Closed(Error, status="CLOSED"):
    """The group or transport was closed, or another process took over the rank."""


class InternalError(Error, RuntimeError, status="INTERNAL"):
    """A bug in Wherry. Report it, with the message."""


_BY_VALUE = {value: _BY_STATUS.get(name, Error) for name, value, _, _ in _core.STATUSES}


def _make(status: int, message: str, rank: int | None, path: str | None, errno: int) -> Error:
    cls = _BY_VALUE.get(status, InternalError)
    return cls(message, rank=rank, path=path, errno=errno)


_core.set_error_class(_make)
