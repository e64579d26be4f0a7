"""Ranks of MPI on two hosts, two on each. MPI's launcher starts them from a third host, as from the
login node of a cluster."""

import contextlib
import os
import pathlib
import select
import subprocess
import time

import hosts
import lane_reach
import pytest

BUILD = pathlib.Path(os.environ.get("WHERRY_BUILD", hosts.HERE.parents[1] / "build"))
RUN_MPI = hosts.HERE.parents[1] / "scripts/run-mpi"
FIND_UCX = hosts.HERE.parents[1] / "scripts/find-ucx"
LOGIN = f"{hosts.SUBNET}.0.254"

#: The timeout of the transfer that a cut ends, in mpi_reach.c; how much longer it may take if MPI
#: cannot cancel a piece (docs/mpi.md); and the same plus a margin for a busy machine.
CUT_MS = 4000
PIECE_MS = 2000
LATE_MS = PIECE_MS + 1800

#: Without InfiniBand, Open MPI uses UCX only if it is told to.
OMPI_WITH_UCX = {"": "ucx", "_ucx_tls": "any", "_ucx_devices": "any"}

#: The program that replaces ssh: AGENT [OPTION...] HOST COMMAND... runs the command on the host.
AGENT = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
case $1 in
{cases}
*) echo "no host $1" >&2; exit 1;;
esac
shift
exec nsenter --target $keeper --mount --uts --ipc --net --pid=/proc/$keeper/ns/pid_for_children sh -c "$*"
"""


class Job:
    """The ranks of a program, and their output."""

    def __init__(self, process, errors):
        self.process = process
        self.errors = errors
        self.text = b""

    def lines(self, word):
        """The lines printed so far that begin with a word, without that word."""
        whole = self.text.decode().split("\n")[:-1]
        return [line.split()[1:] for line in whole if line.startswith(f"{word} ") or line == word]

    def wait_for(self, word, count, seconds=40):
        """Waits until this many lines begin with a word. Returns them."""
        until = time.monotonic() + seconds
        while len(self.lines(word)) < count:
            ready, _, _ = select.select(
                [self.process.stdout], [], [], max(0, until - time.monotonic())
            )
            more = os.read(self.process.stdout.fileno(), 1 << 16) if ready else b""
            assert more, (
                f"fewer than {count} lines begin with '{word}': {self.text.decode()}{self.errors.read_text()}"
            )
            self.text += more
        return self.lines(word)


@pytest.fixture(params=["openmpi", "mpich"])
def flavour(request):
    if not (BUILD / f"tests/mpi/mpi_reach_{request.param}").exists():
        pytest.skip(f"the build has no {request.param}: scripts/install-deps mpi installs it")
    return request.param


@contextlib.contextmanager
def started(world, folder, flavour, *arguments, old_ucx=False):
    """mpi_reach on two hosts: ranks 0 and 1 on the first.

    :param old_ucx: MPI uses the system's UCX, not that of the tests.
    """
    agent = folder / "agent"
    agent.write_text(
        AGENT.format(
            cases="\n".join(f"{host.address()}) keeper={host.pid};;" for host in world.hosts)
        )
    )
    agent.chmod(0o755)
    places = ",".join(f"{host.address()}:2" for host in world.hosts)
    if flavour == "openmpi":
        options = ["--mca", "plm_rsh_agent", str(agent), "--host", places]
    else:
        options = [
            "-localhost",
            LOGIN,
            "-launcher",
            "ssh",
            "-launcher-exec",
            str(agent),
            "-hosts",
            places,
        ]
    world.switch.ip(f"addr add {LOGIN}/24 dev br0", "link set lo up")
    errors = folder / "errors"
    environment = {**os.environ, "OMPI_MCA_orte_tmpdir_base": str(folder), "WHERRY_LOG": "info"}
    library = pathlib.Path(os.environ.get("WHERRY_UCX_LIBRARY", ""))
    if old_ucx:
        environment |= {f"OMPI_MCA_pml{key}": value for key, value in OMPI_WITH_UCX.items()}
    elif library.is_absolute():
        environment["LD_LIBRARY_PATH"] = str(library.parent)
    process = subprocess.Popen(
        ["nsenter", f"--net={world.switch.namespace('net')}", RUN_MPI, flavour, f"mpirun.{flavour}", "4", *options]
        + [BUILD / f"tests/mpi/mpi_reach_{flavour}", *arguments],
        env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors.open("w"),
    )  # fmt: skip
    try:
        yield Job(process, errors)
    finally:
        process.kill()
        # Processes that the launcher started have its output too. They end with the hosts.
        process.wait()
        process.stdout.close()


def system_ucx():
    """The version of the UCX that MPI brings, as [major, minor, release]; []: none."""
    command = [FIND_UCX, "--version-of", "libucp.so.0"]
    text = subprocess.run(command, capture_output=True, text=True).stdout
    return list(map(int, text.split()))


@pytest.mark.parametrize("lanes", ["old", "default", "cma,ucx", "cma,blocks"])
def test_which_lane_the_bytes_take(flavour, lanes, tmp_path):
    """If the UCX in the process is too old, MPI itself moves the bytes, and the log says why."""
    between = {"old": "blocks", "default": "ucx"}.get(lanes) or lanes.split(",")[1]
    version = system_ucx()
    if between == "ucx" and (reason := lane_reach.lacking("ucx")):
        pytest.skip(reason)
    if lanes == "old" and not [1] < version < [1, 15]:
        pytest.skip(f"needs an MPI with UCX before 1.15, such as Debian 12 has: {version}")
    with (
        hosts.World(2) as world,
        started(
            world, tmp_path, flavour, lanes.replace("old", "default"), old_ucx=lanes == "old"
        ) as job,
    ):
        job.wait_for("well", 4)
        taken = {(int(source), int(rank)): lane for source, rank, lane in job.lines("lane")}
        assert taken == {
            (source, rank): "cma" if source // 2 == rank // 2 else between
            for source in range(4)
            for rank in range(4)
            if source != rank
        }
        if lanes == "old":
            number = ".".join(map(str, version))
            reason = f"UCX {number} is too old; 1.15 or newer is needed"
            assert reason in job.errors.read_text()
        try:
            assert job.process.wait(20 if flavour == "openmpi" else 2) == 0
        except subprocess.TimeoutExpired:
            # MPICH before 4.2 may never return from MPI_Finalize over UCX on TCP, in any program:
            # pmodels/mpich#6596.
            assert flavour == "mpich"


def await_sent(host, nbytes):
    """Waits until a host has sent this many bytes more."""
    wanted, until = host.sent() + nbytes, time.monotonic() + 20
    while host.sent() < wanted:
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("between", ["blocks", "ucx"])
def test_a_link_is_cut_in_the_middle(flavour, between, tmp_path):
    """MPI does not report that a rank is unreachable. The transfer's own timeout ends it on both
    sides. The other ranks of the host continue."""
    if between == "ucx" and (reason := lane_reach.lacking("ucx")):
        pytest.skip(reason)
    with (
        hosts.World(2, rate_mbit=20) as world,
        started(world, tmp_path, flavour, between, "cut") as job,
    ):
        job.wait_for("moving", 1)
        await_sent(world.hosts[0], 512 << 10)  # The whole state has 9.75 MB, which take 3.9 s.
        world.cut(1)
        assert job.wait_for("lane", 1) == [["0", "1", "cma"]]
        time.sleep(LATE_MS / 1000)  # Until all have given up. No word of that can get through yet.
        world.mend(1)  # Now the output of the second host's ranks can arrive.
        ended = {int(rank): (status, int(ms)) for rank, status, ms in job.wait_for("ended", 2)}
        job.wait_for("well", 4)
    assert {status for status, _ in ended.values()} == {"WHERRY_TIMED_OUT"}
    assert all(CUT_MS <= ms < CUT_MS + LATE_MS for _, ms in ended.values()), ended
    # A group is closed if and only if MPI could not cancel a piece.
    held = ended[2][1] >= CUT_MS + PIECE_MS
    assert job.lines("group") == [["WHERRY_CLOSED" if held else "WHERRY_OK"]] and (
        between == "blocks" or not held
    )
