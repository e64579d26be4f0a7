"""`wherry fetch` from servers on several hosts: all of them send at the same time."""

import contextlib
import filecmp
import json
import pathlib
import re
import subprocess
import sys
import time

import hosts
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))

from checkpoints import large
from command import OK, WHERRY, environment

SIZE = 96 << 20


def start_on(host, *arguments, token=""):
    """Starts the command on a host."""
    spaces = [f"--{kind}={host.namespace(kind)}" for kind in ("net", "uts", "ipc", "pid")]
    spaces.append(f"--mount={host.namespace('mnt')}")
    return subprocess.Popen(
        ["nsenter", *spaces, WHERRY, *map(str, arguments)],
        env=environment(WHERRY_TOKEN=token),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def serving(host, *arguments):
    """A server on a host; yields its address and its token."""
    server = start_on(host, "serve", "-q", *arguments)
    try:
        address = re.search(r"tcp://\S+", server.stdout.readline())[0]
        yield address, server.stdout.readline().split()[1]
    finally:
        server.kill()  # The server itself ends with its host.
        server.wait()
        server.stdout.close()
        server.stderr.close()


@contextlib.contextmanager
def served(world, big, identity):
    """A server on each host but the first; yields their addresses and their token."""
    with contextlib.ExitStack() as stack:
        options = (big, "--identity", identity)
        started = [
            stack.enter_context(serving(one, "--listen", one.name, *options))
            for one in world.hosts[1:]
        ]
        yield [address for address, _ in started], started[0][1]


@pytest.mark.parametrize("lost", [False, True])
def test_two_servers_share_the_work(lost, tmp_path):
    big = large(tmp_path / "big.safetensors", SIZE)
    # A busy machine needs time to notice how much of the fetch is done, and to power a host off.
    rate_mbit = 60 if lost else 200
    with (
        hosts.World(3, rate_mbit=rate_mbit) as world,
        served(world, big, tmp_path / "identity") as (addresses, token),
    ):
        arguments = ["-o", tmp_path / "got", "--json", "-q", "--lanes", "stream"]
        fetch = start_on(world.hosts[0], "fetch", *addresses, *arguments, token=token)
        if lost:
            while world.hosts[1].sent() < SIZE // 16:
                assert fetch.poll() is None
                time.sleep(0.01)
            world.power_off(1)
        output, log = fetch.communicate(timeout=60)
        assert fetch.returncode == OK, log
        told = json.loads(output)
        shares = [one["bytes"] / SIZE for one in told["servers"]]
        assert [bool(one["error"]) for one in told["servers"]] == [lost, False]
        assert told["verified"], "everything between hosts is encrypted"
        assert filecmp.cmp(big, tmp_path / "got", shallow=False)
        if not lost:
            assert min(shares) > 0.3, shares


FORWARD = """
import socket, sys, threading
listener = socket.create_server(("0.0.0.0", 8000))
def pass_on(source, sink):
    while piece := source.recv(1 << 16):
        sink.sendall(piece)
    sink.shutdown(socket.SHUT_WR)
while True:
    ours = listener.accept()[0]
    print("connected", flush=True)
    its = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    for pair in (ours, its), (its, ours):
        threading.Thread(target=pass_on, args=pair, daemon=True).start()
"""


def test_a_server_behind_a_forwarded_port(tmp_path):
    """As in a container: clients reach the server at another port than the one that it listens
    at."""
    big = large(tmp_path / "big.safetensors", 8 << 20)
    with hosts.World(2) as world:
        outside, inside = world.hosts
        told = ["--bind", "127.0.0.1", "--port", "29700", "--advertise", f"{inside.name}:8000"]
        with (
            serving(inside, *told, big) as (address, token),
            subprocess.Popen(
                ["nsenter", "-t", str(inside.pid), "-n", sys.executable, "-c", FORWARD, "29700"],
                stdout=subprocess.PIPE,
                text=True,
            ) as forward,
        ):
            assert address == f"tcp://{inside.name}:8000"
            arguments = ["--wait", "-o", tmp_path / "got", "-q"]
            fetch = start_on(outside, "fetch", address, *arguments, token=token)
            _, log = fetch.communicate(timeout=60)
            forward.kill()
            connections = forward.stdout.read().count("connected")
        assert fetch.returncode == OK, log
        assert filecmp.cmp(big, tmp_path / "got", shallow=False)
        # one connection to get a rank, one with that rank, and at least one channel
        assert connections >= 3
