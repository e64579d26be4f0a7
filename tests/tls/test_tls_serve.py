"""`wherry serve` and `wherry fetch`: an attacker between them, a reader that tries to do more than
read, and servers that the token is not for.

Both commands run on this machine. `fetch` gets another boot id, so that it believes that the server
is on another host. The relay is the network between them."""

import collections
import concurrent.futures
import contextlib
import json
import os
import pathlib
import queue
import random
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
import uuid

import pytest
import record
from certificates import Authority
from checkpoints import large, small
from command import BYTES, OK, PEER, WHERRY, environment, wait_for, wherry
from protocol import (
    ACCEPT,
    BY_READER,
    FOR_DATA,
    HELLO,
    OTHER,
    PROOF,
    REFUSE,
    Tls,
    frame,
    hello,
    keys_of,
    proof,
    reader_of,
    refusal,
    stale,
)
from relay import DOWN, UP, Relay, alter, chunks, cut, drop, encrypted, reorder, replay
from servers import pin_of, serving

STRIDE = int(os.environ.get("WHERRY_RELAY_STRIDE", "64"))
DENSE = 4096
SPARSE = 60_013
STATIONS = 4
SECONDS = 15
SIZE = 300_000
BOOT = "/proc/sys/kernel/random/boot_id"


def lacking():
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return "taking another boot id needs root and unshare"
    return ""


pytestmark = pytest.mark.skipif(bool(lacking()), reason=lacking())


@pytest.fixture(scope="module")
def boot(tmp_path_factory):
    path = tmp_path_factory.mktemp("boot") / "id"
    path.write_text(f"{uuid.uuid4()}\n")
    return path


def elsewhere(boot, *arguments, **more):
    """Runs the command as if on another host."""
    script = f'mount --bind "$0" {BOOT} && exec "$@"'
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, boot, WHERRY, *map(str, arguments)],
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


def listening_port(process):
    """The TCP port at which a process listens."""
    links = [os.readlink(one) for one in pathlib.Path(f"/proc/{process.pid}/fd").iterdir()]
    rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    (port,) = {
        int(row[1].split(":")[1], 16)
        for row in rows
        if row[3] == "0A" and f"socket:[{row[9]}]" in links
    }
    return port


class Station:
    """A server behind a relay."""

    def __init__(self, place, file, boot, *options, **more):
        place.mkdir(exist_ok=True)
        self.place, self.file, self.boot, self.more = place, file, boot, more
        self.relay = Relay()
        self.stack = contextlib.ExitStack()
        told = f"127.0.0.1:{self.relay.port}"
        self.server = self.stack.enter_context(
            serving(place, "--bind", "127.0.0.1", "--advertise", told, *options, file, **more)
        )
        self.target = self.relay.target = ("127.0.0.1", listening_port(self.server.process))
        self.number = 0

    def fetch(self, *options, token=None, **more):
        self.number += 1
        self.got = self.place / f"got-{self.number}{self.file.suffix}"
        arguments = [
            "-q",
            "--json",
            "--timeout",
            SECONDS,
            "--lanes",
            "stream",
            "-o",
            self.got,
            *options,
        ]
        variables = {"WHERRY_TOKEN": token or self.server.token, **self.more, **more}
        return elsewhere(self.boot, "fetch", self.server.address, *arguments, **variables)

    def trial(self):
        """Fetches once. "intact", "altered", or the error."""
        done = self.fetch()
        if done.returncode != OK:
            assert not self.got.exists()
            return f"exit {done.returncode}: {done.stderr}"
        result = "intact" if self.got.read_bytes() == self.file.read_bytes() else "altered"
        self.got.unlink()
        return result

    def end_trial(self):
        self.relay.forget()

    def goes_on(self):
        self.end_trial()
        assert self.trial() == "intact"
        assert self.server.process.poll() is None
        self.end_trial()

    def close(self):
        self.relay.close()
        self.stack.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return large(tmp_path_factory.mktemp("from") / "model.safetensors", SIZE)


@pytest.fixture
def station(tmp_path, file, boot):
    with Station(tmp_path / "station", file, boot) as made:
        yield made


