"""The extension: calls of the library, which is linked in. Not part of the public interface."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

__version__: str

#: (name, value, group, text) per status: ("PEER_LOST", -402, "PEER", "a rank died, ...").
STATUSES: tuple[tuple[str, int, str, str], ...]

#: Code and size in bytes of each element type, by PyTorch's name: {"float32": (11, 4)}.
DTYPES: dict[str, tuple[int, int]]

def set_error_class(make: Callable[[int, str, int | None, str | None, int], BaseException]) -> None:
    """Sets make(status, message, rank, path, errno), which creates exceptions."""

def set_log_function(function: Callable[[int, str], object] | None) -> None:
    """Sets a function that gets the library's log lines: level (wherry_log_level) and text."""

def buffer_range(exporter: object) -> tuple[int, int] | None:
    """Address and size of the memory of an object; None if it has no buffer protocol."""

def read_dlpack(
    capsule: object,
) -> tuple[int, int | None, int, int, tuple[int, ...], tuple[int, ...] | None, int]:
    """(address, dtype or None, DLPack's code, bits, shape, strides or None, flags).

    Raises BufferError if the capsule has another major version than 1.
    """

@final
class State:
    """A value tree and the owners of its memory."""

    def cuda_devices(self) -> list[int]:
        """The numbers of the CUDA devices that hold memory of this state."""

def build(value: object, codec: Any) -> State: ...

@final
class Cancel:
    """Ends a call of this process from another thread.

    Example::

        cancel = wherry.Cancel()
        threading.Timer(5, cancel.request).start()
        wherry.send(group, 1, state, cancel=cancel)
    """

    def request(self) -> None:
        """Ends the calls that were given this object, now and later.

        They raise wherry.errors.Cancelled.
        """
    @property
    def requested(self) -> bool:
        """True after :meth:`request`."""

@final
class Group:
    @staticmethod
    def join(address: str, options: Mapping[str, Any]) -> Group:
        """Options: timeout_ms, secret, allow_insecure, wait_for, client, encrypt (a
        wherry_encrypt), tls_certificate, tls_key, tls_ca, tls_name."""
    @staticmethod
    def from_table(
        table: Any, name: str, rank: int, size: int, max_block: int, death: bool
    ) -> Group: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def meeting(self) -> str: ...
    def alive(self, rank: int) -> bool: ...
    def send(self, rank: int, tag: int, data: bytes, timeout_ms: int) -> None: ...
    def receive(self, rank: int, tag: int, timeout_ms: int) -> tuple[int, bytes]: ...
    def barrier(self, number: int, timeout_ms: int) -> None: ...
    def leave(self) -> None: ...

@final
class Transport:
    def __init__(self, group: Group) -> None: ...
    def send(
        self, ranks: Sequence[int], state: State, options: Mapping[str, Any]
    ) -> list[tuple[int, Any, dict[str, Any], bool]]:
        """(rank, exception or None, stats, not needed) per rank. Raises only if all failed."""
    def serve(self, state: State, withdraw: Cancel, options: Mapping[str, Any]) -> None:
        """Sends to every rank that asks, until ``withdraw`` is requested and all have ended."""
    @staticmethod
    def recv(
        sources: tuple[tuple[Transport, int, str | None], ...],
        target: State | None,
        codec: Any,
        options: Mapping[str, Any],
    ) -> tuple[Any, dict[str, Any]]:
        """Receives from (transport, rank, name in messages) each. Returns the value and statistics.

        A failure has the statistics as ``stats``, and a ``report`` if bytes have arrived.
        """
    def close(self) -> None: ...
