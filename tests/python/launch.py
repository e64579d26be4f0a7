"""Starts functions of a test as the ranks of a job, each in its own process, with the environment
of torchrun.

    with launch.job(8) as job:
        results = job.run(body, "an argument")  # runs body in each rank, returns their results

The function is in the file of the test and returns JSON. The output of a rank is kept. If a rank
fails or takes too long, the test fails with the output and the traceback of every rank. Ranks can
be killed and started again.

Importing torch takes seconds, so a fork server does it once, and ranks are forks of it. It does
nothing else: it has no thread and no group that a fork could inherit. With `spawn=True`, a rank is
a new interpreter instead.

The test itself has the store where the ranks of torch meet, so that any rank may die, 0 included.

`hosts` says where each rank runs: an object with the `pid` of a process whose namespaces the rank
enters (tests/hosts/hosts.py). Such ranks cannot reach the test's store; the test sets their
environment.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import ctypes
import faulthandler
import importlib
import importlib.util
import json
import logging
import os
import pathlib
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

HERE = pathlib.Path(__file__).resolve()
PR_SET_PDEATHSIG = 1
CLONE_NEWPID = 0x20000000


class Failure(AssertionError):
    """A rank failed."""


# ---- in the test ----


class ForkServer:
    """The process that has imported torch and forks ranks."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, str(HERE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.line()

    def line(self, timeout=120):
        ready, _, _ = select.select([self.process.stdout], [], [], timeout)
        text = self.process.stdout.readline() if ready else ""
        if not text:
            raise Failure("the fork server has ended or hangs")
        return json.loads(text)

    def fork(self, order):
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self.line()["process"]


_fork_server = None


def fork_server():
    global _fork_server
    if _fork_server is None or _fork_server.process.poll() is not None:
        _fork_server = ForkServer()
    return _fork_server


def end_fork_server():
    """Ends the fork server and waits for it, so that its resource usage counts for this process's
    children."""
    global _fork_server
    if _fork_server is not None:
        _fork_server.process.stdin.close()
        _fork_server.process.wait()
        _fork_server = None


class Rank:
    """One process of a job."""

    def __init__(self, number, folder):
        self.number = number
        self.folder = folder
        self.process = None
        self.spawned = None

    @property
    def status(self):
        """None while the process runs; else its exit status, or minus the signal that ended it."""
        if self.spawned is not None:
            return self.spawned.poll()
        with contextlib.suppress(OSError, ValueError):
            return int((self.folder / "status").read_text())
        return None

    @property
    def output(self):
        return (self.folder / "output").read_text(errors="replace")

    @property
    def value(self):
        path = self.folder / "value"
        return json.loads(path.read_text()) if path.exists() else None

    def signal(self, number):
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process, number)