class Stations:
    """Several stations. Each plays one trial at a time."""

    def __init__(self, place, file, boot):
        self.pool = concurrent.futures.ThreadPoolExecutor()
        self.free = queue.SimpleQueue()
        for number in range(STATIONS):
            self.free.put(Station(place / str(number), file, boot))

    def try_each(self, trial, things):
        def run(thing):
            station = self.free.get()
            try:
                return trial(station, thing)
            finally:
                station.end_trial()
                self.free.put(station)

        return list(self.pool.map(run, things))

    def close(self):
        while not self.free.empty():
            self.free.get().close()
        self.pool.shutdown()


@pytest.fixture(scope="module")
def stations(tmp_path_factory, file, boot):
    made = Stations(tmp_path_factory.mktemp("stations"), file, boot)
    yield made
    made.close()


def lengths(station):
    assert station.trial() == "intact"
    return [{way: one.ways[way].passed for way in (UP, DOWN)} for one in station.relay.connections]


def test_it_is_verified(station):
    done = station.fetch()
    told = json.loads(done.stdout)
    assert done.returncode == OK and told["lane"] == "stream" and told["checked"]
    assert told["verified"]
    plain = elsewhere(
        station.boot, "fetch", station.server.address, "-o", station.place / "again",
        WHERRY_TOKEN=station.server.token,
    )  # fmt: skip
    assert plain.stdout.splitlines()[1].endswith("over stream, verified"), plain.stdout


# ---- the relay ----


def note(attack, way, result):
    record.add("serve, fetch", "any", f"TLS, {way}", attack, result)


def test_one_altered_byte_of_a_fetch(stations):
    # Two channels share the data differently each time. So only bytes are altered that exist every
    # time.
    several = stations.try_each(lambda station, _: lengths(station), range(5))
    counts = [
        {way: min(ways[way] for ways in same) for way in (UP, DOWN)}
        for same in zip(*several, strict=False)
    ]
    dice = random.Random(STRIDE)
    where = []
    for number, ways in enumerate(counts):
        for way, length in ways.items():
            first = dice.randrange(STRIDE)
            dense = range(first, min(length, DENSE), STRIDE)
            where += [
                (number, way, at, 1 << dice.randrange(8))
                for at in [*dense, *range(DENSE, length, SPARSE)]
            ]

    def trial(station, what):
        number, way, at, mask = what
        attack = station.relay.attack(number, way, alter(at, mask))
        return what, station.trial(), attack.done

    results = stations.try_each(trial, where)
    for (_, way, _, _), result, done in results:
        if done:
            note("one bit altered", way, result)
    kinds = collections.Counter(result.split(":")[0] for _, result, _ in results)
    accepted = [what for what, result, _ in results if result == "altered"]
    done = sum(done for _, _, done in results)
    print(f"{counts}: {done} of {len(where)} altered, {len(accepted)} accepted: {dict(kinds)}")
    assert not accepted and done > 0.8 * len(where)
    stations.try_each(lambda station, _: station.goes_on(), range(STATIONS))


def test_records_of_a_fetch(stations):
    """Records are replayed, dropped and exchanged. The connection ends. `fetch` fails, or continues
    over another connection. A reader that has everything does not read the last records."""
    several = stations.try_each(lambda station, _: lengths(station), range(5))
    counts = min(several, key=len)
    # One connection only looks at the server and gets no data.
    used = [number for number, ways in enumerate(counts) if ways[DOWN]]

    def trial(station, what):
        edit, connection, way, number = what
        attack = station.relay.attack(connection, way, encrypted(edit(number)))
        result = station.trial()
        return what, result, attack.done, len(station.relay.connections) > len(counts)

    things = [
        (edit, connection, way, number)
        for edit in (replay, drop, reorder)
        for connection in used
        for way in (UP, DOWN)
        for number in (0, 1, 3, 8)
    ]
    results = stations.try_each(trial, things)
    for (edit, _, way, _), result, done, _ in results:
        if done:
            note(f"record: {edit.__name__}", way, result)
    assert "altered" not in [result for _, result, _, _ in results]
    # The number of channels and their content differ between trials, and one channel may do the
    # work of another.
    messages = [one for one in results if one[0][1] in used[:2] and one[0][3] < 2]
    assert all(done for _, _, done, _ in messages)
    unnoticed = [what for what, result, _, again in messages if result == "intact" and not again]
    assert not unnoticed, unnoticed
    assert any(what[1] == used[2] and done for what, _, done, _ in results), "data"
    stations.try_each(lambda station, _: station.goes_on(), range(STATIONS))


