"""`wherry serve` and `wherry fetch`."""

import contextlib
import filecmp
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import socket
import stat
import subprocess
import time

import pytest
from checkpoints import large, native, small, sparse
from command import (
    ARGUMENT,
    DEADLINE,
    OK,
    PEER,
    RESOURCE,
    ROOT,
    USAGE,
    WHERRY,
    await_signal,
    environment,
    start,
    wait_for,
    wherry,
)
from servers import make_token, pin_of, serving


@pytest.fixture
def model(tmp_path):
    (tmp_path / "from").mkdir()
    return small(tmp_path / "from" / "model.safetensors")


def test_one_file(tmp_path, model):
    with serving(tmp_path, model) as server:
        assert server.local and server.address.startswith("tcp://127.0.0.1:")
        done = server.fetch("-o", tmp_path / "got.safetensors")
        assert done.returncode == OK, done.stderr
        assert done.stdout.splitlines()[0] == str(tmp_path / "got.safetensors")
        assert re.fullmatch(r"2\.5 KiB over \w+, checked", done.stdout.splitlines()[1])
        assert (tmp_path / "got.safetensors").read_bytes() == model.read_bytes()
        told = json.loads(server.fetch("-o", tmp_path / "again.safetensors", "--json", "-q").stdout)
        document = (ROOT / "docs/command.md").read_text().split("## JSON")[1].split("\n## ")[0]
        assert told["schema"] == 1 and all(f"`{key}`" in document for key in told)
        assert (
            told["files"] == [str(tmp_path / "again.safetensors")]
            and told["checked"]
            and told["bytes_present"] == 0
        )
        assert "only this machine can connect" in server.log and re.search(
            r"^client \d+ fetched ", server.log, re.M
        )
        assert sorted(os.listdir(tmp_path)) == [
            "again.safetensors",
            "from",
            "got.safetensors",
            "serve.log",
        ]


def test_several_files_into_a_folder(tmp_path, model):
    other = small(tmp_path / "from" / "other.safetensors", layers=2)
    third = native(
        tmp_path / "from" / "third.wherry",
        (ROOT / "tests/golden/good/contiguous.bin").read_bytes(),
        [bytes(24)],
    )
    with serving(tmp_path, model, other, third) as server:
        assert server.fetch("-o", tmp_path / "got").returncode == OK
        assert filecmp.cmpfiles(
            tmp_path / "from", tmp_path / "got", os.listdir(tmp_path / "from"), shallow=False
        )[0] == sorted(os.listdir(tmp_path / "from"), key=os.listdir(tmp_path / "from").index)
        (tmp_path / "here").mkdir()
        assert server.fetch(cwd=tmp_path / "here").returncode == OK
        assert sorted(os.listdir(tmp_path / "here")) == sorted(os.listdir(tmp_path / "from"))


def test_a_sharded_checkpoint(tmp_path):
    source = tmp_path / "from"
    source.mkdir()
    names = {}
    for i in range(3):
        small(source / f"part-{i}.safetensors", layers=0, step=i)
        data = (
            (source / f"part-{i}.safetensors")
            .read_bytes()
            .replace(b'"step"', f'"st{i}p"'.encode())
            .replace(b'"head"', f'"he{i}d"'.encode())
        )
        (source / f"part-{i}.safetensors").write_bytes(data)
        names.update({f"st{i}p": f"part-{i}.safetensors", f"he{i}d": f"part-{i}.safetensors"})
    index = source / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 48}, "weight_map": names}))
    with serving(tmp_path, index) as server:
        assert server.fetch("-o", tmp_path / "got/").returncode == OK
        for name in os.listdir(source):
            assert (tmp_path / "got" / name).read_bytes() == (source / name).read_bytes()
        assert server.fetch("-o", tmp_path / "one.safetensors", "--only", "st?p").returncode == OK
        told = json.loads(wherry("inspect", "--json", tmp_path / "one.safetensors").stdout)
        assert sorted(leaf["name"] for leaf in told["values"] if leaf["kind"] == "tensor") == [
            "st0p",
            "st1p",
            "st2p",
        ]
        for name in (
            "whole.safetensors",
            "whole.wherry",
            "again.safetensors.index.json",
        ):  # Each name becomes a file, not a folder.
            assert server.fetch("-o", tmp_path / name).returncode == OK
            assert (tmp_path / name).is_file() and wherry(
                "diff", index, tmp_path / name
            ).returncode == OK
    with serving(tmp_path, index, small(tmp_path / "other.safetensors")) as server:
        two = server.fetch("-o", tmp_path / "two.wherry")
        assert (
            two.returncode == ARGUMENT
            and "name a folder" in two.stderr
            and not (tmp_path / "two.wherry").exists()
        )


