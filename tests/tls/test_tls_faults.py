"""Members that do not match: other keys, other certificates, other protocols. The side that dials
gets a clear error at once. The side that listens logs a line and continues."""

import contextlib
import dataclasses
import logging
import os
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest
from certificates import Authority
from command import wait_for
from pairs import INTACT, SECRET, Station, settings
from protocol import (
    ACCEPT,
    BAD_SECRET,
    BY_TICKET,
    BY_TLS,
    FOR_DATA,
    HELLO,
    PING,
    PONG,
    PROOF,
    REFUSE,
    USED,
    VERSION,
    Clear,
    Tls,
    by_psk,
    frame,
    frames,
    hello,
    keys_of,
    proof,
    refusal,
    ticket,
)

import wherry

LONG = 20  # A deadline. No error may take this long.
AT_ONCE = 8


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("theirs"), "others")


@contextlib.contextmanager
def soon():
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < AT_ONCE


def fails(station, status, pattern, **options):
    """Tries to join, without success."""
    with soon(), pytest.raises(status, match=pattern) as found:
        station.join(1, timeout=LONG, **options).close()
    return str(found.value)


def goes_on(station):
    assert station.trial() == INTACT
    station.end_trial()


# ---- keys ----


def test_another_secret(caplog):
    with settings(), Station() as station:
        with caplog.at_level(logging.WARNING, "wherry"):
            for _ in range(20):
                fails(station, wherry.errors.BadSecret, "secret", secret="another secret of them")
                station.end_trial()
        turned = [one for one in caplog.messages if "turned a connection away" in one]
        assert 1 <= len(turned) <= 4, "the listener limits its log lines"
        goes_on(station)


def test_a_member_without_a_secret():
    with settings(), Station() as station:
        fails(
            station, (wherry.errors.BadSecret, wherry.errors.Refused), "secret",
            secret=None, allow_insecure=True,
        )  # fmt: skip
        goes_on(station)
    with settings(), Station(secret=None, insecure=True) as station:
        fails(
            station, (wherry.errors.BadSecret, wherry.errors.Refused), "secret",
            secret=SECRET, allow_insecure=False,
        )  # fmt: skip
        goes_on(station)


