"""examples/recover.py: ranks are killed inside an all-reduce, healed, and the weights are those of an undisturbed run."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "recover.py"


def recover(*arguments, script=EXAMPLE):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WHERRY_")}
    return subprocess.run([sys.executable, str(script), *arguments], env=kept, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize("kill, at, ranks", [
    ("2", "7", 4),
    ("0 3 0", "0 4 9", 4),  # rank 0 twice, and in the first step
    ("1 0", "11 11", 4),  # two at once, in the last step
    ("1 0", "3 8", 2),
])
def test_killed_ranks_are_healed(kill, at, ranks):
    done = recover("--ranks", str(ranks), "--kill", *kill.split(), "--at", *at.split())
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("OK: the weights are the same, bit for bit\n")
    before, after = done.stdout.split("The same, with")
    for rank in kill.split():
        assert f"rank {rank} was killed" in after and f"rank {rank} was killed" not in before
    for rank, step in zip(kill.split(), at.split()):
        assert re.search(rf"rank {rank}: healed by rank \d to step ({step}|{int(step) + 1}): [1-9]\d* kB over (cma|ring)", after), after
    assert done.stderr == ""


def test_a_state_that_is_not_healed_is_noticed(tmp_path):
    """The same program, but for the optimizer, which keeps what it had."""
    broken = tmp_path / "recover.py"
    text = EXAMPLE.read_text()
    assert text.count('self.optimizer.load_state_dict(received["optimizer"])') == 1
    broken.write_text(text.replace('self.optimizer.load_state_dict(received["optimizer"])', "pass"))
    done = recover("--ranks", "2", "--kill", "1", "--at", "5", script=broken)
    assert done.returncode == 1 and done.stdout.endswith("FAILED: the weights differ\n"), done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [["--kill", "4"], ["--at", "12"], ["--kill", "1", "2"], ["--ranks", "x"]])
def test_mistakes(arguments):
    done = recover(*arguments)
    assert done.returncode == 2 and "error:" in done.stderr
