"""`wherry doctor` and `wherry bench`: they describe this machine, and say why a lane fails."""

import json
import os
import pathlib
import platform
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pytest
from command import ARGUMENT, FAILED, OK, ROOT, USAGE, WHERRY, environment, start, wait_for, wherry

sys.path.insert(0, str(ROOT / "tests" / "python"))

import launch

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
        wherry(
            "doctor", "--json", WHERRY_LANES="stream", WHERRY_SECRET="swordfish-swordfish"
        ).stdout
    )
    settings = findings(report, "settings")
    assert (
        settings["WHERRY_LANES"]["value"] == "stream"
        and settings["WHERRY_SECRET"]["value"] == "(set)"
    )
    assert report["lane"] == "stream"
    assert "swordfish-swordfish" not in json.dumps(report)


def test_settings_cannot_control_the_terminal():
    done = wherry("doctor", WHERRY_LANES="\x1b[31m")
    assert "\x1b" not in done.stdout and r"\x1b[31m" in done.stdout


def test_wrong_lanes():
    done = wherry("doctor", WHERRY_LANES="boat")
    assert done.returncode == FAILED
    assert 'WHERRY_LANES: "boat" is not a list of lanes' in done.stdout


def to_do(output):
    """The names of the things to do, in order."""
    lines = output.split("\nto do\n")[1].split("\n\n")[0].splitlines()
    return [re.match(r"  (.+?)  +\S", line)[1] for line in lines if re.match(r"  \S", line)]


def test_missing_interface():
    done = wherry("doctor", WHERRY_INTERFACE="none0")
    assert done.returncode == FAILED and to_do(done.stdout)[0] == "WHERRY_INTERFACE"
    # The report has the other sections, and prints each advice once.
    for section in ("machine", "permissions", "memory", "network", "libraries", "lanes"):
        assert re.search(rf"^{section}$", done.stdout, re.M), section
    assert done.stdout.count("set it to one of the interfaces above") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a network namespace")
def test_loopback_that_is_down():
    done = subprocess.run(
        ["unshare", "-n", WHERRY, "doctor"], env=environment(), capture_output=True, text=True
    )
    assert done.returncode == FAILED and done.stderr == "", done.stderr
    assert "processors" in done.stdout and "huge pages" in done.stdout
    assert to_do(done.stdout) == ["loopback"] and "ip link set lo up" in done.stdout
    assert "set WHERRY_INTERFACE" not in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount in a namespace")
