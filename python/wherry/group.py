"""Groups of processes, and sending and receiving states over them."""

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

#: The longest wait inside the core, so that Python handles Ctrl-C in between.
_SLICE_SECONDS = 0.1

#: For Group.receive: from any rank.
ANY_RANK = -1


class Group:
    """The ranks of a job, and small messages between them. Created by :meth:`join`.

    Any thread may call it, also several at once. As a context manager it leaves the group at the
    end. A rank that died may join again, from a new process.
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
        """Joins a group and waits for all ranks.

        ``address`` is where the ranks meet: ``env://`` (rank and size from torchrun, Slurm or Open
        MPI), ``tcp://HOST:PORT?rank=R&size=N`` or ``unix:///PATH?rank=R&size=N``; see
        docs/groups.md. ``secret`` is known to all ranks and to nobody else; the default is in
        ``WHERRY_SECRET`` or ``WHERRY_SECRET_FILE``. Without a secret the group stays on this host,
        unless ``allow_insecure``. ``wait_for``: return when this many ranks are there, including
        this one; 0: all.

        Raises Timeout with the missing ranks, BadSecret, InvalidArgument and others of
        wherry.errors.
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
        """The address at which others can join: "tcp://10.0.0.1:29600"."""
        return self._connection.meeting

    def alive(self, rank: int) -> bool:
        """True if the rank is there, as far as is known."""
        return self._connection.alive(rank)

    def send(self, rank: int, tag: int, data: bytes, timeout: Duration = 300) -> None:
        """Sends a message of up to 16 MiB. Returns when it is on its way, not when it arrived."""
        self._sliced(timeout, lambda group, ms: group.send(rank, tag, data, ms))

    def receive(self, rank: int, tag: int, timeout: Duration = 300) -> tuple[int, bytes]:
        """Takes the oldest message with a tag: its sender and its bytes.

        ``rank`` may be ``wherry.ANY_RANK``.
        """
        return self._sliced(timeout, lambda group, ms: group.receive(rank, tag, ms))

    def barrier(self, number: int, timeout: Duration = 300) -> None:
        """Waits until every rank has called it with this number or a higher one.

        Use rising numbers, for example the step.
        """
        self._sliced(timeout, lambda group, ms: group.barrier(number, ms))

    def leave(self) -> None:
        """Leaves the group, after ending its transfers. Safe to call twice."""
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
    """The codec of this process. It knows torch's types if the program has imported torch."""
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
    """Sends a state to one or more ranks: serves each of them that calls :func:`recv`.

    ``state`` is a tree of dicts, lists, tuples, scalars, NumPy arrays, torch tensors and the other
    types in docs/python-types.md. It must not change until the call has returned or raised.

    ``step``: if both sides pass one and they differ, both fail. ``verify``: check digests; None:
    only if bytes cross a network. ``lanes``: "cma,ring,stream", or "^cma" for all but one.
    ``progress``: True for a tqdm bar, or a function of a :class:`Progress`. ``threads``: how many
    move bytes; 0: one per processor. ``cancel`` ends the call from another thread.

    Returns one outcome per destination. Raises the first failure in the order of ``dst``, with
    ``.outcomes`` of all. A slow or dead destination neither fails nor delays the others.
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
    """Receives a state from a rank, into new memory or in place into the tensors of ``into``.

    Tensors of ``into`` must have the path, dtype and shape of the source's; the result then has
    these very tensors. A mismatch raises Mismatch before anything is changed, and the source is
    told. What ``into`` lacks arrives in new memory. ``partial``: leave alone what the source lacks,
    instead of raising Mismatch. ``new_device``: where new tensors arrive that are on an accelerator
    at the source, such as "cuda:1"; None: on the host. ``device_mesh``: one or more DeviceMesh of
    torch, for new DTensors. For the other options see :func:`send`.

    Tensors arrive as torch tensors if the process has imported torch, else as NumPy arrays.
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
