"""A rank that stands still as a whole: why it does, how it is woken, and how long it is waited for.

A laptop that slept, a debugger, a machine short of memory or somebody's SIGSTOP stop a process without
harming it. To start another one in its place would cost all steps since the last checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import psutil

from splatstudio.runtime.heartbeat import Limits, Silence

WORKING_SHARE = 0.05  # of a core, by which a process is known to compute: threads that wait take less


class Standing(Enum):
    """What the system says of a process that does not answer."""

    GONE = "gone"
    STOPPED = "was stopped from outside (SIGSTOP)"
    TRACED = "is held by a debugger"
    ON_DISK = "waits for the disk, or for memory that was swapped out"
    WORKING = "computes without pause"
    IDLE = "stands still"


def standing_of(process: psutil.Process | None, share: float = 0.0) -> Standing:
    """Return how a process stands; `share` is how much of a core it has used since it was last asked for."""
    try:
        status = psutil.STATUS_DEAD if process is None else process.status()
    except psutil.NoSuchProcess:
        return Standing.GONE
    if status in (psutil.STATUS_DEAD, psutil.STATUS_ZOMBIE):
        return Standing.GONE
    if status == psutil.STATUS_STOPPED:
        return Standing.STOPPED
    if status == psutil.STATUS_TRACING_STOP:
        return Standing.TRACED
    if status == psutil.STATUS_DISK_SLEEP:
        return Standing.ON_DISK
    return Standing.WORKING if share >= WORKING_SHARE else Standing.IDLE


def wake(process: psutil.Process) -> None:
    """Let a process that a signal stopped go on; one that is gone, or somebody else's, stays as it is."""
    try:
        process.resume()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return


class Processes(Protocol):
    """The processes of some ranks."""

    def process(self, rank: int) -> psutil.Process | None:
        """Return a rank's process; None where it is gone."""
        ...


@dataclass
class _Seen:
    """A process as it was when its standstill was noticed."""

    cpu_seconds: float
    at: float
    told: bool = False


class Patience:
    """How long the ranks of a group are waited for; one that was stopped is woken, and its user told."""

    def __init__(self, limits: Limits, tell: Callable[[int, str], None]) -> None:
        """`tell` gets a rank that stands still, and what is the matter, once for each standstill."""
        self._limits = limits
        self._tell = tell
        self._seen: dict[int, _Seen] = {}
        self._told_of_disk = False

    def is_over(self, processes: Processes, silence: Silence, at_stake: float) -> bool:
        """Return whether a rank that stands still is to be ended; wake it where that may help.

        `at_stake`: the seconds of training that would have to be done again. It is waited for at least as
        long where it gets on, or was stopped. One that a debugger holds is never ended.
        """
        process = processes.process(silence.rank)
        used = _cpu_seconds(process)
        seen = self._seen.setdefault(silence.rank, _Seen(used, time.monotonic()))
        share = (used - seen.cpu_seconds) / max(time.monotonic() - seen.at, 1e-3)
        standing = standing_of(process, share)
        if process is None or standing is Standing.GONE:
            return True
        seconds = f"{silence.seconds:.0f} s"
        if standing is Standing.STOPPED:
            wake(process)
            self._tell_once(silence.rank, f"{standing.value} and is woken after {seconds}")
        elif silence.seconds >= self._limits.told:
            self._tell_once(silence.rank, f"has not answered for {seconds}: it {standing.value}")
        if standing is Standing.TRACED:
            return False
        patience = self._limits.busy
        return silence.seconds >= (patience if standing is Standing.IDLE else max(patience, at_stake))

    def on_disk(self, processes: Processes, num_ranks: int, seconds: float) -> bool:
        """Return whether a rank that has not got on for `seconds` waits for the disk, and tell that once.

        To end it would cost its steps, and the system does not even let it end: the disk of a network that is
        gone keeps who writes to it until it is back.
        """
        if seconds < self._limits.told:
            self._told_of_disk = False
            return False
        standings = (standing_of(processes.process(rank)) for rank in range(num_ranks))
        rank = next((rank for rank, standing in enumerate(standings) if standing is Standing.ON_DISK), None)
        if rank is not None and not self._told_of_disk:
            self._told_of_disk = True
            what = f"has waited for the disk for {seconds:.0f} s, as for one of a network that is gone"
            self._tell(rank, f"{what}; it goes on when that answers")
        return rank is not None

    def forget(self) -> None:
        """Note that all ranks go on."""
        self._seen.clear()

    def _tell_once(self, rank: int, what: str) -> None:
        if not self._seen[rank].told:
            self._seen[rank].told = True
            self._tell(rank, what)


def _cpu_seconds(process: psutil.Process | None) -> float:
    try:
        times = None if process is None else process.cpu_times()
    except psutil.Error:
        times = None
    return 0.0 if times is None else times.user + times.system
