"""PGTransport: sends and receives checkpoints between the ranks of a torch process group."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from wherry import _core
from wherry._connection import Source, receive_from
from wherry._transfer import (
    Deadline,
    Duration,
    Outcome,
    ProgressOption,
    Stats,
    VerifyOption,
    check_callback,
    check_ranks,
    check_sources,
    receive,
    reporting,
    settle,
    to_seconds,
    transfer_options,
    warn_if_slow,
)
from wherry.errors import Closed, Error
from wherry.torch import _process_group
from wherry.torch._codec import TorchCodec
from wherry.torch._rendezvous import Ends, Rendezvous, find_rendezvous

#: This value of `lanes` sends everything over the process group itself, by the lane "blocks".
_OVER_GROUP = "group"
_LANE_OVER_GROUP = "blocks"


class _Current:
    """The rendezvous of a transport. The transport's finalizer releases it."""

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

    It replaces torch's class of the same name. All ranks are ranks of ``pg``. They find each other
    through its store, and the bytes take the fastest lane.

    Args:
        pg: a process group of any backend, or a wrapper of one, such as torchft's.
        timeout: a timedelta or seconds, for each call.
        device: with ``state_dict``, CUDA tensors that the dict lacks arrive there. Without
            ``state_dict``, all tensors arrive on the CPU.
        state_dict: a function that returns a state dict. States are received into its tensors.
        step: the step of the state. If both sides pass a step and the two differ, both fail.
        require: with several sources, "any" continues if one is absent, "all" fails.
        verify: check the data against digests. None: only if it crosses a network. "all": also
            compare the bytes of several sources.
        partial: tensors that the source lacks stay unchanged, instead of raising Mismatch.
        lanes: such as "cma,ring"; "^cma" for all but cma; "group" for ``pg`` itself (gloo only).
        progress: True for a tqdm bar, or a function that takes a ``wherry.Progress``.
        allow_pickle: pickle values that cannot be sent otherwise. Both sides must set it.
        threads: how many threads move bytes. 0: one per CPU, at most 8.
        new_device: for new tensors. "cuda:1", for example, gets only CUDA tensors of the source.
        keep_open: the source promises that torch keeps its CUDA memory between transfers.
        address: "tcp://HOST:PORT" or "unix:///PATH", where the ranks connect without the store.
        device_mesh: one or more DeviceMesh objects for new DTensors.

    Example::

        transport = PGTransport(pg, timedelta(seconds=60), "cpu", state_dict=model.state_dict)
        if dist.get_rank() == 0:
            transport.send_checkpoint([1], model.state_dict())
        else:
            transport.recv_checkpoint(0)

    All methods are thread-safe. ``close()``, the end of a ``with`` block, or dropping the last
    reference closes the transport.
    """

    def __init__(
        self,
        pg: Any,
        timeout: Duration,
        device: torch.device | str,
        state_dict: Callable[[], object] | None = None,
        *,
        step: int | None = None,
        require: str = "any",
        verify: VerifyOption = None,
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
            "require": require,
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
        #: The statistics of the last successful transfer. After a send: of the slowest destination.
        self.last_stats: Stats | None = None

    def send_checkpoint(
        self,
        dst_ranks: Iterable[int],
        state_dict: object,
        *,
        step: int | None = None,
        timeout: Duration | None = None,
    ) -> list[Outcome]:
        """Sends a state to several ranks in parallel, and returns when all of them have it.

        The state and its tensors must not change until the call has returned or raised. If a
        destination is slow or dead, the transfers to the others still succeed and are not delayed.

        Args:
            dst_ranks: the destinations.
            state_dict: the state.
            step: instead of the step of the transport.
            timeout: instead of the timeout of the transport.

        Returns:
            One outcome per destination.

        Raises:
            wherry.errors.Unsupported: a value cannot be sent; ``path`` says which.
            wherry.Error: of the first of ``dst_ranks`` that failed. ``outcomes`` has all outcomes.

        Example::

            for outcome in transport.send_checkpoint([1, 2], state):
                print(outcome.rank, outcome.stats)
        """
        deadline = Deadline(self._timeout if timeout is None else timeout)
        rendezvous = self._find_rendezvous()
        ranks = check_ranks(dst_ranks, rendezvous.size, rendezvous.rank)
        options = transfer_options(
            step=self._step if step is None else step,
            mesh_rank=_process_group.own_rank(rendezvous.pg),
            keep_open=self._keep_open,
            **self._options_for(rendezvous),
        )
        if not ranks:
            return []
        codec = TorchCodec(self._allow_pickle)
        built = _core.build(state_dict, codec)
        options["stream"] = codec.stream(built.cuda_devices())
        with rendezvous.route(ranks, deadline, sending=True) as found:
            ends = [one for one in found if isinstance(one, Source)]
            with reporting(self._progress, "to") as report:
                options.update(timeout_ms=deadline.left_ms, progress=report)
                to = [one.rank for one in ends]
                outcomes = ends[0].connection.send(to, built, options, again=True)
            # The route's group may number the ranks differently from the process group.
            outcomes = [dataclasses.replace(one, rank=rank) for rank, one in zip(ranks, outcomes)]
            for one in outcomes:
                if one.error is not None:
                    one.error.rank = one.rank
            done = [one.stats for one in outcomes if one.ok]
            self.last_stats = max(done, key=lambda it: it.total_seconds, default=self.last_stats)
            settle(outcomes)
        return outcomes

    def recv_checkpoint(
        self,
        src_rank: int | Iterable[int],
        *,
        step: int | None = None,
        timeout: Duration | None = None,
    ) -> Any:
        """Receives the state that a rank sends. Waits until the rank sends it.

        With a list of ranks, all of them must send the same state, with the same ``step``, which is
        then required on both sides. The bytes come from all of them. If one is absent, late or
        lost, the others deliver its share.

        Args:
            src_rank: the source, or several.
            step: instead of the step of the transport.
            timeout: instead of the timeout of the transport.

        Returns:
            The state. If the transport has a ``state_dict`` function, it contains the tensors of
            that dict. Tensors that the dict lacks, such as the state of an optimizer that has not
            stepped yet, are new.

        Raises:
            wherry.errors.Mismatch: the states or the steps differ. Nothing was written.
            wherry.errors.Timeout: no source has sent the state in time.
            wherry.Error: another failure. If ``report`` is not None, some tensors are half written:
                receive again.

        Example::

            state = transport.recv_checkpoint([0, 2], step=7)
        """
        deadline = Deadline(self._timeout if timeout is None else timeout)
        rendezvous = self._find_rendezvous()
        step = self._step if step is None else step
        sources = check_sources(src_rank, rendezvous.size, rendezvous.rank, step)
        own = _process_group.own_rank(rendezvous.pg)
        options = transfer_options(
            step=step, partial=self._partial, mesh_rank=own, **self._options_for(rendezvous)
        )
        codec = TorchCodec(self._allow_pickle, rank=own, device_mesh=self._device_mesh)
        codec.source = _process_group.global_ranks(rendezvous.pg)[0][sources[0]]
        codec.new_on(self._new_device, None if self._state_dict is None else self._device)

        def fetch(target: _core.State | None, options: dict[str, Any]) -> tuple[Any, Stats]:
            required = self._options["require"] == "all"
            while True:
                ends: Ends = ()
                try:
                    with rendezvous.route(sources, deadline, False, required) as ends:
                        options["timeout_ms"] = deadline.left_ms
                        return receive_from(ends, sources, target, codec, options)
                except Error as error:
                    end = ends[0] if len(ends) == 1 else None
                    if not isinstance(end, Source) or deadline.passed:
                        raise
                    if not rendezvous.should_retry(sources[0], end, error, deadline):
                        raise

        value, self.last_stats = receive(fetch, codec, self._state_dict, options, self._progress)
        if len(sources) == 1:
            warn_if_slow(sources[0], self.last_stats)
        return value

    def _options_for(self, rendezvous: Rendezvous) -> dict[str, Any]:
        """The options. By default, ``lanes="group"`` uses no digests within one host.

        The library cannot decide this itself: it treats every process group as a network.
        """
        unchecked = self._over_group and self._options["verify"] is None
        if unchecked and _process_group.on_one_host(rendezvous.pg):
            return {**self._options, "verify": False}
        return self._options

    def _find_rendezvous(self) -> Rendezvous:
        """The rendezvous for the process group inside `pg`, which a wrapper may have replaced."""
        pg = _process_group.unwrap(self._pg)
        with self._current.lock:
            if self._current.closed:
                raise Closed("this PGTransport was closed: create a new one")
            old = self._current.rendezvous
            if old is not None and old.pg is pg and old.usable:
                return old
            found = find_rendezvous(pg, self._address, self._over_group)
            self._current.rendezvous = found
        if old is not None:
            old.release()
        return found

    def close(self) -> None:
        """Closes the transport. Safe to call twice.

        Cancels running transfers unless another transport shares the connection.
        """
        self._current.release()

    def __enter__(self) -> PGTransport:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "closed" if self._current.closed else f"over {self._pg!r}"
        return f"<wherry.torch.PGTransport {where}>"


__all__ = ["PGTransport"]
