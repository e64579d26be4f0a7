"""Wherry ferries live training checkpoints from rank to rank.

    import wherry

    with wherry.Group.join() as group:           # rank and size from torchrun, Slurm or Open MPI
        if group.rank == 0:
            wherry.send(group, [1, 2], state)    # dicts, lists, scalars, NumPy arrays, tensors
        else:
            state = wherry.recv(group, 0)        # or in place: wherry.recv(group, 0, into=state)
                                                 # or from several, with the same step=7:
                                                 # wherry.recv(group, [0, 3], step=7)

``wherry.torch.PGTransport`` replaces PyTorch's class of that name, and
``wherry.torchft.attach(manager)`` replaces torchft's transport. See docs/python.md.
"""

from wherry import errors
from wherry._core import Cancel, __version__
from wherry._transfer import Outcome, Progress, Stats
from wherry.errors import Error
from wherry.group import ANY_RANK, Group, recv, send

__all__ = ["ANY_RANK", "Cancel", "Error", "Group", "Outcome", "Progress", "Stats"]
__all__ += ["__version__", "errors", "recv", "send"]
