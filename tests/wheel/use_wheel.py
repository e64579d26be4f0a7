"""use_wheel.py WHEEL: installs the wheel into a new virtual environment and uses what is in it.
scripts/check-wheel.py runs this where there is nothing to build with."""

import ctypes
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
VENV = HERE / "venv"
PYTHON = VENV / "bin" / "python"
SITE = VENV / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
UCX = "/packages/libucx/lib/libucp.so.0"
# After the example, its ranks compare their models.
COMPARE = """
mine = model.weight.detach().clone()
dist.broadcast(mine, 0)
assert torch.equal(mine, model.weight.detach()), "the models differ"
open(f"equal-{dist.get_rank()}", "w").close()
dist.destroy_process_group()
"""


def run(*command, timeout=120, **more):
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        env={**os.environ, **more},
    )
    if done.returncode != 0:
        raise AssertionError(
            f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout}"
        )
    return done.stdout


def nothing_to_build_with():
    for name in ("cc", "gcc", "clang", "ld", "pkg-config", "make", "sh"):
        assert not shutil.which(name, path="/usr/bin:/bin:/usr/local/bin"), f"there is a {name}"
    for name in ("libxxhash.so.0", "libjansson.so.4"):
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        raise AssertionError(f"there is a {name}")
    if os.getuid() == 0:  # This is root in a user namespace, and another user outside of it.
        assert pathlib.Path("/proc/self/uid_map").read_text().split()[1] != "0"


def environment_with_torch():
    run(sys.executable, "-m", "venv", VENV)
    (SITE / "packages.pth").write_text("/packages\n")
    run(PYTHON, "-c", "import torch")


def install_and_run_the_example(wheel):
    readme = (HERE / "README.md").read_text()
    example = re.search(r"^```python\n(.*?)^```", readme, re.M | re.S)[1]
    pathlib.Path("example.py").write_text(example + COMPARE)
    begin = time.monotonic()
    run(PYTHON, "-m", "pip", "install", "--no-index", wheel)
    torchrun = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    printed = run(*torchrun, "example.py")
    seconds = time.monotonic() - begin
    assert "received" in printed, printed
    assert pathlib.Path("equal-0").exists() and pathlib.Path("equal-1").exists()
    print(f"# from pip install to the end of the example: {seconds:.1f} s", flush=True)
    assert seconds < 30, seconds


def imports():
    """The processor's time, so that other programs do not count. An import never waits."""
    for before, module, most in (("", "wherry", 60), ("import torch", "wherry.torch", 150)):
        code = f"import time\n{before}\nwall, cpu = time.perf_counter(), time.process_time()\n"
        code += f"import {module}\n"
        code += "print(time.process_time() - cpu, time.perf_counter() - wall)"
        runs = [list(map(float, run(PYTHON, "-c", code).split())) for _ in range(6)][1:]
        cpu, wall = (1000 * min(times) for times in zip(*runs))
        after = f" after {before}" if before else ""
        print(f"# import {module}{after}: {cpu:.0f} ms, {wall:.0f} ms elapsed", flush=True)
        assert cpu < most, f"import {module}: {cpu:.0f} ms; at most {most} are allowed"
    assert run(PYTHON, "-c", "import sys, wherry; print('torch' in sys.modules)") == "False\n"


def contents(wheel):
    assert (SITE / "wherry/py.typed").exists() and (SITE / "wherry/_core.pyi").exists()
    (metadata,) = SITE.glob("wherry-*.dist-info")
    bundled = (metadata / "licenses/BUNDLED.txt").read_text()
    for license in re.findall(r": (\S+\.txt)$", bundled, re.M):
        assert (metadata / "licenses" / license).stat().st_size > 0
    version, parts = re.search(r"OpenSSL (\S+) \((.*?)\)", bundled).groups()
    files = [
        p for folder in ("wherry", "wherry.libs") for p in (SITE / folder).rglob("*") if p.is_file()
    ]
    assert "libcrypto" in parts
    for part, text in (("libcrypto", f"OpenSSL {version}"), ("libssl", "/ssl_lib.c")):
        inside = [p.name for p in files if text.encode() in p.read_bytes()]
        once = [part] if part in parts else []
        assert [name.partition("-")[0] for name in inside] == once, f"{part} is in {inside}"
    stated = (metadata / "METADATA").read_text()
    links = re.findall(r"\]\(([^)]+)\)", stated)
    assert links and all(link.startswith(("https://", "#")) for link in links), links


def demo():
    output = run("wherry", "demo", "--size", "64M")
    assert "\nOK: " in output, output


def demo_over_ucx():
    output = run(
        "wherry", "demo", "--size", "64M", "--lane", "ucx", WHERRY_UCX_LIBRARY=UCX, UCX_TLS="tcp"
    )
    assert "\nOK: " in output and " over ucx" in output, output


def serve_and_fetch():
    content = bytes(range(256)) * 4096
    header = b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (
        len(content),
        len(content),
    )
    pathlib.Path("model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + content)
    server = subprocess.Popen(
        ["wherry", "serve", "model.safetensors", "--token-file", "token", "--count", "1"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        for line in server.stdout:
            if "address" in line:
                run(
                    "wherry",
                    "fetch",
                    line.split()[1],
                    "--token-file",
                    "token",
                    "-o",
                    "copy.safetensors",
                    "-q",
                )
                break
        assert server.wait(timeout=60) == 0
    finally:
        server.kill()
    run("wherry", "diff", "model.safetensors", "copy.safetensors")
    assert content in pathlib.Path("copy.safetensors").read_bytes()


def main(wheel):
    checks = [
        nothing_to_build_with,
        environment_with_torch,
        lambda: install_and_run_the_example(wheel),
        imports,
        lambda: contents(wheel),
        demo,
        demo_over_ucx,
        serve_and_fetch,
    ]
    names = "nothing-to-build-with environment install-and-example imports contents "
    names += "demo demo-over-ucx serve-and-fetch"
    for name, check in zip(names.split(), checks, strict=True):
        begin = time.monotonic()
        try:
            check()
            print(f"ok {name} ({time.monotonic() - begin:.1f} s)", flush=True)
        except Exception as error:
            print(f"FAIL {name}: {type(error).__name__}: {error}", flush=True)
    return 0  # The failures were printed already.


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
