"""`wherry fetch` from several servers of the same files."""

import contextlib
import filecmp
import json
import signal
import time

from checkpoints import large, small
from command import DEADLINE, OK, PEER, USAGE, start, wait_for, wherry
from servers import make_token, serving

CHUNK = 4 << 20
SENT, RECEIVED = "source gathers a chunk", "receiver closed a chunk"


@contextlib.contextmanager
def several(place, files, signal_at=None, same=True):
    """A server per file, each in a folder of its own. All have the same identity, or none has."""
    with contextlib.ExitStack() as stack:
        servers = []
        for number, file in enumerate(files):
            (place / str(number)).mkdir()
            identity = place / ("identity" if same else f"identity{number}")
            arguments = (file, "--identity", identity)
            servers.append(
                stack.enter_context(serving(place / str(number), *arguments, signal_at=signal_at))
            )
        yield servers


def addresses(servers):
    return [server.address for server in servers]


def test_all_are_asked_and_named(tmp_path):
    big = large(tmp_path / "big.safetensors", 64 << 20)
    with several(tmp_path, [big] * 3) as servers:
        assert len({server.token for server in servers}) == 1
        done = wherry(
            "fetch",
            *addresses(servers),
            "-o",
            tmp_path / "got",
            "--json",
            WHERRY_TOKEN=servers[0].token,
        )
        assert done.returncode == OK, done.stderr
        told = json.loads(done.stdout)
        assert [one["address"] for one in told["servers"]] == addresses(servers)
        assert sum(one["bytes"] for one in told["servers"]) == big.stat().st_size
        assert filecmp.cmp(big, tmp_path / "got", shallow=False)
        for server, one in zip(servers, told["servers"], strict=True):
            took = "fetched" if one["bytes"] else "got everything from other servers"
            wait_for(lambda server=server, took=took: f"client 1 {took}" in server.log)
        text = wherry(
            "fetch", *addresses(servers), "-o", tmp_path / "got", WHERRY_TOKEN=servers[0].token
        )
        lines = text.stdout.splitlines()[2:]
        assert [line.strip().rsplit(": ", 1)[0] for line in lines] == addresses(servers)
        assert "3 servers" in text.stderr