def test_a_truncated_fetch(stations):
    """An end of the connection that looks regular, but was not announced inside TLS."""
    (counts,) = stations.try_each(lambda station, _: lengths(station), [0])
    data = max(range(len(counts)), key=lambda number: counts[number][DOWN])

    def trial(station, at):
        station.relay.attack(data, DOWN, cut(at))
        return station.trial()

    length = counts[data][DOWN]
    for result in stations.try_each(trial, [length // 4, length // 2, length - 200, length - 1]):
        assert result == "intact" or result.startswith(f"exit {PEER}"), result


def test_nobody_sees_a_chunk(station):
    attacks = [
        station.relay.attack(number, DOWN, chunks(lambda _, body: bytes(len(body))))
        for number in range(1, 6)
    ]
    assert station.trial() == "intact" or not any(one.done for one in attacks)
    station.goes_on()


# ---- tokens ----


def test_another_token(station, tmp_path, file, boot):
    with Station(tmp_path / "other", file, boot) as other:
        begin = time.monotonic()
        done = station.fetch(token=other.server.token)
        assert done.returncode == PEER and "the token is for" in done.stderr, done.stderr
        assert time.monotonic() - begin < 10
    station.goes_on()


def test_somebody_who_knows_the_pin_but_not_the_secret(station):
    """A token whose second half is wrong: the server can prove itself, but the reader cannot."""
    import base64
    import hashlib

    whole = base64.urlsafe_b64decode(station.server.token.removeprefix("wherry1-") + "==")
    forged = whole[:32] + bytes(16)
    check = hashlib.sha256(b"wherry1-" + forged).digest()[:3]
    token = "wherry1-" + base64.urlsafe_b64encode(forged + check).decode()
    begin = time.monotonic()
    done = station.fetch(token=token)
    assert done.returncode == PEER and "token" in done.stderr, done.stderr
    assert time.monotonic() - begin < 10
    wait_for(lambda: "token" in station.server.log)
    station.goes_on()


def test_a_reader_who_serves_in_the_place_of_the_server(station, tmp_path, boot):
    """Another server listens at the same address, with other files. The token is not for this
    server."""
    (tmp_path / "forged").mkdir()
    forged = small(tmp_path / "forged" / "model.safetensors")
    with Station(tmp_path / "other", forged, boot) as other:
        station.relay.target = other.target
        done = station.fetch()
        assert done.returncode == PEER and "the token is for" in done.stderr, done.stderr
        assert not station.got.exists()
        station.relay.target = station.target
    station.goes_on()


def test_an_identity_that_lasts(tmp_path, file, boot):
    tokens = []
    for number in range(2):
        place = tmp_path / f"station-{number}"
        with Station(place, file, boot, "--identity", tmp_path / "identity") as station:
            tokens.append(station.server.token)
            station.goes_on()
    assert tokens[0] == tokens[1]
    assert (tmp_path / "identity").stat().st_mode & 0o777 == 0o600
    (tmp_path / "identity").chmod(0o644)
    done = wherry("serve", "--identity", tmp_path / "identity", file)
    assert done.returncode != OK and "chmod 600" in done.stderr


# ---- who serves on this machine ----


@pytest.mark.parametrize("user, local", [(0, True), (4711, False)], ids=["root", "another"])
def test_who_may_serve_over_a_unix_socket(user, local, tmp_path):
    """On one host, the readers' secret alone would be the proof of a server, and all readers have
    it. So a socket of another user is not used. The reader stays with TLS and the server's key."""
    folder = pathlib.Path(tempfile.mkdtemp())  # Every user may enter this folder, unlike tmp_path.
    try:
        folder.chmod(0o755)
        file = small(folder / "model.safetensors")
        with serving(
            tmp_path, file, prefix=["setpriv", f"--reuid={user}", "--clear-groups"]
        ) as one:
            arguments = ["inspect", "--json", one.address]
            told = json.loads(wherry(*arguments, WHERRY_TOKEN=one.token).stdout)["server"]
            got = one.fetch("-o", tmp_path / "got")
            assert got.returncode == OK and (tmp_path / "got").read_bytes() == file.read_bytes()
    finally:
        shutil.rmtree(folder)
    assert told["this_machine"] == local
    assert told["key_sha256"] == ("" if local else pin_of(one.token).hex())
    assert told["cipher"].startswith("" if local else "TLSv1.3, TLS_")


# ---- a reader who wants more ----

JOB = b"wherry-serve"


class Reader:
    """Greets a server by hand, as a reader that has the token."""

    def __init__(self, station, rank, *, size=None, incarnation=None, **more):
        self.peer = Tls(station.target)
        kind, body = self.peer.frame()
        assert kind == HELLO
        server = frame(HELLO, body)
        told_size = struct.unpack(">I", body[16:20])[0]
        self.server_incarnation = struct.unpack(">Q", body[20:28])[0]
        keys = keys_of(reader_of(station.server.token))
        own = hello(
            method=BY_READER,
            rank=rank,
            size=size or told_size,
            incarnation=incarnation,
            key=keys.number,
            nonce=os.urandom(32),
            job=JOB,
            **more,
        )
        self.peer.send(own + proof(keys.proof, own, server, self.peer.binding))

    def accepted(self):
        """Ends the greeting. After this the server accepts frames."""
        assert self.peer.frame()[0] == PROOF and self.peer.frame()[0] == ACCEPT
        self.peer.send(frame(ACCEPT))
        return self

    def message(self, tag, body, to_come=0):
        self.peer.send(frame(16, struct.pack(">QQ", tag, to_come) + body))

    def ping(self):
        """True if the server has read everything so far, and still runs."""
        with contextlib.suppress(BrokenPipeError):
            self.peer.send(frame(18, bytes(8)))
        return any(kind == 20 for kind, _ in iter(self.peer.frame, None))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.peer.close()


def kinds_until_end(reader):
    return [kind for kind, _ in iter(reader.peer.frame, None)]


def test_a_reader_by_hand(station):
    """The documented greeting succeeds. Otherwise the tests below would show nothing."""
    with Reader(station, 200) as reader:
        kind, _ = reader.peer.frame()
        assert kind == PROOF
        assert reader.peer.frame() == (ACCEPT, b""), "a reader gets no ticket"
    station.goes_on()


def test_a_proof_of_another_connection(station):
    """A proof is valid for its own connection only. A relay with a certificate of its own cannot
    use it."""
    keys = keys_of(reader_of(station.server.token))
    with Tls(station.target) as peer:
        server = frame(*peer.frame())
        size = struct.unpack(">I", server[21:25])[0]
        own = hello(
            method=BY_READER, rank=200, size=size, key=keys.number, nonce=os.urandom(32), job=JOB
        )
        peer.send(own + proof(keys.proof, own, server, os.urandom(32)))
        came = dict(iter(peer.frame, None))
        assert ACCEPT not in came and REFUSE in came
    station.goes_on()


def test_a_reader_takes_the_rank_of_the_server(station):
    for ahead in (0, 10**9, 3600 * 10**9):
        with Reader(station, 0, incarnation=time.time_ns() + ahead) as reader:
            assert ACCEPT not in kinds_until_end(reader)
    station.goes_on()


def test_a_server_tells_nobody_of_its_readers(station):
    """If a reader knew the incarnation of another one, it could connect as that reader. A hash of
    the incarnation would tell nearly as much, because the incarnation is a time that can be guessed
    roughly."""
    with Reader(station, 200, incarnation=time.time_ns()) as reader:
        assert reader.accepted().ping()
        with Tls(station.target) as stranger:
            kind, body = stranger.frame()
            assert kind == HELLO and body[-16:-8] == bytes(8)
        reader.peer.send(frame(18, bytes(8)))
        assert reader.peer.frame() == (20, bytes(8))


def test_a_reader_takes_the_rank_of_another(station):
    with Reader(station, 200) as first:
        assert first.accepted().ping()
        with Reader(station, 200) as second:
            assert ACCEPT not in kinds_until_end(second)
        assert first.ping()
    station.goes_on()


@pytest.mark.parametrize("when", ["early", "late"])
def test_a_reader_tells_the_server_that_it_has_a_successor(when, station):
    with Reader(station, 200) as reader:
        assert reader.peer.frame()[0] == PROOF and reader.peer.frame()[0] == ACCEPT
        if when == "early":
            reader.peer.send(stale())
        else:
            reader.peer.send(frame(ACCEPT) + stale())
        with contextlib.suppress(BrokenPipeError):
            kinds_until_end(reader)
    station.goes_on()


@pytest.mark.parametrize(
    "kind, body",
    [
        (17, struct.pack(">IQBH", 0, 1 << 60, 0, 11) + b"127.0.0.1:1"),
        (17, struct.pack(">IQB", 0, time.time_ns() + 10**10, 1) + bytes([127, 0, 0, 1, 0, 1])),
        (17, struct.pack(">IQB", 201, time.time_ns(), 1) + bytes([127, 0, 0, 1, 0, 1])),
        (23, struct.pack(">QIQ", 1, 0, 1)),
        (22, struct.pack(">IIQ", 0, 256, 1 << 62)),
        (21, b""),
        (19, bytes(8)),
        (16, struct.pack(">QQ", 1 << 48, 0) + b"nonsense"),
        (99, b"?"),
    ],
    ids=["table", "successor", "member", "missing", "arrived", "idle", "attach", "message", "?"],
)  # fmt: skip
def test_a_reader_sends_what_members_send(kind, body, station):
    with Reader(station, 200) as reader:
        assert reader.peer.frame()[0] == PROOF and reader.peer.frame()[0] == ACCEPT
        reader.peer.send(frame(ACCEPT) + frame(kind, body))
        reader.ping()  # The server has read everything, or has closed the connection.
        assert station.server.process.poll() is None
    station.goes_on()


def memory_of(process):
    lines = pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData"))


def is_ended(reader):
    with contextlib.suppress(BrokenPipeError):
        return not reader.ping()
    return True


def test_readers_cannot_fill_the_memory_of_a_server(station):
    """Messages that nobody takes are limited for each reader, and dropped when the reader is
    gone."""
    with Reader(station, 199) as reader:
        assert reader.accepted().ping()
    before = memory_of(station.server.process)
    for rank in range(200, 216):
        with Reader(station, rank) as reader:
            reader.accepted().message(99, bytes(15 << 10))
            assert reader.ping(), "a few bytes may wait"
            with contextlib.suppress(BrokenPipeError):
                for _ in range(16):
                    reader.message(99, bytes(200 << 10))
            assert is_ended(reader), "more bytes may not wait"
    assert memory_of(station.server.process) - before < 8 << 20
    station.goes_on()


def test_unfinished_messages_of_readers(station):
    """A message that never ends takes memory, too. There is a limit for each message, and one for
    all together."""
    with Reader(station, 200) as reader:
        reader.accepted().message(99, bytes(100), to_come=64 << 20)
        assert is_ended(reader), "the message promises too much"
    with contextlib.ExitStack() as stack:
        before = memory_of(station.server.process)
        readers = []
        for rank in range(201, 221):
            readers.append(stack.enter_context(Reader(station, rank)).accepted())
            size, part = 15 << 20, 200 << 10
            with contextlib.suppress(BrokenPipeError):
                for left in range(size - part, part, -part):
                    readers[-1].message(99, bytes(part), to_come=left)
            for one in readers:  # a server gives up readers that are silent
                with contextlib.suppress(BrokenPipeError):
                    one.peer.send(frame(18, bytes(8)))
        wait_for(lambda: memory_of(station.server.process) - before > 200 << 20)
        assert memory_of(station.server.process) - before < 320 << 20
        assert station.trial() == "intact", "small messages have room"
        time.sleep(1.1)  # A message that is not complete by then is given up for another.
        with Reader(station, 230) as reader:
            reader.accepted().message(99, bytes(200 << 10), to_come=3 << 20)
            assert reader.ping(), "a large message has room, too"
    station.goes_on()


def test_a_second_connection_of_a_reader(station):
    """A reader has one connection for messages. It may connect again when the first has ended."""
    who = {"incarnation": time.time_ns()}
    with Reader(station, 200, **who) as first:
        first.accepted()
        for _ in range(2):
            assert first.ping(), "a silent one would be given up"
            with Reader(station, 200, **who) as second:
                assert second.peer.frame()[0] == PROOF
                kind, body = second.peer.frame()
                assert kind == REFUSE and body[0] == OTHER
        assert first.ping(), "the first one stays"
    with Reader(station, 200, **who) as third:
        assert third.accepted().ping()
    station.goes_on()


def test_a_data_connection_of_nobody(station):
    with Reader(station, 200, purpose=FOR_DATA) as reader:
        reader.peer.send(frame(ACCEPT) + frame(19, os.urandom(8)))
        kinds_until_end(reader)
    station.goes_on()


def test_clear_text_is_refused(station):
    """A ticket does not help, because a server gives none."""
    from protocol import BY_TICKET, Clear

    for method in range(BY_TICKET + 2):
        with Clear(station.target) as peer:
            peer.send(hello(method=method, size=256, rank=200, purpose=FOR_DATA, job=JOB))
            peer.send(frame(PROOF, bytes(32)) + frame(ACCEPT) + frame(19, bytes(8)))
            assert len(peer.rest()) < 1000
    station.goes_on()


# ---- certificates of an authority ----


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


def served_with(certificate):
    return ["--cert", certificate.path, "--key", certificate.key]


def test_a_server_with_a_certificate(tmp_path, file, boot, authority):
    certificate = authority.issue("server")
    with Station(tmp_path / "station", file, boot, *served_with(certificate)) as station:
        done = station.fetch("--ca", authority.path)
        assert done.returncode == OK, done.stderr
        assert station.got.read_bytes() == file.read_bytes()


@pytest.mark.parametrize("fault", ["authority", "expired", "name"])
def test_a_server_with_a_bad_certificate(fault, tmp_path, file, boot, authority):
    (tmp_path / "others").mkdir()
    certificate = {
        "authority": lambda: Authority(tmp_path / "others").issue("server"),
        "expired": lambda: authority.issue("old", expired=True),
        "name": lambda: authority.issue("elsewhere", "DNS:elsewhere.example"),
    }[fault]()
    words = {"authority": "issuer", "expired": "expired", "name": "mismatch"}[fault]
    with Station(tmp_path / "station", file, boot, *served_with(certificate)) as station:
        begin = time.monotonic()
        done = station.fetch("--ca", authority.path)
        assert done.returncode == PEER and words in done.stderr, done.stderr
        assert time.monotonic() - begin < 10 and not station.got.exists()


# ---- other versions ----


@contextlib.contextmanager
def listening(answer):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(4096)
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize(
    "answer, words",
    [
        (hello(version=1, lowest=1) + refusal(7, b"malformed"), "version"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak TLS"),
        (b"\x15\x03\x03\0\2\2\x46", "TLS 1.3"),
    ],
    ids=["older", "http", "tls 1.2"],
)
def test_something_else_listens(answer, words, station, boot, tmp_path):
    with listening(answer) as port:
        begin = time.monotonic()
        done = elsewhere(
            boot, "fetch", f"tcp://127.0.0.1:{port}", "-o", tmp_path / "got", "--timeout", 20,
            WHERRY_TOKEN=station.server.token,
        )  # fmt: skip
        assert done.returncode in (BYTES, PEER) and words in done.stderr, done.stderr
        assert time.monotonic() - begin < 15
