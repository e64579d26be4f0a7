"""source(): a source in another process, which halts (SIGSTOP) after it has sent some chunks.

Its wherry._core is the copy with the points of tests/support/signal_at_point.c.
"""

import contextlib
import os
import signal
import subprocess
import sys

from rehearse import BUILD

#: At this point the source has sent the first chunks, and still has others to send.
POINT = "source gathers a chunk"
COUNT = 4

LOAD_CORE = """
import importlib.util
import sys

spec = importlib.util.spec_from_file_location("wherry._core", sys.argv[1])
sys.modules["wherry._core"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["wherry._core"])
"""


@contextlib.contextmanager
def source(code, *arguments):
    """Runs Python code, whose sys.argv[2:] are the arguments, until the block ends. Yields its
    process, whose output is a pipe. SIGCONT lets it continue."""
    core = str(BUILD / "tests" / "python" / "_rehearse.abi3.so")
    with subprocess.Popen(
        [sys.executable, "-c", LOAD_CORE + code, core, *arguments],
        env={**os.environ, "WHERRY_TEST_SIGNAL": f"{COUNT} {int(signal.SIGSTOP)} {POINT}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
