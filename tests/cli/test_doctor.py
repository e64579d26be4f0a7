"""`wherry doctor` and `wherry bench`: they describe this machine, and say why a lane fails."""

import json
import os
import pathlib
import platform
import re
import signal
import socket
import subprocess

import pytest
from command import FAILED, OK, USAGE, WHERRY, environment, start, wherry

QUICK = ["--size", "4M", "--repeats", "2"]


def findings(report, area):
    return {one["name"]: one for one in report["findings"] if one["area"] == area}


def test_doctor_json():
    done = wherry("doctor", "--json")
    report = json.loads(done.stdout)
    bad = [one for one in report["findings"] if one["level"] == "bad"]
    assert done.returncode == (FAILED if bad else OK) and done.stderr == ""
    assert all(one["advice"] for one in bad)
    assert platform.release() in findings(report, "machine")["kernel"]["value"]
    scope = pathlib.Path("/proc/sys/kernel/yama/ptrace_scope")
    told = findings(report, "permissions")["Yama"]["value"]
    assert told.startswith(
        f"ptrace_scope {scope.read_text().strip()}" if scope.exists() else "not present"
    )
    assert any("127.0.0.1" in one["value"] for one in report["findings"] if one["name"] == "lo")
    assert {"UCX", "CUDA", "NCCL"} == set(findings(report, "libraries"))
    lanes = findings(report, "lanes")
    assert {"cma", "ring", "stream"} <= set(lanes)
    assert lanes["stream"]["value"].startswith("works")
    assert lanes[report["lane"]]["value"] == "works; would be used"


def test_doctor_text():
    done = wherry("doctor")
    assert re.search(r"^permissions$", done.stdout, re.M) and re.search(
        r"^ +cma +\S", done.stdout, re.M
    )
    assert re.search(
        r"^checkpoints would use the \w+ lane; \d+ problems?$", done.stdout.splitlines()[-1]
    )
    quiet = wherry("doctor", "-q")
    assert quiet.stdout.count("\n") < done.stdout.count("\n")
    assert "the lane" in wherry("doctor", "-v").stderr


def test_settings_are_shown_but_not_secrets():
    report = json.loads(
        wherry("doctor", "--json", WHERRY_LANES="stream", WHERRY_SECRET="swordfish").stdout
    )
    settings = findings(report, "settings")
    assert (
        settings["WHERRY_LANES"]["value"] == "stream"
        and settings["WHERRY_SECRET"]["value"] == "(set)"
    )
    assert report["lane"] == "stream"
    assert "swordfish" not in json.dumps(report)


def test_missing_interface():
    done = wherry("doctor", WHERRY_INTERFACE="none0")
    assert done.returncode != OK


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to run a rank as another user")
def test_why_not_a_better_lane():
    """A receiver of another user may not read the source's memory: reason, advice, next lane."""

    def run(command, *more):
        address = f"tcp://127.0.0.1:{free_port()}?size=2&rank="
        ranks = [
            subprocess.Popen(
                [WHERRY, command, *more, "--group", address + str(rank)],
                env=environment(),
                user=user,
                group=user,
                extra_groups=[],
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank, user in ((0, 0), (1, 65534))
        ]
        outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
        return ranks[0].returncode, outputs[0]

    code, output = run("doctor", "--json")
    report = json.loads(output)
    assert code == FAILED and report["lane"] in ("ring", "stream")
    refused = findings(report, "lanes")["cma"]
    assert refused["level"] == "bad" and refused["value"] == "does not work"
    assert (
        "runs as user 0 and this process as user 65534: run both as one user" in refused["advice"]
    )
    code, output = run("bench", *QUICK)
    assert code == OK and re.search(r"^  cma +failed: .*not permitted", output, re.M), output
    assert re.search(r"^  (ring|stream) .*<- would be used", output, re.M)


def test_bench():
    done = wherry("bench", *QUICK)
    assert done.returncode == OK and done.stderr == ""
    assert re.search(r"^  memcpy, 2 threads +\d+\.\d\d GB/s", done.stdout, re.M)
    assert re.search(r"^  stream, TCP +\d+\.\d\d GB/s \(.*\) +\d+% of TCP", done.stdout, re.M)
    assert done.stdout.count("would be used") == 1
    assert {"cma", "ring", "stream"} <= set(re.findall(r"^  (\w+) ", done.stdout, re.M))


def test_bench_json():
    report = json.loads(wherry("bench", *QUICK, "--json").stdout)
    assert report["bytes"] == 4 << 20
    lanes = {lane["name"]: lane for lane in report["lanes"]}
    assert len(lanes["stream"]["seconds"]) == 2 and lanes["stream"]["bytes_per_second"] > 0
    assert (
        lanes["blocks"]["status"] == "WHERRY_UNSUPPORTED" and "blocks" in lanes["blocks"]["reason"]
    )
    assert report["limits"]["memcpy, 2 threads"] > 0


@pytest.mark.parametrize("command", ["doctor", "bench"])
def test_in_a_group(command, tmp_path):
    more = QUICK if command == "bench" else []
    ranks = [
        start(command, "--json", "--group", f"unix://{tmp_path}/meet?rank={rank}&size=3", *more)
        for rank in range(3)
    ]
    outputs = [rank.communicate(timeout=60) for rank in ranks]
    assert [rank.returncode for rank in ranks[1:]] == [OK, OK], outputs
    assert [output[0] for output in outputs[1:]] == ["", ""]
    report = json.loads(outputs[0][0])
    assert (
        report["lane"]
        if command == "doctor"
        else [lane["name"] for lane in report["lanes"] if lane["used"]][0]
    ) in ("cma", "ring")


def test_a_signal_ends_it(tmp_path):
    waiting = start("bench", "--group", f"unix://{tmp_path}/meet?rank=0&size=2")
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(0.5)
    waiting.send_signal(signal.SIGINT)
    assert waiting.wait(5) == 128 + signal.SIGINT


@pytest.mark.parametrize(
    "arguments, code, told",
    [
        (["doctor", "--group", "boat://x"], 3, "boat"),
        (["doctor", "extra"], USAGE, "unexpected argument 'extra'"),
        (["bench", "--size", "1K"], USAGE, "--size takes a size from 1M to 1T"),
        (["bench", "--repeats", "0"], USAGE, "--repeats takes a number from 1 to 32"),
        (["bench", "--group", ""], USAGE, "--group needs a value: ADDRESS"),
    ],
)
def test_mistakes(arguments, code, told):
    done = wherry(*arguments)
    assert done.returncode == code and told in done.stderr
