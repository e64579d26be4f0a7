"""`wherry demo`: every rank is killed and healed on every lane, and nothing is left behind."""

import contextlib
import fcntl
import itertools
import json
import os
import pathlib
import pty
import re
import signal
import struct
import subprocess
import termios

import command
import pytest
from command import ROOT, WHERRY, wait_for

SMALL = ["--ranks", "3", "--size", "32M"]


@pytest.fixture
def place(tmp_path_factory):
    """A folder with a short path: the name of a socket has at most 107 bytes."""
    return tmp_path_factory.mktemp("d")


def environment(place):
    return command.environment(TMPDIR=place)


def wherry(*arguments, place=pathlib.Path("/tmp")):
    return command.wherry(*arguments, TMPDIR=place)


def ranks_below(place):
    """The ranks of a demo that runs with this TMPDIR, by rank."""
    found = {}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            name = (process / "comm").read_text().strip()
            variables = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if name.startswith("wherry-rank-") and f"TMPDIR={place}".encode() in variables:
            found[int(name.removeprefix("wherry-rank-"))] = int(process.name)
    return found


def nothing_is_left(place):
    return ranks_below(place) == {} and list(place.iterdir()) == []


def ucx_is_here():
    """True if UCX is installed, whether it works or not."""
    findings = json.loads(wherry("doctor", "--json").stdout)["findings"]
    return any(
        one["area"] == "lanes" and one["name"] == "ucx" and one["level"] != "fact"
        for one in findings
    )


@pytest.mark.parametrize(
    "lane, checked",
    [("cma", ""), ("ring", ""), ("ucx", ", checked"), ("stream", ", checked")],
)
def test_each_rank_is_killed_and_healed(lane, checked, place):
    if lane == "ucx" and not ucx_is_here():
        pytest.skip("needs UCX 1.15 or newer: tests/requirements-ucx.txt installs it")
    done = wherry("demo", *SMALL, "--kills", "3", "--lane", lane, place=place)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    *timeline, verdict = done.stdout.splitlines()
    assert re.fullmatch(
        r"OK: 3 ranks at step 48 with equal digests \([0-9a-f]{16}\), after 3 kills and 3 heals: 96\.0 MiB at "
        r"[0-9.]+ [GM]B/s; in [0-9.]+ s",
        verdict,
    ), verdict
    assert all(re.match(r" *[0-9]+\.[0-9] s  \S", line) for line in timeline), done.stdout
    size = r"\d+(\.\d+)? [KM]?i?B"
    rest = rf"in (0\.00\d\d|0\.01\d\d|\d+\.\d\d) s, .* over {lane}{checked}, at step \d+"
    continues = r"training continues after step \d+, delayed by \d+\.\d\d s"
    assert_in_order(
        timeline,
        r"rank 0 killed after step 16$",
        rf"rank 0 healed in place from ranks? .*\(32\.0 MiB\) {rest}; rank [12] stood by$",
        rf"{continues}$",
        r"rank 1 killed after step 32$",
        r"rank [02] killed after step \d+, in the middle of the heal$",
        rf"rank 1 healed in place from ranks? [02] \({size}(, lost)?\).* {rest}",
        rf"{continues}(; the heal had ended before the kill)?$",
        rf"rank [02] healed in place from rank \d \(32\.0 MiB\) {rest}; rank \d stood by$",
        rf"{continues}$",
    )
    killed = re.findall(r"rank (\d) killed", done.stdout)
    for rank in killed:
        events = re.findall(rf"rank {rank} (killed|is back|healed)", done.stdout)
        assert events == ["killed", "is back", "healed"] * killed.count(rank), done.stdout
    assert nothing_is_left(place)


def assert_in_order(timeline, *parts):
    """The lines of the timeline match the parts, apart from those of progress and of returns. A
    killed rank returns after some time, whatever the others have done by then."""
    lines = [
        line
        for line in timeline
        if not re.search(r"s  step \d+ of|ranks start|is back \(pid \d+\)$", line)
    ]
    assert len(lines) == len(parts), lines
    for line, part in zip(lines, parts, strict=True):
        assert re.search(part, line), (part, lines)


