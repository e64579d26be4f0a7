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
    def request(self) -> None: ...
    @property
    def requested(self) -> bool: ...

@final
class Group:
    @staticmethod
    def join(address: str, options: Mapping[str, Any]) -> Group:
        """Options: timeout_ms, secret, allow_insecure, wait_for, client, heartbeat_ms,
        dead_after_ms."""
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
    def __init__(self, group: Group, number: int = 0) -> None: ...
    def waiting(self) -> list[int]: ...
    def send(
        self, ranks: Sequence[int], state: State, options: Mapping[str, Any]
    ) -> list[tuple[int, Any, dict[str, Any], bool]]:
        """(rank, exception or None, stats, not needed) per rank. Raises only if all failed."""
    def recv(
        self, ranks: Sequence[int], target: State | None, codec: Any, options: Mapping[str, Any]
    ) -> tuple[Any, dict[str, Any]]: ...
    def close(self) -> None: ...
