"""A group of processes, joined at an address; sending and receiving states over it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from wherry import _core
from wherry._connection import Connection
from wherry._transfer import (
    Deadline,
    Duration,
    Outcome,
    ProgressOption,
    check_destinations,
    check_source,
    log_received,
    log_sent,
    raise_first,
    reporting,
    transfer_options,
)
from wherry.errors import Timeout

if TYPE_CHECKING:
    from wherry._codec import Codec


_T = TypeVar("_T")

#: A wait in the core lasts no longer than this, so that Python sees a Ctrl-C in between.
_SLICE_SECONDS = 0.1

#: From whichever rank: for Group.receive.
ANY_RANK = -1


class Group:
    """The ranks of a job, and small messages between them. Made by :meth:`join`; a context manager that leaves at its end.

    Any thread may call, several at once. A rank that died may join again, from a new process.
    """

    def __init__(self, link: Connection) -> None:
        self._connection = link

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
        """Joins a group, and waits until all ranks have come.

        ``address`` is where the ranks meet: ``env://`` (rank and size from torchrun, Slurm or Open MPI),
        ``tcp://HOST:PORT?rank=R&size=N`` or ``unix:///PATH?rank=R&size=N``; docs/groups.md has all of it.
        ``secret`` is what all ranks know and nobody else does; by default that of ``WHERRY_SECRET`` or
        ``WHERRY_SECRET_FILE``. Without one the group stays on this host, unless ``allow_insecure``.
        ``wait_for``: return once so many ranks have come, this one included; 0: all.

        Raises Timeout with the ranks that are missing, BadSecret, InvalidArgument and others of wherry.errors.
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
        """How many ranks the group has, whether they are alive or not."""
        return self._connection.size

    @property
    def meeting(self) -> str:
        """Where others can join: "tcp://10.0.0.1:29600"."""
        return self._connection.meeting

    def alive(self, rank: int) -> bool:
        """Whether a rank is there, as far as is known."""
        return self._connection.alive(rank)

    def send(self, rank: int, tag: int, data: bytes, timeout: Duration = 300) -> None:
        """Sends a small message, up to 16 MiB. Returns when it is on its way, not when it has arrived."""
        self._sliced(timeout, lambda group, ms: group.send(rank, tag, data, ms))

    def receive(self, rank: int, tag: int, timeout: Duration = 300) -> tuple[int, bytes]:
        """Takes the oldest message with a tag: who sent it, and its bytes. ``rank`` may be ``wherry.ANY_RANK``."""
        return self._sliced(timeout, lambda group, ms: group.receive(rank, tag, ms))

    def barrier(self, number: int, timeout: Duration = 300) -> None:
        """Waits until every rank has called this with the same number or a higher one. Use rising numbers: the step."""
        self._sliced(timeout, lambda group, ms: group.barrier(number, ms))

    def leave(self) -> None:
        """Leaves: transfers that still run over it are ended first. Again: nothing."""
        self._connection.close()

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
    """The codec of this process: with torch's types where the program has imported torch, else without."""
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
    verify: bool | None = None,
    lanes: str | None = None,
    progress: ProgressOption = None,
    threads: int = 0,
    allow_pickle: bool = False,
    cancel: _core.Cancel | None = None,
) -> list[Outcome]:
    """Sends a state to a rank, or to several at once: serves each that calls :func:`recv` until all are done.

    ``state`` is a tree of dicts, lists, tuples, scalars, NumPy arrays, torch tensors, and what docs/python-types.md
    lists. While the call runs it must not change; once it has returned, in whatever way, it may.

    ``step``: where both sides say one and they differ, both fail. ``verify``: check digests; None: where bytes cross a
    network. ``lanes``: "cma,ring,stream", or "^cma" for all but one. ``progress``: True for a tqdm bar, or a function
    that is given a :class:`Progress`. ``threads`` that move bytes; 0: as many as there are processors.
    ``cancel`` ends the call from another thread.

    Returns how it went for each. Raises the first failure in the order of ``dst``, with ``.outcomes`` for all; one slow
    or dead destination neither fails nor delays the others.
    """
    deadline = Deadline(timeout)
    ranks = check_destinations(dst, group.size, group.rank)
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
    src: int,
    into: object = None,
    *,
    timeout: Duration = 300,
    step: int | None = None,
    verify: bool | None = None,
    lanes: str | None = None,
    progress: ProgressOption = None,
    threads: int = 0,
    allow_pickle: bool = False,
    cancel: _core.Cancel | None = None,
    partial: bool = False,
    new_device: object = None,
    device_mesh: object = None,
) -> Any:
    """Receives the state that a rank sends, into new memory, or in place into the tensors of ``into``.

    ``into`` has tensors at the same paths, with the same dtype and shape: the result then holds those very tensors.
    A mismatch raises Mismatch before anything is touched, and the source is told. What ``into`` lacks arrives anew.
    ``partial``: leave alone what the source lacks, instead of raising Mismatch. ``new_device``: where tensors that the source
    has on an accelerator arrive, where they are new: "cuda:1"; None: on the host. ``device_mesh``: a DeviceMesh of torch, or
    several, for new DTensors. The other options are those of :func:`send`.

    In a process that has imported torch, tensors arrive as torch tensors, else as NumPy arrays.
    """
    deadline = Deadline(timeout)
    source = check_source(src, group.size, group.rank)
    options = transfer_options(
        step=step,
        lanes=lanes,
        threads=threads,
        verify=verify,
        cancel=cancel,
        partial=partial,
        new=into is not None,
        any_device=True,
    )
    codec = codec_for(allow_pickle, new_device, device_mesh)
    aim = codec.for_target()
    target = None if into is None else _core.build(into, aim)
    options["stream"] = codec.stream(target.cuda_devices() if target else ())
    with reporting(progress, "from") as report:
        options.update(timeout_ms=deadline.left_ms, progress=report)
        value, stats = group._connection.recv(source, target, codec, options)
    aim.bring_back()
    log_received(source, stats)
    return value
