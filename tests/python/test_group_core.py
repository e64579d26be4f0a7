"""wherry._core when it calls Python code: tables, progress functions, and objects that are freed
while an exception is raised."""

import queue
import sys
import threading

import numpy as np
import pytest
import wherry
from wherry import _core
from wherry.group import codec_for

OPTIONS = {"timeout_ms": 10_000, "lanes": "blocks"}


class Table:
    """A group of two in this process, made of queues. `trouble`, once set, is raised by the next
    call of that name."""

    def __init__(self, queues, rank):
        self._queues, self._rank = queues, rank
        self.trouble = {}

    def _fail(self, name):
        if name in self.trouble:
            raise self.trouble.pop(name)

    def send(self, rank, block, timeout_ms):
        self._fail("send")
        self._queues[rank].put((self._rank, block))
        return True

    def receive(self, timeout_ms):
        self._fail("receive")
        try:
            return [self._queues[self._rank].get(timeout=timeout_ms / 1000)]
        except queue.Empty:
            return []

    def destroy(self):
        pass


class Pair:
    """Two ranks. The first one sends in its own thread."""

    def __init__(self):
        queues = [queue.SimpleQueue(), queue.SimpleQueue()]
        self.tables = [Table(queues, rank) for rank in range(2)]
        self.groups = [
            _core.Group.from_table(table, "queues", rank, 2, 1 << 16, False)
            for rank, table in enumerate(self.tables)
        ]
        self.transports = [_core.Transport(group) for group in self.groups]
        self.codec = codec_for(False)

    def receive(self, state, **options):
        built = _core.build(state, self.codec)
        cancel = _core.Cancel()
        sending = threading.Thread(
            target=self.transports[0].send, args=([1], built, {**OPTIONS, "cancel": cancel})
        )
        sending.start()
        try:
            return _core.Transport.recv(
                ((self.transports[1], 0, None),), None, self.codec, {**OPTIONS, **options}
            )[0]
        finally:
            cancel.request()
            sending.join()


def test_an_interrupt_after_a_transfer_inside_a_progress_function():
    """The end of the inner call is not the end of the outer one. If the table interrupts the outer
    call, it ends as interrupted."""
    outer, inner = Pair(), Pair()
    found = []

    def progress(*_):
        if not found:
            found.append(inner.receive({"inner": 1}))
            outer.tables[1].trouble["receive"] = KeyboardInterrupt("enough")

    with pytest.raises(KeyboardInterrupt, match="enough"):
        outer.receive({"outer": np.zeros(1 << 22)}, progress=progress)
    assert found == [{"inner": 1}]


class Odd(Exception):
    """An exception without a rank, whose attribute `status` runs code."""

    @property
    def status(self):
        return "PEER_LOST"


@pytest.mark.parametrize(
    "trouble, expected",
    [(Odd("gone"), wherry.errors.PeerLost), (ValueError("bad"), wherry.errors.Closed)],
)
def test_exceptions_of_a_table(trouble, expected):
    pair = Pair()
    pair.tables[1].trouble["send"] = trouble
    with pytest.raises(expected, match=str(trouble)):
        pair.groups[1].send(0, 1, b"data", 1000)


@pytest.mark.parametrize("fails", [False, True])
def test_a_group_that_is_freed_while_something_is_raised(monkeypatch, fails):
    destroyed, shown = [], []

    class Noisy(Table):
        def destroy(self):
            destroyed.append(sys.exc_info()[0])
            if fails:
                raise ValueError("destroy")

    monkeypatch.setattr(sys, "unraisablehook", lambda what: shown.append(str(what.exc_value)))
    with pytest.raises(ZeroDivisionError):
        (_core.Group.from_table(Noisy([], 0), "queues", 0, 2, 1 << 16, False), 1 // 0)
    assert len(destroyed) == 1 and shown == ["destroy"] * fails


def test_a_cancel_takes_no_arguments():
    for arguments, names in [((), {"x": 1}), ((1,), {})]:
        with pytest.raises(TypeError):
            wherry.Cancel(*arguments, **names)
    assert not wherry.Cancel().requested
