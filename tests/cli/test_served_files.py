"""Served files that change or shrink, and fetched files that exist already."""

import json
import os
import pathlib
import signal
import stat

import pytest
from checkpoints import large, small, sparse
from command import BYTES, OK, PEER, RESOURCE, await_signal, start, wait_for, wherry
from servers import serving

CHUNK = 4 << 20
SENT, RECEIVED = "source gathers a chunk", "receiver closed a chunk"


@pytest.fixture
def model(tmp_path):
    (tmp_path / "from").mkdir()
    return small(tmp_path / "from" / "model.safetensors")


# ---- files that are served ----


def stopped_fetch(server, target, lane, chunks):
    """A fetch that has stopped after some chunks."""
    fetch = start(
        "fetch",
        server.address,
        "-o",
        target,
        "--lanes",
        lane,
        WHERRY_TOKEN=server.token,
        signal_at=(chunks, signal.SIGSTOP, RECEIVED),
    )
    await_signal(fetch)
    status = pathlib.Path(f"/proc/{fetch.pid}/stat")
    wait_for(lambda: status.read_text().rsplit(")", 1)[1].split()[0] == "T")
    return fetch


@pytest.mark.parametrize("lane", ["cma", "ring", "stream"])
@pytest.mark.parametrize("old_time", [False, True])
def test_a_file_that_changes_while_it_is_served(lane, old_time, tmp_path):
    big = large(tmp_path / "big.safetensors", 64 << 20)
    with serving(tmp_path, big) as server:
        fetch = stopped_fetch(server, tmp_path / "got.safetensors", lane, 2)
        before = big.stat()
        with open(big, "r+b") as file:
            file.seek(48 << 20)
            file.write(b"changed")
        if old_time:
            os.utime(big, ns=(before.st_atime_ns, before.st_mtime_ns))
        fetch.send_signal(signal.SIGCONT)
        code = fetch.wait(30)
        said = fetch.stderr.read()
        assert code not in (OK, 1, 2, 9) and "modified since it was opened" in said, said
        assert not (tmp_path / "got.safetensors").exists()
        assert "fetched" not in server.log and server.process.poll() is None


@pytest.mark.parametrize("lane", ["cma", "ring", "stream"])
def test_a_file_that_shrinks_while_it_is_served(lane, tmp_path):
    big = large(tmp_path / "big.safetensors", 64 << 20)
    other = small(tmp_path / "other.safetensors")
    with serving(tmp_path, big, other) as server:
        fetch = stopped_fetch(server, tmp_path / "got/", lane, 2)
        os.truncate(big, 8 << 20)
        fetch.send_signal(signal.SIGCONT)
        code = fetch.wait(30)
        said = fetch.stderr.read()
        assert code not in (OK, 1, 2, 9) and said, said
        assert os.listdir(tmp_path / "got") == []
        wait_for(lambda: " failed after " in server.log)
        assert "has shrunk from" in server.log or lane == "cma", server.log
        assert server.process.poll() is None
        again = server.fetch("-o", tmp_path / "got/")
        assert again.returncode == PEER and "has shrunk from" in again.stderr


def test_a_file_that_shrinks_while_it_is_digested(tmp_path):
    big = large(tmp_path / "big.safetensors", 64 << 20)
    (tmp_path / "other").mkdir()
    arguments = (big, "--identity", tmp_path / "identity")
    with serving(tmp_path, *arguments) as one, serving(tmp_path / "other", *arguments) as two:
        token = one.token
        # The first request checks the file before it digests it. The file is made shorter between
        # the two.
        os.kill(one.process.pid, signal.SIGSTOP)
        fetch = start("fetch", one.address, two.address, "-o", tmp_path / "got", WHERRY_TOKEN=token)
        os.truncate(big, 8 << 20)
        os.kill(one.process.pid, signal.SIGCONT)
        assert fetch.wait(40) == PEER and "has shrunk from" in fetch.stderr.read()
        assert one.process.poll() is None and two.process.poll() is None


def test_clients_that_die_before_they_are_served(tmp_path):
    big = sparse(tmp_path / "big.safetensors", 1, 1 << 30)
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()

    def threads(server):
        return len(os.listdir(f"/proc/{server.process.pid}/task"))

    same = (big, "--identity", tmp_path / "identity")
    with serving(folders[0], *same) as one, serving(folders[1], *same) as two:
        token = one.token
        before = threads(one)
        arguments = ["fetch", one.address, two.address, "-o", tmp_path / "got"]
        fetches = [start(*arguments, WHERRY_TOKEN=token) for _ in range(5)]
        # One thread per client. It digests the file, or waits for the digest.
        wait_for(lambda: threads(one) >= before + 5)
        for fetch in fetches:
            fetch.kill()
            fetch.wait()
        wait_for(lambda: threads(one) <= before, 30)
        assert one.log.count("failed after 0 B") == 5, one.log
        small_part = wherry("inspect", "-q", one.address, WHERRY_TOKEN=token)
        assert small_part.returncode == OK


# ---- the token ----