@pytest.mark.parametrize(
    "files",
    [
        {"memory.max": "1073741824", "cpu.max": "150000 100000"},
        {
            "memory/memory.limit_in_bytes": "1073741824",
            "cpu/cpu.cfs_quota_us": "150000",
            "cpu/cpu.cfs_period_us": "100000",
        },
    ],
    ids=["cgroup v2", "cgroup v1"],
)
def test_limits_of_a_container(files, tmp_path):
    """A container sees the limits at /sys/fs/cgroup."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    script = f"mount --bind {tmp_path} /sys/fs/cgroup && exec {WHERRY} doctor --json"
    command = ["unshare", "-m", "sh", "-c", script]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    machine = findings(json.loads(done.stdout), "machine")
    assert machine["container memory"]["value"] == "1.00 GiB"
    assert machine["container CPUs"]["value"] == "1.5"
    command[-1] = script.replace("doctor --json", "demo --size 1G --ranks 2")
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert "but only 1.00 GiB are available" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount in a namespace")
@pytest.mark.parametrize(
    ("enabled", "value", "advice"),
    [
        ("always madvise [never]", "never", "echo madvise > "),
        ("[always] madvise never", "always", ""),
        (None, "none", "has no transparent huge pages"),
        ("/sys", "unknown: /sys is not mounted here", ""),
    ],
)
def test_huge_pages(enabled, value, advice, tmp_path):
    where = "/sys" if enabled == "/sys" else "/sys/kernel/mm/transparent_hugepage"
    if enabled and enabled != where:
        (tmp_path / "enabled").write_text(f"{enabled}\n")
    script = f"mount --bind {tmp_path} {where} && exec {WHERRY} doctor"
    command = ["unshare", "-m", "sh", "-c", f"{script} --json"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    told = findings(json.loads(done.stdout), "memory")["huge pages"]
    assert told["value"] == value and advice in told["advice"], told
    assert told["level"] == ("bad" if advice else "fact" if enabled == where else "good")


def test_locked_memory():
    limit = (64 << 10, resource.getrlimit(resource.RLIMIT_MEMLOCK)[1])
    done = subprocess.run(
        [WHERRY, "doctor", "--json"],
        env=environment(),
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, limit),
    )
    told = findings(json.loads(done.stdout), "memory")["locked memory"]
    assert told["value"] == "at most 64.0 KiB", told


def test_lanes_of_other_groups_and_machines():
    lanes = findings(json.loads(wherry("doctor", "--json").stdout), "lanes")
    assert "blocks" not in lanes
    if (
        "not found"
        in findings(json.loads(wherry("doctor", "--json").stdout), "libraries")["CUDA"]["value"]
    ):
        assert lanes["cuda_ipc"]["value"] == lanes["nccl"]["value"] == "not available: no CUDA"


def test_another_version_of_the_python_package(tmp_path):
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\necho 9.9.9\n")
    python.chmod(0o755)
    done = wherry("doctor", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == FAILED and "Python package" in to_do(done.stdout)
    assert "9.9.9" in done.stdout


def test_the_python_package_of_the_starter(tmp_path):
    """The script of the package names its interpreter, which may not be the first in PATH."""
    package, script = tmp_path / "wherry", tmp_path / "bin" / "wherry"
    (package / "_bin").mkdir(parents=True)
    script.parent.mkdir()
    shutil.copy(ROOT / "python" / "command.py", script)
    (package / "__init__.py").touch()
    (package / "_bin" / "wherry").symlink_to(WHERRY)
    version = wherry("--version").stdout.split()[1]
    for other, told in ((version, version), ("9.9.9", "9.9.9 for ")):
        metadata = tmp_path / "wherry.dist-info"
        metadata.mkdir(exist_ok=True)
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: wherry\nVersion: {other}\n"
        )
        done = subprocess.run(
            [sys.executable, script, "doctor", "--json"],
            env=environment(PYTHONPATH=tmp_path, PATH="/nowhere"),
            capture_output=True,
            text=True,
        )
        assert done.stdout, done.stderr
        found = findings(json.loads(done.stdout), "machine")["Python package"]
        assert found["value"].startswith(told), found
        assert "WHERRY_PYTHON" not in done.stdout


@pytest.fixture
def folder():
    """With a short name, since the path of a socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="w-", dir="/tmp") as name:
        yield pathlib.Path(name)


def killed_rank(folder, job, removes=frozenset()):
    """Kills a rank that waits for another one in a group of env:// on one host, after it has
    removed some files. Returns the files that it leaves."""
    launched = {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "WHERRY_JOB": job}
    before = set(folder.iterdir())
    waiting = start("bench", "--group", "env://", XDG_RUNTIME_DIR=folder, **launched)
    wait_for(lambda: len(set(folder.iterdir()) - before) >= 3)
    wait_for(lambda: not removes & set(folder.iterdir()))
    waiting.kill()
    waiting.communicate()
    left = set(folder.iterdir()) - before
    for one in folder.iterdir():
        os.utime(one, (0, 0))
    return left


