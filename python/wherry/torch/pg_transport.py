"""PGTransport: sends and receives checkpoints between the ranks of a torch process group."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from wherry import _core
from wherry._transfer import (
    Deadline,
    Duration,
    Outcome,
    ProgressOption,
    Stats,
    check_callback,
    check_destinations,
    check_source,
    log_received,
    log_sent,
    raise_first,
    reporting,
    to_seconds,
    transfer_options,
)
from wherry.errors import Closed, Error
from wherry.torch import _process_group
from wherry.torch._codec import TorchCodec
from wherry.torch._rendezvous import Rendezvous, find_rendezvous

#: This value of `lanes` sends everything over the process group itself, by the lane below.
_OVER_GROUP = "group"
_LANE_OVER_GROUP = "blocks"


class _Current:
    """The rendezvous that a transport uses.

    A separate object, so that the transport's finalizer can release it.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rendezvous: Rendezvous | None = None
        self.closed = False

    def release(self) -> None:
        with self.lock:
            self.closed = True
            rendezvous, self.rendezvous = self.rendezvous, None
        if rendezvous is not None:
            rendezvous.release()


class PGTransport:
    """Sends and receives checkpoints between the ranks of a process group.

    It replaces torch's class of this name.

    ``pg`` is a process group of any backend, or a wrapper of one, such as torchft's. Ranks are
    those of ``pg``. They meet through its store, and the bytes take the fastest lane to the other
    rank. ``timeout`` (a timedelta or seconds) limits a whole call. With ``state_dict``, a function
    that returns a state dict, states are received in place, into its tensors. Without it, new
    tensors arrive on the CPU. CUDA tensors of the source that the target lacks arrive on
    ``device``.

    Options, all by keyword; docs/python.md explains them:

    - ``step``: the step of the state. If both sides give one and they differ, both fail.
    - ``verify``: check every chunk by its digest. None: only if the bytes cross a network.
    - ``partial``: in place, leave tensors alone that the source lacks, instead of raising Mismatch.
    - ``lanes``: "cma,ring", "^cma" for all but one, "group" for ``pg`` itself, if it is gloo.
    - ``progress``: True for a tqdm bar, or a function that takes a ``wherry.Progress``.
    - ``allow_pickle``: pickle values that cannot travel otherwise. Both sides must set it.
    - ``threads``: how many threads move bytes. 0: as many as there are processors.
    - ``new_device``: where new tensors arrive that the source has on a GPU: "cuda:1".
    - ``keep_open``: the source promises that torch keeps its CUDA memory between transfers.
    - ``device_mesh``: a mesh, or several, for new DTensors.
    - ``address``: where the ranks meet, instead of the store: "tcp://HOST:PORT", "unix:///PATH".

    Any thread may call, several at once. ``close()``, the end of a ``with`` block or the end of the
    last reference closes the transport.
    """

    def __init__(
        self,
        pg: Any,
        timeout: Duration,
        device: torch.device | str,
        state_dict: Callable[[], object] | None = None,
        *,
        step: int | None = None,
        verify: bool | None = None,
        partial: bool = False,
        lanes: str | None = None,
        progress: ProgressOption = None,
        allow_pickle: bool = False,
        threads: int = 0,
        new_device: torch.device | str | None = None,
        keep_open: bool = False,
        address: str | None = None,
        device_mesh: DeviceMesh | Sequence[DeviceMesh] | None = None,
    ) -> None:
        to_seconds(timeout)
        check_callback(state_dict)
        self._pg = pg
        self._timeout = timeout
        self._device = torch.device(device)
        self._state_dict = state_dict
        self._step = step
        self._partial = partial
        self._over_group = lanes == _OVER_GROUP
        self._options: dict[str, Any] = {
            "lanes": _LANE_OVER_GROUP if self._over_group else lanes,
            "threads": threads,
            "verify": verify,
        }
        transfer_options(step=step, **self._options)
        self._progress = progress
        self._allow_pickle = allow_pickle
        self._new_device = None if new_device is None else torch.device(new_device)
        self._keep_open = keep_open
        self._address = address
        self._device_mesh = device_mesh
        self._current = _Current()
        self._finalizer = weakref.finalize(self, self._current.release)
        #: The figures of the last successful transfer; for a send to several ranks, of the slowest.
        self.last_stats: Stats | None = None
        #: The result of the last send, per destination.
        self.last_outcomes: list[Outcome] = []

    def send_checkpoint(
        self,
        dst_ranks: Iterable[int],
        state_dict: object,
        *,
        step: int | None = None,
        timeout: Duration | None = None,
    ) -> None:
        """Sends a state to some ranks, all at once, and returns when each of them has it.

        The state and its tensors must not change until the call has returned or raised. Raises the
        first failure in the order of ``dst_ranks``, with ``.outcomes`` for all. A slow or dead
        destination neither fails nor delays the others.
        """
        deadline = Deadline(self._timeout if timeout is None else timeout)
        rendezvous = self._find_rendezvous()
        ranks = check_destinations(dst_ranks, rendezvous.size, rendezvous.rank)
        options = transfer_options(
            step=self._step if step is None else step, **self._options_for(rendezvous)
        )
        self.last_outcomes = []
        if not ranks:
            return
        codec = TorchCodec(self._allow_pickle)
        built = _core.build(state_dict, codec)
        with (
            reporting(self._progress, "to") as report,
            rendezvous.route(ranks, deadline, sending=True) as route,
        ):
            options.update(
                timeout_ms=deadline.left_ms,
                progress=report,
                mesh_rank=_process_group.own_rank(rendezvous.pg),
                stream=codec.stream(built.cuda_devices()),
                keep_open=self._keep_open,
            )
            route.outcomes = route.connection.send(route.ranks, built, options, again=True)
        # The route may number the ranks in another way than the process group.
        outcomes = [dataclasses.replace(one, rank=rank) for rank, one in zip(ranks, route.outcomes)]
        for one in outcomes:
            if one.error is not None:
                one.error.rank = one.rank
        self.last_outcomes = outcomes
        done = [one.stats for one in outcomes if one.error is None]
        self.last_stats = max(done, key=lambda stats: stats.total_seconds, default=self.last_stats)
        log_sent(outcomes)
        raise_first(outcomes)

    def recv_checkpoint(
        self, src_rank: int, *, step: int | None = None, timeout: Duration | None = None
    ) -> Any:
        """Receives the state that a rank sends, and waits for it if need be.

        With the callback ``state_dict`` the result holds its tensors, filled. Tensors that it
        lacks, such as the state of an optimizer that has not stepped yet, are new. Raises Mismatch,
        with the path and both sides, before anything is written. After a failure in the middle, the
        message says how many tensors are half written: receive again.
        """
        deadline = Deadline(self._timeout if timeout is None else timeout)
        rendezvous = self._find_rendezvous()
        source = check_source(src_rank, rendezvous.size, rendezvous.rank)
        own = _process_group.own_rank(rendezvous.pg)
        options = transfer_options(
            step=self._step if step is None else step,
            partial=self._partial,
            new=self._state_dict is not None,
            any_device=True,
            mesh_rank=own,
            **self._options_for(rendezvous),
        )
        codec = TorchCodec(self._allow_pickle, rank=own, device_mesh=self._device_mesh)
        codec.new_on(self._new_device, None if self._state_dict is None else self._device)
        aim = codec.for_target()
        target = None if self._state_dict is None else _core.build(self._state_dict(), aim)
        options["stream"] = codec.stream(target.cuda_devices() if target else ())
        with reporting(self._progress, "from") as report:
            options["progress"] = report
            value, stats = self._receive(rendezvous, source, target, codec, options, deadline)
        aim.bring_back()
        self.last_stats = stats
        log_received(source, stats)
        return value

    def _receive(
        self,
        rendezvous: Rendezvous,
        source: int,
        target: _core.State | None,
        codec: TorchCodec,
        options: dict[str, Any],
        deadline: Deadline,
    ) -> tuple[Any, Stats]:
        while True:
            route = None
            try:
                with rendezvous.route([source], deadline, sending=False) as route:
                    options["timeout_ms"] = deadline.left_ms
                    return route.connection.recv(route.ranks[0], target, codec, options)
            except Error as error:
                error.rank = source  # the route may number it in another way
                if route is None or deadline.passed:
                    raise
                if not rendezvous.should_retry(source, route, error, deadline):
                    raise

    def _options_for(self, rendezvous: Rendezvous) -> dict[str, Any]:
        """To the library a process group is a network.

        If all ranks are on one host, digests are not needed by default.
        """
        unchecked = self._over_group and self._options["verify"] is None
        if unchecked and _process_group.on_one_host(rendezvous.pg):
            return {**self._options, "verify": False}
        return self._options

    def _find_rendezvous(self) -> Rendezvous:
        """The rendezvous for the group inside `pg`. A wrapper may have got another one."""
        pg = _process_group.unwrap(self._pg)
        with self._current.lock:
            if self._current.closed:
                raise Closed("this PGTransport was closed: make another")
            old = self._current.rendezvous
            if old is not None and old.pg is pg and old.usable:
                return old
            found = find_rendezvous(pg, self._address, self._over_group)
            self._current.rendezvous = found
        if old is not None:
            old.release()
        return found

    def close(self) -> None:
        """Closes the transport.

        Cancels running transfers unless another transport shares the connection. Safe to call
        twice.
        """
        self._current.release()

    def __enter__(self) -> PGTransport:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "closed" if self._current.closed else f"over {self._pg!r}"
        return f"<wherry.torch.PGTransport {where}>"


__all__ = ["PGTransport"]