class Job:
    """The ranks of one test."""

    def __init__(self, size, env=None, store=True, hosts=()):
        self.size = size
        self.hosts = hosts
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="wherry-job-"))
        self.env = {"WORLD_SIZE": size, "WHERRY_TEST_FOLDER": self.folder, **(env or {})}
        self.ranks = {}
        self.started = 0
        if store and not hosts:
            from torch.distributed import TCPStore

            self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            self.env.update(
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=self.store.port,
                TORCHELASTIC_USE_AGENT_STORE="True",
            )

    def start(self, rank, body, *arguments, spawn=False, host=None):
        """Starts a rank, or starts it again, on another host if `host` is given."""
        self.started += 1
        folder = self.folder / f"{rank}.{self.started}"
        folder.mkdir()
        near = [
            one for one in range(self.size) if self.hosts and self.hosts[one] is self.hosts[rank]
        ]
        local = {
            "LOCAL_RANK": near.index(rank) if near else rank,
            "LOCAL_WORLD_SIZE": len(near) or self.size,
        }
        environment = {"RANK": rank, **local, **self.env}
        order = {
            "file": body.__code__.co_filename,
            "function": body.__qualname__,
            "arguments": arguments,
            "folder": str(folder),
            "env": {name: str(value) for name, value in environment.items()},
        }
        if host or self.hosts:
            order["namespaces"] = (host or self.hosts[rank]).pid
        found = self.ranks[rank] = Rank(rank, folder)
        if spawn:
            found.spawned = subprocess.Popen([sys.executable, str(HERE), json.dumps(order)])
            found.process = found.spawned.pid
        else:
            found.process = fork_server().fork(order)
        return found

    def start_all(self, body, *arguments, spawn=False):
        for rank in range(self.size):
            self.start(rank, body, *arguments, spawn=spawn)

    def run(self, body, *arguments, timeout=60, spawn=False):
        """Runs a function in every rank. Returns the results by rank."""
        self.start_all(body, *arguments, spawn=spawn)
        return self.finish(timeout)

    def finish(self, timeout=60, killed=()):
        """Waits for all ranks. Fails if one did, except for those in `killed`."""
        until = time.monotonic() + timeout
        while any(rank.status is None for rank in self.ranks.values()):
            bad = [
                rank
                for rank in self.ranks.values()
                if rank.status not in (None, 0) and rank.number not in killed
            ]
            if bad:
                until = min(
                    until, time.monotonic() + 5
                )  # The other ranks may notice the failure and print something useful.
            if time.monotonic() > until:
                self._dump_and_kill()
                raise Failure(self._describe("not all ranks finished in time"))
            time.sleep(0.01)
        if any(rank.status != 0 and rank.number not in killed for rank in self.ranks.values()):
            raise Failure(self._describe("a rank failed"))
        return [self.ranks[rank].value for rank in sorted(self.ranks)]

    def wait_for_file(self, name, timeout=60):
        """Waits until a rank has called say(name). Returns its value."""
        until = time.monotonic() + timeout
        while not (self.folder / name).exists():
            if time.monotonic() > until or any(
                rank.status not in (None, 0, -signal.SIGKILL) for rank in self.ranks.values()
            ):
                self._dump_and_kill()
                raise Failure(self._describe(f"no rank called say('{name}')"))
            time.sleep(0.002)
        return json.loads((self.folder / name).read_text())

    def wait_until_asleep(self, rank):
        """Waits until all threads of a rank sleep. The rank is then blocked in a call."""
        wait_until_asleep(self.ranks[rank].process)

    def say(self, name, value=None):
        """Releases ranks in wait_for(name)."""
        _write(self.folder / name, json.dumps(value))

    def _dump_and_kill(self):
        for rank in self.ranks.values():
            # This signal makes Python write the traceback of every thread.
            rank.signal(signal.SIGUSR2)
        time.sleep(0.5)  # Nothing tells when they are written.
        self._kill()

    def _kill(self):
        for rank in self.ranks.values():
            rank.signal(signal.SIGKILL)
        until = time.monotonic() + 5
        while any(rank.status is None for rank in self.ranks.values()) and time.monotonic() < until:
            time.sleep(0.005)

    def _describe(self, what):
        parts = [
            f"---- rank {rank.number}, status {rank.status}\n{rank.output[-6000:]}"
            for rank in self.ranks.values()
        ]
        return "\n".join([what, *parts])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def without_notes_of_gloo(output):
    """The output without the lines that torch up to 2.10 prints when gloo has connected ranks."""
    lines = output.splitlines(keepends=True)
    return "".join(
        line for line in lines if not re.match(r"\[Gloo\] Rank \d+ is connected to", line)
    )


def _threads(process):
    """The state and the CPU seconds of each thread of a process, except the calling one."""
    own, found = str(threading.get_native_id()), []
    for task in pathlib.Path(f"/proc/{process}/task").iterdir():
        if task.name != own:
            with contextlib.suppress(OSError):
                fields = (task / "stat").read_text().rpartition(")")[2].split()
                ticks = int(fields[11]) + int(fields[12])
                found.append((fields[0], ticks / os.sysconf("SC_CLK_TCK")))
    return found


def wait_until_asleep(process=None):
    """Waits until all threads of a process, except the calling one, are seen asleep several times
    in a row, so that they are blocked in their calls. The default is this process.

    Some libraries have threads that poll, so this gives up after half a second in which the threads
    have used a processor. On a busy machine, a thread may wait that long for one. Then this gives
    up only after five seconds."""
    process = process or os.getpid()
    began, seen = time.monotonic(), 0
    polling = 0.25 + sum(seconds for _, seconds in _threads(process))
    while seen < 3 and (passed := time.monotonic() - began) < 5:
        time.sleep(0.003)
        threads = _threads(process)
        seen = 0 if any(state in "RD" for state, _ in threads) else seen + 1
        if passed > 0.5 and sum(seconds for _, seconds in threads) >= polling:
            return


def when_asleep(call, *arguments):
    """Calls a function in a new thread, once all other threads of this process are blocked."""

    def run():
        wait_until_asleep()
        call(*arguments)

    threading.Thread(target=run, daemon=True).start()


def free_port():
    """A port on loopback that is free now. The system gives ports of this range to nobody who asks
    for any port, so no other test gets it before the caller listens there."""
    while True:
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", random.SystemRandom().randrange(12000, 28000)))
            return one.getsockname()[1]


def job(size, env=None, store=True, hosts=()):
    return Job(size, env, store, hosts)


# ---- in a rank ----


def rank():
    return int(os.environ["RANK"])


def say(name, value=None):
    """Tells the test and the other ranks that something has happened."""
    _write(pathlib.Path(os.environ["WHERRY_TEST_FOLDER"]) / name, json.dumps(value))


def is_said(name):
    return (pathlib.Path(os.environ["WHERRY_TEST_FOLDER"]) / name).exists()


