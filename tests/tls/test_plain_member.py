"""A member that was written from docs/group-protocol.md alone works with Wherry's own."""

import contextlib
import os
import threading

import pytest
from command import wait_for
from pairs import SECRET, Station, settings
from plain_member import Member, xxh64

import wherry

TAG = 7


def test_hash():
    """The value that the specification of XXH64 gives for no bytes."""
    assert xxh64(b"") == 0xEF46DB3751D8E999


@pytest.mark.parametrize("secret", [None, SECRET], ids=["clear", "tls"])
def test_a_plain_member(secret):
    with (
        settings(),
        Station(secret=secret, insecure=not secret, serve=False) as station,
        contextlib.closing(Member(station.relay.target, 1, 2, secret)) as member,
    ):
        source = station.source
        wait_for(lambda: source.alive(1))
        assert member.ping() == member.hash(), "both know the same ranks"
        for size in (0, 1, 300, 1 << 20):
            text = os.urandom(size)
            member.send(TAG, text)
            assert source.recv(1, TAG, 10) == (1, text)
            source.send(1, TAG, text, 10)
            assert member.messages.get(timeout=10) == (TAG, text)
        for number in (1, 2, 3):
            waiting = threading.Thread(target=source.barrier, args=(number, 10))
            waiting.start()
            member.barrier(number)
            waiting.join(10)
            assert not waiting.is_alive()
        waiting = threading.Thread(target=lambda: lost(source))
        waiting.start()
        member.close()
        waiting.join(10)
        assert not waiting.is_alive()


def lost(group):
    with pytest.raises(wherry.errors.PeerLost):
        group.recv(1, TAG, 10)
