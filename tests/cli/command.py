"""Runs the command `wherry` as a user does."""

import contextlib
import fcntl
import os
import pathlib
import pty
import struct
import subprocess
import termios
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("WHERRY_BUILD", ROOT / "build"))
WHERRY = BUILD / "cli" / "wherry"
WITH_SIGNAL = BUILD / "tests" / "wherry_with_signal"

# Exit statuses, in the order in which `wherry COMMAND --help` lists them.
OK, FAILED, USAGE, ARGUMENT, RESOURCE, BYTES, PEER, DEADLINE, GROUP, BUG = range(10)


def environment(**more):
    """This process's environment without variables that change what the command does."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == "WHERRY_UCX_LIBRARY" or not name.startswith("WHERRY_") and name != "NO_COLOR"
    }
    return {**kept, **{name: str(value) for name, value in more.items()}}


def wherry(*arguments, timeout=50, cwd=None, text=None, **more):
    """Runs the command to its end. Keyword arguments go into its environment, `text` to its
    standard input."""
    return subprocess.run(
        [WHERRY, *map(str, arguments)],
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=cwd,
        input=text,
        stdin=None if text is not None else subprocess.DEVNULL,
    )


def on_terminal(columns, *arguments, cwd=None, **more):
    """Runs the command on a terminal. Returns its exit code and the lines that it printed."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 25, columns, 0, 0))
    with subprocess.Popen(
        [WHERRY, *map(str, arguments)],
        env=environment(TERM="xterm", **more),
        stdin=subprocess.DEVNULL,
        stdout=its,
        stderr=its,
        cwd=cwd,
    ) as process:
        os.close(its)
        printed = b""
        with contextlib.suppress(OSError):  # A terminal reports so that its other side is closed.
            while piece := os.read(ours, 65536):
                printed += piece
        os.close(ours)
    return process.returncode, printed.decode().splitlines()


def start(*arguments, signal_at=None, stderr=subprocess.PIPE, prefix=(), **more):
    """Starts the command, with `prefix` in front of it if that is given. With `signal_at` = (count,
    signal, point), the process gets a signal when it passes a point for the count-th time."""
    if signal_at is not None:
        count, signal, point = signal_at
        more["WHERRY_TEST_SIGNAL"] = f"{count} {int(signal)} {point}"
    return subprocess.Popen(
        [*prefix, WHERRY if signal_at is None else WITH_SIGNAL, *map(str, arguments)],
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=stderr,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def await_signal(process):
    """Waits until a process with `signal_at` has got its signal; skips its earlier output."""
    assert "signalled\n" in iter(process.stderr.readline, ""), (
        f"the process ended before the signal, with {process.wait()}"
    )


def wait_for(condition, seconds=60):
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until
        time.sleep(0.01)
    return found
