"""torchft's CheckpointTransport over Wherry.

    import wherry.torchft

    manager = torchft.Manager(...)
    wherry.torchft.attach(manager)           # heals in place, into the tensors of its state

    wherry.torchft.use_by_default()          # or: the same for every manager created afterwards

A source listens at a port and serves its state in the background. torchft passes the source's
ticket (:meth:`Transport.metadata`) to the replicas that need it. torchft is optional: if it is
installed, Transport is a subclass of its CheckpointTransport.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import secrets
import socket
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import urlsplit

from wherry import _core
from wherry._connection import Connection, Server, Source, receive_from
from wherry._rendezvous import (
    Listener,
    Ticket,
    address_for_others,
    connect,
    connect_to_all,
    is_loopback,
    reaches_other_hosts,
)
from wherry._transfer import (
    Deadline,
    Duration,
    ProgressOption,
    Stats,
    check_callback,
    receive,
    to_seconds,
    transfer_options,
    warn_if_slow,
)
from wherry.errors import Closed, Error, InvalidArgument, Mismatch, Timeout, Unsupported
from wherry.group import codec_for

logger = logging.getLogger("wherry")

T = TypeVar("T")

#: The number of slots of a listener. In the library's terms, slots are ranks. The source has slot
#: 0, the first connection has slot 1, and each receiver picks one of the others at random.
_SLOTS = 4096
_SOURCE, _FIRST = 0, 1

#: How long one attempt to connect may take, and the first one, to this process itself.
_ATTEMPT_SECONDS = 2.0
_FIRST_MS = 1000

#: Stands between the tickets of several sources. No ticket contains it.
_BETWEEN_TICKETS = ","

if TYPE_CHECKING:
    from wherry._codec import Codec

    class _Base(Generic[T]):
        pass

else:

    def _find_base() -> type:
        """torchft's CheckpointTransport if torchft is installed, else an empty class."""
        try:
            from torchft.checkpointing.transport import CheckpointTransport

            return CheckpointTransport
        except Exception as error:
            if not isinstance(error, ModuleNotFoundError) or error.name != "torchft":
                logger.warning(
                    "torchft is installed, but importing it failed, so it is not used: %s", error
                )

        class CheckpointTransport(Generic[T]):
            pass

        return CheckpointTransport

    _Base = _find_base()


def _own_host() -> str:
    """The address at which other replicas reach this process: on the route to the lighthouse.

    Without a secret, it is loopback: then only processes of this user on this host may connect.
    """
    if not reaches_other_hosts():
        return "127.0.0.1"
    given = os.environ.get("TORCHFT_LIGHTHOUSE", "")
    lighthouse = urlsplit(given if "://" in given else f"//{given}").hostname
    if lighthouse is not None and is_loopback(lighthouse):
        return "127.0.0.1"  # If the lighthouse is on loopback, all replicas are on this host.
    return address_for_others(
        lighthouse or socket.gethostname(),
        "pass host= to wherry.torchft.Transport, or set WHERRY_INTERFACE",
    )


class _Resources:
    """The listener and the server of a transport. The transport's finalizer closes them."""

    def __init__(self, host: str | None) -> None:
        self._host = host
        self._lock = threading.Lock()  # protects the listener
        self.serving = threading.RLock()  # held while a server starts or ends
        self._listener: Listener | None = None
        self.server: Server | None = None
        self._process = os.getpid()
        self._closed = False

    def listener(self) -> Listener:
        with self._lock:
            if self._closed:
                raise Closed("this transport was shut down: create a new one")
            if self._process != os.getpid():  # A forked child must not use its parent's listener.
                self._process, self._listener, self.server = os.getpid(), None, None
            if self._listener is None:
                host = self._host or _own_host()
                self._listener = Listener(host, _SOURCE, _SLOTS, logged=True)
                # The first connection of a process takes 10 ms longer, because libssl then loads
                # its algorithms. So that no heal has to wait for it, make one now.
                with contextlib.suppress(Error):
                    connect(self._listener.ticket, _FIRST, _FIRST_MS).close()
            return self._listener

    def serve(self, state: _core.State, options: dict[str, Any], seconds: float) -> None:
        """Serves a state. The caller holds `serving`."""
        self.server = Server(self.listener().connection, state, options, seconds)

    def end_server(self, patiently: bool = True) -> None:
        if self._process != os.getpid():
            return
        with self.serving:
            server, self.server = self.server, None
            if server is not None:
                server.end(patiently)

    def close(self, patiently: bool = False) -> None:
        self._closed = True
        if self._process != os.getpid():
            return
        self.end_server(patiently)
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.connection.close()


