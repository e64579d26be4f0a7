"""wire.py PID NAME PID NAME DELAY_MS LOSS: a link between two network namespaces, with a delay each
way and a loss.

It makes a TAP interface in the network namespace of each of the two processes, and forwards frames
from one to the other after DELAY_MS. It drops the share LOSS of them (0.01: one in a hundred). It
replaces netem, which not every kernel has. It prints "ready" when the interfaces exist, and ends
when its standard input is closed.

Without a loss, the kernel passes frames of up to 64 KiB, and the receiving side cuts them.
Otherwise 1 Gbit/s would not be possible here. With a loss, frames are as long as on a real wire, so
that each lost frame is one packet."""

from __future__ import annotations

import collections
import ctypes
import fcntl
import os
import random
import select
import struct
import sys
import time

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
TUNSETOFFLOAD = 0x400454D0
IFF_TAP = 0x0002
IFF_NO_PI = 0x1000
IFF_VNET_HDR = 0x4000
TUN_F_CSUM_TSO = (
    0x01 | 0x02 | 0x04
)  # Checksums are left to the other side, and so is cutting long frames of IPv4 and IPv6.
FRAME_MAX = 70_000
SEED = 7
#: Maximum number of frames to read before frames that are due are sent.
BATCH = 32


def open_tap(pid: int, name: str, long_frames: bool) -> int:
    """Creates an interface in the network namespace of a process. Returns a descriptor for its
    frames."""
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    os.close(namespace)
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = IFF_TAP | IFF_NO_PI | (IFF_VNET_HDR if long_frames else 0)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    if long_frames:
        fcntl.ioctl(tap, TUNSETOFFLOAD, TUN_F_CSUM_TSO)
    return tap


class Direction:
    """Frames from one interface to the other."""

    def __init__(self, source: int, sink: int, delay: float, loss: float):
        self.source = source
        self.sink = sink
        self.delay = delay
        self.loss = loss
        self.dice = random.Random(SEED + source)
        self.waiting: collections.deque[tuple[float, bytes]] = collections.deque()

    def take(self) -> None:
        for _ in range(BATCH):
            try:
                frame = os.read(self.source, FRAME_MAX)
            except BlockingIOError:
                return
            if self.loss == 0 or self.dice.random() >= self.loss:
                self.waiting.append((time.monotonic() + self.delay, frame))

    def give(self, now: float) -> None:
        while self.waiting and self.waiting[0][0] <= now:
            try:
                os.write(self.sink, self.waiting.popleft()[1])
            except OSError:
                pass  # The interface is not up yet, or has no room: drop the frame, as on any wire.


def main() -> int:
    first, first_name, second, second_name, delay, loss = sys.argv[1:]
    long_frames = float(loss) == 0
    taps = [
        open_tap(int(first), first_name, long_frames),
        open_tap(int(second), second_name, long_frames),
    ]
    ways = [Direction(a, b, float(delay) / 1e3, float(loss)) for a, b in (taps, taps[::-1])]
    print("ready", flush=True)
    while True:
        due = min((way.waiting[0][0] for way in ways if way.waiting), default=None)
        pause = None if due is None else max(0.0, due - time.monotonic())
        ready, _, _ = select.select([0, *taps], [], [], pause)
        if 0 in ready:
            return 0
        for way in ways:
            if way.source in ready:
                way.take()
        now = time.monotonic()
        for way in ways:
            way.give(now)


if __name__ == "__main__":
    sys.exit(main())