@pytest.mark.parametrize(
    "host, address",
    [("localhost", "localhost"), ("127.0.0.2", "127.0.0.2"), ("::1", "[::1]"), ("[::1]", "[::1]")],
)
def test_loopback_is_only_this_machine(host, address, tmp_path, model):
    if ":" in host and not pathlib.Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    with serving(tmp_path, model, "--listen", host) as server:
        assert server.local and re.fullmatch(rf"tcp://{re.escape(address)}:\d+", server.address)
        assert server.fetch("-o", tmp_path / "got").returncode == OK
        assert "only this machine can connect" in server.log


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]"])
@pytest.mark.parametrize("option", ["--listen", "--bind", "--advertise"])
def test_wildcard_addresses_are_refused(option, host, model):
    done = wherry("serve", option, host, model)
    assert done.returncode == USAGE and "use --listen or --advertise" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--listen", "127.0.0.1:80"],
        ["--bind", "127.0.0.1:80", "--advertise", "a"],
        ["--advertise", "trainer7:"],
        ["--advertise", "trainer7:port"],
        ["--advertise", "trainer7:65536"],
        ["--advertise", "[::1"],
        ["--advertise", "[::1]80"],
    ],
)
def test_hosts_of_a_wrong_form(arguments, model):
    done = wherry("serve", *arguments, model)
    assert done.returncode == USAGE and "is not a name or address of a machine" in done.stderr


def listening_ports(process):
    """The TCP ports at which a process listens."""
    links = [os.readlink(one) for one in pathlib.Path(f"/proc/{process.pid}/fd").iterdir()]
    rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [
        int(row[1].split(":")[1], 16)
        for row in rows
        if row[3] == "0A" and f"socket:[{row[9]}]" in links
    ]


@pytest.mark.parametrize(
    "arguments, address",
    [
        (["--listen", "127.0.0.2"], r"tcp://127\.0\.0\.2:(\d+)"),
        (["--bind", "127.0.0.2"], r"tcp://127\.0\.0\.2:(\d+)"),
        (["--bind", "0.0.0.0", "--listen", "127.0.0.2"], r"tcp://127\.0\.0\.2:(\d+)"),
        (["--bind", "0.0.0.0", "--advertise", "localhost"], r"tcp://localhost:(\d+)"),
        (["--advertise", "127.0.0.3:8000"], r"tcp://127\.0\.0\.3:8000"),
        (["--bind", "127.0.0.2", "--advertise", "[::1]:8000"], r"tcp://\[::1\]:8000"),
    ],
)
def test_where_it_listens_and_what_it_tells(arguments, address, tmp_path, model):
    with serving(tmp_path, model, *arguments) as server:
        told = re.fullmatch(address, server.address)
        assert told, server.address
        (port,) = listening_ports(server.process)  # A firewall has to open only this port.
        assert not told.groups() or int(told[1]) == port
        host = "127.0.0.2" if "127.0.0.2" in arguments else "127.0.0.1"
        with socket.create_connection((host, port)):
            pass
        if told.groups():
            assert server.fetch("-o", tmp_path / "got", "--lanes", "stream").returncode == OK


def test_a_port_in_use(tmp_path, model):
    with serving(tmp_path, model) as server:
        port = server.address.rsplit(":", 1)[1]
        done = wherry("serve", "--port", port, model)
        assert done.returncode == RESOURCE and done.stdout == ""
        assert f"cannot listen at 127.0.0.1, port {port}: Address already in use" in done.stderr
    for host in ("127.0.0.1", "0.0.0.0"):  # another program's
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            other.bind((host, 0))
            other.listen()
            begin = time.monotonic()
            done = wherry("serve", "--port", other.getsockname()[1], model)
            assert done.returncode == RESOURCE and done.stdout == ""
            assert "Address already in use" in done.stderr and time.monotonic() - begin < 15


