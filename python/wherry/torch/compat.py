"""The names of ``torch.distributed.checkpoint._pg_transport``, for programs that import them.

``PGTransport`` is Wherry's. The other names are torch's, and Wherry's transport ignores them.
"""

from typing import Any

from wherry.torch import _private
from wherry.torch.pg_transport import PGTransport

_NAMES = _private.NAMES["torch.distributed.checkpoint._pg_transport"].split()


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_private, name)


__all__ = ["PGTransport", *_NAMES]