@pytest.mark.parametrize("json_output", [False, True])
def test_a_token_in_a_file_is_not_printed(json_output, tmp_path, model):
    process = start(
        "serve", model, "--token-file", tmp_path / "token", *(["--json"] if json_output else [])
    )
    wait_for(lambda: (tmp_path / "token").exists() and (tmp_path / "token").read_text())
    token = (tmp_path / "token").read_text().strip()
    told = process.stderr.readline()
    process.send_signal(signal.SIGINT)
    output, log = process.communicate(timeout=10)
    assert told.startswith("serving ") and "tcp://" in output and token not in output + told + log
    if json_output:
        assert "token" not in json.loads(output)


def test_a_token_file_that_was_left_behind(tmp_path, model):
    (tmp_path / "token").write_text("old\n")
    done = wherry("serve", model, "--token-file", tmp_path / "token")
    assert done.returncode == RESOURCE and "remove it, unless another" in done.stderr
    assert done.stderr.count("exists") == 1 and "File exists" not in done.stderr
    assert (tmp_path / "token").read_text() == "old\n"


# ---- files that are fetched ----


def test_existing_files_are_not_replaced_in_a_folder(tmp_path, model):
    place = tmp_path / "to"
    place.mkdir()
    (place / "model.safetensors").write_text("mine")
    with serving(tmp_path, model) as server:
        done = server.fetch(cwd=place)
        told = "model.safetensors exists; use --force to replace it, or -o FILE"
        assert done.returncode == RESOURCE and told in done.stderr, done.stderr
        assert (place / "model.safetensors").read_text() == "mine"
        assert os.listdir(place) == ["model.safetensors"]
        done = server.fetch("--resume", cwd=place)  # The existing file is a different one.
        assert done.returncode == RESOURCE and "--force" in done.stderr
        assert (place / "model.safetensors").read_text() == "mine"
        assert server.fetch("--force", cwd=place).returncode == OK
        assert (place / "model.safetensors").read_bytes() == model.read_bytes()
        (place / "model.safetensors").write_text("mine")
        assert server.fetch("-o", place / "model.safetensors").returncode == OK
        assert (place / "model.safetensors").read_bytes() == model.read_bytes()


def test_a_complete_part_does_not_hide_another_file(tmp_path):
    big = large(tmp_path / "big.safetensors", 16 << 20)
    place = tmp_path / "to"
    place.mkdir()
    (place / ".big.safetensors.part").write_bytes(big.read_bytes())
    (place / "big.safetensors").write_bytes(bytes(16 << 20))
    with serving(tmp_path, big) as server:
        done = server.fetch("--resume", cwd=place)
        assert done.returncode == RESOURCE and "--force" in done.stderr
        assert (place / "big.safetensors").read_bytes() == bytes(16 << 20)
        assert server.fetch("--resume", "--force", cwd=place).returncode == OK
        assert (place / "big.safetensors").read_bytes() == big.read_bytes()
        assert os.listdir(place) == ["big.safetensors"]


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path):
    big = large(tmp_path / "big.safetensors", 64 << 20)
    place = tmp_path / "to"
    place.mkdir()
    with serving(tmp_path, big) as server:
        fetch = stopped_fetch(server, place, "stream", 2)
        (place / "big.safetensors").write_text("mine")
        fetch.send_signal(signal.SIGCONT)
        assert fetch.wait(30) == RESOURCE and "--force" in fetch.stderr.read()
        assert (place / "big.safetensors").read_text() == "mine"
        assert os.listdir(place) == ["big.safetensors"]


def test_hidden_files_are_refused(tmp_path, model):
    hidden = tmp_path / ".bashrc"
    os.rename(model, hidden)
    with serving(tmp_path, hidden) as server:
        (tmp_path / "to").mkdir()
        done = server.fetch("--force", cwd=tmp_path / "to")
        assert done.returncode in (PEER, BYTES) and ".bashrc" in done.stderr, done.stderr
        assert os.listdir(tmp_path / "to") == []
        assert server.fetch("-o", tmp_path / "to" / "plain").returncode == OK


def test_the_mode_is_kept(tmp_path, model):
    target = tmp_path / "got.safetensors"
    target.touch(mode=0o600)
    with serving(tmp_path, model) as server:
        assert server.fetch("-o", target).returncode == OK
        assert stat.S_IMODE(target.stat().st_mode) == 0o600
        assert target.read_bytes() == model.read_bytes()


def test_resume_compares_only_what_there_is(tmp_path):
    big = large(tmp_path / "big.safetensors", 64 << 20)
    place = tmp_path / "to"
    place.mkdir()
    with serving(tmp_path, big) as server:
        first = server.fetch("--resume", cwd=place)
        assert first.returncode == OK and "comparing" not in first.stderr, first.stderr
        for arguments in ([], ["-o", place / "big.safetensors"]):
            done = server.fetch("--resume", "--json", *arguments, cwd=place)
            assert done.returncode == OK and json.loads(done.stdout)["bytes_received"] == 0
        assert os.listdir(place) == ["big.safetensors"]
        assert server.fetch("--resume", cwd=place).stdout.splitlines()[1].startswith("nothing to")
        wait_for(lambda: "client 4 had everything already" in server.log)
        # A part file that is too short is continued.
        part = place / ".big.safetensors.part"
        os.rename(place / "big.safetensors", part)
        os.truncate(part, 40 << 20)
        done = server.fetch("--resume", "--json", cwd=place)
        assert done.returncode == OK and json.loads(done.stdout)["bytes_received"] <= 28 << 20
        assert (place / "big.safetensors").read_bytes() == big.read_bytes()
