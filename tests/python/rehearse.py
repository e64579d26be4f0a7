"""core: wherry._core with restore(), tensors(), storages() and dump(), which only tests need.

It is built into $WHERRY_BUILD. Its states work with its own functions only, not with wherry._core.
"""

import importlib.util
import os
import pathlib

from wherry import errors

BUILD = pathlib.Path(os.environ.get("WHERRY_BUILD", pathlib.Path(__file__).parents[2] / "build"))
_path = str(BUILD / "tests" / "python" / "_rehearse.abi3.so")
_spec = importlib.util.spec_from_file_location("_rehearse", _path)
core = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(core)
core.set_error_class(errors._make)
