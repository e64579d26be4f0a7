"""What `wherry fetch` prints: figures, the progress bar, and errors in words of the command."""

import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import signal
import struct
import subprocess
import termios

import pytest
from checkpoints import large
from command import DEADLINE, OK, PEER, WHERRY, environment, start, wait_for
from servers import serving

SENT = "source gathers a chunk"
UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "MB/s": 1e6, "GB/s": 1e9}


def check_pair(line):
    """Size, time and rate in a line must match."""
    found = re.search(
        r"([\d.]+) (\wiB)(?: \(\d+ bytes\))? in ([\d.]+) s at ([\d.]+) ([MG]B/s)", line
    )
    assert found, line
    size, rate = float(found[1]) * UNITS[found[2]], float(found[4]) * UNITS[found[5]]
    assert size / float(found[3]) == pytest.approx(rate, rel=0.1), line
    assert float(found[4]) < 1000


def test_figures(tmp_path):
    big = large(tmp_path / "big.safetensors", 64 << 20)
    with serving(tmp_path, big) as server:
        for lane in ("cma", "stream"):
            done = server.fetch("-o", tmp_path / "got.safetensors", "--lanes", lane)
            line = done.stdout.splitlines()[1]
            assert line.startswith("64.0 MiB in ") and line.endswith(f" over {lane}, checked")
            check_pair(line)
        for line in wait_for(lambda: server.log.count("fetched") == 2 and server.log).splitlines():
            if "fetched" in line:
                check_pair(line)


def test_a_small_file_has_no_rate(tmp_path):
    tiny = large(tmp_path / "tiny.safetensors", 64 << 10)
    with serving(tmp_path, tiny) as server:
        done = server.fetch("-o", tmp_path / "got.safetensors")
        assert re.search(r"^receiving 100%  64\.\d KiB of 64\.\d KiB  \w+$", done.stderr, re.M)
        assert "B/s" not in done.stdout + done.stderr + server.log


def test_figures_of_a_part(tmp_path):
    # eight tensors of 8.25 MiB, in chunks of 4 MiB
    big = large(tmp_path / "big.safetensors", 66 << 20)
    with serving(tmp_path, big) as server:
        done = server.fetch("-o", tmp_path / "w3.safetensors", "--only", "w3")
        assert re.match(r"8\.[23] MiB in ", done.stdout.splitlines()[1]), done.stdout
        progress = done.stderr.splitlines()[-1]
        assert re.match(r"receiving 100%  (8\.[23] MiB) of \1  \S+ [GM]B/s  ", progress), progress
        told = json.loads(
            server.fetch("-o", tmp_path / "w3.safetensors", "--only", "w3", "--json").stdout
        )
        assert told["bytes"] == 33 << 18 and told["bytes_received"] > 33 << 18


def resize(terminal, columns):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 25, columns, 0, 0))


def fetch_on_terminal(servers, columns, tmp_path, *options):
    """Starts a fetch from servers with one token. Returns it, and its terminal."""
    ours, its = pty.openpty()
    resize(its, columns)
    fetch = subprocess.Popen(
        [WHERRY, "fetch", *(server.address for server in servers), *options]
        + ["-o", tmp_path / "got.safetensors"],
        stderr=its,
        stdout=subprocess.DEVNULL,
        env=environment(TERM="xterm", WHERRY_TOKEN=servers[0].token),
    )
    os.close(its)
    return fetch, ours


def test_progress_bar_follows_a_resize(tmp_path):
    big = large(tmp_path / "big.safetensors", 64 << 20)
    with serving(tmp_path, big, signal_at=(9, signal.SIGSTOP, SENT)) as server:
        fetch, terminal = fetch_on_terminal([server], 100, tmp_path, "--lanes", "stream")
        before = ""
        while not re.search(r"receiving \[.*left", before):
            before += os.read(terminal, 65536).decode()
        stat = pathlib.Path(f"/proc/{server.process.pid}/stat")
        wait_for(lambda: stat.read_text().rsplit(")", 1)[1].split()[0] == "T")
        resize(terminal, 50)
        server.process.send_signal(signal.SIGCONT)
        after = ""
        with contextlib.suppress(OSError):
            while piece := os.read(terminal, 65536):
                after += piece.decode()
        os.close(terminal)
        assert fetch.wait() == OK
    last = re.findall(r"\r\x1b\[\?7l([^\x1b]*)", after)[-1]
    assert "100%" in last and len(last) < 50 <= max(map(len, before.split("7l"))), (before, after)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("columns", [30, 40, 60, 80, 120])
