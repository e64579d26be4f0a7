"""The library's own calls: libwherry, linked in. Not part of the public interface."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

__version__: str

#: (name, value, group, text) of every status: ("PEER_LOST", -402, "PEER", "a rank died or cannot be reached").
STATUSES: tuple[tuple[str, int, str, str], ...]

#: {"float32": (11, 4)}: code and bytes of every element type, under PyTorch's name.
DTYPES: dict[str, tuple[int, int]]

#: {(2, 32): 11}: the same code, under DLPack's code and bits.
DLPACK_DTYPES: dict[tuple[int, int], int]

def set_error_class(make: Callable[[int, str, int | None, str | None, int], BaseException]) -> None:
    """make(status, message, rank, path, errno) -> exception to raise."""

@final
class State:
    """A value tree with what its tensors keep alive."""

    def summary(self) -> dict[str, int]: ...
    def tensors(self) -> list[tuple[str, int, tuple[int, ...], tuple[int, ...], int, int, int]]:
        """(path, dtype, shape, strides, offset, number of the storage, flags) of each tensor."""
    def storages(self) -> list[tuple[int, int, str]]:
        """(pointer, nbytes, device) of each unique storage."""
    def cuda_devices(self) -> list[int]:
        """The numbers of the CUDA devices that memory of it lies on."""
    def text(self) -> str: ...

def build(value: object, codec: Any) -> State: ...
def restore(state: State, codec: Any, target: State | None = None) -> Any:
    """The Python value of a state that was built here: for tests, and for codecs that want a copy of structure."""

@final
class Cancel:
    def request(self) -> None: ...
    @property
    def requested(self) -> bool: ...

@final
class Group:
    @staticmethod
    def join(address: str, options: Mapping[str, Any]) -> Group:
        """Options: timeout_ms, secret (bytes or None), allow_insecure, wait_for, guest, heartbeat_ms, dead_after_ms."""
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
    ) -> list[tuple[int, Any, dict[str, Any]]]:
        """A (rank, exception or None, stats) each. Raises only where nobody could be served at all."""
    def recv(
        self, rank: int, target: State | None, codec: Any, options: Mapping[str, Any]
    ) -> tuple[Any, dict[str, Any]]: ...
    def close(self) -> None: ...
