"""The exceptions: one class per status of the library, grouped by what the caller can do next.

Every error has ``rank`` (the rank concerned, or None), ``path`` (the path of the value concerned,
or None) and ``status`` (the name of the status in docs/errors.md).
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


class Error(RuntimeError):
    """The base class of all exceptions of Wherry.

    - ``message``: what happened and what to do, in one sentence.
    - ``rank``: the rank that the error is about, or None.
    - ``path``: the path of the value that it is about, or None.
    - ``errno``: the error number of the system, or 0.
    - ``outcomes``: after a send, one :class:`Outcome` per destination.
    - ``stats``: after a receive, its :class:`Stats` until the failure.
    - ``report``: after a receive in place that failed in the middle, the paths of the tensors, in
      three lists with the keys "complete", "partial" and "untouched"; else None.
    """

    #: The name of the status in docs/errors.md.
    status: str = "INTERNAL"

    def __init__(
        self, message: str, *, rank: int | None = None, path: str | None = None, errno: int = 0
    ) -> None:
        super().__init__(message)
        self.message = message
        self.rank = rank
        self.path = path
        self.errno: int | None = errno
        self.outcomes: Sequence[Outcome] = ()
        self.stats: Stats | None = None
        self.report: Mapping[str, Sequence[str]] | None = None

    def __init_subclass__(cls, status: str = "") -> None:
        if status:
            cls.status = status
            _BY_STATUS[status] = cls


class InvalidArgument(Error, ValueError, status="INVALID_ARGUMENT"):
    """An argument is not valid, or the call is not allowed now. Correct the call."""


class Unsupported(Error, status="UNSUPPORTED"):
    """This build or machine lacks a feature, or a value of this type cannot be sent."""


class NotFound(Error, LookupError, status="NOT_FOUND"):
    """There is no value at this path or key."""


class DuplicateKey(Error, ValueError, status="DUPLICATE_KEY"):
    """The dict already has this key."""


class BadPath(Error, ValueError, status="BAD_PATH"):
    """The text is not a path."""


class Mismatch(Error, ValueError, status="MISMATCH"):
    """The two sides do not match, for example their states or steps. Nothing was changed."""


class NoMemory(Error, MemoryError, status="NO_MEMORY"):
    """Out of memory."""


class SystemFailure(Error, OSError, status="SYSTEM"):
    """A system call failed; ``errno`` has the error number."""


class BadBytes(Error):
    """Received bytes are not valid. Request them again, or from another rank."""


class Truncated(BadBytes, status="TRUNCATED"):
    """The bytes end too early."""


class Malformed(BadBytes, status="MALFORMED"):
    """The bytes do not follow the specification."""


class NotCanonical(BadBytes, status="NOT_CANONICAL"):
    """The bytes are not in canonical form."""


class BadVersion(BadBytes, status="BAD_VERSION"):
    """The bytes were written by a version of Wherry that this one cannot read."""


class LimitExceeded(BadBytes, status="LIMIT"):
    """A size in the bytes is above a limit."""


class OutOfBounds(BadBytes, status="OUT_OF_BOUNDS"):
    """A range in the bytes is outside its storage or tensor."""


class RepeatedKey(BadBytes, status="REPEATED_KEY"):
    """A dict in the bytes has the same key twice."""


class TrailingBytes(BadBytes, status="TRAILING_BYTES"):
    """There are extra bytes after the end of the data."""


class Corrupt(BadBytes, status="CORRUPT"):
    """The same bytes arrived damaged several times."""


class PeerError(Error, ConnectionError):
    """Another rank, or the connection to it, failed. Continue with the other ranks, or retry."""


class Refused(PeerError, status="REFUSED"):
    """The other side refused the request or the connection."""


class BadSecret(PeerError, status="BAD_SECRET"):
    """The two sides have different secrets."""


class PeerLost(PeerError, status="PEER_LOST"):
    """A rank died, or cannot be reached."""


class Revoked(PeerError, status="REVOKED"):
    """The source withdrew its state during the transfer. The received data is not valid."""


class Aborted(PeerError, status="ABORTED"):
    """The other side ended the transfer."""


class Timeout(Error, TimeoutError, status="TIMED_OUT"):
    """The time limit passed before the call was done."""


class Cancelled(Error, status="CANCELLED"):
    """This process cancelled the call."""


class Closed(Error, status="CLOSED"):
    """The group or transport is closed, or another process has taken this process's rank."""


class InternalError(Error, status="INTERNAL"):
    """A bug in Wherry. Please report it, with the message."""


_BY_VALUE = {value: _BY_STATUS.get(name, Error) for name, value, _, _ in _core.STATUSES}


def class_of(status: int) -> type[Error]:
    """The class for a value of wherry_status in the C headers."""
    return _BY_VALUE.get(status, InternalError)


#: What C programs write, and what Python programs write instead.
_WORDS = {
    "WHERRY_RECV_PARTIAL": "partial=True",
    ", or WHERRY_RECV_NEW to receive the rest into new memory": "",
    "set allow_insecure in the options of the group": "pass allow_insecure=True",
    "wherry_checkpoint_recv": "wherry.recv or recv_checkpoint",
    "wherry_checkpoint_send": "wherry.send or send_checkpoint",
}


def in_python(message: str) -> str:
    """A message of the library in the words of a Python program."""
    for word, python in _WORDS.items():
        message = message.replace(word, python)
    return message


def _make(status: int, message: str, rank: int | None, path: str | None, errno: int) -> Error:
    return class_of(status)(in_python(message), rank=rank, path=path, errno=errno)


_core.set_error_class(_make)
