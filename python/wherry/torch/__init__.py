"""Checkpoints between the ranks of a process group of torch.

    from wherry.torch import PGTransport    # instead of torch.distributed.checkpoint._pg_transport
"""

from wherry.torch.transport import PGTransport

__all__ = ["PGTransport"]