def test_sockets_of_killed_processes(folder):
    def left_behind(*more):
        report = json.loads(wherry("doctor", "--json", *more, XDG_RUNTIME_DIR=folder).stdout)
        return findings(report, "machine").get("left behind", {"value": ""})["value"]

    killed_rank(folder, "one")
    name = next(one for one in folder.iterdir() if one.suffix == ".sock").name
    kept = [folder / "wherry-0-of-a-user.sock", folder / f"{name}.0.text", folder / "live"]
    for one in kept[:2]:
        one.write_text("not a socket")
    with socket.socket(socket.AF_UNIX) as live:
        kept[2] = folder / f"wherry-{os.getuid()}-0123456789abcdef.sock"
        live.bind(str(kept[2]))
        live.listen()
        os.utime(kept[2], (0, 0))
        assert left_behind().startswith(f"2 sockets of killed processes in {folder}")
        assert len(list(folder.iterdir())) == len(kept) + 3  # two sockets and a lock file
        assert left_behind("--clean").endswith("now removed")
        assert set(folder.iterdir()) == set(kept)
        left = killed_rank(folder, "one")
        killed_rank(folder, "two", left)  # It removes the files of the other job when it joins.
        assert len(list(folder.iterdir())) == len(kept) + 3
        assert left_behind("--clean") and set(folder.iterdir()) == set(kept)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to run a rank as another user")