def test_a_source_is_killed_in_the_middle_of_a_heal(place):
    """The kill may come too late on a busy machine, so there are some attempts."""
    for _ in range(5):
        done = wherry(
            *("demo", "--ranks", "4", "--size", "128M", "--kills", "2", "--lane", "stream"),
            place=place,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "after 2 kills and 2 heals: 256.0 MiB" in done.stdout
        killed = re.search(r"rank (\d) killed .* in the middle of the heal\n", done.stdout)[1]
        healed = re.search(
            r"rank 0 healed in place from (ranks? .*?) in .* stood by\n", done.stdout
        )
        if "; the heal had ended before the kill" not in done.stdout:
            break
    shares = dict(re.findall(r"(\d) \((.*?)\)", healed[1]))
    assert shares.pop(killed).endswith(", lost"), done.stdout
    # If the killed rank had sent everything, the others confirm that by their digests.
    assert not any("lost" in share for share in shares.values()), done.stdout


def test_two_ranks_have_no_source_to_spare(place):
    done = wherry("demo", "--ranks", "2", "--size", "8M", "--kills", "2", place=place)
    assert done.returncode == 0, done.stderr
    assert "in the middle" not in done.stdout and "after 2 kills and 2 heals" in done.stdout
    assert "stood by" not in done.stdout and nothing_is_left(place)


#: How torchrun, srun and mpiexec tell a process that it is a rank.
LAUNCHERS = {
    "torchrun": {"RANK": "{rank}", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"},
    "srun": {
        "SLURM_PROCID": "{rank}",
        "SLURM_NTASKS": "3",
        "SLURM_NNODES": "1",
        "SLURM_STEP_ID": "0",
    },
}


def launch(place, variables, *arguments):
    """Starts three ranks as a launcher does. Returns what each printed, and the exit codes."""
    ranks = []
    for rank in range(3):
        own = {name: value.format(rank=rank) for name, value in variables.items()}
        ranks.append(
            subprocess.Popen(
                [WHERRY, "demo", *arguments],
                env={**environment(place), "WHERRY_JOB": str(place), **own},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    done = [rank.communicate(timeout=50) for rank in ranks]
    return done, [rank.returncode for rank in ranks]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_under_a_launcher_states_are_lost_and_healed(launcher, place):
    done, codes = launch(place, LAUNCHERS[launcher], "--size", "8M", "--steps", "8")
    assert codes == [0, 0, 0], done
    assert [err for _, err in done] == ["", "", ""] and done[1][0] == done[2][0] == ""
    *timeline, verdict = done[0][0].splitlines()
    assert re.fullmatch(
        r"OK: 3 ranks at step 8 with equal digests \([0-9a-f]{16}\), after 3 lost states, each healed: .*",
        verdict,
    )
    for rank in range(3):
        assert any(f"rank {rank} lost its state" in line for line in timeline), timeline
        assert any(
            f"rank {rank} healed in place from rank {(rank + 1) % 3} (8.0 MiB)" in line
            and line.endswith(f"; rank {(rank + 2) % 3} stood by")
            for line in timeline
        ), timeline
    assert list(place.iterdir()) == []


def test_a_launcher_and_the_options(place):
    done, codes = launch(place, LAUNCHERS["torchrun"], "--ranks", "2")
    assert codes == [2, 2, 2] and "the launcher started 3 ranks, but --ranks is 2" in done[0][1]
    few = ["--ranks", "2", "--size", "4M", "--kills", "1", "--steps", "3", "-q"]
    alone = {**environment(place), "RANK": "1", "WORLD_SIZE": "3"}
    batch = {**environment(place), "SLURM_PROCID": "0", "SLURM_NTASKS": "3"}
    for variables, arguments in ((alone, [*few, "--alone"]), (batch, few)):
        run = subprocess.run(
            [WHERRY, "demo", *arguments], env=variables, capture_output=True, text=True, timeout=50
        )
        assert run.returncode == 0 and "1 kill and 1 heal" in run.stdout, run.stderr
    assert nothing_is_left(place)


def test_quiet_and_checked(place):
    done = wherry("demo", *SMALL, "--kills", "1", "--steps", "2", "--verify", "-q", place=place)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"OK: .* step 2 with equal digests .* 1 kill and 1 heal: .*\n", done.stdout)
    loud = wherry("demo", *SMALL, "--kills", "1", "--steps", "2", "--verify", "-v", place=place)
    assert ", checked, at step" in loud.stdout
    assert "wherry" in loud.stderr, "the library's log is missing"


@pytest.mark.parametrize("options, colors", [([], True), (["--no-color"], False)])
def test_progress_bar_on_a_terminal(options, colors, place):
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 70, 0, 0))
    with subprocess.Popen(
        [WHERRY, "demo", *SMALL, "--kills", "1", *options],
        env={**environment(place), "TERM": "xterm"},
        stdout=its,
    ) as demo:
        os.close(its)
        output = read_all(ours)
    assert demo.returncode == 0, output
    frames = re.findall(
        r"\r\x1b\[\?7l( +\d+\.\d s  \[(#*)(-*)\] step \d+ of 24[^\x1b]*)\x1b\[K", output
    )
    assert frames and all(
        len(text) < 70 and len(full) + len(empty) >= 8 for text, full, empty in frames
    ), output
    assert any("rank 0 is down" in text for text, _, _ in frames), output
    assert re.search(
        r"(\n|\r\x1b\[K)" + (r"\x1b\[32m" if colors else "") + "OK: 3 ranks at step 24", output
    ), output
    assert ("m" in re.findall(r"\x1b\[[0-9]*(.)", output)) == colors


def read_all(descriptor):
    data = b""
    try:
        while piece := os.read(descriptor, 65536):
            data += piece
    except OSError:  # In this way a terminal reports that its other side is closed.
        pass
    os.close(descriptor)
    return data.decode()


def test_the_digest_follows_from_size_and_steps(place):
    """Computes the digest of a healed state independently."""
    done = wherry(
        "demo", "--ranks", "2", "--size", "1M", "--kills", "2", "--steps", "5", "-q", place=place
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\(([0-9a-f]{16})\)", done.stdout)[1] == f"{expected_digest(1 << 20, 5):016x}"


WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(number):
    number = (number ^ (number >> 31)) * GOLDEN & WORD
    return number ^ (number >> 29)


def storage_bytes(size):
    """Bytes of each storage: an embedding and 8 layers, with a weight and two moments each."""
    total = size // 10
    width = 16
    while 104 * (width + 16) ** 2 <= total:
        width += 16
    layers = [3 * width**2, width**2, 4 * width**2, 4 * width**2, width] * 8
    counts = [(total - sum(layers)) // width * width, *layers]
    return [count * each for count in counts for each in (2, 4, 4)]


def expected_digest(size, steps):
    """The sum of the sums of the even words."""
    storages = storage_bytes(size)
    words = [
        [(j + mix(i + 1)) * GOLDEN & WORD for j in range(0, nbytes // 8, 2)]
        for i, nbytes in enumerate(storages)
    ]
    for step in range(1, steps + 1):
        for i, storage in enumerate(words):
            key = mix(step * len(storages) + i)
            storage[:] = [(x := (word + key) & WORD) ^ (x >> 27) for word in storage]
    total = sums = 0
    for storage in words:
        for word in storage:
            total += word
            sums += total
    return sums & WORD


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_behind(number, place):
    with subprocess.Popen(
        [WHERRY, "demo", *SMALL, "--steps", "100000"],
        env=environment(place),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as demo:
        wait_for(lambda: ranks_with_states(place) == 3)
        if number == signal.SIGINT:  # Ctrl-C goes to all processes.
            os.killpg(demo.pid, number)
        else:
            demo.send_signal(number)
        _, errors = demo.communicate(timeout=10)
    assert demo.returncode == 128 + number
    assert errors == f"wherry demo: interrupted by a signal: {signal.strsignal(number)}\n"
    assert nothing_is_left(place)


def test_ranks_die_if_the_conductor_is_killed(place):
    with subprocess.Popen(
        [WHERRY, "demo", *SMALL, "--steps", "100000", "-q"], env=environment(place)
    ) as demo:
        wait_for(lambda: len(ranks_below(place)) == 3)
        demo.kill()
    wait_for(lambda: ranks_below(place) == {})


def test_the_demo_ends_if_a_rank_dies(place):
    with subprocess.Popen(
        [WHERRY, "demo", *SMALL, "--steps", "100000"],
        env=environment(place),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        wait_for(lambda: len(ranks_below(place)) == 3)
        os.kill(ranks_below(place)[0], signal.SIGSEGV)
        _, errors = demo.communicate(timeout=10)
    assert demo.returncode == 1
    assert re.fullmatch(
        r"wherry demo: rank \d was killed by a signal: Segmentation fault; .*\n", errors
    )
    assert nothing_is_left(place)


def test_a_flipped_bit_is_found(place):
    with subprocess.Popen(
        [WHERRY, "demo", *SMALL, "--kills", "0", "--steps", "100000"],
        env=environment(place),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        wait_for(lambda: len(ranks_below(place)) == 3)
        rank = ranks_below(place)[1]
        # A second flip of the same bit would undo the first, so each flip has another offset. Flips
        # continue until the memory is filled and the digest is computed after a flip.
        offsets = itertools.count()
        wait_for(lambda: demo.poll() is not None or flip_a_bit(rank, next(offsets)))
        _, errors = demo.communicate(timeout=20)
    assert demo.returncode == 1
    assert re.fullmatch(
        r"wherry demo: the digests differ: after step \d+ rank \d has [0-9a-f]{16} and rank \d has .*\n",
        errors,
    )
    assert nothing_is_left(place)


def large_mappings(process):
    """(begin, end) of the process's private mappings of at least 2 MiB, which hold the tensors."""
    lines = pathlib.Path(f"/proc/{process}/maps").read_text().splitlines()
    private = [
        line.split()[0] for line in lines if " rw-p 00000000 00:00 0" in line and "[" not in line
    ]
    mappings = [[int(number, 16) for number in text.split("-")] for text in private]
    return [(begin, end) for begin, end in mappings if end - begin >= 2 << 20]


def ranks_with_states(place):
    """The number of ranks that have allocated their states, and so have started."""
    count = 0
    for process in ranks_below(place).values():
        with contextlib.suppress(OSError):  # The process has ended.
            count += bool(large_mappings(process))
    return count


def flip_a_bit(process, offset):
    """Flips a bit in the largest mapping, `offset` bytes from the middle, while the process is
    stopped. Returns None, so that wait_for calls it again."""
    try:
        os.kill(process, signal.SIGSTOP)
        try:
            begin, end = max(large_mappings(process), key=lambda mapping: mapping[1] - mapping[0])
            with open(f"/proc/{process}/mem", "r+b", buffering=0) as memory:
                memory.seek((begin + end) // 2 + offset)
                (byte,) = memory.read(1)
                memory.seek((begin + end) // 2 + offset)
                memory.write(bytes([byte ^ 16]))
        finally:
            os.kill(process, signal.SIGCONT)
    except (OSError, ValueError):  # The process has ended, or has no tensors yet.
        pass


def test_closed_output(place):
    with subprocess.Popen(
        [WHERRY, "demo", *SMALL],
        env=environment(place),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        demo.stdout.close()
        errors = demo.stderr.read()
    assert demo.returncode == 1
    assert errors == "wherry demo: cannot write the output\n"
    assert nothing_is_left(place)


def test_help_names_every_option():
    done = wherry("demo", "--help")
    assert done.returncode == 0 and done.stderr == ""
    for option in (
        "--ranks",
        "--size",
        "--lane",
        "--kills",
        "--steps",
        "--verify",
        "--quiet",
        "--verbose",
        "--no-color",
    ):
        assert option in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 120


def test_the_command():
    done = wherry("--help")
    assert done.returncode == 0 and "demo " in done.stdout and "demo-rank" not in done.stdout
    version = re.search(
        r'WHERRY_VERSION_STRING "(.*)"', (ROOT / "include/wherry/base.h").read_text()
    )[1]
    assert wherry("--version").stdout == f"wherry {version}\n"
    nothing = wherry()
    assert nothing.returncode == 2 and nothing.stdout == "" and "Usage:" in nothing.stderr
    for word, kind in (("row", "command"), ("--row", "option")):
        unknown = wherry(word)
        assert unknown.returncode == 2 and f"unknown {kind} '{word}'" in unknown.stderr
    assert wherry("demo-rank", "0").returncode == 2


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["--ranks", "1"], "--ranks takes a number from 2 to 64, not '1'"),
        (["--ranks", "65"], "not '65'"),
        (["--ranks", "two"], "not 'two'"),
        (["--ranks", "3x"], "not '3x'"),
        (["--size", "0"], "--size takes a size from 1M to 1T, such as 512M or 2G, not '0'"),
        (["--size", "-1G"], "not '-1G'"),
        (["--size", "1X"], "not '1X'"),
        (["--size", "1Gb"], "not '1Gb'"),
        (["--size", "99999999999999999999G"], "--size takes"),
        (["--size", "18014398509481984K"], "--size takes"),
        (["--size", ""], "not ''"),
        (["--lane", "boat"], "--lane takes auto, cma, ring, ucx or stream, not 'boat'"),
        (["--kills", "-1"], "--kills takes a number from 0 to 1000, not '-1'"),
        (["--steps", "0"], "--steps takes a number from 1 to"),
        (
            ["--kills", "4", "--steps", "4"],
            "4 kills need at least 5 steps; use --steps 5 or --kills 3",
        ),
        (["-q", "-v"], "cannot be combined"),
        (["--bow"], "See `wherry demo --help`."),
        (["--size"], "See `wherry demo --help`."),
        (["now"], "unexpected argument 'now'"),
    ],
)
def test_mistakes(arguments, told, place):
    done = wherry("demo", *arguments, place=place)
    assert done.returncode == 2
    assert done.stdout == ""
    assert told in done.stderr
    assert nothing_is_left(place)


def test_too_little_memory(place):
    done = wherry("demo", "--size", "1T", "--ranks", "64", place=place)
    assert done.returncode == 1
    assert re.search(
        r"64 ranks with 1024\.00 GiB each need \d+\.\d\d GiB of memory, but only \d+\.\d\d GiB are available; use "
        r"(--size \d+M or less|fewer --ranks)\n",
        done.stderr,
    )


def test_missing_folder(place):
    done = wherry("demo", *SMALL, place=place / "missing")
    assert done.returncode == 1
    assert "set TMPDIR" in done.stderr