class Transport(_Base[T]):
    """Sends and receives checkpoints for torchft's Manager.

    :func:`attach` makes one that receives in place. Without it and without ``state_dict``, the
    first heal allocates memory, which is used again for the next heal: what a receive has returned
    must be loaded or copied before the next one.

    Args:
        timeout: a timedelta or seconds. How long :meth:`disallow_checkpoint` waits for running
            transfers.
        state_dict: a function that returns a state dict. States are received into its tensors.
        device: where CUDA tensors that this dict lacks arrive.
        new_device: for new tensors. "cuda:1", for example, gets only CUDA tensors of the source.
        lanes: such as "cma,ring"; "^cma" for all but cma.
        verify: check the data against digests. None: only if it crosses a network.
        progress: True for a tqdm bar, or a function that takes a :class:`Progress`.
        allow_pickle: pickle values that cannot be sent otherwise. Both sides must set it.
        threads: how many threads move bytes. 0: one per CPU, at most 8.
        keep_open: the source promises that torch keeps its CUDA memory between transfers.
        host: the address at which the other replicas reach this process.
        device_mesh: one or more DeviceMesh objects for new DTensors.

    Example::

        transport = wherry.torchft.Transport(timeout=60)
        manager = torchft.Manager(..., checkpoint_transport=transport)
    """

    def __init__(
        self,
        timeout: Duration,
        *,
        state_dict: Callable[[], T] | None = None,
        device: object = "cpu",
        new_device: object = None,
        lanes: str | None = None,
        verify: bool | None = None,
        progress: ProgressOption = None,
        allow_pickle: bool = False,
        threads: int = 0,
        keep_open: bool = False,
        host: str | None = None,
        device_mesh: object = None,
    ) -> None:
        self._seconds = to_seconds(timeout)
        check_callback(state_dict)
        self._state_dict = state_dict
        self._learned: _Learned | None = None
        self._kept: T | None = None  # the last result, if there is no other target
        self._damaged = False  # a receive in place has failed in the middle
        self._said = False
        self._device = device
        self._new_device = new_device
        self._options: dict[str, Any] = {"lanes": lanes, "verify": verify, "threads": threads}
        transfer_options(**self._options)
        self._progress = progress
        self._allow_pickle = allow_pickle
        self._keep_open = keep_open
        self._device_mesh = device_mesh
        self._codec()  # This finds wrong arguments, and imports what the first heal would import.
        self._resources = _Resources(host)
        self._finalizer = weakref.finalize(self, self._resources.close)
        #: The statistics of the last successful receive.
        self.last_stats: Stats | None = None

    def metadata(self) -> str:
        """Returns the ticket with which a receiver reaches this process.

        torchft passes it to the receivers and also logs it, so it contains no secret. Receivers
        need the ``WHERRY_SECRET`` or ``WHERRY_SECRET_FILE`` of this process. If it has none, they
        must be processes of the same user on this host.

        Returns:
            A line of text.

        Raises:
            wherry.errors.Closed: the transport was closed.
            wherry.errors.InvalidArgument: ``host`` is not loopback, and there is no secret.
            wherry.errors.SystemFailure: no port can be opened at ``host``.
        """
        return self._resources.listener().ticket.text()

    def send_checkpoint(
        self, dst_ranks: Iterable[int], step: int, state_dict: T, timeout: Duration
    ) -> None:
        """Offers a state and returns immediately.

        The state is served in the background until :meth:`disallow_checkpoint`. The state and its
        tensors must not change until that call has returned. A receiver that requests another step
        gets an error. A second call ends the first offer.

        Args:
            dst_ranks: for the log. Every replica that has the ticket can receive.
            step: the step of the state.
            state_dict: the state.
            timeout: a timedelta or seconds. How long a transfer may take.

        Raises:
            wherry.errors.Unsupported: a value of the state cannot be sent; ``path`` says which.
            wherry.errors.InvalidArgument: a heal of this process failed in the middle, so that its
                own state is a mixture.
        """
        if self._damaged:
            raise InvalidArgument(
                "the state of this process is half written, because its heal failed in the middle: "
                "it must be healed again before it can serve others"
            )
        options = transfer_options(
            step=step, mesh_rank=_mesh_rank(), keep_open=self._keep_open, **self._options
        )
        options["timeout_ms"] = Deadline(timeout).left_ms
        self._resources.listener()
        with self._resources.serving:
            self._resources.end_server()
            codec = codec_for(self._allow_pickle)
            built = _core.build(state_dict, codec)
            options["stream"] = codec.stream(built.cuda_devices(), fixed=True)
            self._resources.serve(built, options, self._seconds)
        logger.info("offering step %d to %s", step, sorted(dst_ranks))

    def disallow_checkpoint(self) -> None:
        """Ends the offer. When this has returned, the state may change.

        Running transfers get ``timeout`` to finish. Those still running are then cancelled, and the
        receivers get an error.
        """
        self._resources.end_server()
        if self._learned is not None:
            self._learned.state = None

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: Duration) -> T:
        """Receives the state of a step. Waits until a process serves one.

        Args:
            src_rank: the replica, for messages.
            metadata: its :meth:`metadata`. May be that of several replicas, joined with commas.
                They must serve the same state. The bytes come from all of them, and if one is
                absent or lost, from the others.
            step: the step of the state.
            timeout: a timedelta or seconds, for the whole call.

        Returns:
            The state. In place, it contains the tensors of the target.

        Raises:
            wherry.errors.Timeout: no process serves a state in time, or all have exited.
            wherry.errors.Mismatch: a process serves another step.
            wherry.Error: another failure. If ``report`` is not None, some tensors are half written:
                receive again.
        """
        deadline = Deadline(timeout)
        with _about(src_rank, step):
            tickets = [_read_ticket(text) for text in metadata.split(_BETWEEN_TICKETS)]
        codec = self._codec()
        options = transfer_options(step=step, mesh_rank=_mesh_rank(), **self._options)

        def fetch(target: _core.State | None, options: dict[str, Any]) -> tuple[Any, Stats]:
            with _about(src_rank, step):
                return _fetch(tickets, target, codec, options, deadline)

        value, stats = self._receive(fetch, codec, options)
        self.last_stats = stats
        if len(tickets) == 1:
            warn_if_slow(src_rank, stats)
        return value

    def _codec(self) -> Codec:
        made = codec_for(self._allow_pickle, device_mesh=self._device_mesh)
        made.new_on(self._new_device, None if self._state_dict is None else self._device)
        return made

    def _receive(self, fetch: Any, codec: Any, options: dict[str, Any]) -> tuple[T, Stats]:
        """Receives into the target, if there is one."""
        target: Any = self._kept
        if self._state_dict is not None:
            target = self._state_dict()
        elif self._learned is not None:
            target = self._learned.target()
        into = None if target is None else lambda: target
        try:
            value, stats = receive(fetch, codec, into, options, self._progress)
        except Mismatch as error:
            if error.path is None or target is None or self._state_dict is not None:
                raise
            logger.warning("receiving into new memory, because the state differs: %s", error)
            self._kept = None
            value, stats = receive(fetch, codec, None, options, self._progress)
        except BaseException as error:
            self._damaged |= target is not None and bool(getattr(error, "report", None))
            raise
        self._damaged = False
        if self._learned is None and self._state_dict is None:
            self._kept = value
        elif not self._said:
            known = {id(one) for one in _tensors(target)}
            new = [one for one in _tensors(value) if id(one) not in known]
            self._said = bool(new)
            if new:
                text = "%d tensors (%.1f MB) arrived in new memory: "
                text += "this state lacks them, or they are under 1 MiB"
                logger.info(text, len(new), sum(one.nbytes for one in new) / 1e6)
        return value, stats

    def shutdown(self, wait: bool = True) -> None:
        """Closes the transport. Safe to call twice.

        Args:
            wait: give running transfers ``timeout`` to finish.
        """
        self._resources.close(patiently=wait)

    def close(self) -> None:
        """Closes the transport. Running transfers get ``timeout`` to finish."""
        self.shutdown()

    def __enter__(self) -> Transport[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ---- managers ----

#: While an asynchronous quorum heals, the training thread runs a forward pass, whose results
#: torchft discards. The pass may change buffers, such as the statistics of a BatchNorm. So tensors
#: of fewer bytes are not received in place then: load_state_dict() fills them after the pass.
_BUFFER_BYTES = 1 << 20

#: What is used of a torchft.Manager.
_MANAGER_NAMES = (
    "_checkpoint_transport",
    "_is_state_dict_read_allowed",
    "_manager_state_dict",
    "_use_async_quorum",
    "_user_state_dicts",
    "start_quorum",
    "state_dict",
)


class _Learned:
    """The state of a manager, as the target of heals and, in the manager, as their source.

    With an asynchronous quorum, torchft would call the program's state_dict() in a background
    thread, in the middle of a forward pass, which disturbs an FSDP2 model. So it is called in the
    training thread, when a step begins.
    """

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._read = manager._manager_state_dict
        self._start = manager.start_quorum
        self.state: dict[str, Any] | None = None
        manager._manager_state_dict = self.current
        if manager._use_async_quorum:
            manager.start_quorum = self._start_quorum

    def _start_quorum(self, *arguments: Any, **options: Any) -> Any:
        manager = self._manager
        readable = manager._is_state_dict_read_allowed and manager._user_state_dicts
        self.state = self._read() if readable else None
        return self._start(*arguments, **options)

    def current(self) -> dict[str, Any]:
        state = self.state
        return self._read() if state is None else {**state, "torchft": self._manager.state_dict()}

    def target(self) -> Any:
        state = self.current()
        return _without_buffers(state) if self._manager._use_async_quorum else state


def _without_buffers(value: Any) -> Any:
    if type(value) in (dict, OrderedDict):
        return type(value)((key, _without_buffers(item)) for key, item in value.items())
    if type(value) in (list, tuple):
        return type(value)(map(_without_buffers, value))
    return value if getattr(value, "nbytes", 0) >= _BUFFER_BYTES else None


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif hasattr(value, "nbytes"):
        yield value


def _learn(transport: Transport[Any], manager: Any) -> None:
    missing = [name for name in _MANAGER_NAMES if not hasattr(manager, name)]
    if missing:
        raise Unsupported(
            f"this version of torchft has no Manager.{missing[0]}, so its state cannot be learned: "
            "pass checkpoint_transport=wherry.torchft.Transport(...) to the manager"
        )
    if transport._learned is None:
        transport._learned = _Learned(manager)


def attach(manager: Any, *, timeout: Duration | None = None, **options: Any) -> Transport[Any]:
    """Makes a torchft.Manager heal through Wherry, in place.

    States are received into the tensors of the state dicts that were registered with the manager.
    With an asynchronous quorum, these functions are called when a step begins, in the thread that
    calls ``start_quorum``.

    Args:
        manager: a torchft.Manager that has not begun its first step.
        timeout: see :class:`Transport`; default: that of the manager.
        options: other options of :class:`Transport`.

    Returns:
        The transport of the manager, which closes it in its ``shutdown``.

    Raises:
        wherry.errors.Unsupported: this version of torchft is not known.

    Example::

        manager = torchft.Manager(...)
        wherry.torchft.attach(manager)
    """
    old = getattr(manager, "_checkpoint_transport", None)
    if isinstance(old, Transport):
        _learn(old, manager)
        return old
    limit = getattr(manager, "_timeout", 60.0) if timeout is None else timeout
    transport: Transport[Any] = Transport(limit, **options)
    _learn(transport, manager)
    manager._checkpoint_transport = transport
    if old is not None:
        old.shutdown(wait=False)
    return transport


def use_by_default(**options: Any) -> None:
    """Attaches a transport to each torchft.Manager that is created afterwards without one.

    Call it once, before the managers are made, for example if torchtitan makes them.

    Args:
        options: see :func:`attach`.

    Raises:
        wherry.errors.Unsupported: this version of torchft is not known.

    Example::

        wherry.torchft.use_by_default()
        manager = torchft.Manager(...)
    """
    from torchft.manager import Manager

    original = getattr(Manager.__init__, "_before_wherry", Manager.__init__)
    signature = inspect.signature(original)
    if "checkpoint_transport" not in signature.parameters:
        raise Unsupported("this version of torchft's Manager takes no checkpoint_transport")

    @functools.wraps(original)
    def init(self: Any, *arguments: Any, **named: Any) -> None:
        given = signature.bind(self, *arguments, **named)
        if given.arguments.get("checkpoint_transport") is not None:
            original(self, *arguments, **named)
            return
        limit = options.get("timeout", given.arguments.get("timeout", 60.0))
        transport: Transport[Any] = Transport(**{**options, "timeout": limit})
        given.arguments["checkpoint_transport"] = transport
        try:
            original(*given.args, **given.kwargs)
            _learn(transport, self)
        except BaseException:
            transport.shutdown(wait=False)
            raise

    init._before_wherry = original  # type: ignore[attr-defined]
    Manager.__init__ = init


# ---- receiving ----


@contextlib.contextmanager
def _about(src_rank: int, step: int) -> Iterator[None]:
    """Adds the replica and the step to errors, because the library knows only the slot."""
    try:
        yield
    except Error as error:
        error.rank = src_rank
        error.message = f"replica {src_rank}, step {step}: {error.message}"
        error.args = (error.message,)
        raise


def _read_ticket(metadata: str) -> Ticket:
    ticket = Ticket.read(metadata)
    if ticket.rank != _SOURCE or ticket.size <= _FIRST + 1:
        raise InvalidArgument(
            "this metadata is from another kind of transport: pass the result of metadata() of a "
            "wherry.torchft.Transport"
        )
    return ticket


def _connect(ticket: Ticket, deadline: Deadline) -> Connection:
    """Connects through a random slot."""
    slot = secrets.randbelow(ticket.size - _FIRST - 1) + _FIRST + 1
    while True:
        try:
            return connect(ticket, slot, deadline.slice_ms(_ATTEMPT_SECONDS))
        except Timeout as error:
            if deadline.passed:
                error.message = (
                    f"timed out after {deadline.seconds:g} s, before this step was received: "
                    f"{error.message} (rank {_SOURCE} is the replica, rank {slot} is this process)"
                )
                raise


def _fetch(
    tickets: Sequence[Ticket],
    target: _core.State | None,
    codec: Any,
    options: dict[str, Any],
    deadline: Deadline,
) -> tuple[Any, Stats]:
    """Receives from all sources. If other clients have the slots of this one, tries other slots."""
    ways = [functools.partial(_connect, ticket) for ticket in tickets]
    while True:
        ends = [
            one if isinstance(one, Error) else Source(one, _SOURCE, ticket.address)
            for one, ticket in zip(connect_to_all(ways, deadline, False), tickets)
        ]
        sources = [one for one in ends if isinstance(one, Source)]
        try:
            options["timeout_ms"] = deadline.left_ms
            return receive_from(ends, range(len(ends)), target, codec, options)
        except Error as error:
            if isinstance(error, Closed) and not deadline.passed:
                continue
            slots = ", ".join(str(one.connection.rank) for one in sources)
            error.message += f" (rank {_SOURCE} is the replica, rank {slots} is this process)"
            raise
        finally:
            for one in sources:
                one.connection.close()


def _mesh_rank() -> int:
    """The rank of this process in torch's default group, as meshes use it; 0 without a group."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0
    return int(distributed.get_rank())


__all__ = ["Transport", "attach", "use_by_default"]
