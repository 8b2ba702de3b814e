"""Ports for programs that must be told theirs before they open it."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

GIVEN = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port(num: int = 1) -> int:
    """Return the first of `num` free ports in a row, of those that the system gives to nobody by itself.

    One that it gave for a moment, and got back, may be given to somebody else before it is used.
    """
    lowest = int(GIVEN.read_text().split()[0]) if GIVEN.exists() else 32768
    if lowest < 12_000:  # it gives nearly all of them: then one can only hope
        lowest = 65_000
    for first in random.sample(range(10_000, lowest - num), 1000):
        with contextlib.suppress(OSError), contextlib.ExitStack() as probes:
            for port in range(first, first + num):
                probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise AssertionError(f"no {num} ports in a row are free below {lowest}")
