"""torchft's CheckpointTransport over Wherry.

    from wherry.torchft import Transport

    manager = torchft.Manager(..., checkpoint_transport=Transport(timeout=timedelta(seconds=60)))

torchft itself is not needed: where it is installed, the class is a subclass of its CheckpointTransport.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

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
    reporting,
    to_seconds,
    transfer_options,
)
from wherry.errors import Closed, Error, InvalidArgument, Timeout
from wherry.group import codec_for

logger = logging.getLogger("wherry")

T = TypeVar("T")

#: Places in a harbour: the source has 0, receivers take any other at random.
_SIZE = 4096
_SOURCE = 0

if TYPE_CHECKING:

    class _Base(Generic[T]):
        pass

else:

    def _find_base() -> type:
        """torchft's class where torchft is there, else one without anything."""
        try:
            from torchft.checkpointing.transport import CheckpointTransport

            return CheckpointTransport
        except Exception as error:
            if not isinstance(error, ModuleNotFoundError) or error.name != "torchft":
                logger.warning("torchft is installed and cannot be imported, so this goes without it: %s", error)

        class CheckpointTransport(Generic[T]):
            pass

        return CheckpointTransport

    _Base = _find_base()


def _own_host() -> str:
    """The address at which other replicas reach this process: that on the way to the lighthouse, else by the host's name."""
    found = re.match(r"(?:\w+://)?(\[[^]]+]|[^:/]+)", os.environ.get("TORCHFT_LIGHTHOUSE", ""))
    lighthouse = found[1].strip("[]") if found else None
    if lighthouse is not None and is_loopback(lighthouse):
        return "127.0.0.1"  # a lighthouse that nobody else can reach has no replicas elsewhere
    return address_for_others(lighthouse or socket.gethostname(), "pass host= to wherry.torchft.Transport, or set WHERRY_INTERFACE")


class _Holder:
    """What a transport has open. Apart from it, so that its finalizer can close it."""

    def __init__(self, host: str | None) -> None:
        self._host = host
        self.lock = threading.Lock()  # for the harbour
        self.turn = threading.RLock()  # one at a time begins or ends a serving
        self.harbour: Listener | None = None
        self.serving: Server | None = None
        self.process = os.getpid()
        self.closed = False

    def find_harbour(self) -> Listener:
        with self.lock:
            if self.closed:
                raise Closed("this transport was shut down: make another")
            if self.process != os.getpid():  # a fork: all that is here is its parent's
                self.process, self.harbour, self.serving = os.getpid(), None, None
            if self.harbour is None:
                self.harbour = Listener(self._host or _own_host(), _SOURCE, _SIZE)
            return self.harbour

    def end_serving(self, patiently: bool = True) -> None:
        if self.process != os.getpid():
            return
        with self.turn:
            serving, self.serving = self.serving, None
            if serving is not None:
                serving.end(patiently)

    def close(self, patiently: bool = False) -> None:
        self.closed = True
        if self.process != os.getpid():
            return
        self.end_serving(patiently)
        with self.lock:
            harbour, self.harbour = self.harbour, None
        if harbour is not None:
            harbour.connection.close()


