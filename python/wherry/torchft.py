"""torchft's CheckpointTransport over Wherry.

    from wherry.torchft import Transport

    manager = torchft.Manager(..., checkpoint_transport=Transport(timeout=timedelta(seconds=60)))

A source listens at a port and serves its state in the background. torchft passes the source's
ticket (:meth:`Transport.metadata`) to the replicas that need it. torchft is optional: if it is
installed, Transport is a subclass of its CheckpointTransport.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import urlsplit

from wherry import _core
from wherry._connection import Server
from wherry._rendezvous import Listener, Ticket, address_for_others, connect, is_loopback
from wherry._transfer import (
    Deadline,
    Duration,
    ProgressOption,
    Stats,
    check_callback,
    log_received,
    receive,
    to_seconds,
    transfer_options,
)
from wherry.errors import Closed, Error, InvalidArgument, Timeout
from wherry.group import codec_for

logger = logging.getLogger("wherry")

T = TypeVar("T")

#: The number of slots of a listener. In the library's terms, slots are ranks. The source has slot
#: 0, and each receiver picks one of the others at random.
_SLOTS = 4096
_SOURCE = 0

if TYPE_CHECKING:

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
    """The address at which other replicas reach this process: on the route to the lighthouse."""
    given = os.environ.get("TORCHFT_LIGHTHOUSE", "")
    lighthouse = urlsplit(given if "://" in given else f"//{given}").hostname
    if lighthouse is not None and is_loopback(lighthouse):
        return "127.0.0.1"  # if the lighthouse is on loopback, all replicas are on this host
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
            if self._process != os.getpid():  # a forked child must not use its parent's listener
                self._process, self._listener, self.server = os.getpid(), None, None
            if self._listener is None:
                self._listener = Listener(self._host or _own_host(), _SOURCE, _SLOTS)
            return self._listener

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

    ``timeout`` (a timedelta or seconds) is how long :meth:`disallow_checkpoint` waits for running
    transfers. ``state_dict`` is a function that returns a state dict. If it is given, states are
    received in place, into the tensors of that dict. New tensors arrive on the host, or on
    ``new_device`` if it is given. With ``state_dict`` but without ``new_device``, CUDA tensors that
    the dict lacks arrive on ``device``. ``host`` is the address at which the other replicas reach
    this process. The other options are those of ``wherry.torch.PGTransport``.
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
        self._device = device
        self._new_device = new_device
        self._options: dict[str, Any] = {"lanes": lanes, "verify": verify, "threads": threads}
        transfer_options(**self._options)
        self._progress = progress
        self._allow_pickle = allow_pickle
        self._keep_open = keep_open
        self._device_mesh = device_mesh
        self._resources = _Resources(host)
        self._finalizer = weakref.finalize(self, self._resources.close)
        #: The statistics of the last successful receive.
        self.last_stats: Stats | None = None

    def metadata(self) -> str:
        """The ticket with which a receiver reaches this process.

        torchft passes it to the receivers and also logs it. Anyone who reads the ticket can receive
        the offered states. To prevent that, set WHERRY_SECRET or WHERRY_SECRET_FILE on all
        replicas: then the ticket contains no secret.
        """
        return self._resources.listener().ticket.text()

    def send_checkpoint(
        self, dst_ranks: Iterable[int], step: int, state_dict: T, timeout: Duration
    ) -> None:
        """Offers a state and returns immediately.

        The state is served in the background until :meth:`disallow_checkpoint`. The state and its
        tensors must not change until that call has returned. A receiver that requests another step
        gets an error. A second call ends the first offer.
        """
        options = transfer_options(
            step=step, mesh_rank=_mesh_rank(), keep_open=self._keep_open, **self._options
        )
        options["timeout_ms"] = Deadline(timeout).left_ms
        connection = self._resources.listener().connection
        with self._resources.serving:
            self._resources.end_server()
            codec = codec_for(self._allow_pickle)
            built = _core.build(state_dict, codec)
            options["stream"] = codec.stream(built.cuda_devices(), fixed=True)
            self._resources.server = Server(connection, built, options, self._seconds)
        logger.info("offering step %d to %s", step, sorted(dst_ranks))

    def disallow_checkpoint(self) -> None:
        """Ends the offer. When this has returned, the state may change.

        Running transfers get ``timeout`` to finish. Those still running are then cancelled, and the
        receivers get an error.
        """
        self._resources.end_server()

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: Duration) -> T:
        """Receives the state of a step from the process whose :meth:`metadata` is given.

        Waits until that process serves a state. Raises wherry.Timeout if the process serves no
        state in time or has exited, and wherry.Mismatch if it serves another step.
        """
        deadline = Deadline(timeout)
        with _about(src_rank, step):
            ticket = _read_ticket(metadata)
        codec = codec_for(self._allow_pickle, device_mesh=self._device_mesh)
        codec.new_on(self._new_device, None if self._state_dict is None else self._device)
        options = transfer_options(step=step, mesh_rank=_mesh_rank(), **self._options)

        def fetch(target: _core.State | None, options: dict[str, Any]) -> tuple[Any, Stats]:
            with _about(src_rank, step):
                return _fetch(ticket, target, codec, options, deadline)

        value: T
        value, self.last_stats = receive(fetch, codec, self._state_dict, options, self._progress)
        log_received([src_rank], self.last_stats)
        return value

    def shutdown(self, wait: bool = True) -> None:
        """Closes the transport. Safe to call twice.

        If ``wait`` is true, running transfers get ``timeout`` to finish.
        """
        self._resources.close(patiently=wait)


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
    if ticket.rank != _SOURCE or ticket.size < 2:
        raise InvalidArgument(
            "this metadata is from another kind of transport: pass the result of metadata() of a "
            "wherry.torchft.Transport"
        )
    return ticket


def _fetch(
    ticket: Ticket,
    target: _core.State | None,
    codec: Any,
    options: dict[str, Any],
    deadline: Deadline,
) -> tuple[Any, Stats]:
    """Receives through a random slot. If another client takes that slot, tries another one."""
    while True:
        slot = secrets.randbelow(ticket.size - 1) + 1
        try:
            connection = connect(ticket, slot, deadline.slice_ms())
            try:
                options["timeout_ms"] = deadline.left_ms
                return connection.recv([_SOURCE], target, codec, options)
            finally:
                connection.close()
        except Error as error:
            if isinstance(error, Closed) and not deadline.passed:
                continue
            if isinstance(error, Timeout) and deadline.passed:
                error.message = (
                    f"timed out after {deadline.seconds:g} s, before this step was received: "
                    f"{error.message}"
                )
            error.message += f" (rank {_SOURCE} is the replica, rank {slot} is this process)"
            raise


def _mesh_rank() -> int:
    """The rank of this process in torch's default group, as meshes use it; 0 without a group."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0
    return int(distributed.get_rank())


__all__ = ["Transport"]
