"""Finds out which lanes this build and this machine have: tries them between two ranks of this
process."""

import functools
import tempfile
import threading

import torch
import wherry


@functools.cache
def lacking(lane):
    """The reason why a lane is missing; "" if it is available. A lane that is available but fails
    must fail its tests."""
    reasons = []

    def be(rank, folder):
        try:
            with wherry.Group.join(f"unix://{folder}/meet?rank={rank}&size=2", 20) as group:
                if rank == 0:
                    wherry.send(group, [1], {"w": torch.ones(1000)}, lanes=lane, timeout=20)
                else:
                    wherry.recv(group, 0, lanes=lane, timeout=20)
        except (wherry.errors.InvalidArgument, wherry.errors.Unsupported) as error:
            reasons.append(str(error))
        except wherry.Error:
            pass  # The other rank caused this error, or the tests will find its cause.

    with tempfile.TemporaryDirectory() as folder:
        threads = [threading.Thread(target=be, args=(rank, folder)) for rank in range(2)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    return reasons[0] if reasons else ""
