#!/usr/bin/env python3
"""check-wheel.py WHEEL SDIST: builds the source distribution; installs the wheel into a fresh
virtual environment and uses it as the README says (tests/wheel/use_wheel.py). That happens in a
root folder of its own, without root's rights, that has Python, PyTorch from this environment, UCX
and the libraries that any Linux has, but no compiler, no pkg-config, no shell and
nothing of this tree. Needs root, or a kernel that lets users create namespaces. Ends with "N
passed, N failed, N skipped"."""

import importlib.metadata
import itertools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIZE_LIMIT = 4_000_000
# What a wheel for manylinux may expect of any system.
SYSTEM_LIBRARIES = "libc libm libdl libpthread librt libutil libresolv libgcc_s libstdc++ libz"
NOBODY = 65534


def needed_libraries(files):
    """The libraries of the system that these files need, and those that any Linux has."""
    found = set()
    known = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    for name in SYSTEM_LIBRARIES.split():
        match = re.search(rf"^\s*{re.escape(name)}\.so\.\d+ \(.*x86-64.*\) => (\S+)$", known, re.M)
        found.update([match[1]] if match else [])
    listed = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True).stdout
    found.update(re.findall(r"(?:=> |^\s+)(/\S+) \(0x", listed, re.M))
    return sorted(found)


def python_parts():
    """The folders and files of this Python, without packages, and the files that need libraries."""
    program = pathlib.Path(sys._base_executable).resolve()
    ask = "import sys, sysconfig; print(sys.prefix, sysconfig.get_path('stdlib'))"
    told = subprocess.run([program, "-c", ask], capture_output=True, text=True, check=True)
    prefix, stdlib = map(pathlib.Path, told.stdout.split())
    parts = [prefix]
    if str(prefix) == "/usr":  # everything else is there, too
        parts = [p for p in (program, stdlib, prefix / "share/python-wheels") if p.exists()]
    return program, parts, [program, *stdlib.glob("lib-dynload/*.so")]


def package_files(*names):
    """The top folders and files of installed packages and of all that they require."""
    seen, found, waiting = set(), set(), list(names)
    while waiting:
        name = re.match(r"[\w.-]+", waiting.pop())[0]
        try:
            package = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # required on another system
        if package.name not in seen:
            seen.add(package.name)
            waiting += [line for line in package.requires or [] if "extra ==" not in line]
            tops = {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}
            found |= {package.locate_file(top) for top in tops}
    return sorted(found)


def bind(source, target, read_only=True):
    """Shows a file or a folder of the system inside. Nothing there can change it."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        pathlib.Path(target).touch()
    subprocess.run(["mount", "--bind" if read_only else "--rbind", source, target], check=True)
    if read_only:
        subprocess.run(["mount", "-o", "remount,bind,ro", target], check=True)


def fill(root, wheel):
    program, parts, elf_files = python_parts()
    for part in parts:
        bind(part, f"{root}{part}")
    for library in needed_libraries(elf_files):
        if not os.path.exists(f"{root}{library}"):  # a part of Python has it
            os.makedirs(f"{root}{os.path.dirname(library)}", exist_ok=True)
            shutil.copy(library, f"{root}{library}")
    for package in package_files("torch", "numpy", "libucx-cu12"):
        bind(package, f"{root}/packages/{pathlib.Path(package).name}")
    for folder in ("dev", "proc", "sys"):
        bind(f"/{folder}", f"{root}/{folder}", read_only=False)
    for name in ("passwd", "group", "hosts", "nsswitch.conf"):
        os.makedirs(f"{root}/etc", exist_ok=True)
        shutil.copy(f"/etc/{name}", f"{root}/etc/{name}")
    for folder in ("tmp", "home"):
        os.mkdir(f"{root}/{folder}")
        os.chmod(f"{root}/{folder}", 0o1777)
    for file in (wheel, ROOT / "README.md", ROOT / "tests/wheel/use_wheel.py"):
        shutil.copy(file, f"{root}/home/{pathlib.Path(file).name}")
    return program


def run_inside(wheel, root):
    """In namespaces of its own: fills the root, enters it and gives up the rights.

    Everything below the root ends with the namespace. Nothing may delete it: folders of the system
    are in it.
    """
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", root], check=True)
    program = fill(root, wheel)
    os.chroot(root)
    os.chdir("/home")
    if os.environ.get("WHERRY_CHECK_AS_ROOT") is None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    os.execve(
        program,
        [program, "-B", "use_wheel.py", os.path.basename(wheel)],
        {"PATH": "/home/venv/bin", "HOME": "/home", "LANG": "C.UTF-8"},
    )


def check_size(wheel):
    size = os.path.getsize(wheel)
    if size >= SIZE_LIMIT:
        yield f"FAIL size: {wheel} has {size} bytes, not less than {SIZE_LIMIT}"
    else:
        yield f"ok size ({size} bytes)"


def check_source(sdist):
    """Builds a wheel from the source distribution, without optimization."""
    settings = [
        f"--config-settings=setup-args={each}" for each in ("-Dbuildtype=plain", "-Db_lto=false")
    ]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps"]
        command += ["--no-build-isolation", *settings, "--wheel-dir", folder, sdist]
        path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PATH": path},
        )
        built = list(pathlib.Path(folder).glob("*.whl"))
    yield "ok source" if done.returncode == 0 and built else f"FAIL source: {sdist}\n{done.stdout}"


def check_use(wheel):
    command = ["unshare", "--mount", "--fork", "--kill-child"]
    if os.getuid() != 0:
        command += ["--user", "--map-root-user"]
        os.environ["WHERRY_CHECK_AS_ROOT"] = "1"  # of a namespace, which is nobody outside
    if subprocess.run([*command, "true"], capture_output=True).returncode != 0:
        yield "skip use: needs root, or a kernel that lets users create namespaces"
        return
    root = tempfile.mkdtemp()
    command += [sys.executable, __file__, "--inside", wheel, root]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as inside:
        yield from map(str.rstrip, inside.stdout)
    os.rmdir(root)  # The folder is empty here, outside of the namespace.
    if inside.returncode != 0:
        yield f"FAIL use: exit status {inside.returncode}"


def main(wheel, sdist):
    counts = {"ok": 0, "FAIL": 0, "skip": 0}
    for line in itertools.chain(check_size(wheel), check_source(sdist), check_use(wheel)):
        print(line, flush=True)
        kind = line.partition(" ")[0]
        counts[kind] = counts.get(kind, 0) + 1
    print(f"{counts['ok']} passed, {counts['FAIL']} failed, {counts['skip']} skipped")
    return counts["FAIL"] > 0


if __name__ == "__main__":
    if sys.argv[1] == "--inside":
        run_inside(*sys.argv[2:])
    sys.exit(main(*sys.argv[1:]))