class Transport(_Base[T]):
    """Sends and receives checkpoints for torchft's Manager.

    ``timeout`` (a timedelta or seconds) is how long :meth:`disallow_checkpoint` lets a transfer that runs go on.
    ``state_dict``, a function that returns a state dict, makes receives go in place, into its tensors. New tensors arrive on the
    host, unless ``new_device`` names a CUDA device; with ``state_dict``, what the target lacks on ``device``. ``host`` is the
    address at which the other replicas reach this process; by default the one on the way to the lighthouse. The other
    options are those of ``wherry.torch.PGTransport``.
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
        self._holder = _Holder(host)
        self._finalizer = weakref.finalize(self, self._holder.close)
        #: The figures of the last receive.
        self.last_stats: Stats | None = None

    def metadata(self) -> str:
        """What a receiver needs to fetch from this process. torchft hands it on, and writes it to its log.

        Who can read it can fetch the states that are offered, unless WHERRY_SECRET or WHERRY_SECRET_FILE is set: then it has no
        secret, and the receiver needs the same one in its environment.
        """
        return self._holder.find_harbour().ticket.text()

    def send_checkpoint(self, dst_ranks: Iterable[int], step: int, state_dict: T, timeout: Duration) -> None:
        """Offers a state, and returns at once: it is served in the background until :meth:`disallow_checkpoint`.

        Until that has returned neither the state nor its tensors may change. Whoever asks for another step is told so. A
        second call ends the first.
        """
        options = transfer_options(step=step, mesh_rank=_mesh_rank(), keep_open=self._keep_open, **self._options)
        seconds = to_seconds(timeout)
        options["timeout_ms"] = Deadline(seconds).left_ms
        link = self._holder.find_harbour().connection
        with self._holder.turn:
            self._holder.end_serving()
            codec = codec_for(self._allow_pickle)
            built = _core.build(state_dict, codec)
            options["stream"] = codec.stream(built.cuda_devices(), fixed=True)
            self._holder.serving = Server(link, built, options, self._seconds)
        logger.info("offering step %d to %s", step, sorted(dst_ranks))

    def disallow_checkpoint(self) -> None:
        """Ends the offer. Once this has returned the state may be changed: nobody reads it any more.

        A transfer that runs may go on for ``timeout``; then it is revoked, and fails at the receiver.
        """
        self._holder.end_serving()

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: Duration) -> T:
        """Fetches the state of a step from the process whose :meth:`metadata` this is; waits for it if need be.

        Raises wherry.Timeout, also where that process is not there any more; wherry.Mismatch where it offers another step.
        """
        deadline = Deadline(timeout)
        with _about(src_rank, step):
            card = _read_card(metadata)
        codec = codec_for(self._allow_pickle)
        codec.new_on(self._new_device, None if self._state_dict is None else self._device)
        aim = codec.for_target()
        target = None if self._state_dict is None else _core.build(self._state_dict(), aim)
        options = transfer_options(
            step=step, new=target is not None, any_device=True, mesh_rank=_mesh_rank(), **self._options
        )
        options["stream"] = codec.stream(target.cuda_devices() if target else ())
        with reporting(self._progress, "from") as report, _about(src_rank, step):
            options["progress"] = report
            value: T
            value, self.last_stats = _fetch(card, target, codec, options, deadline)
        aim.bring_back()
        log_received(src_rank, self.last_stats)
        return value

    def shutdown(self, wait: bool = True) -> None:
        """Ends all of it. With ``wait`` a transfer that runs may finish first, within ``timeout``."""
        self._holder.close(patiently=wait)


@contextlib.contextmanager
def _about(src_rank: int, step: int) -> Iterator[None]:
    """Names the replica in every error: Wherry knows it only by its place in the harbour."""
    try:
        yield
    except Error as error:
        error.rank = src_rank
        error.message = f"replica {src_rank}, step {step}: {re.sub(f'^rank {_SOURCE} ', 'it ', error.message)}"
        error.args = (error.message,)
        raise


def _read_card(metadata: str) -> Ticket:
    card = Ticket.read(metadata)
    if card.rank != _SOURCE or card.size < 2:
        raise InvalidArgument("this metadata is that of another kind of transport: give that of wherry.torchft.Transport")
    return card


def _fetch(
    card: Ticket, target: _core.State | None, codec: Any, options: dict[str, Any], deadline: Deadline
) -> tuple[Any, Stats]:
    """Receives under a place of its own. Who finds itself fenced met another guest with the same one, and takes another."""
    while True:
        place = secrets.randbelow(card.size - 1) + 1
        try:
            link = connect(card, place, deadline.slice_ms())
            try:
                options["timeout_ms"] = deadline.left_ms
                return link.recv(_SOURCE, target, codec, options)
            finally:
                link.close()
        except Closed:
            if deadline.passed:
                raise
        except Timeout as error:
            error.message = f"timed out after {deadline.seconds:g} s, it has not served this step: {_without(place, error.message)}"
            raise
        except Error as error:
            error.message = _without(place, error.message)
            raise


def _without(place: int, message: str) -> str:
    """A message that does not name the place of this process, which means nothing to anybody."""
    return re.sub(rf"\brank {place}\b", "this process", message)


def _mesh_rank() -> int:
    """This process as meshes name it: its rank in torch's default group, else the first."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0
    return int(distributed.get_rank())


__all__ = ["Transport"]
