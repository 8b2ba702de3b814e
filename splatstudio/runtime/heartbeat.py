"""Heartbeats in shared memory: by them the supervisor sees a rank that hangs or was stopped.

Each rank has five words. `alive` is written by a thread that does nothing else: it stands still when the
whole process does (SIGSTOP, a swapping machine). `moved` is written by the main thread at every step, image
or order: it stands still when that thread hangs. `signal` is the one by which its launcher wants it to end.
"""

from __future__ import annotations

import ctypes
import threading
import time
from dataclasses import dataclass, field
from enum import IntEnum
from multiprocessing.context import BaseContext

BEAT_SECONDS = 0.25
WORDS = 5  # alive and moved (monotonic ns), phase, step, signal


class Phase(IntEnum):
    """What the main thread of a rank is at."""

    STARTING = 0
    WAITING = 1  # for orders
    LOADING = 2
    TRAINING = 3
    OBEYING = 4  # an order: evaluating, saving


@dataclass(frozen=True)
class Limits:
    """How many seconds of silence mean that a rank hangs."""

    frozen: float = 10.0  # of a whole process, while something is expected of it: it is looked into then
    told: float = 30.0  # until its user hears of it
    busy: float = 180.0  # until it is given up: native code that writes a large file may hold all its threads
    stuck: dict[Phase, float] = field(
        default_factory=lambda: {
            Phase.STARTING: 120.0,
            Phase.LOADING: 1800.0,  # thousands of photos from a slow disk
            Phase.TRAINING: 300.0,  # one step, or one test photo
            Phase.OBEYING: 900.0,  # writing a large checkpoint
        }
    )


@dataclass(frozen=True)
class Beat:
    """What a rank's words say."""

    alive: int
    moved: int
    phase: Phase
    step: int
    signal: int = 0  # none


class Heartbeats:
    """The words of all ranks; made by the supervisor, handed to each process at its start."""

    def __init__(self, context: BaseContext, num_ranks: int):
        # Memory without a name: nothing is left behind however the processes end.
        self._words = context.RawArray(ctypes.c_longlong, WORDS * num_ranks)

    def read(self, rank: int) -> Beat:
        """Return what `rank` wrote last."""
        alive, moved, phase, step, signal = self._words[WORDS * rank : WORDS * (rank + 1)]
        return Beat(alive, moved, Phase(phase), step, signal)

    def write(self, rank: int, word: int, value: int) -> None:
        """Set one word of `rank`; an aligned word is written as a whole."""
        self._words[WORDS * rank + word] = value


class Pulse:
    """A rank's own heartbeat."""

    def __init__(self, heartbeats: Heartbeats, rank: int):
        self._heartbeats = heartbeats
        self._rank = rank
        threading.Thread(target=self._beat, name="pulse", daemon=True).start()

    def move(self, phase: Phase, step: int) -> None:
        """Note what the main thread is at, and that it has come that far now."""
        self._heartbeats.write(self._rank, 3, step)
        self._heartbeats.write(self._rank, 2, int(phase))
        self._heartbeats.write(self._rank, 1, time.monotonic_ns())

    def note_signal(self, number: int) -> None:
        """Note that whoever started this process wants it to end."""
        self._heartbeats.write(self._rank, 4, number)

    def _beat(self) -> None:
        while True:
            self._heartbeats.write(self._rank, 0, time.monotonic_ns())
            time.sleep(BEAT_SECONDS)


@dataclass(frozen=True)
class Silence:
    """A rank that has been silent for too long."""

    rank: int
    seconds: float
    frozen: bool  # the whole process; else its main thread alone


class SilenceWatch:
    """Measures how long each rank has been silent, in time that the watching process itself was awake."""

    def __init__(self, heartbeats: Heartbeats, num_ranks: int, limits: Limits):
        self._heartbeats = heartbeats
        self._limits = limits
        self._last: list[Beat] = [heartbeats.read(rank) for rank in range(num_ranks)]
        self._frozen_for = [0.0] * num_ranks
        self._stuck_for = [0.0] * num_ranks

    @property
    def all_alive(self) -> bool:
        """Return whether the last look found no rank frozen."""
        return not any(self._frozen_for)

    @property
    def stuck_seconds(self) -> float:
        """Return for how long the main thread of some rank has not got on."""
        return max(self._stuck_for)

    def check(self, elapsed: float, *, order_waits: bool) -> Silence | None:
        """Return a rank that is silent for too long, `elapsed` seconds after the check before.

        Call it a few times a second. `order_waits` says that even a rank that only waits owes an answer.
        """
        # A studio that was stopped itself, or a machine that slept, must not blame the ranks for it.
        elapsed = min(elapsed, 1.0)
        before = self._last
        self._last = [self._heartbeats.read(rank) for rank in range(len(before))]
        # A rank that waits for rank 0 is needed as soon as that one goes on.
        expected = order_waits or any(beat.phase != Phase.WAITING for beat in self._last)
        for rank, (last, beat) in enumerate(zip(before, self._last, strict=True)):
            if beat.alive != last.alive:
                self._frozen_for[rank] = 0.0
            elif expected:
                self._frozen_for[rank] += elapsed
            if (beat.moved, beat.phase) != (last.moved, last.phase) or beat.phase == Phase.WAITING:
                self._stuck_for[rank] = 0.0
            else:
                self._stuck_for[rank] += elapsed
            if self._frozen_for[rank] > self._limits.frozen:
                return Silence(rank, self._frozen_for[rank], frozen=True)
            if self._stuck_for[rank] > self._limits.stuck.get(beat.phase, float("inf")):
                return Silence(rank, self._stuck_for[rank], frozen=False)
        return None
