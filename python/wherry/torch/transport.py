"""PGTransport: sends and receives checkpoints between the ranks of a process group of torch."""

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
from wherry.torch import _pg
from wherry.torch._codec import TorchCodec
from wherry.torch._meeting import find_way
from wherry.torch._way import Way

#: In `lanes`: everything goes over the process group itself.
_OVER_GROUP = "group"
_LANES_OVER_GROUP = "blocks"


class _Holder:
    """The way that a transport uses now. Apart from it, so that its finalizer can give it back."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.way: Way | None = None
        self.closed = False

    def give_back(self) -> None:
        with self.lock:
            self.closed = True
            way, self.way = self.way, None
        if way is not None:
            way.release()


class PGTransport:
    """Sends and receives checkpoints between the ranks of a process group, in the place of torch's class of this name.

    ``pg`` is a process group of any backend, or a wrapper of one, such as torchft's. The ranks meet through its store;
    bytes take the fastest lane that reaches the other rank, not the group. ``timeout`` (a timedelta or seconds) is that of
    a whole call. With ``state_dict``, a function that returns a state dict, states are received in place, into its
    tensors, wherever they are; without it new tensors arrive on the CPU. ``device`` is a device or its name: what the
    target lacks, and the source has on an accelerator, arrives there.

    Tensors on CUDA devices are sent and received where they are. What is queued on torch's current stream of each device
    before the call is waited for; what was received is there when the call returns.

    Options, all by keyword:

    - ``step``: of the state, where both sides say one and they differ, both fail. Also for each call.
    - ``verify``: check digests; None: where bytes cross a network.
    - ``partial``: in place, leave alone what the source lacks, instead of raising Mismatch.
    - ``lanes``: "cma,ring,stream", "^cma" for all but one; "group" sends everything over ``pg`` itself.
    - ``progress``: True for a tqdm bar, or a function that is given a ``wherry.Progress``.
    - ``allow_pickle``: pickle what cannot travel otherwise, and unpickle what comes so. Both sides must say it.
    - ``threads`` that move bytes; 0: as many as there are processors.
    - ``new_device``: where new tensors arrive that the source has on an accelerator: "cuda:1". None: as said above.
    - ``keep_open``: a source's promise that torch does not give its CUDA memory back to the system (empty_cache) before
      every receiver has got a later state without it or without ``keep_open``, so that receivers of the same host keep it
      open, and the next transfer need not open it again.
    - ``device_mesh``: a mesh, or several, for new DTensors. By default those of DTensors that the target or a state
      that was sent has; if none fits, a mesh that cannot communicate, with a warning.
    - ``address``: where the ranks meet, instead of the store: "tcp://HOST:PORT" or "unix:///PATH", the same on all.

    Ranks are those of ``pg``, as ``pg.send`` has them. Any thread may call, several at once. ``close()``, the end of a
    ``with`` block or the end of the last reference ends what is open.
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
        self._options: dict[str, Any] = {"lanes": _LANES_OVER_GROUP if self._over_group else lanes, "threads": threads, "verify": verify}
        transfer_options(step=step, **self._options)
        self._progress = progress
        self._allow_pickle = allow_pickle
        self._new_device = None if new_device is None else torch.device(new_device)
        self._keep_open = keep_open
        self._address = address
        self._device_mesh = device_mesh
        self._holder = _Holder()
        self._finalizer = weakref.finalize(self, self._holder.give_back)
        #: The figures of the last transfer that ended well; of a send to several ranks, those of the last to be done.
        self.last_stats: Stats | None = None
        #: How the last send went for each destination.
        self.last_outcomes: list[Outcome] = []

    def send_checkpoint(
        self, dst_ranks: Iterable[int], state_dict: object, *, step: int | None = None, timeout: Duration | None = None
    ) -> None:
        """Sends a state to some ranks, all at once; returns when each has it.

        Until then neither the state nor its tensors may change; afterwards they may, however the call ended. Raises the
        first failure in the order of ``dst_ranks``, with ``.outcomes`` for all; one slow or dead destination neither fails
        nor delays the others.
        """
        deadline = Deadline(self._timeout if timeout is None else timeout)
        way = self._find_way()
        ranks = check_destinations(dst_ranks, way.size, way.rank)
        options = transfer_options(step=self._step if step is None else step, **self._options_over(way))
        self.last_outcomes = []
        if not ranks:
            return
        codec = TorchCodec(self._allow_pickle)
        built = _core.build(state_dict, codec)
        with reporting(self._progress, "to") as report, way.serving(ranks, deadline) as berth:
            options.update(timeout_ms=deadline.left_ms, progress=report, mesh_rank=_pg.own_rank(way.pg))
            options.update(stream=codec.stream(built.cuda_devices()), keep_open=self._keep_open)
            berth.outcomes = berth.link.send(berth.ranks, built, options, again=True)
        outcomes = [dataclasses.replace(one, rank=rank) for rank, one in zip(ranks, berth.outcomes)]
        self.last_outcomes = outcomes
        done = [one.stats for one in outcomes if one.error is None]
        self.last_stats = max(done, key=lambda stats: stats.total_seconds, default=self.last_stats)
        log_sent(outcomes)
        for one in outcomes:
            if one.error is not None:
                one.error.rank = one.rank
        raise_first(outcomes)

    def recv_checkpoint(self, src_rank: int, *, step: int | None = None, timeout: Duration | None = None) -> Any:
        """Receives the state that a rank sends, and waits for it if need be.

        With the callback ``state_dict`` the result holds its tensors, filled; what it lacks, such as the state of an
        optimizer that has not stepped yet, is new. Raises Mismatch, with path and both sides, before anything is touched.
        After a failure in the middle the message says how many tensors are half written: receive again.
        """
        deadline = Deadline(self._timeout if timeout is None else timeout)
        way = self._find_way()
        source = check_source(src_rank, way.size, way.rank)
        own = _pg.own_rank(way.pg)
        options = transfer_options(
            step=self._step if step is None else step,
            partial=self._partial,
            new=self._state_dict is not None,
            any_device=True,
            mesh_rank=own,
            **self._options_over(way),
        )
        codec = TorchCodec(self._allow_pickle, rank=own, device_mesh=self._device_mesh)
        codec.new_on(self._new_device, None if self._state_dict is None else self._device)
        aim = codec.for_target()
        target = None if self._state_dict is None else _core.build(self._state_dict(), aim)
        options["stream"] = codec.stream(target.cuda_devices() if target else ())
        with reporting(self._progress, "from") as report:
            options["progress"] = report
            value, stats = self._receive(way, source, target, codec, options, deadline)
        aim.bring_back()
        self.last_stats = stats
        log_received(source, stats)
        return value

    def _receive(
        self,
        way: Way,
        source: int,
        target: _core.State | None,
        codec: TorchCodec,
        options: dict[str, Any],
        deadline: Deadline,
    ) -> tuple[Any, Stats]:
        while True:
            link = None
            try:
                with way.asking(source, deadline) as berth:
                    link = berth.link
                    options["timeout_ms"] = deadline.left_ms
                    return link.recv(berth.ranks[0], target, codec, options)
            except Error as error:
                error.rank = source  # as this group counts, and not the one that it was reached by
                if link is None or deadline.passed or not way.look_again(source, link, error, deadline):
                    raise

    def _options_over(self, way: Way) -> dict[str, Any]:
        """The library takes a process group for a network; on one host its bytes cross none, and are not checked by default."""
        unchecked = self._over_group and self._options["verify"] is None and _pg.on_one_host(way.pg)
        return {**self._options, "verify": False} if unchecked else self._options

    def _find_way(self) -> Way:
        """The way over the group that is inside `pg` now: a wrapper may have got another one."""
        pg = _pg.unwrap(self._pg)
        with self._holder.lock:
            if self._holder.closed:
                raise Closed("this PGTransport was closed: make another")
            old = self._holder.way
            if old is not None and old.pg is pg and old.usable:
                return old
            self._holder.way = way = find_way(pg, self._address, self._over_group)
        if old is not None:
            old.release()
        return way

    def close(self) -> None:
        """Ends what is open, and transfers that run, unless other transports use it too. Again: nothing."""
        self._holder.give_back()

    def __enter__(self) -> PGTransport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "closed" if self._holder.closed else f"over {self._pg!r}"
        return f"<wherry.torch.PGTransport {where}>"


__all__ = ["PGTransport"]