def test_only_some_tensors(tmp_path, model):
    with serving(tmp_path, model) as server:
        assert (
            server.fetch("-o", tmp_path / "some.safetensors", "--only", "layers.[12].*").returncode
            == OK
        )
        told = json.loads(wherry("inspect", "--json", tmp_path / "some.safetensors").stdout)
        assert [leaf["name"] for leaf in told["values"]] == ["layers.1.weight", "layers.2.weight"]
        assert wherry("diff", tmp_path / "some.safetensors", model).stdout.count("+") == 5
        none = server.fetch("-o", tmp_path / "none.safetensors", "--only", "boats.*")
        assert none.returncode == ARGUMENT and "no tensor matches 'boats.*'" in none.stderr
        assert not (tmp_path / "none.safetensors").exists()
        wait_for(lambda: "client 2 did not take the files; its own output says why" in server.log)
        assert "failed" not in server.log and "callback" not in server.log


def test_into_another_format(tmp_path, model):
    with serving(tmp_path, model) as server:
        done = server.fetch("-o", tmp_path / "model.wherry")
        assert done.returncode == OK, done.stderr
        assert wherry("diff", model, tmp_path / "model.wherry").returncode == OK
        wait_for(lambda: " fetched " in server.log)
        assert "failed" not in server.log
    nested = native(
        tmp_path / "nested.wherry",
        (ROOT / "tests/golden/good/contiguous.bin").read_bytes(),
        [bytes(24)],
    )
    with serving(tmp_path, nested) as server:  # The int is a value that safetensors cannot hold.
        done = server.fetch("-o", tmp_path / "nested.safetensors")
        assert (
            done.returncode == ARGUMENT
            and "safetensors" in done.stderr
            and not (tmp_path / "nested.safetensors").exists()
        )


def test_no_token_gets_nothing(tmp_path, model):
    with serving(tmp_path, model) as server:
        for token, said, logged in (
            (make_token(), "is not the server of this token", "the token of another server"),
            (make_token(pin_of(server.token)), "or refuses it", "the peer has a different token"),
        ):
            wrong = server.fetch("-o", tmp_path / "got", token=token)
            assert wrong.returncode == PEER and said in wrong.stderr and wrong.stdout == ""
            assert len(wrong.stderr.splitlines()) == 1, "a failure is reported once"
            wait_for(lambda logged=logged: logged in server.log)
            look = wherry("inspect", server.address, WHERRY_TOKEN=token)
            assert look.returncode == PEER and look.stdout == ""
        mistyped = server.fetch("-o", tmp_path / "got", token=server.token[:-1])
        assert mistyped.returncode == ARGUMENT and "copy all of it" in mistyped.stderr
        (tmp_path / "empty").write_text("\n")
        for more in ([], ["--token-file", tmp_path / "empty"]):
            none = subprocess.run(
                [WHERRY, "fetch", server.address, *map(str, more)],
                env=environment(),
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                cwd=tmp_path,
                timeout=20,
            )
            assert none.returncode == ARGUMENT and "no token" in none.stderr
        assert server.fetch("--token-file", tmp_path / "missing").returncode == RESOURCE
        assert sorted(os.listdir(tmp_path)) == ["empty", "from", "serve.log"]
        assert "fetched" not in server.log
        assert server.fetch("-o", tmp_path / "got.safetensors").returncode == OK, (
            "it must keep serving"
        )


def test_without_the_token_nothing_leaks(tmp_path, model):
    with serving(tmp_path, model) as server:
        host, port = server.address.removeprefix("tcp://").rsplit(":", 1)
        for words in (b"GET / HTTP/1.0\r\n\r\n", b"\0" * 200, b""):
            with socket.create_connection((host, int(port)), timeout=5) as one:
                one.sendall(words)
                one.shutdown(socket.SHUT_WR)
                said = b""
                with contextlib.suppress(ConnectionError, TimeoutError):
                    while piece := one.recv(4096):
                        said += piece
            assert b"layers" not in said and b"model" not in said