def wait_for(name, timeout=30):
    """Waits until the test or a rank has called say(name). Returns its value."""
    path = pathlib.Path(os.environ["WHERRY_TEST_FOLDER"]) / name
    until = time.monotonic() + timeout
    while not path.exists():
        assert time.monotonic() < until, f"nobody called say('{name}')"
        time.sleep(0.002)
    return json.loads(path.read_text())


def descriptors():
    """This process's descriptors, sorted; sockets without their numbers."""
    found = []
    for one in pathlib.Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(os.readlink(one).split(":[")[0])
    return sorted(found)


def held():
    """The threads and descriptors of this process, which a test must not leave behind."""
    return {one.name for one in pathlib.Path("/proc/self/task").iterdir()}, descriptors()


def left_behind(before):
    """New threads and descriptors since `before`. Those that have gone since then do not count."""
    threads, found = held()
    return threads - before[0], collections.Counter(found) - collections.Counter(before[1])


def settles(before, timeout=10):
    """Waits until nothing is left behind. A thread that has ended is still listed for a moment."""
    until = time.monotonic() + timeout
    while any(left := left_behind(before)) and time.monotonic() < until:
        time.sleep(0.005)
    assert not any(left), f"left behind: threads {left[0]}, descriptors {dict(left[1])}"


def _write(path, text):
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(text)
    part.rename(path)


def _be_a_rank(order):
    """Runs one function. Returns the exit status."""
    folder = pathlib.Path(order["folder"])
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    for name in [
        one
        for one in os.environ
        if one.startswith("WHERRY_")
        and one not in ("WHERRY_BUILD", "WHERRY_LOG", "WHERRY_UCX_LIBRARY")
    ]:
        del os.environ[name]
    os.environ.update(order["env"])
    faulthandler.enable(file=2)
    faulthandler.register(signal.SIGUSR2, file=2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    status = 1
    try:
        sys.path[:0] = [str(HERE.parent), str(pathlib.Path(order["file"]).parent)]
        spec = importlib.util.spec_from_file_location(
            pathlib.Path(order["file"]).stem, order["file"]
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        value = getattr(module, order["function"])(*order["arguments"])
        _write(folder / "value", json.dumps(value))
        status = 0
    except BaseException:
        traceback.print_exc()
    return status


def _enter(namespace, kind=0):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, kind) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    os.close(namespace)


def _fork_into(host):
    """fork() into the namespaces of a process. Returns the child's pid in this process's
    namespace."""
    own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    ways = [os.open(f"/proc/{host}/ns/{one}", os.O_RDONLY) for one in ("net", "uts", "ipc", "mnt")]
    _enter(
        os.open(f"/proc/{host}/ns/pid_for_children", os.O_RDONLY), CLONE_NEWPID
    )  # This affects only children.
    child = os.fork()
    if child:
        _enter(own, CLONE_NEWPID)
    for way in ways:
        os.close(way) if child else _enter(way)
    return child


def _show_log():
    """Writes the log lines to the output of the rank, in the form that the library gives them."""
    logging.addLevelName(logging.WARNING, "warn")
    logging.addLevelName(logging.INFO, "info")
    logging.basicConfig(level=logging.DEBUG, format="%(name)s: %(levelname)s: %(message)s")


def _fork(order):
    parent = os.getpid()
    host = order.get("namespaces")
    child = _fork_into(host) if host else os.fork()
    if child:
        return child
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # This is 0 if the parent is in another pid namespace.
    if os.getppid() != (0 if host else parent):
        os._exit(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if "WHERRY_LOG" in order["env"]:
        _show_log()
    status = _be_a_rank(order)
    # A normal exit, but without clearing all modules, which takes a second with torch.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status)


def _reap(folders):
    with contextlib.suppress(ChildProcessError):
        while True:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            folder = folders.pop(process, None)
            if folder is not None and os.path.isdir(folder):
                _write(pathlib.Path(folder) / "status", str(os.waitstatus_to_exitcode(status)))


def _serve_forks():
    """The fork server: imports torch, then forks a rank per line of its input."""
    for name in (
        "pytest",
        "torch.distributed._shard.sharded_tensor",
        "torch.distributed.tensor",
        "torch._dynamo",
        "wherry.torch",
    ):
        importlib.import_module(name)
    import torch

    # Ctrl-C at a terminal is for the test, not for this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    print(json.dumps({"ready": True}), flush=True)
    folders = {}
    while True:
        ready, _, _ = select.select([0], [], [], 0.01)
        _reap(folders)
        if ready:
            line = sys.stdin.buffer.raw.readline()
            if not line:
                return 0
            order = json.loads(line)
            child = _fork(order)
            folders[child] = order["folder"]
            print(json.dumps({"process": child}), flush=True)


if __name__ == "__main__":
    sys.exit(_be_a_rank(json.loads(sys.argv[1])) if len(sys.argv) > 1 else _serve_forks())