def test_progress_bar(columns, count, tmp_path):
    """A narrow terminal loses the bar, the lane, the label and the sizes, but nothing else."""
    big = large(tmp_path / "big.safetensors", 64 << 20)
    with contextlib.ExitStack() as stack:
        servers = []
        for number in range(count):
            (place := tmp_path / f"server{number}").mkdir()
            more = ["--identity", tmp_path / "identity"]
            servers.append(stack.enter_context(serving(place, big, *more)))
        fetch, ours = fetch_on_terminal(servers, columns, tmp_path)
        output = b""
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 65536):
                output += piece
        os.close(ours)
        assert fetch.wait() == OK
    lines = re.findall(r"\r\x1b\[\?7l([^\x1b]*)", output.decode())
    assert lines and all(len(line) < columns for line in lines), lines
    last = lines[-1]
    assert re.search(r"\b100% .*\d [MG]B/s  ?0:00", last), last
    assert "left" in last or columns == 30 and count == 2, last
    assert count == 1 or "2 servers" in last, last
    assert ("100%  64.0 MiB of 64.0 MiB" in last) == (columns >= 60), last
    if columns >= 80 + 20 * (count - 1):
        assert re.match(r"receiving \[#+\] ", last) and re.search(r" (cma|ring|stream)$", last)


def test_a_server_that_is_lost(tmp_path):
    big = large(tmp_path / "big.safetensors", 64 << 20)
    for resume in (False, True):
        with serving(tmp_path, big, signal_at=(9, signal.SIGKILL, SENT)) as server:
            done = server.fetch(
                "-o", tmp_path / "got", "--lanes", "stream", *(["--resume"] if resume else [])
            )
            said = done.stderr.splitlines()[-1]
            assert done.returncode == PEER and server.address in said, done.stderr
            assert re.search(r"[\d.]+ MiB of 64.0 MiB had arrived", said)
            assert ("the same command continues" if resume else "with --resume") in said
            assert "bytes[" not in done.stderr and done.stderr.count("was lost") == 1
            assert (tmp_path / ".got.part").exists() == resume


def test_a_server_that_is_stopped(tmp_path):
    """Both sides say so, without the library's words for ranks and offers."""
    big = large(tmp_path / "big.safetensors", 64 << 20)
    with serving(tmp_path, big, signal_at=(9, signal.SIGINT, SENT)) as server:
        done = server.fetch("-o", tmp_path / "got", "--lanes", "stream")
        assert done.returncode == PEER and "not valid" not in done.stderr, done.stderr
        assert "MiB of 64.0 MiB had arrived; with --resume" in done.stderr
        assert server.process.wait(30) == 128 + signal.SIGINT
        said = server.log.splitlines()[-1]
        assert said.endswith(": this server was stopped") and "rank" not in said, server.log


def test_a_client_that_is_lost(tmp_path):
    big = large(tmp_path / "big.safetensors", 64 << 20)
    with serving(tmp_path, big) as server:
        fetch = start(
            "fetch",
            server.address,
            "-o",
            tmp_path / "got",
            "--lanes",
            "stream",
            WHERRY_TOKEN=server.token,
            signal_at=(2, signal.SIGKILL, "receiver closed a chunk"),
        )
        fetch.wait(30)
        wait_for(lambda: "client 1 failed after" in server.log)
        assert len(server.log.splitlines()) == 2 and "rank" not in server.log, server.log


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a network")
def test_a_host_that_does_not_answer(tmp_path):
    """Nothing listens at that address, and packets to it are lost. So the error names no
    process."""
    small = large(tmp_path / "small.safetensors", 1 << 20)
    with serving(tmp_path, small) as server:
        token = server.token
    network = (
        "ip link set lo up && ip link add name v0 type veth peer name v1 && "
        "ip addr add 192.0.2.1/24 dev v0 && ip link set v0 up && ip link set v1 up"
    )
    fetch = f"exec {WHERRY} fetch tcp://192.0.2.9:29700 --timeout 2 -o {tmp_path / 'got'}"
    done = subprocess.run(
        ["unshare", "-n", "sh", "-c", f"{network} && {fetch}"],
        env=environment(WHERRY_TOKEN=token),
        capture_output=True,
        text=True,
    )
    assert done.returncode == DEADLINE, done.stderr
    assert "192.0.2.9:29700: nobody has answered; its host does not answer" in done.stderr