def test_the_token_by_file_and_by_prompt(tmp_path, model):
    with serving(tmp_path, model, "--token-file", tmp_path / "token") as server:
        token = (tmp_path / "token").read_text().strip()
        assert server.token is None and re.fullmatch("wherry1-[A-Za-z0-9_-]{68}", token)
        assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
        assert (
            wherry(
                "fetch",
                server.address,
                "--token-file",
                tmp_path / "token",
                "-o",
                tmp_path / "a.safetensors",
            ).returncode
            == OK
        )
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(
                WHERRY,
                [WHERRY, "fetch", server.address, "-o", str(tmp_path / "b.safetensors")],
                environment(TERM="xterm"),
            )
        shown = b""
        while b"Token: " not in shown:
            shown += os.read(terminal, 1024)
        os.write(terminal, token.encode() + b"\n")
        with contextlib.suppress(OSError):
            while piece := os.read(terminal, 1024):
                shown += piece
        assert os.waitpid(pid, 0)[1] == 0, shown
        assert token.encode() not in shown, "the token must not be echoed"
        assert (tmp_path / "b.safetensors").read_bytes() == model.read_bytes()
        with serving(tmp_path / "from", model) as another:
            assert another.token != token
    assert not (tmp_path / "token").exists()


def test_many_clients_at_once(tmp_path, model):
    big = large(tmp_path / "from" / "big.safetensors", 32 << 20)
    with serving(tmp_path, big, "--count", "9") as server:
        fetches = [
            start(
                "fetch",
                server.address,
                "-o",
                tmp_path / f"{i}.safetensors",
                WHERRY_TOKEN=server.token,
            )
            for i in range(8)
        ]
        assert [one.wait(60) for one in fetches] == [OK] * 8, [one.stderr.read() for one in fetches]
        assert all(filecmp.cmp(big, tmp_path / f"{i}.safetensors", shallow=False) for i in range(8))
        assert server.fetch("-o", tmp_path / "last.safetensors").returncode == OK
        assert server.process.wait(10) == OK, "after --count fetches it ends"
        places = sorted(int(number) for number in re.findall(r"client (\d+) fetched", server.log))
        assert places == list(range(1, 10)), "the server assigns the places"


def test_a_trace(tmp_path, model):
    big = large(tmp_path / "from" / "big.safetensors", 40 << 20)
    with serving(tmp_path, big) as server:
        for lane in ("cma", "ring", "stream"):
            (tmp_path / "got.safetensors").unlink(missing_ok=True)
            with open(tmp_path / ".got.safetensors.part", "wb") as part:
                # The partial file exists already, so that there is something to compare.
                part.truncate(big.stat().st_size)
            done = server.fetch(
                "-o",
                tmp_path / "got.safetensors",
                "--trace",
                tmp_path / "trace.json",
                "--resume",
                "--lanes",
                lane,
            )
            assert done.returncode == OK, done.stderr
            trace = json.loads((tmp_path / "trace.json").read_text())
            events = {
                kind: [
                    one
                    for one in trace["traceEvents"]
                    if (one["cat"] == "phase") == (kind == "phase")
                ]
                for kind in ("phase", "range")
            }
            phases = {one["name"]: one for one in events["phase"]}
            assert set(phases) == {"offer", "plan", "compare", "data", "release"}
            assert sum(one["args"]["bytes"] for one in events["range"]) == big.stat().st_size
            assert sorted(one["args"]["chunk"] for one in events["range"]) == list(
                range(len(events["range"]))
            )
            begin, end = phases["data"]["ts"], phases["data"]["ts"] + phases["data"]["dur"]
            assert all(
                one["args"]["lane"] == lane and begin <= one["ts"] and one["ts"] + one["dur"] <= end
                for one in events["range"]
            )
        none = server.fetch(
            "-o", tmp_path / "none.safetensors", "--trace", tmp_path / "none" / "trace.json"
        )
        assert (
            none.returncode == RESOURCE
            and "cannot write the trace" in none.stderr
            and not (tmp_path / "none.safetensors").exists()
        )
        lost = server.fetch("-o", tmp_path / "lost.safetensors", "--trace", "/dev/full")
        assert (
            lost.returncode == RESOURCE
            and "the files are complete, but the trace cannot" in lost.stderr
        )
        assert filecmp.cmp(tmp_path / "lost.safetensors", big, shallow=False)


def documented_keys(name):
    """The words that docs/command.md marks in the row of a command."""
    document = (ROOT / "docs/command.md").read_text().split("## JSON")[1]
    return set(re.findall(r"`(\w+)`", re.search(rf"^\| `{name}` \|(.+)", document, re.M)[1]))


