"""Groups of processes, and functions that send and receive states over them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from wherry import _core
from wherry._connection import Connection
from wherry._transfer import (
    Deadline,
    Duration,
    Outcome,
    ProgressOption,
    Stats,
    VerifyOption,
    check_ranks,
    check_sources,
    log_received,
    log_sent,
    raise_first,
    receive,
    reporting,
    transfer_options,
)
from wherry.errors import Timeout

if TYPE_CHECKING:
    from wherry._codec import Codec


_T = TypeVar("_T")

#: The longest wait inside the core. Between two waits, Python handles signals such as Ctrl-C.
_SLICE_SECONDS = 0.1

#: Pass this as the rank to Group.receive to receive from any rank.
ANY_RANK = -1


class Group:
    """The ranks of a job, and small messages between them. Created by :meth:`join`.

    All methods are thread-safe. A ``with`` block leaves the group at its end. If a process dies, a
    new process may join with the same rank.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    def join(
        cls,
        address: str = "env://",
        timeout: Duration = 300,
        secret: bytes | str | None = None,
        allow_insecure: bool = False,
        *,
        wait_for: int = 0,
    ) -> Group:
        """Joins a group and waits for the other ranks.

        ``address`` is where the ranks meet: ``env://`` (rank and size from torchrun, Slurm or Open
        MPI), ``tcp://HOST:PORT?rank=R&size=N`` or ``unix:///PATH?rank=R&size=N``; see
        docs/groups.md. ``secret`` must be the same on all ranks, and nobody else should know it; it
        defaults to ``WHERRY_SECRET`` or the contents of ``WHERRY_SECRET_FILE``. Without a secret,
        the group is limited to this host, unless ``allow_insecure`` is true. ``wait_for``: return
        when this many ranks have joined, including this one; 0: all.

        Raises Timeout, with the missing ranks in its message, BadSecret, InvalidArgument, or
        another exception of wherry.errors.
        """
        options = {
            "timeout_ms": Deadline(timeout).slice_ms(),
            "secret": secret.encode() if isinstance(secret, str) else secret,
            "allow_insecure": allow_insecure,
            "wait_for": wait_for,
        }
        return cls(Connection(_core.Group.join(address, options)))

    @property
    def rank(self) -> int:
        """The rank of this process: 0 to size - 1."""
        return self._connection.rank

    @property
    def size(self) -> int:
        """The number of ranks, dead or alive."""
        return self._connection.size

    @property
    def meeting(self) -> str:
        """The address at which other ranks can join, for example "tcp://10.0.0.1:29600"."""
        return self._connection.meeting

    def alive(self, rank: int) -> bool:
        """True if the rank is alive, as far as this process knows. False if it has never joined."""
        return self._connection.alive(rank)

    def send(self, rank: int, tag: int, data: bytes, timeout: Duration = 300) -> None:
        """Sends a message of at most 16 MiB. Does not wait for its arrival."""
        self._sliced(timeout, lambda group, ms: group.send(rank, tag, data, ms))

    def receive(self, rank: int, tag: int, timeout: Duration = 300) -> tuple[int, bytes]:
        """Takes the oldest message with this tag, and waits if there is none yet.

        Returns the sender and the bytes. ``rank`` is the sender, or ``wherry.ANY_RANK``.
        """
        return self._sliced(timeout, lambda group, ms: group.receive(rank, tag, ms))

    def barrier(self, number: int, timeout: Duration = 300) -> None:
        """Waits until every rank has called it with this number or a higher one.

        Use a larger number for each barrier, for example the step.
        """
        self._sliced(timeout, lambda group, ms: group.barrier(number, ms))

    def leave(self) -> None:
        """Cancels transfers, except those with ``cancel``, and leaves. Safe to call twice."""
        self._connection.close()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def __repr__(self) -> str:
        return f"<wherry.Group: rank {self.rank} of {self.size}>"

    def _sliced(self, timeout: Duration, call: Callable[[_core.Group, int], _T]) -> _T:
        deadline = Deadline(timeout)
        while True:
            with self._connection.group() as group:
                try:
                    return call(group, deadline.slice_ms(_SLICE_SECONDS))
                except Timeout:
                    if deadline.passed:
                        raise


def codec_for(allow_pickle: bool, new_device: object = None, device_mesh: object = None) -> Codec:
    """A codec for one call. It supports torch's types if the program has imported torch."""
    made: Codec
    if "torch" in sys.modules:
        from wherry.torch._codec import TorchCodec

        made = TorchCodec(allow_pickle, device_mesh=device_mesh)
    else:
        from wherry._codec import Codec

        made = Codec(allow_pickle)
    made.new_on(new_device)
    return made


