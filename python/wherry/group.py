"""Groups of processes, and functions that send and receive states over them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from wherry import _core
from wherry._connection import Connection, Source, receive_from
from wherry._transfer import (
    Deadline,
    Duration,
    LongWait,
    Outcome,
    ProgressOption,
    Stats,
    VerifyOption,
    check_integer,
    check_ranks,
    check_sources,
    receive,
    reporting,
    settle,
    transfer_options,
    warn_if_slow,
)
from wherry.errors import InvalidArgument, Timeout

if TYPE_CHECKING:
    from wherry._codec import Codec


_T = TypeVar("_T")

#: The longest wait inside the core. Between two waits, Python handles signals such as Ctrl-C.
_SLICE_SECONDS = 0.1

_MAX_TAG = 2**32 - 1

#: Pass this as the rank to Group.recv to receive from any rank.
ANY_RANK = -1


def _encryption_code(name: str | None) -> int:
    """The number of a way to encrypt: wherry_encrypt in wherry/group.h."""
    codes = {None: 0, "control": 1, "all": 2}
    if name not in codes:
        raise InvalidArgument(f"encrypt is {name!r}; it must be 'control' or 'all'")
    return codes[name]


class Group:
    """The ranks of a job, and small messages between them. Created by :meth:`join`.

    All methods are thread-safe. A ``with`` block leaves the group at its end. If a process dies, a
    new process may join with the same rank. After :meth:`close`, every call raises
    wherry.errors.Closed.

    Example::

        with wherry.Group.join() as group:
            if group.rank == 0:
                group.send(1, 7, b"ready")
            elif group.rank == 1:
                sender, data = group.recv(wherry.ANY_RANK, 7)
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
        encrypt: str | None = None,
        tls_certificate: str | None = None,
        tls_key: str | None = None,
        tls_ca: str | None = None,
        tls_name: str | None = None,
    ) -> Group:
        """Joins a group and waits for the other ranks.

        Args:
            address: where the ranks meet: ``env://`` (rank and size from torchrun, Slurm or Open
                MPI), ``tcp://HOST:PORT?rank=R&size=N`` or ``unix:///PATH?rank=R&size=N``; see
                docs/groups.md.
            timeout: a timedelta or seconds, as in all calls.
            secret: the same on all ranks, and known to nobody else; default: ``WHERRY_SECRET`` or
                the contents of ``WHERRY_SECRET_FILE``.
            allow_insecure: without a secret, do not limit the group to this host.
            wait_for: return when this many ranks have joined, including this one; 0: all.
            encrypt: what is encrypted between hosts. ``"control"``: messages; ``"all"``: the data
                of states, too. Default: ``WHERRY_ENCRYPT``, otherwise ``"control"``.
            tls_certificate: the path of this rank's certificate, instead of a secret; default:
                ``WHERRY_TLS_CERT``. See docs/security.md.
            tls_key: the path of its private key; default: ``WHERRY_TLS_KEY``.
            tls_ca: the path of the CA of all certificates; default: ``WHERRY_TLS_CA``.
            tls_name: the name that all certificates have; default: ``WHERRY_TLS_NAME``, otherwise
                the host that was connected to.

        Returns:
            The group.

        Raises:
            wherry.errors.InvalidArgument: the address is wrong, or ``env://`` finds no launcher.
            wherry.errors.Timeout: some ranks have not come; the message names them.
            wherry.errors.BadSecret: the ranks have different secrets, or a certificate is not
                accepted.

        Example::

            with wherry.Group.join("tcp://10.0.0.1:29600?rank=1&size=4") as group:
                state = wherry.recv(group, 0)
        """
        options = {
            "timeout_ms": Deadline(timeout).slice_ms(),
            "secret": secret.encode() if isinstance(secret, str) else secret,
            "allow_insecure": allow_insecure,
            "wait_for": check_integer(wait_for, "wait_for", 2**32 - 1),
            "encrypt": _encryption_code(encrypt),
            "tls_certificate": tls_certificate,
            "tls_key": tls_key,
            "tls_ca": tls_ca,
            "tls_name": tls_name,
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
        """Says whether a rank is alive, as far as this process knows.

        Args:
            rank: any rank of the group.

        Returns:
            False if the rank has died, has left or has never joined.

        Raises:
            wherry.errors.Closed: this process has left the group.
        """
        return self._connection.alive(rank)

    def send(self, rank: int, tag: int, data: bytes, timeout: Duration = 300) -> None:
        """Sends a message of at most 16 MiB. Does not wait for its arrival.

        Args:
            rank: the receiver.
            tag: an integer from 0 to 2^32 - 1, by which the receiver selects messages.
            data: the message.
            timeout: how long to wait until the message can be queued.

        Raises:
            wherry.errors.PeerLost: the rank is not alive.
            wherry.errors.Timeout: the rank does not take what was sent before.
        """
        tag = check_integer(tag, "tag", _MAX_TAG)
        self._sliced(timeout, lambda group, ms: group.send(rank, tag, data, ms), f"rank {rank}")

    def recv(self, rank: int, tag: int, timeout: Duration = 300) -> tuple[int, bytes]:
        """Takes the oldest message with this tag, and waits if there is none yet.

        Args:
            rank: the sender, or ``wherry.ANY_RANK``.
            tag: that of :meth:`send`.
            timeout: how long to wait.

        Returns:
            The sender and the bytes.

        Raises:
            wherry.errors.PeerLost: the rank is not alive, and has sent no such message.
            wherry.errors.Timeout: no such message has come in time.
        """
        tag = check_integer(tag, "tag", _MAX_TAG)
        # A receive from any rank is probably a service, for which waiting is normal.
        what = None if rank == ANY_RANK else f"a message from rank {rank} with tag {tag}"
        return self._sliced(timeout, lambda group, ms: group.receive(rank, tag, ms), what)

    def barrier(self, number: int, timeout: Duration = 300) -> None:
        """Waits until every rank has called it with this number or a higher one.

        Args:
            number: larger for each barrier, for example the step.
            timeout: how long to wait.

        Raises:
            wherry.errors.PeerLost: a rank has died before it arrived.
            wherry.errors.Timeout: a rank has not arrived in time.
        """
        number = check_integer(number, "number", 2**64 - 1)
        what = f"rank {{}} at barrier {number}"
        self._sliced(timeout, lambda group, ms: group.barrier(number, ms), what)

    def close(self) -> None:
        """Cancels transfers, except those with ``cancel``, and leaves. Safe to call twice.

        Raises:
            wherry.errors.InvalidArgument: this is a progress function of a transfer over the group,
                or a transfer with a ``cancel`` still runs.
        """
        self._connection.close()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<wherry.Group: rank {self.rank} of {self.size}>"

    def _sliced(
        self, timeout: Duration, call: Callable[[_core.Group, int], _T], what: str | None
    ) -> _T:
        """``what`` is logged if the call waits long. {} in it is the rank of the error."""
        deadline = Deadline(timeout)
        wait = LongWait()
        while True:
            with self._connection.use() as group:
                try:
                    return call(group, deadline.slice_ms(_SLICE_SECONDS))
                except Timeout as error:
                    if deadline.passed:
                        raise
                    if what is not None:
                        wait.goes_on(what.format(error.rank))


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

    If a destination is slow or dead, the transfers to the others still succeed and are not delayed.

    Args:
        group: the group of this process and the destinations.
        dst: a rank, or several.
        state: a tree of dicts, lists, tuples, scalars, NumPy arrays, torch tensors and the other
            types in docs/python-types.md. It must not change until the call has returned or raised.
        timeout: a timedelta or seconds, for the whole call.
        step: if both sides pass a step and the two differ, both calls fail.
        verify: check the data against digests; None: only if it crosses a network.
        lanes: the allowed lanes, such as "cma,ring,stream", or "^cma" for all but cma.
        progress: True for a tqdm bar, or a function that takes a :class:`Progress`.
        threads: how many threads move bytes; 0: one per CPU, at most 8.
        allow_pickle: pickle values of other types; both sides must pass it.
        cancel: another thread can end the call with ``cancel.request()``.

    Returns:
        One outcome per destination.

    Raises:
        wherry.errors.Unsupported: a value cannot be sent; ``path`` says which.
        wherry.Error: of the first destination that failed. ``outcomes`` has all outcomes.

    Example::

        wherry.send(group, [1, 2], {"weights": weights, "step": 7}, timeout=60)
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
    settle(outcomes)
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
    """Receives a state from one or more ranks, into new memory or in place.

    With several ranks, all of them must send the same state with the same ``step``. The bytes come
    from all of them. If one is absent, late or lost, the others deliver its share.

    Args:
        group: the group of this process and the sources.
        src: a rank, or several.
        into: the state to receive into. Its tensors must have the same path, dtype and shape as at
            the source. Tensors that it lacks arrive in new memory.
        timeout: a timedelta or seconds, for the whole call.
        step: see :func:`send`. Several sources need it.
        require: "any": continue without sources that are absent or lost. "all": fail.
        verify: see :func:`send`. "all": also raise Mismatch if the bytes of two sources differ.
        lanes, progress, threads, allow_pickle, cancel: see :func:`send`.
        partial: if the source lacks a tensor of ``into``, leave it unchanged instead of raising.
        new_device: where new tensors arrive; None: on the host. A CUDA device, such as "cuda:1",
            gets only tensors that the source has on CUDA.
        device_mesh: torch DeviceMesh objects for new DTensors.

    Returns:
        The state. In place, it contains the tensors of ``into``. New ones are torch tensors if the
        process has imported torch, else NumPy arrays.

    Raises:
        wherry.errors.Mismatch: source and target, or the steps, differ. Nothing was written.
        wherry.errors.Timeout: no source has sent the state in time.
        wherry.errors.PeerLost: all sources were lost. As after every failure in the middle,
            ``report`` says which tensors are half written.

    Example::

        state = wherry.recv(group, [0, 2], into=state, step=7)
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
    codec.source = sources[0]

    def fetch(target: _core.State | None, options: dict[str, Any]) -> tuple[Any, Stats]:
        options["timeout_ms"] = deadline.left_ms
        ranks = [Source(group._connection, rank) for rank in sources]
        return receive_from(ranks, sources, target, codec, options)

    target_state = None if into is None else lambda: into
    value, stats = receive(fetch, codec, target_state, options, progress)
    if len(sources) == 1:
        warn_if_slow(sources[0], stats)
    return value
