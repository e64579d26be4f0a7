"""The C example of the README compiles without warnings against the build, and prints what it should."""

import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("WHERRY_BUILD", ROOT / "build"))


def test_example(tmp_path: pathlib.Path) -> None:
    (source,) = re.findall(r"```c\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "example.c").write_text(source)
    library = BUILD / "src"
    subprocess.run(
        [
            *os.environ.get("CC", "cc").split(), "-std=c17", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}", "example.c",
            "-o", "example", f"-L{library}", "-lwherry", f"-Wl,-rpath,{library}",
        ],
        cwd=tmp_path,
        check=True,
    )
    ranks = [
        subprocess.Popen(
            [tmp_path / "example", f"unix://{tmp_path}/meet?rank={rank}&size=2"], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0]
    assert outputs == ["", "dict of 1\n  w: float32[2, 3] cpu, storage #0\n"]
