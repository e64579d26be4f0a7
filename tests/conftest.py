"""Selects the UCX that all tests load, in this process and in those that they start."""

import os
import pathlib
import subprocess

FIND_UCX = pathlib.Path(__file__).resolve().parents[1] / "scripts/find-ucx"

if library := subprocess.run([FIND_UCX], capture_output=True, text=True, check=True).stdout.strip():
    os.environ["WHERRY_UCX_LIBRARY"] = library
