"""A line between two network namespaces that delays each packet and loses some: for kernels without netem.

    link.py PID_A PID_B MILLISECONDS LOSS

Gives each namespace (that of a process) an interface `line`, and prints "ready". Addresses and routes are the caller's.
The packets that are lost are drawn from a fixed seed.
"""

import collections
import ctypes
import fcntl
import os
import random
import select
import struct
import sys
import time

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)


def enter(pid):
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    if LIBC.setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"setns of {pid}")
    os.close(namespace)


def interface_in(pid):
    """An interface in that namespace: what is read was sent there, what is written arrives there."""
    enter(pid)
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", b"line", IFF_TUN | IFF_NO_PI))
    return end


def main():
    pids, delay, loss = sys.argv[1:3], float(sys.argv[3]) / 1000, float(sys.argv[4])
    ends = [interface_in(pid) for pid in pids]
    print("ready", flush=True)
    draw = random.Random(1)
    under_way = collections.deque()  # (when it arrives, where, packet), in order: all take as long
    while True:
        wait = None if not under_way else max(0, under_way[0][0] - time.monotonic())
        readable, _, _ = select.select(ends, [], [], wait)
        for end in readable:
            try:
                packet = os.read(end, 65536)
            except OSError:  # its interface is down
                time.sleep(0.01)
                continue
            if draw.random() >= loss:
                under_way.append((time.monotonic() + delay, ends[1 - ends.index(end)], packet))
        while under_way and under_way[0][0] <= time.monotonic():
            _, end, packet = under_way.popleft()
            try:
                os.write(end, packet)
            except OSError:  # its interface is down
                pass


if __name__ == "__main__":
    main()
