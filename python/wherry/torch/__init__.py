"""Sends and receives checkpoints between the ranks of a torch process group.

from wherry.torch import PGTransport    # instead of torch.distributed.checkpoint._pg_transport
"""

from wherry.torch.pg_transport import PGTransport

__all__ = ["PGTransport"]
