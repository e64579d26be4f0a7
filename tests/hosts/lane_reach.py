"""Which lanes this build and this machine have, found out by taking them, between two ranks of this process."""

import functools
import tempfile
import threading

import torch
import wherry


@functools.cache
def lacking(lane):
    """Why there is no such lane here; "": there is. A lane that is here and does not work is no reason: its tests are to fail."""
    reasons = []

    def be(rank, folder):
        try:
            with wherry.Group.join(f"unix://{folder}/meet?rank={rank}&size=2", 20) as group:
                if rank == 0:
                    wherry.send(group, [1], {"w": torch.ones(1000)}, lanes=lane, timeout=20)
                else:
                    wherry.recv(group, 0, lanes=lane, timeout=20)
        except (wherry.InvalidArgument, wherry.Unsupported) as error:
            reasons.append(str(error))
        except wherry.Error:
            pass  # of the other rank, which was told; or the tests will find it

    with tempfile.TemporaryDirectory() as folder:
        threads = [threading.Thread(target=be, args=(rank, folder)) for rank in range(2)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    return reasons[0] if reasons else ""
