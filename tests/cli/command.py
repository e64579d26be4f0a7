"""Running the command `wherry` as a user does, for all tests of it."""

import os
import pathlib
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("WHERRY_BUILD", ROOT / "build"))
WHERRY = BUILD / "cli" / "wherry"

# As `wherry COMMAND --help` lists them.
OK, FAILED, USAGE, ARGUMENT, RESOURCE, BYTES, PEER, DEADLINE, GROUP, BUG = range(10)


def environment(**more):
    """This process's, without what would change what the command does."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WHERRY_") and name != "NO_COLOR"}
    return {**kept, **{name: str(value) for name, value in more.items()}}


def wherry(*arguments, timeout=50, cwd=None, text=None, **more):
    """Runs it to its end. What is given by name goes into the environment, and `text` to its standard input."""
    return subprocess.run([WHERRY, *map(str, arguments)], env=environment(**more), capture_output=True, text=True, timeout=timeout,
                          cwd=cwd, input=text, stdin=None if text is not None else subprocess.DEVNULL)


def start(*arguments, **more):
    return subprocess.Popen([WHERRY, *map(str, arguments)], env=environment(**more), stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)


def wait_for(condition, seconds=10):
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until
        time.sleep(0.01)
    return found