def test_json_of_a_server(tmp_path, model):
    for token_file in (None, tmp_path / "token"):
        more = ["--token-file", token_file] if token_file else []
        with serving(tmp_path, model, *more) as server:
            told = dict(server.told)
        assert told.pop("schema") == 1
        assert set(told) == documented_keys("serve") - ({"token"} if token_file else set())
        assert told["files"] == 1 and told["bytes"] == model.stat().st_size


def test_inspecting_served_files(tmp_path, model):
    with serving(tmp_path, model) as server:
        told = json.loads(
            wherry("inspect", "--json", server.address, WHERRY_TOKEN=server.token).stdout
        )
        own = json.loads(wherry("inspect", "--json", model).stdout)
        assert [told["files"][0]["name"], told["files"][0]["values"]] == [
            "model.safetensors",
            own["values"],
        ]
        assert told["schema"] == 1 and set(told) == {"schema", "server", "files"}
        assert set(told["server"]) == {"cipher", "this_machine", "subject", "key_sha256"}
        one = told["files"][0]
        assert set(told["server"]) | set(one) | set(one["values"][0]) <= documented_keys("inspect")
        assert "client" not in server.log


def room():
    """A folder in memory, if it has room for gigabytes."""
    available = (
        int(re.search(r"MemAvailable: +(\d+)", pathlib.Path("/proc/meminfo").read_text())[1]) << 10
    )
    free = shutil.disk_usage("/dev/shm").free if pathlib.Path("/dev/shm").is_dir() else 0
    return "/dev/shm" if min(available - (2 << 30), free) > 5 << 30 else None


@pytest.fixture
def ample(tmp_path):
    place = pathlib.Path(room() or tmp_path) / f"wherry-test-{os.getpid()}"
    place.mkdir()
    yield place
    shutil.rmtree(place)


CHUNK = 4 << 20
RECEIVED, COMPARED, SENT = (
    "receiver closed a chunk",
    "receiver compared a chunk",
    "source gathers a chunk",
)


