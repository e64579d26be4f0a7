"""Torch's streams: what was queued on them before a transfer is waited for.

Nothing has to be said of streams afterwards, nor to torch's caching allocator (record_stream): a call returns when every copy
that it began has ended, on a stream of the library's own, so that whatever is queued next, on any stream, finds the bytes there,
and memory that the program gives back is not in use any more.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch


def joined(devices: Iterable[int], fixed: bool) -> int:
    """The address of a stream behind all that is queued on this thread's current stream of each device; 0: their default streams.

    fixed: what is queued later does not count, so that the stream may be waited for at any time.
    """
    # Else it is memory of somebody else's: torch has queued nothing.
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call, unused-ignore]
        return 0
    current = [torch.cuda.current_stream(device) for device in devices]
    if not current or (not fixed and all(stream.cuda_stream == 0 for stream in current)):
        return 0
    if not fixed and len(current) == 1:
        return int(current[0].cuda_stream)
    behind = torch.cuda.Stream(current[0].device)  # type: ignore[no-untyped-call, unused-ignore] # of a pool of torch's: it is never destroyed
    for stream in current:
        behind.wait_stream(stream)
    return int(behind.cuda_stream)