def send(
    group: Group,
    dst: int | Iterable[int],
    state: object,
    *,
    timeout: Duration = 300,
    step: int | None = None,
    verify: VerifyOption = None,
    lanes: str | None = None,
    progress: ProgressOption = None,
    threads: int = 0,
    allow_pickle: bool = False,
    cancel: _core.Cancel | None = None,
) -> list[Outcome]:
    """Sends a state to one or more ranks, each of which must call :func:`recv`.

    ``state`` is a tree of dicts, lists, tuples, scalars, NumPy arrays, torch tensors and the other
    types in docs/python-types.md. It must not change until the call has returned or raised.

    ``step``: if both sides pass a step and the two differ, both calls fail. ``verify``: check the
    data against digests; None: only if it crosses a network. ``lanes``: the allowed lanes, such as
    "cma,ring,stream", or "^cma" for all but cma. ``progress``: True for a tqdm bar, or a function
    that takes a :class:`Progress`. ``threads``: how many threads move bytes; 0: one per CPU, at
    most 8. ``allow_pickle``: pickle values of other types; both sides must pass it. ``cancel``:
    another thread can end the call with ``cancel.request()``.

    Returns one outcome per destination. If a destination fails, raises the first error in the order
    of ``dst``; its ``outcomes`` has all outcomes. If a destination is slow or dead, the
    transfers to the others still succeed and are not delayed.
    """
    deadline = Deadline(timeout)
    ranks = check_ranks(dst, group.size, group.rank)
    options = transfer_options(
        step=step, lanes=lanes, threads=threads, verify=verify, cancel=cancel
    )
    codec = codec_for(allow_pickle)
    built = _core.build(state, codec)
    if not ranks:
        return []
    options["stream"] = codec.stream(built.cuda_devices())
    with reporting(progress, "to") as report:
        options.update(timeout_ms=deadline.left_ms, progress=report)
        outcomes = group._connection.send(ranks, built, options)
    log_sent(outcomes)
    raise_first(outcomes)
    return outcomes


def recv(
    group: Group,
    src: int | Iterable[int],
    into: object = None,
    *,
    timeout: Duration = 300,
    step: int | None = None,
    require: str = "any",
    verify: VerifyOption = None,
    lanes: str | None = None,
    progress: ProgressOption = None,
    threads: int = 0,
    allow_pickle: bool = False,
    cancel: _core.Cancel | None = None,
    partial: bool = False,
    new_device: object = None,
    device_mesh: object = None,
) -> Any:
    """Receives a state from one or more ranks, into new memory or in place into ``into``.

    A tensor of ``into`` must have the same path, dtype and shape as at the source. It is filled,
    and the result contains the tensor itself. If the two states do not match, this call raises
    Mismatch before anything is changed. Tensors that ``into`` lacks arrive in new memory.
    ``partial``: if the source lacks a tensor of ``into``, leave it unchanged instead of raising
    Mismatch. ``new_device``: where new tensors arrive; None: on the host. A CUDA device, such as
    "cuda:1", gets only tensors that the source has on CUDA; the others arrive on the host.
    ``device_mesh``: torch DeviceMesh objects for new DTensors. Other options: see :func:`send`.

    With several ranks in ``src``, all of them must send the same state with the same ``step``. The
    bytes come from all of them. If one is absent, late or lost, the others deliver its share, or
    with ``require="all"`` the call fails. ``verify="all"``: always check the data, and raise
    Mismatch if the bytes of two sources differ.

    Tensors arrive as torch tensors if the process has imported torch, else as NumPy arrays.
    """
    deadline = Deadline(timeout)
    sources = check_sources(src, group.size, group.rank, step)
    options = transfer_options(
        step=step,
        lanes=lanes,
        threads=threads,
        verify=verify,
        cancel=cancel,
        require=require,
        partial=partial,
    )
    codec = codec_for(allow_pickle, new_device, device_mesh)

    def fetch(target: _core.State | None, options: dict[str, Any]) -> tuple[Any, Stats]:
        options["timeout_ms"] = deadline.left_ms
        return group._connection.recv(sources, target, codec, options)

    target_state = None if into is None else lambda: into
    value, stats = receive(fetch, codec, target_state, options, progress)
    log_received(sources, stats)
    return value
