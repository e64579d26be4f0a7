"""Skips tests that this machine cannot run; the fixture `lane` is each lane between hosts."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))

import hosts
import lane_reach


@pytest.fixture(autouse=True)
def needs_hosts():
    if reason := hosts.lacking():
        pytest.skip(reason)


@pytest.fixture
def needs_wire():
    """Skips the test if links with a delay or a loss are not possible here."""
    if reason := hosts.lacking(wire=True):
        pytest.skip(reason)


@pytest.fixture(params=["stream", "ucx"])
def lane(request):
    """A lane that reaches from host to host."""
    if reason := lane_reach.lacking(request.param):
        pytest.skip(reason)
    return request.param
