#!python
"""The script `wherry` that pip installs: it runs the command, a program in the package."""

import os
import sys
from importlib.util import find_spec

package = find_spec("wherry")
if package is None or package.origin is None:
    sys.exit(f"wherry: {sys.executable} has no package wherry; to install it: pip install wherry")
command = os.path.join(os.path.dirname(package.origin), "_bin", "wherry")
try:
    # `wherry doctor` asks this interpreter for its package.
    os.execve(command, sys.argv, {**os.environ, "WHERRY_PYTHON": sys.executable})
except OSError as error:
    sys.exit(f"wherry: cannot run {command}: {error.strerror}; install wherry again")
