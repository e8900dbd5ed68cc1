"""A link with a known delay where the kernel has none (netem): two TUN devices, and this process between them.

    delay_line.py DELAY_MS DEVICE DEVICE

Each packet that enters one device leaves the other after the delay, in order. Prints ``ready`` once both exist, then
runs until it is ended. The devices may be moved into other network namespaces.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
LARGEST_PACKET = 65_536
LONGEST_S = 600.0  # this process ends by itself


def device(name: str) -> int:
    """Make a TUN device and give its handle."""
    handle = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(handle, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    return handle


def main(delay_s: float, names: list[str]) -> None:
    """Carry packets both ways."""
    ends = [device(name) for name in names]
    print("ready", flush=True)
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    waiting: deque[tuple[float, int, bytes]] = deque()  # in the order of their due times: the delay is one
    until = time.monotonic() + LONGEST_S
    while (now := time.monotonic()) < until:
        pause = max(waiting[0][0] - now, 0.0) if waiting else 0.5
        for end in select.select(ends, [], [], pause)[0]:
            try:
                waiting.append((time.monotonic() + delay_s, other[end], os.read(end, LARGEST_PACKET)))
            except OSError:
                continue  # the device is down for now
        while waiting and waiting[0][0] <= time.monotonic():
            _, end, packet = waiting.popleft()
            try:
                os.write(end, packet)
            except OSError:
                continue


if __name__ == "__main__":
    main(float(sys.argv[1]) / 1000.0, sys.argv[2:4])
