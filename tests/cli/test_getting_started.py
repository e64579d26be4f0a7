"""Runs every example of docs/getting-started.md: shell, C and Python."""

import os
import re
import subprocess
import sys

import pytest
from checkpoints import write_safetensors
from command import BUILD, ROOT, environment

PAGE = (ROOT / "docs/getting-started.md").read_text()


def examples(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)


def test_the_command(tmp_path):
    """Runs the console examples in one folder; ... in an output stands for anything."""
    write_safetensors(
        tmp_path / "model.safetensors",
        {f"layers.{i}.weight": ("F32", [2, 3], bytes(24)) for i in range(2)},
    )
    assert len(examples("console")) == 2
    for example in examples("console"):
        script, expected = [], []
        for line in example.splitlines():
            (script if line.startswith("$ ") else expected).append(line.removeprefix("$ "))
        done = subprocess.run(
            ["bash", "-ec", "\n".join([*script, "wait"])],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            env={**environment(), "PATH": f"{BUILD}/cli:{os.environ['PATH']}"},
        )
        assert done.returncode == 0, done.stderr
        pattern = "\\.\\.\\.".join(map(re.escape, "\n".join(expected).split("..."))).replace(
            "\\.\\.\\.", ".*"
        )
        assert re.fullmatch(pattern, done.stdout.rstrip("\n")), done.stdout


def run_ranks(tmp_path, *command):
    ranks = [
        subprocess.Popen(
            [*command, f"unix://{tmp_path}/meet?rank={rank}&size=2"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=environment(),
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    return outputs


def test_c(tmp_path):
    (source,) = examples("c")
    (tmp_path / "start.c").write_text(source)
    subprocess.run(
        [
            *os.environ.get("CC", "cc").split(),
            "-std=c17",
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-I{ROOT}/include",
            "start.c",
            "-o",
            "start",
            f"-L{BUILD}/src",
            "-lwherry",
            f"-Wl,-rpath,{BUILD}/src",
        ],
        cwd=tmp_path,
        check=True,
    )
    assert run_ranks(tmp_path, tmp_path / "start") == ["", "the last weight is 42\n"]


def test_python(tmp_path):
    pytest.importorskip("wherry")
    (source,) = examples("python")
    (tmp_path / "start.py").write_text(source)
    assert run_ranks(tmp_path, sys.executable, "start.py") == [
        "",
        "the last weight is 42.0 at step 7\n",
    ]


def test_the_guide_names_the_tested_lane():
    (block,) = re.findall(
        r"^```c\n(.*?)^```", (ROOT / "docs/writing-a-lane.md").read_text(), re.M | re.S
    )
    assert block == (ROOT / "tests/conformance/lane_peek.c").read_text()


def test_every_document_is_reached_and_every_link_leads_somewhere():
    documents = {path.name for path in (ROOT / "docs").glob("*.md")}
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
            assert "bench/results/" in link or (path.parent / link).exists(), f"{path.name}: {link}"
    readme = (ROOT / "README.md").read_text()
    assert documents - {name for name in documents if f"docs/{name}" in readme} <= {"reference.md"}
