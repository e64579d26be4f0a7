"""Long waits are logged: the rank that the call waits for, and what that rank must call, in
Python's words."""

import re
import subprocess
import sys
import time

import pytest
import wherry

LINE = r"wherry: info: waiting for rank \d.*\n"
LOGGING = "import logging; logging.basicConfig(level='{}')"
RANKS = """
import sys, time, numpy, wherry
{logging}
rank = int(sys.argv[2])
with wherry.Group.join(f"unix://{{sys.argv[1]}}?rank={{rank}}&size=2", timeout=60) as group:
    state = {{"w": numpy.zeros(3)}}
    try:
        {body}
    except wherry.Error as error:
        print(error)
        group.send(1 - rank, 1, b"")
    group.barrier(1)
"""
#: The body of a rank that takes no part until the other one has given up.
STAY_AWAY = "group.recv(1 - rank, 1, 60)"


def start(tmp_path, rank, body, environment, logging=""):
    program = RANKS.format(body=body, logging=logging)
    return subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "meet"), str(rank)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def environment(monkeypatch):
    """The environment of this process without a level of the log."""
    monkeypatch.delenv("WHERRY_LOG", raising=False)


def outputs(tmp_path, bodies, logging=""):
    ranks = [start(tmp_path, rank, body, None, logging) for rank, body in enumerate(bodies)]
    told = [rank.communicate(timeout=60) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], told
    return told


def test_waits_and_timeouts_name_the_rank_and_its_call(tmp_path, environment):
    """The log line and the error name the rank and the call that are missing."""
    receive = "wherry.recv(group, 0, into=state, timeout=6)"
    (_, _), (printed, told) = outputs(tmp_path, [STAY_AWAY, receive])
    call = "rank 0, which must call wherry.send or send_checkpoint with rank 1 as a destination"
    assert f"wherry: info: waiting for {call}\n" == told
    assert re.fullmatch(rf"timed out after [5-9]\.\d+ s while waiting for {call}\n", printed)


def test_a_send_names_the_rank_and_its_call(tmp_path, environment):
    send = "wherry.send(group, [1], state, timeout=6)"
    (printed, told), (_, _) = outputs(tmp_path, [send, STAY_AWAY])
    call = "wherry.recv or recv_checkpoint"
    assert told == f"wherry: info: waiting for rank 1, which must call {call}\n"
    assert printed.startswith(f"rank 1 has not called {call}: timed out after")


def test_a_failure_is_reported_once(tmp_path, environment):
    """By the exception of each rank, and not in the log as well."""
    receive = "wherry.recv(group, 0, into={'w': numpy.zeros(3), 'v': numpy.zeros(2)}, timeout=20)"
    for printed, told in outputs(tmp_path, ["wherry.send(group, [1], state, timeout=20)", receive]):
        assert told == "" and printed.count("missing from the source (1): 'v'") == 1, printed
        assert "partial=True" in printed and printed.count("\n") == 1


@pytest.mark.parametrize(
    ("level", "expected"),
    [("INFO", "INFO:wherry:waiting for rank 1 at barrier 1\n"), ("WARNING", "")],
)
def test_a_program_with_logging_gets_it_there(level, expected, tmp_path, environment):
    bodies = ["pass", "time.sleep(7)"]
    (_, told), (_, _) = outputs(tmp_path, bodies, LOGGING.format(level))
    assert "".join(re.findall(r".*waiting for.*\n", told)) == expected


def test_joining(tmp_path, environment):
    alone = start(tmp_path, 0, "pass", None)
    begin = time.monotonic()
    told = alone.stderr.readline()
    alone.kill()
    alone.communicate()
    assert re.fullmatch(LINE, told) and time.monotonic() - begin > 3


def test_errors_name_options_as_python_does(monkeypatch):
    for name in ("WHERRY_SECRET", "WHERRY_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(wherry.errors.InvalidArgument, match="or pass allow_insecure=True"):
        wherry.Group.join("tcp://192.0.2.77:29999?rank=0&size=2", timeout=5)
