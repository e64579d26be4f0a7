"""examples/recover.py: ranks are killed inside an all-reduce and healed; the weights are right."""

import functools
import importlib.util
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

import launch
import pytest
import torch
import torch.distributed as dist
import wherry
from wherry.torch import PGTransport

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "recover.py"


def recover(*arguments, script=EXAMPLE):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WHERRY_")}
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        env=kept,
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.parametrize(
    "kill, at, ranks",
    [
        ("2", "7", 4),
        ("0 3 0", "0 4 9", 4),  # Rank 0 is killed twice, the first time in the first step.
        ("1 0", "11 11", 4),  # Two ranks are killed at once, in the last step.
        ("1 0", "3 8", 2),
    ],
)
def test_killed_ranks_are_healed(kill, at, ranks):
    done = recover("--ranks", str(ranks), "--kill", *kill.split(), "--at", *at.split())
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("OK: the weights are equal, bit for bit\n")
    before, after = done.stdout.split("The same training, with")
    for rank in kill.split():
        assert f"rank {rank} was killed" in after and f"rank {rank} was killed" not in before
    # Each line counts the steps that are complete.
    plan = re.search(r"The same training, with (.+)", done.stdout)[1]
    for rank, step in zip(kill.split(), at.split()):
        assert f"rank {rank} killed in the all-reduce after {step} steps" in plan
        # A survivor may have completed the all-reduce before it noticed the death.
        assert re.search(rf"lost the group after ({step}|{int(step) + 1}) steps: ", after), after
        assert re.search(
            rf"rank {rank}: healed by rank \d to step ({step}|{int(step) + 1}): [1-9]\d* kB over (cma|ring)",
            after,
        ), after
    assert done.stderr == ""


def test_a_state_that_is_not_healed_is_noticed(tmp_path):
    """The example without the line that loads the optimizer: the weights then differ."""
    broken = tmp_path / "recover.py"
    text = EXAMPLE.read_text()
    assert text.count('self.optimizer.load_state_dict(received["optimizer"])') == 1
    broken.write_text(text.replace('self.optimizer.load_state_dict(received["optimizer"])', "pass"))
    done = recover("--ranks", "2", "--kill", "1", "--at", "5", script=broken)
    assert done.returncode == 1 and done.stdout.endswith("FAILED: the weights differ\n"), (
        done.stdout + done.stderr
    )


def worker_of_the_example(steps):
    """The example's module, and its Worker with a model large enough to interrupt its transfer."""
    spec = importlib.util.spec_from_file_location("recover", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False)
    worker = module.Worker(launch.rank(), len(steps), store, 12, [])
    worker.step = steps[worker.rank]
    worker.model = torch.nn.Linear(1 << 13, 1 << 13)
    torch.nn.init.constant_(worker.model.weight, worker.step)
    worker.optimizer = torch.optim.SGD(worker.model.parameters())
    return module, worker


def first_life_body(steps):
    """Rank 0 is killed while it heals rank 1. Returns the step of rank 1 before and after."""
    module, worker = worker_of_the_example(steps)
    launch.say(f"process {worker.rank}", os.getpid())
    worker.form_group()
    if worker.rank == 0:
        os.nice(19)  # Run slowly, so that the kill comes in time on a busy machine.
    if worker.rank == 1:
        sample, source = worker.model.weight.detach()[::256, 0], launch.wait_for("process 0")

        def kill_the_source():
            while sample.eq(steps[1]).all():  # Nothing has arrived yet.
                time.sleep(0.0002)
            os.kill(source, signal.SIGKILL)

        module.PGTransport = functools.partial(PGTransport, lanes="stream", threads=1)
        threading.Thread(target=kill_the_source, daemon=True).start()
        with pytest.raises(wherry.errors.PeerLost) as caught:
            worker.heal()
        assert caught.value.report["partial"] == ["model.weight"]
        assert (
            not worker.model.weight.eq(steps[1]).all()
            and not worker.model.weight.eq(steps[0]).all()
        )
        module.PGTransport = PGTransport
    else:
        worker.heal()
    launch.say(f"ready {worker.rank}")
    return second_round(worker)


def second_life_body(steps):
    _, worker = worker_of_the_example(steps)
    return second_round(worker)


def second_round(worker):
    before = worker.step
    try:
        worker.form_group()
        worker.heal()
    except SystemExit as error:
        return [before, str(error)]
    assert worker.model.weight.eq(worker.step).all()
    return [before, worker.step]


@pytest.mark.parametrize("steps", [[8, 7], [8, 7, 8]])
def test_a_rank_that_was_only_partly_healed_heals_no_other(steps):
    """The source dies in the middle, so the healed rank has a mixed state and no valid step."""
    with launch.job(len(steps)) as job:
        job.store.set("generation", "0")
        job.start_all(first_life_body, steps)
        for rank in range(1, len(steps)):
            job.wait_for_file(f"ready {rank}")
        job.store.set("generation", "1")
        job.start(0, second_life_body, [-1, *steps[1:]])
        results = job.finish(60)
    if len(steps) == 2:
        assert [before for before, _ in results] == [-1, -2]
        assert all("no rank has a complete state" in after for _, after in results)
    else:
        assert results == [[-1, 8], [-2, 8], [8, 8]]


def test_without_a_complete_state_it_ends_with_a_message(tmp_path):
    broken = tmp_path / "recover.py"
    text = EXAMPLE.read_text()
    assert text.count("self.step = NEW\n") == 1
    broken.write_text(text.replace("self.step = NEW\n", "self.step = DAMAGED if rank else NEW\n"))
    done = recover("--ranks", "2", "--kill", "1", "--at", "5", script=broken)
    assert done.returncode == 1 and "OK" not in done.stdout
    assert "no rank has a complete state" in done.stderr and "FAILED: a rank failed" in done.stderr


@pytest.mark.parametrize(
    "arguments", [["--kill", "4"], ["--at", "12"], ["--kill", "1", "2"], ["--ranks", "x"]]
)
def test_mistakes(arguments):
    done = recover(*arguments)
    assert done.returncode == 2 and "error:" in done.stderr
