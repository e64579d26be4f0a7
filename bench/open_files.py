#!/usr/bin/env python3
"""open_files.py BUILD_DIR [--repeats N] [--write]: compares `wherry inspect` of a sparse
safetensors file of 100 GiB with one of 100 MiB that has as many tensors: time and peak memory. Then
runs bench_formats, which measures the library alone. --write puts both into
bench/results/formats.md. Exits with 1 if the command takes more than 64 MiB of memory."""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True  # keep the source tree clean
import report  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = "/dev/shm"
SIZES = {"100 MiB": 100 << 20, "100 GiB": 100 << 30}
MEMORY_MAX = 64 << 20


def make_file(path, tensors, size):
    """Creates a file of zeros that takes no disk space. Numbers have a fixed width, so that all
    headers are equally long."""
    each = size // tensors
    entries = (
        f'"layers.{i}.weight": {{"dtype": "U8", "shape": [{each:12}], "data_offsets": [{i * each:12}, {(i + 1) * each:12}]}}'
        for i in range(tensors)
    )
    text = f"{{{', '.join(entries)}}}".encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + each * tensors)
    return path


def inspect(wherry, path):
    """Returns the seconds, and the peak memory in bytes."""
    begin = time.monotonic()
    child = subprocess.Popen([wherry, "inspect", path], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    took = time.monotonic() - begin
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"wherry inspect ended with {child.returncode}")
    return took, usage.ru_maxrss << 10


def measure(wherry, tensors, repeats):
    """Returns for each file the seconds and the peak memory."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as place:
        paths = {
            name: make_file(f"{place}/{size}.safetensors", tensors, size)
            for name, size in SIZES.items()
        }
        for path in paths.values():
            inspect(wherry, path)  # warm-up
        rounds = [
            {name: inspect(wherry, path) for name, path in paths.items()} for _ in range(repeats)
        ]
    return {
        name: ([one[name][0] for one in rounds], max(one[name][1] for one in rounds))
        for name in SIZES
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    lines = [
        "`bench/open_files.py build-release --write`. `wherry inspect`, the whole command, of sparse",
        f"safetensors files with equally long headers. Median of {arguments.repeats} (lowest); both take turns.",
        report.measured(f"{os.cpu_count()} cores"),
        "",
        "| tensors | 100 GiB | 100 MiB | ratio | peak memory |",
        "| --- | --- | --- | --- | --- |",
    ]
    most = 0
    for tensors in (1000, 20000):
        found = measure(arguments.build / "cli/wherry", tensors, arguments.repeats)
        (less, _), (more, memory) = found["100 MiB"], found["100 GiB"]
        most = max(most, memory)
        texts = [
            f"{statistics.median(one) * 1e3:.1f} ms ({min(one) * 1e3:.1f})" for one in (more, less)
        ]
        lines.append(
            f"| {tensors} | {texts[0]} | {texts[1]} | {statistics.median(more) / statistics.median(less):.2f} | {memory / 2**20:.1f} MiB |"
        )
    lines += ["", "The library alone, `build-release/bench/bench_formats /dev/shm`:", ""]
    lines += subprocess.run(
        [arguments.build / "bench/bench_formats", FOLDER, str(min(arguments.repeats, 9))],
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    ).stdout.splitlines()
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if arguments.write:
        (ROOT / "bench/results/formats.md").write_text("# Opening and writing files\n\n" + text)
    if most > MEMORY_MAX:
        print(f"{most / 2**20:.1f} MiB instead of at most 64 MiB", file=sys.stderr)
    return int(most > MEMORY_MAX)


if __name__ == "__main__":
    sys.exit(main())