def test_one_is_killed_in_the_middle(tmp_path):
    nbytes = 256 << 20
    big = large(tmp_path / "big.safetensors", nbytes)
    # The server that is used first dies. What remains is too little to kill the other one too.
    point = (nbytes // CHUNK * 60 // 100, signal.SIGKILL, SENT)
    killed = [None]
    tries = 0
    while not any(killed):  # On a busy machine, the servers may share the work half and half.
        tries += 1
        assert tries < 6
        (place := tmp_path / str(tries)).mkdir()
        with several(place, [big] * 2, signal_at=point) as servers:
            done = wherry(
                "fetch",
                *addresses(servers),
                "-o",
                place / "got",
                "--json",
                "--lanes",
                "stream",
                WHERRY_TOKEN=servers[0].token,
            )
            assert done.returncode == OK, done.stderr
            killed = [server.process.poll() for server in servers]
        assert filecmp.cmp(big, place / "got", shallow=False)
        (place / "got").unlink()
    assert sorted(killed, key=str) == [-signal.SIGKILL, None], killed
    told = json.loads(done.stdout)["servers"]
    assert [bool(one["error"]) for one in told] == [code is not None for code in killed]
    assert all(one["bytes"] > 0 for one in told)


def test_other_files_are_refused(tmp_path):
    files = []
    for number in range(2):
        (tmp_path / f"from{number}").mkdir()
        files.append(small(tmp_path / f"from{number}" / "model.safetensors", step=number))
    with several(tmp_path, files) as servers:
        done = wherry(
            "fetch", *addresses(servers), "-o", tmp_path / "got", WHERRY_TOKEN=servers[0].token
        )
        assert done.returncode not in (OK, USAGE) and "serve different files" in done.stderr
        assert all(address in done.stderr for address in addresses(servers))
        assert not (tmp_path / "got").exists() and not (tmp_path / ".got.part").exists()


def test_resume_from_another_server(tmp_path):
    nbytes = 256 << 20
    big = large(tmp_path / "big.safetensors", nbytes)
    target = tmp_path / "got"
    arguments = ["-o", target, "--resume", "--lanes", "stream"]
    with several(tmp_path, [big] * 3) as servers:
        fetch = start(
            "fetch",
            *addresses(servers[:2]),
            *arguments,
            WHERRY_TOKEN=servers[0].token,
            signal_at=(nbytes // CHUNK // 2, signal.SIGKILL, RECEIVED),
        )
        assert fetch.wait(60) == -signal.SIGKILL, fetch.stderr.read()
        assert not target.exists()
        done = wherry(
            "fetch", *addresses(servers[1:]), *arguments, "--json", WHERRY_TOKEN=servers[0].token
        )
        assert done.returncode == OK, done.stderr
        told = json.loads(done.stdout)
        assert told["bytes_present"] > nbytes * 0.4 and told["bytes_received"] < nbytes * 0.6
        assert filecmp.cmp(big, target, shallow=False)


def test_absent_servers(tmp_path):
    model = small(tmp_path / "model.safetensors")
    absent = "tcp://127.0.0.1:1"
    with several(tmp_path, [model]) as servers:
        begin = time.monotonic()
        done = wherry(
            "fetch",
            absent,
            servers[0].address,
            "-o",
            tmp_path / "got",
            WHERRY_TOKEN=servers[0].token,
        )
        assert done.returncode == OK and time.monotonic() - begin < 10
        assert f"going on without {absent}" in done.stderr
        # A stopped server does not answer, but its kernel accepts the connection.
        with several(tmp_path / "0", [model]) as stopped:
            stopped[0].process.send_signal(signal.SIGSTOP)
            begin = time.monotonic()
            done = wherry(
                "fetch",
                stopped[0].address,
                servers[0].address,
                "-o",
                tmp_path / "more",
                WHERRY_TOKEN=servers[0].token,
            )
            stopped[0].process.send_signal(signal.SIGCONT)
            assert done.returncode == OK and time.monotonic() - begin < 20, done.stderr
            assert f"going on without {stopped[0].address}" in done.stderr
    none = wherry("fetch", absent, "tcp://127.0.0.1:2", cwd=tmp_path, WHERRY_TOKEN=servers[0].token)
    assert none.returncode == PEER and none.stderr.count("connection refused") == 2


def test_a_token_for_each(tmp_path):
    model = small(tmp_path / "model.safetensors")
    with several(tmp_path, [model] * 2, same=False) as servers:
        assert servers[0].token != servers[1].token
        (tmp_path / "tokens").write_text("".join(f"{server.token}\n" for server in servers))
        for number, more in enumerate(
            (
                {"WHERRY_TOKEN": ",".join(server.token for server in servers)},
                {"WHERRY_TOKEN": ""},
            )
        ):
            done = wherry(
                "fetch",
                *addresses(servers),
                *([] if more["WHERRY_TOKEN"] else ["--token-file", tmp_path / "tokens"]),
                "-o",
                tmp_path / f"got{number}",
                **more,
            )
            assert done.returncode == OK and "going on without" not in done.stderr, done.stderr


def test_an_address_twice(tmp_path):
    done = wherry("fetch", "tcp://127.0.0.1:1", "tcp://127.0.0.1:1", cwd=tmp_path)
    assert done.returncode == USAGE and "is given twice" in done.stderr


def test_a_wait_is_told(tmp_path):
    """Without -q, --wait prints that it waits."""
    absent = "tcp://127.0.0.1:1"
    for options, told in (((), "wherry: waiting for an answer at 127.0.0.1:1"), (("-q",), "")):
        done = wherry(
            "fetch", absent, "--wait", "--timeout", 6, *options, WHERRY_TOKEN=make_token()
        )
        assert done.returncode == DEADLINE
        first, *rest = done.stderr.splitlines()
        assert first.startswith(told or "wherry fetch: ") and len(rest) == bool(told)
