"""A bad wire: passes frames between two TAPs, each after a delay, and loses some. Run as a script, in its namespace.

In user space, since netem is a module that small kernels come without: one way that works everywhere, where two would
have to be tried. TAPs, since the kernel hands them frames of the wire's size with whole checksums, whatever the cards
offload. It ends as everything in the lab's namespaces does.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import random
import select
import struct
import time
from collections import deque

CLONE = "/dev/net/tun"
TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
MAX_FRAME = 1 << 16
BATCH = 64
"""Frames taken from one side before the other, and what is due, get their turn."""
AHEAD = -15
"""Niceness: what the machine is busy with is not to be seen as a longer delay."""


def open_tap(name: str) -> int:
    """Make a TAP, which lives as long as the descriptor."""
    fd = os.open(CLONE, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return fd


def relay(ends: tuple[int, int], delay_s: float, loss: float, seed: int) -> None:
    """Pass frames from each end to the other, for ever. ``loss``: the share of them that is lost."""
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    dice = {fd: random.Random(f"{seed} {place}") for place, fd in enumerate(ends)}
    under_way: deque[tuple[float, int, bytes]] = deque()
    while True:
        wait_s = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        for fd in select.select(ends, (), (), wait_s)[0]:
            with contextlib.suppress(BlockingIOError):
                for _ in range(BATCH):
                    frame = os.read(fd, MAX_FRAME)
                    if dice[fd].random() >= loss:
                        under_way.append((time.monotonic() + delay_s, other[fd], frame))
        now_s = time.monotonic()
        while under_way and under_way[0][0] <= now_s:
            _, fd, frame = under_way.popleft()
            with contextlib.suppress(OSError):  # that link is cut
                os.write(fd, frame)


def main() -> None:
    """Say "up" once the TAPs are there."""
    parser = argparse.ArgumentParser()
    parser.add_argument("taps", nargs=2)
    parser.add_argument("--delay-ms", type=float, required=True)
    parser.add_argument("--loss-percent", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    args = parser.parse_args()
    os.nice(AHEAD)
    ends = (open_tap(args.taps[0]), open_tap(args.taps[1]))
    print("up", flush=True)
    relay(ends, args.delay_ms / 1000, args.loss_percent / 100, args.seed)


if __name__ == "__main__":
    main()
