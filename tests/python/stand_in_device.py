"""A torch device without hardware: builds stand_in_device.cpp at the first call, and loads it."""

import ctypes
import os
import shutil
import subprocess
import tempfile
import types
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

SOURCE = Path(__file__).with_suffix(".cpp")
NAME = "standin"


def build():
    """The shared library, kept in the build folder until the source or torch changes."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler: apt install g++")
    folder = Path(os.environ.get("WHERRY_BUILD", tempfile.gettempdir()))
    library = folder / f"stand_in_device-{torch.__version__}.so"
    if library.exists() and library.stat().st_mtime > SOURCE.stat().st_mtime:
        return library
    made = library.with_suffix(f".{os.getpid()}")
    flags = [
        "-std=c++20",
        "-O1",
        "-shared",
        "-fPIC",
        "-w",
        *[f"-I{path}" for path in cpp_extension.include_paths()],
    ]
    libraries = [f"-L{path}" for path in cpp_extension.library_paths()] + ["-lc10", "-ltorch_cpu"]
    command = [*compiler.split(), *flags, str(SOURCE), "-o", str(made), *libraries]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-5000:]
    made.rename(library)
    return library


def load(library):
    """Registers the device "standin" with torch. Returns the library, which counts copies."""
    loaded = ctypes.CDLL(library)
    torch.utils.rename_privateuse1_backend(NAME)
    module = types.ModuleType(f"torch.{NAME}")
    module.is_available = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    torch._register_device_module(NAME, module)
    loaded.stand_in_start()
    return loaded
