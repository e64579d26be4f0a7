"""The names of ``torch.distributed.checkpoint._pg_transport``, for programs that import them.

``PGTransport`` is Wherry's. The other names are torch's, and Wherry's transport ignores them.
"""

from wherry.torch._private import (
    _cast_tensor,
    _DTensorMeta,
    _prepare_state_dict,
    _prepare_tensor,
    _ShardedTensorMeta,
    _StateDictMeta,
    _TensorMeta,
    _timeit,
)

from wherry.torch.pg_transport import PGTransport

__all__ = [
    "PGTransport",
    "_DTensorMeta",
    "_ShardedTensorMeta",
    "_StateDictMeta",
    "_TensorMeta",
    "_cast_tensor",
    "_prepare_state_dict",
    "_prepare_tensor",
    "_timeit",
]
