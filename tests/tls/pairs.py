"""Two ranks with a relay between them, in this process: rank 0 stays, and rank 1 comes for each
trial.

In each trial rank 1 joins, sends a message, gets the answer, receives a state, and leaves. The
result of a trial is one of:

INTACT   the answer and the state are those that were sent
ALTERED  the answer or the state differs, and no rank has noticed it
else     the error that a rank got
"""

from __future__ import annotations

import contextlib
import os
import threading

import launch
import numpy
import relay

import wherry

SECRET = "a secret of the tests of TLS"
INTACT, ALTERED = "intact", "altered"
ASK, ANSWER = 7, 8
SECONDS = 3
STATE_BYTES = 20_000


class Station:
    """A relay with a rank 0 behind it, which answers until the station is closed."""

    def __init__(
        self,
        secret: str | None = SECRET,
        seconds: float = SECONDS,
        *,
        insecure: bool = False,
        serve: bool = True,
    ):
        """
        :param serve: answer trials. Otherwise a test uses `source`.
        """
        self.secret, self.seconds, self.insecure = secret, seconds, insecure
        self.relay = relay.Relay()
        port = launch.free_port()
        self.relay.target = ("127.0.0.1", port)
        self.state = {"w": numpy.frombuffer(os.urandom(STATE_BYTES), numpy.uint8)}
        self.source = self.join(0, f"bind=127.0.0.1:{port}", wait_for=1)
        self.closing = False
        self.busy = threading.Lock()  # Held while rank 0 answers.
        self.cancel = wherry.Cancel()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        if serve:
            self.thread.start()

    def join(self, rank: int, more: str = "", **options: object) -> wherry.Group:
        """Joins as the station does, unless the options say otherwise."""
        address = f"tcp://127.0.0.1:{self.relay.port}?rank={rank}&size=2&shortcut=0"
        return wherry.Group.join(
            address + (f"&{more}" if more else ""),
            **{
                "timeout": self.seconds,
                "secret": self.secret,
                "allow_insecure": self.insecure,
                **options,
            },
        )

    def _serve(self) -> None:
        while not self.closing:
            with contextlib.suppress(wherry.Error):
                _, text = self.source.recv(wherry.ANY_RANK, ASK, 0.2)
                with self.busy:
                    self.source.send(1, ANSWER, answer_to(text), self.seconds)
                    self.send_state()

    def send_state(self) -> None:
        """Sends the state to rank 1, until the trial ends."""
        options = {"timeout": self.seconds, "lanes": "stream", "threads": 1}
        with contextlib.suppress(wherry.Error):
            wherry.send(self.source, [1], self.state, cancel=self.cancel, **options)

    def trial(self) -> str:
        """Plays rank 1 once."""
        result = INTACT
        try:
            with self.join(1) as group:
                text = os.urandom(300)
                group.send(0, ASK, text, self.seconds)
                if group.recv(0, ANSWER, self.seconds)[1] != answer_to(text):
                    result = ALTERED
                got = wherry.recv(group, 0, timeout=self.seconds, lanes="stream", threads=1)
                if list(got) != ["w"] or not numpy.array_equal(got["w"], self.state["w"]):
                    result = ALTERED
        except wherry.Error as error:
            result = f"{type(error).__name__}: {error}" if result == INTACT else result
        return result

    def say(self, group: wherry.Group) -> None:
        """One message each way, so that both ranks are connected."""
        group.send(0, ASK, b"hello", self.seconds)
        assert self.source.recv(1, ASK, self.seconds) == (1, b"hello")
        self.source.send(1, ANSWER, b"hello", self.seconds)
        assert group.recv(0, ANSWER, self.seconds) == (0, b"hello")

    def end_trial(self) -> None:
        """Ends all connections, and what rank 0 does for this trial."""
        self.cancel.request()
        self.relay.forget()
        with self.busy:
            self.cancel = wherry.Cancel()

    def close(self) -> None:
        self.closing = True
        self.relay.close()
        if self.thread.is_alive():
            self.thread.join()
        self.source.close()

    def __enter__(self) -> Station:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def answer_to(text: bytes) -> bytes:
    return b"the answer to " + text


@contextlib.contextmanager
def settings(**wanted: str | None):
    """Sets variables for the groups that are joined in this block. All other WHERRY_ variables that
    concern security are unset."""
    names = {name for name in os.environ if name.startswith(("WHERRY_TLS_", "WHERRY_SECRET"))}
    names |= {"WHERRY_ENCRYPT", *wanted}
    before = {name: os.environ.pop(name, None) for name in names}
    os.environ.update({name: value for name, value in wanted.items() if value})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