def test_killed_three_times_and_resumed(ample, tmp_path):
    nbytes = 1 << 30
    source = large(ample / "source.safetensors", nbytes)
    target = ample / "target.safetensors"
    with serving(tmp_path, source) as server:
        for number, percent in enumerate((20, 25, 25), 1):
            fetch = start(
                "fetch",
                server.address,
                "-o",
                target,
                "--resume",
                "--lanes",
                "stream",
                WHERRY_TOKEN=server.token,
                signal_at=(nbytes // CHUNK * percent // 100, signal.SIGKILL, RECEIVED),
            )
            assert fetch.wait(60) == -signal.SIGKILL, fetch.stderr.read()
            assert not target.exists() and (ample / ".target.safetensors.part").exists()
            wait_for(lambda: server.log.count(" failed after ") == number)
        done = server.fetch("-o", target, "--resume", "--lanes", "stream", "--json", "-q")
        assert done.returncode == OK, done.stderr
        told = json.loads(done.stdout)
        assert told["bytes_present"] > nbytes // 2 and told["bytes_received"] < nbytes // 2
        moved = sum(
            int(number)
            for number in re.findall(
                r"\((\d+) bytes\)", wait_for(lambda: " fetched " in server.log and server.log)
            )
        )
    assert filecmp.cmp(source, target, shallow=False)
    assert not (ample / ".target.safetensors.part").exists()
    assert moved <= 1.05 * nbytes, f"{moved / nbytes:.3f} of the bytes moved in all"


def test_resume_replaces_different_chunks(tmp_path, model):
    big = large(tmp_path / "from" / "big.safetensors", 40 << 20)
    part = tmp_path / ".got.safetensors.part"
    with serving(tmp_path, big) as server:
        data = bytearray(big.read_bytes())
        data[9 << 20] ^= 1
        part.write_bytes(data)
        told = json.loads(
            server.fetch("-o", tmp_path / "got.safetensors", "--resume", "--json").stdout
        )
        assert told["bytes_received"] == 4 << 20 and told["bytes_present"] > 35 << 20
        assert (tmp_path / "got.safetensors").read_bytes() == big.read_bytes()
        part.write_bytes(data)  # Without --resume, the partial file does not count.
        told = json.loads(server.fetch("-o", tmp_path / "got.safetensors", "--json").stdout)
        assert told["bytes_present"] == 0 and not part.exists()


@pytest.mark.parametrize("resume, point", [(False, RECEIVED), (True, COMPARED), (True, RECEIVED)])
def test_a_signal_leaves_no_incomplete_file(resume, point, ample, tmp_path):
    nbytes = 256 << 20
    source = large(ample / "source.safetensors", nbytes)
    target = ample / "target.safetensors"
    target.write_bytes(b"what was there before")
    with serving(tmp_path, source) as server:
        fetch = start(
            "fetch",
            server.address,
            "-o",
            target,
            *(["--resume"] if resume else []),
            "--lanes",
            "stream",
            WHERRY_TOKEN=server.token,
            signal_at=(nbytes // CHUNK // 4, signal.SIGINT, point),
        )
        await_signal(fetch)
        assert fetch.wait(10) == 128 + signal.SIGINT
        assert target.read_bytes() == b"what was there before"
        assert (ample / ".target.safetensors.part").exists() == resume
        wait_for(lambda: " failed after " in server.log)


def test_the_server_dies(ample, tmp_path):
    source = sparse(ample / "source.safetensors", 8, 256 << 20)
    with serving(tmp_path, source, signal_at=(100, signal.SIGKILL, SENT)) as server:
        fetch = start(
            "fetch",
            server.address,
            "-o",
            ample / "got.safetensors",
            "--lanes",
            "stream",
            WHERRY_TOKEN=server.token,
        )
        wait_for(lambda: "signalled" in server.log, 60)
        assert fetch.wait(30) == PEER
        assert os.listdir(ample) == ["source.safetensors"]
        for more, code in (["--timeout", "30"], PEER), (["--wait", "--timeout", "2"], DEADLINE):
            begin = time.monotonic()
            late = server.fetch("-o", ample / "got.safetensors", *more)
            took = time.monotonic() - begin
            assert late.returncode == code and "no server at" in late.stderr, late.stderr
            assert took < 15 if code == PEER else took > 1.9


def test_a_file_that_changes_is_not_served(tmp_path, model):
    os.utime(model, (0, 0))  # an old time, so that the change sets another one
    with serving(tmp_path, model) as server:
        with open(model, "r+b") as file:
            file.truncate(10)
        done = server.fetch("-o", tmp_path / "got.safetensors", "--timeout", "10", timeout=40)
        assert done.returncode == PEER and f"the server {server.address} refused: " in done.stderr
        assert not (tmp_path / "got.safetensors").exists()
        wait_for(lambda: " failed after " in server.log)
        assert server.process.poll() is None


@pytest.mark.parametrize(
    "arguments, code, told",
    [
        (["serve"], USAGE, "missing argument: FILE..."),
        (["serve", "none.safetensors"], RESOURCE, "none.safetensors"),
        (["serve", "--port", "70000", "x"], USAGE, "--port takes a number from 0 to 65535"),
        (["fetch"], USAGE, "missing argument: ADDRESS"),
        (["fetch", "model.safetensors"], USAGE, "is not an address"),
        (["fetch", "tcp://127.0.0.1:1?rank=1"], USAGE, "is not an address"),
        (["fetch", "tcp://127.0.0.1:65537"], USAGE, "is not an address"),
        (["fetch", "tcp://127.0.0.1:0"], USAGE, "is not an address"),
        (["inspect", "tcp://127.0.0.1:1"], PEER, "; start `wherry serve` there\n"),
        (
            ["serve", "model.safetensors", "--listen", "absent.invalid"],
            ARGUMENT,
            "knows no address of the host absent.invalid; check the name",
        ),
    ],
)
def test_mistakes(arguments, code, told, tmp_path):
    small(tmp_path / "model.safetensors")
    done = wherry(*arguments, cwd=tmp_path, WHERRY_TOKEN="x")
    assert done.returncode == code and told in done.stderr, done.stderr


def test_mistakes_about_files(tmp_path, model):
    twin = small(tmp_path / "model.safetensors")
    done = wherry("serve", model, twin)
    assert (
        done.returncode == ARGUMENT and "two files have the name model.safetensors" in done.stderr
    )
    (tmp_path / "token").write_text("taken")
    done = wherry("serve", model, "--token-file", tmp_path / "token")
    assert done.returncode == RESOURCE and (tmp_path / "token").read_text() == "taken"