def test_why_not_a_better_lane():
    """A receiver of another user may not read the source's memory: reason, advice, next lane."""

    def run(command, *more):
        address = f"tcp://127.0.0.1:{launch.free_port()}?size=2&rank="
        ranks = [
            subprocess.Popen(
                [WHERRY, command, *more, "--group", address + str(rank)],
                env=environment(WHERRY_SECRET="of two users, long enough"),
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
    begin = time.monotonic()
    done = wherry("bench")
    assert time.monotonic() - begin < 40
    assert done.returncode == OK and done.stderr == ""
    assert re.search(r"^  memcpy, 2 threads +[\d.]+ [GM]B/s", done.stdout, re.M)
    assert re.search(
        r"^  stream, TCP +[\d.]+ [GM]B/s \(.*\) +(\d\d?%|at the limit) of TCP", done.stdout, re.M
    )
    assert done.stdout.count("would be used") == 1
    assert {"cma", "ring", "stream"} <= set(re.findall(r"^  (\w+) ", done.stdout, re.M))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a slow network")
def test_bench_of_a_slow_network():
    """Below 1 GB/s the unit is MB/s, also of the limits. This lane is at 0.10 GB/s."""
    network = (
        "ip link set lo up && tc qdisc add dev lo root tbf rate 800mbit burst 256kb latency 1s"
    )
    bench = f"exec {WHERRY} bench --size 4M --repeats 3"
    done = subprocess.run(
        ["unshare", "-n", "sh", "-c", f"{network} && {bench}"],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert re.search(r"^  stream, TCP +\d\d\d?\.\d MB/s \(\d+\.\d-\d+\.\d\) ", done.stdout, re.M), (
        done
    )
    assert re.search(r"^  TCP over loopback.* \d+(\.\d)? MB/s$", done.stdout, re.M), done.stdout


def test_bench_explains_its_figures():
    """No lane is above 100% of its limit, and no faster lane is without a note."""
    for _ in range(4):
        output = wherry("bench", *QUICK).stdout
        assert not re.search(r"\d{3}% of", output)
        above = "at the limit of" in output
        assert above == ("a lane can come out above its limit" in output)
        rates = {
            name: float(rate) * (1 if unit == "G" else 1e-3)
            for name, rate, unit in re.findall(
                r"^  ([a-z_]+(?:, TCP)?) +([\d.]+) ([GM])B/s", output, re.M
            )
        }
        used = re.search(r"^  (\w+) .*<- would be used", output, re.M)[1]
        fastest = max(rates, key=lambda name: rates[name])
        if rates[fastest] > rates[used]:
            assert f"{fastest} was faster here, but {used} is tried first" in output


def test_bench_of_a_busy_machine():
    """Only other processes count, not the bench itself. The load of the last minute would not show
    them."""
    loop = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(loop) for _ in range(os.cpu_count())]
    try:
        text = wherry("bench", *QUICK).stdout
        report = json.loads(wherry("bench", *QUICK, "--json").stdout)
    finally:
        for one in others:
            one.kill()
            one.wait()
    assert re.search(r"This machine was busy \(others used \d+\.\d of \d+ processors\)", text), text
    assert 0.5 <= report["busy_processors"] <= os.cpu_count() + 0.1


def test_bench_json():
    report = json.loads(wherry("bench", *QUICK, "--json").stdout)
    assert report["bytes"] == 4 << 20
    lanes = {lane["name"]: lane for lane in report["lanes"]}
    assert len(lanes["stream"]["seconds"]) == 2 and lanes["stream"]["bytes_per_second"] > 0
    # These lanes are not for host memory and sockets.
    assert not {"blocks", "cuda_ipc", "nccl"} & set(lanes)
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
    if command == "doctor":
        told = findings(report, "group")["meeting point"]["value"]
        assert re.fullmatch(
            r"rank 1 reaches it in \d+\.\d ms; all had joined after \d+\.\d\d s", told
        )
    assert (
        report["lane"]
        if command == "doctor"
        else [lane["name"] for lane in report["lanes"] if lane["used"]][0]
    ) in ("cma", "ring")


def test_a_group_that_cannot_be_joined():
    """The report has the other sections, and says whether the meeting point can be reached."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        for address, code, told in (
            ("boat://x", ARGUMENT, None),
            ("tcp://127.0.0.1:{port}?rank=3&size=2", ARGUMENT, r"can be reached, in \d+\.\d ms"),
            ("tcp://127.0.0.1:1?rank=3&size=2", ARGUMENT, "cannot be reached: Connection refused"),
        ):
            address = address.format(port=other.getsockname()[1])
            done = wherry("doctor", "--json", "--group", address)
            report = json.loads(done.stdout)
            assert done.returncode == code and "cannot try the lanes: " in done.stderr
            areas = {"machine", "permissions", "memory", "network", "libraries", "security"}
            assert areas < {one["area"] for one in report["findings"]}
            assert findings(report, "lanes")["all lanes"]["level"] == "bad"
            found = findings(report, "group")
            assert re.fullmatch(told, found["meeting point"]["value"]) if told else not found


@pytest.mark.parametrize(
    ("address", "secret", "told"),
    [
        ("tcp://127.0.0.1:{port}?size=2&shortcut=0", "swordfish-swordfish", "encrypted: TLSv1.3"),
        ("unix://{folder}/meet?size=2", "", "does not leave this host"),
    ],
)
def test_encryption_between_ranks(address, secret, told, folder):
    port = launch.free_port()
    ranks = [
        start(
            "doctor",
            "--json",
            "--group",
            f"{address.format(port=port, folder=folder)}&rank={rank}",
            **({"WHERRY_SECRET": secret} if secret else {}),
        )
        for rank in range(2)
    ]
    (output, errors), _ = [rank.communicate(timeout=60) for rank in ranks]
    assert told in findings(json.loads(output), "group")["messages"]["value"], errors


def test_protection_between_hosts(tmp_path):
    """What the settings of the environment mean for groups of several hosts."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        + ["-nodes", "-days", "5", "-subj", "/CN=x", "-addext", "subjectAltName=IP:127.0.0.1"]
        + ["-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    signed = {"WHERRY_TLS_CERT": certificate, "WHERRY_TLS_KEY": key, "WHERRY_TLS_CA": certificate}
    for settings, told in (
        ({}, "no secret and no certificate"),
        ({"WHERRY_SECRET": "0123456789abcdef"}, "TLSv1.3, by a secret; data is not encrypted"),
        ({"WHERRY_SECRET": "0123456789abcdef", "WHERRY_ENCRYPT": "all"}, "is encrypted, too"),
        (signed, "TLSv1.3, by certificates"),
        ({"WHERRY_SECRET": "short"}, "cannot be used"),
    ):
        done = wherry("doctor", "--json", **{name: str(value) for name, value in settings.items()})
        found = findings(json.loads(done.stdout), "security")
        assert told in found["between hosts"]["value"], done.stdout
        if settings is signed:
            assert json.loads(done.stdout)["lane"], "two processes of this host can use it"
            assert "more days" in found["certificate"]["value"]
            assert "renew it" in found["certificate"]["advice"]
        if "short" in settings.values():
            assert "openssl rand -hex 32" in found["between hosts"]["advice"]


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
