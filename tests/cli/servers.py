"""Running servers for the tests of `wherry serve` and `wherry fetch`."""

import base64
import contextlib
import hashlib
import json
import signal

from command import start, wherry


def make_token(pin=bytes(32), reader=bytes(16)):
    """A well-formed token, by the text of src/group/token.h."""
    payload = pin + reader
    check = hashlib.sha256(b"wherry1-" + payload).digest()[:3]
    return "wherry1-" + base64.urlsafe_b64encode(payload + check).decode()


def pin_of(token):
    """The SHA-256 of the server's key in a token."""
    return base64.urlsafe_b64decode(token.removeprefix("wherry1-"))[:32]


class Server:
    """A running `wherry serve`; `log` is its standard error."""

    def __init__(self, process, place):
        self.process = process
        self.place = place
        text = ""
        while not text.endswith("}\n"):
            line = process.stdout.readline()
            assert line, process.stderr.read()
            text += line
        told = self.told = json.loads(text)
        self.address, self.token, self.local = (
            told["address"],
            told.get("token"),
            told["only_this_machine"],
        )

    @property
    def log(self):
        return (self.place / "serve.log").read_text()

    def fetch(self, *arguments, token=None, **more):
        return wherry("fetch", self.address, *arguments, WHERRY_TOKEN=token or self.token, **more)


@contextlib.contextmanager
def serving(place, *arguments, signal_at=None, **more):
    """Serves files; the log goes into the folder `place`. `more` goes into the environment."""
    with open(place / "serve.log", "w") as log:
        process = start("serve", "--json", *arguments, signal_at=signal_at, stderr=log, **more)
    try:
        yield Server(process, place)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(10)
        process.stdout.close()
