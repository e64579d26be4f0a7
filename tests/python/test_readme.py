"""The examples of the README: the C example compiles without warnings, and all examples do what the
README says."""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("WHERRY_BUILD", ROOT / "build"))


def build_c_example(tmp_path: pathlib.Path) -> pathlib.Path:
    (source,) = re.findall(r"```c\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "example.c").write_text(source)
    library = BUILD / "src"
    subprocess.run(
        [
            *os.environ.get("CC", "cc").split(),
            "-std=c17",
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-I{ROOT / 'include'}",
            "example.c",
            "-o",
            "example",
            f"-L{library}",
            "-lwherry",
            f"-Wl,-rpath,{library}",
        ],
        cwd=tmp_path,
        check=True,
    )
    return tmp_path / "example"


def test_c_example(tmp_path: pathlib.Path) -> None:
    example = build_c_example(tmp_path)
    ranks = [
        subprocess.Popen(
            [example, f"unix://{tmp_path}/meet?rank={rank}&size=2"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0]
    assert outputs == ["", "dict of 1\n  w: float32[2, 3] cpu, storage #0\n"]


def test_c_example_alone(tmp_path: pathlib.Path) -> None:
    """A program that waits for another rank prints that after 3 s."""
    example = build_c_example(tmp_path)
    env = {name: value for name, value in os.environ.items() if name != "WHERRY_LOG"}
    with subprocess.Popen(
        [example, f"unix://{tmp_path}/meet?rank=1&size=2"],
        env=env,
        stderr=subprocess.PIPE,
        text=True,
    ) as alone:
        assert alone.stderr is not None
        told = alone.stderr.readline()
        alone.kill()
    assert told == f"wherry: info: waiting for rank 0 at unix:{tmp_path}/meet\n"


def test_python_example(tmp_path: pathlib.Path) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = source.splitlines()
    check = [
        "sum = model.weight.detach().double().sum().reshape(1)",
        "theirs = sum.clone()",
        "dist.broadcast(theirs, 0)",
        "assert torch.equal(sum, theirs)",
        "dist.destroy_process_group()",
    ]
    (tmp_path / "example.py").write_text("\n".join([*lines, *check]))
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "example.py",
    ]
    done = subprocess.run(launcher, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "received" in done.stdout, done.stdout