def in_new_process(script, **variables):
    """Runs a script in a process that has logged nothing yet. Returns its output, and its log."""
    done = subprocess.run(
        [sys.executable, "-c", f"import logging\nlogging.basicConfig()\n{script}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout, done.stderr


def test_a_group_without_security_warns():
    """The warning comes on loopback too, because all users of the host can join."""
    script = "from pairs import *\nwith Station(secret={}, insecure={}) as one: print(one.trial())"
    with settings():
        for secret, insecure in ((None, True), (SECRET, False)):
            output, log = in_new_process(script.format(repr(secret), insecure))
            assert output == f"{INTACT}\n", log
            assert ("the group has no secret" in log) == insecure


# ---- the system's settings ----

HOSTILE = """
openssl_conf = all
[all]
ssl_conf = contexts
[contexts]
system_default = hostile
[hostile]
Protocol = -TLSv1.3
Options = -TLSv1.3,AllowNoDHEKEX,SessionTicket,UnsafeLegacyRenegotiation
CipherString = ALL:@SECLEVEL=0
Ciphersuites = TLS_AES_256_GCM_SHA384
Groups = P-521
SignatureAlgorithms = RSA+SHA1
ClientSignatureAlgorithms = RSA+SHA1
RecordPadding = 4096
"""


def test_the_settings_of_the_system_have_no_effect(tmp_path, ours):
    """OpenSSL reads its file once per process, so this needs a new process."""
    (tmp_path / "openssl.cnf").write_text(HOSTILE)
    script = "from pairs import *\nwith Station(secret={}) as one: print(one.trial())"
    path = str(tmp_path / "openssl.cnf")
    for secret, variables in ((SECRET, {}), (None, ours.issue("both").environment())):
        with settings():
            output, log = in_new_process(
                script.format(repr(secret)), OPENSSL_CONF=path, **variables
            )
        assert output == f"{INTACT}\n", log


# ---- certificates ----


def test_certificates(ours):
    with settings(**ours.issue("both").environment()):
        with Station(secret=None) as station:
            goes_on(station)


@pytest.mark.parametrize("mode", ["control", "all"])
@pytest.mark.parametrize("side", ["dials", "listens"])
@pytest.mark.parametrize("fault", ["authority", "expired", "name"])
def test_a_certificate_that_is_not_trusted(fault, side, mode, ours, theirs):
    good = ours.issue("good")
    bad = {
        "authority": lambda: theirs.issue("stranger"),
        "expired": lambda: ours.issue("expired", expired=True),
        "name": lambda: ours.issue("elsewhere", "DNS:elsewhere.example"),
    }[fault]()
    own = {"WHERRY_ENCRYPT": mode, **good.environment()}
    other = {"WHERRY_ENCRYPT": mode, **bad.environment(ours)}
    words = {"authority": "issuer|trust", "expired": "expired", "name": "mismatch"}[fault]
    listens, dials = (other, own) if side == "listens" else (own, other)
    with settings(**listens):
        try:
            station = Station(secret=None)
        except wherry.Error as error:
            assert fault == "expired" and "expired" in str(error)  # This is its own certificate.
            return
    with station:
        if fault == "name" and side == "dials":
            # The side that listens does not check the name of the side that dials, because it knows
            # no address of it.
            with settings(**dials), soon():
                station.join(1, timeout=LONG).close()
        else:
            with settings(**dials):
                text = fails(station, wherry.errors.BadSecret, words)
            assert side == "dials" or "certificate" in text
        station.end_trial()
        if side == "dials":
            with settings(**own):
                goes_on(station)


def test_a_certificate_for_the_name_of_the_job(ours):
    """WHERRY_TLS_NAME replaces the host's name."""
    of_job = ours.issue("job", "DNS:training.example")
    with settings(**of_job.environment(), WHERRY_TLS_NAME="training.example"):
        with Station(secret=None) as station:
            goes_on(station)
    with settings(**of_job.environment(), WHERRY_TLS_NAME="other.example"):
        with Station(secret=None) as station:
            fails(station, wherry.errors.BadSecret, "mismatch")


def test_a_name_that_only_the_listener_refuses(ours):
    """The side that dials accepts the certificate of the other side. Its own certificate is not for
    the job."""
    both = ours.issue("both names", "DNS:training.example,IP:127.0.0.1")
    host = ours.issue("only a host", "IP:127.0.0.1")
    with settings(**both.environment(), WHERRY_TLS_NAME="training.example"):
        station = Station(secret=None)
    with station:
        with settings(**host.environment()):
            fails(station, wherry.errors.BadSecret, "does not trust this side's certificate")
        station.end_trial()
        with settings(**both.environment(), WHERRY_TLS_NAME="training.example"):
            goes_on(station)


def test_certificates_and_a_secret_do_not_mix(ours):
    with settings(**ours.issue("cert").environment()), Station(secret=None) as station:
        with settings():
            fails(station, wherry.Error, ".", secret=SECRET)
        goes_on(station)


# ---- other protocols ----


def talk(target, data):
    """Sends bytes. Returns the bytes that arrive until the other side ends the connection."""
    with Clear(target) as connection:
        with contextlib.suppress(ConnectionError):
            connection.send(data)
        return connection.rest()


def test_an_old_version_dials():
    """The old version gets a frame in clear text that it understands, so it can tell its user."""
    with settings(), Station() as station:
        with soon():
            answer = list(frames(talk(station.relay.target, hello(version=1, lowest=1))))
        refusals = [body for kind, body in answer if kind == REFUSE]
        assert [body[0] for body in refusals] == [VERSION]
        assert b"version" in refusals[0]
        goes_on(station)


NONSENSE = {
    "clear": hello(),
    "http": b"GET / HTTP/1.1\r\nHost: wherry\r\n\r\n",
    "a record of nonsense": b"\x16\x03\x01\x00\x05hello",
    "a record that is too long": b"\x16\x03\x01\xff\xff" + bytes(1 << 16),
    "ssl 2": b"\x80\x2e\x01\x00\x02",
    "zeros": bytes(100),
}


def test_something_else_dials(caplog):
    with settings(), Station() as station:
        with caplog.at_level(logging.WARNING, "wherry"):
            for _ in range(10):
                for name, data in NONSENSE.items():
                    with soon():
                        assert len(talk(station.relay.target, data)) < 1000, name
        lines = [one for one in caplog.messages if "turned a connection away" in one]
        assert 1 <= len(lines) <= 22, "the listener limits its log lines"
        goes_on(station)


def test_a_peer_that_says_nothing(caplog):
    """Such a peer may connect, but it must not keep others out."""
    with settings(), Station() as station, contextlib.ExitStack() as stack:
        for begin in (b"", b"\x16", b"\x16\x03\x01", b"\x00"):
            silent = stack.enter_context(socket.create_connection(station.relay.target))
            silent.sendall(begin)
        goes_on(station)


@contextlib.contextmanager
def listener(answer):
    """Another program listens where rank 0 should. `answer` gets each connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def refuse(reason):
    return lambda connection: (
        connection.recv(4096),
        connection.sendall(hello() + refusal(reason, b"the text of the other")),
    )


@pytest.mark.parametrize(
    "answer",
    [
        refuse(7),  # the answer of an older version to TLS
        lambda connection: (connection.recv(4096), connection.sendall(b"HTTP/1.1 400 Bad\r\n\r\n")),
        lambda connection: (connection.recv(4096), connection.sendall(b"\x15\x03\x01\0\2\2\x46")),
    ],
    ids=["older", "http", "tls 1.2"],
)
def test_something_else_listens(answer):
    with settings(), listener(answer) as port, soon():
        with pytest.raises(wherry.Error) as found:
            wherry.Group.join(f"tcp://127.0.0.1:{port}?rank=1&size=2&shortcut=0", LONG, SECRET)
    assert not isinstance(found.value, wherry.errors.Timeout), found.value


# ---- openssl talks to a member ----


def test_openssl_reads_the_first_frame():
    with settings(), Station() as station:
        with by_psk(station.relay.target, keys_of(SECRET)) as peer:
            kind, body = peer.frame()
            assert kind == HELLO and body[:4] == b"WHRY"
            version, lowest = struct.unpack(">HH", body[4:8])
            assert lowest <= version and len(body) > 60
            assert b"TLSv1.3" in peer.said
            assert b"Cipher is TLS_AES_" in peer.said or b"Cipher is TLS_CHACHA20" in peer.said
            assert b"Server Temp Key: " in peer.said, "forward secrecy: psk_dhe_ke"
            assert b"Compression: NONE" in peer.said
            assert b"Early data was not sent" in peer.said
            assert b"New Session Ticket" not in peer.said
        goes_on(station)


def test_openssl_can_join():
    """The whole greeting as docs/group-protocol.md describes it."""
    with settings(), Station() as station:
        with by_psk(station.relay.target, keys_of(SECRET)) as peer:
            assert peer.frame()[0] == HELLO
            peer.send(hello(method=BY_TLS) + frame(PROOF) + frame(ACCEPT))
            assert peer.frame() == (PROOF, b"")
            kind, ticket = peer.frame()
            assert kind == ACCEPT and len(ticket) == 32
            wait_for(lambda: station.source.alive(1))
        goes_on(station)


@pytest.mark.parametrize(
    "keys, arguments",
    [
        (keys_of(SECRET), ["-tls1_2"]),
        (dataclasses.replace(keys_of(SECRET), psk=bytes(32)), []),
        (dataclasses.replace(keys_of(SECRET), number=1), []),
        (keys_of("another secret"), []),
        (keys_of(SECRET), ["-ciphersuites", "TLS_AES_128_CCM_8_SHA256"]),
        (keys_of(SECRET), ["-groups", "ffdhe2048"]),
    ],
    ids=["tls 1.2", "key", "identity", "secret", "weak cipher", "group"],
)  # fmt: skip
def test_openssl_is_turned_away(keys, arguments):
    with settings(), Station() as station:
        with soon(), by_psk(station.relay.target, keys, *arguments) as peer:
            assert not peer.binding and not peer.came and b"alert" in peer.said
        goes_on(station)


def test_openssl_without_a_key():
    with settings(), Station() as station:
        with soon(), Tls(station.relay.target) as peer:
            assert not peer.binding and not peer.came
        goes_on(station)


@pytest.mark.parametrize("command", ["k", "K"], ids=["one side", "both sides"])
def test_messages_after_an_update_of_keys(command):
    """openssl changes its key. K also asks the member to change its key."""
    with settings(), Station() as station:
        keys = keys_of(SECRET)
        with by_psk(station.relay.target, keys, commands=True) as peer:
            assert peer.frame()[0] == HELLO
            peer.send(hello(method=BY_TLS) + frame(PROOF) + frame(ACCEPT))
            assert peer.frame()[0] == PROOF and peer.frame()[0] == ACCEPT
            # A member that has its table to send does not answer a PING. So learn the hash of the
            # table, and let the table come first.
            peer.skip()
            peer.send(frame(PING, bytes(8)))
            while (answer := peer.frame())[0] != PONG:
                pass
            peer.skip()
            for _ in range(5):
                peer.command(command, b"KEYUPDATE")
                peer.send(frame(PING, answer[1]))
                while peer.frame()[0] != PONG:
                    pass
        goes_on(station)


# ---- tickets ----


def use_ticket(target, key, number, **who):
    """Greets for data in clear text. Returns the frames of the answer after HELLO."""
    with Clear(target) as peer:
        own = hello(method=BY_TICKET, purpose=FOR_DATA, key=number, nonce=os.urandom(32), **who)
        peer.send(own)
        other = frame(*peer.frame())
        peer.send(proof(ticket(key, number), own, other))
        first = peer.frame()
        return [first, peer.frame()] if first[0] == PROOF else [first]


def test_a_ticket_is_valid_once():
    """One that was used is refused, and one that is too old. Others may come in any order."""
    with settings(), Station() as station:
        target, who = station.relay.target, {"incarnation": time.time_ns()}
        with by_psk(target, keys_of(SECRET)) as peer:
            assert peer.frame()[0] == HELLO
            peer.send(hello(method=BY_TLS, **who) + frame(PROOF) + frame(ACCEPT))
            assert peer.frame() == (PROOF, b"")
            kind, key = peer.frame()
            assert kind == ACCEPT and len(key) == 32
            for number, good in (
                (1, True), (1, False), (3, True), (2, True), (3, False), (2, False),
                (400, True), (144, False), (145, True), (145, False), (400, False), (0, False),
                (2**64 - 1, True), (401, False), (2**64 - 1, False), (2**64 - 2, True),
            ):  # fmt: skip
                first, last = use_ticket(target, key, number, **who)
                assert first[0] == PROOF, "the proof itself is right"
                assert last[0] == (ACCEPT if good else REFUSE), number
                assert good or last[1][0] == USED
            _, (kind, why) = use_ticket(target, bytes(32), 500, **who)
            assert kind == REFUSE and why[0] == BAD_SECRET
        goes_on(station)


# ---- rotation ----


def test_two_secrets(tmp_path):
    """old -> old, new -> new, old -> new: no member has to stop."""
    path = tmp_path / "secret"
    old, new = "the old secret of the job", "the new secret of the job"

    def write(*lines):
        part = tmp_path / "part"
        part.write_text("".join(f"{line}\n" for line in lines))
        part.chmod(0o600)
        part.rename(path)

    write(old)
    with settings(WHERRY_SECRET_FILE=str(path)), Station(secret=None) as station:
        goes_on(station)
        write(old, new)
        for lines in ([old], [new], [new, old], [old, new]):
            write(old, new)
            goes_on(station)
            with settings():
                group = station.join(1, secret=lines[0])
                group.close()
            station.end_trial()
        write(new)
        goes_on(station)
        with settings():
            fails(station, wherry.errors.BadSecret, "secret", secret=old)
        station.end_trial()
        goes_on(station)
