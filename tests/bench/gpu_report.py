"""How long work takes on a device, how much memory it holds, and the table of what was found."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

WARM_UPS, REPEATS = 3, 15
FEWEST_REPEATS = 5  # where REPEATS would take longer than LONGEST
LONGEST = 3.0  # s


class Clock:
    """Times work on a device: a GPU by its own events, the CPU by the wall clock."""

    def __init__(self, device: torch.device):
        self.device = device
        self._is_gpu = device.type == "cuda"

    def milliseconds(self, work: Callable[[], object], *, in_a_row: int = 1) -> float:
        """Return the median time of `work`, done so many times without a pause.

        In a row the host may prepare the next while the device is at work, as in a training.
        """
        times: list[float] = []
        started = time.perf_counter()
        for number in range(WARM_UPS + REPEATS):
            if len(times) >= FEWEST_REPEATS and time.perf_counter() - started > LONGEST:
                break
            taken = self._once(work, in_a_row) / in_a_row
            if number >= WARM_UPS:
                times.append(taken)
        return statistics.median(times)

    def _once(self, work: Callable[[], object], in_a_row: int) -> float:
        if not self._is_gpu:
            started = time.perf_counter()
            for _ in range(in_a_row):
                work()
            return 1000.0 * (time.perf_counter() - started)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(in_a_row):
            work()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end)

    def wait(self) -> None:
        """Return when the device has done all that it was given."""
        if self._is_gpu:
            torch.cuda.synchronize(self.device)

    def peak_gigabytes(self, work: Callable[[], object]) -> float | None:
        """Return the most memory that tensors hold during `work`, what was there before included.

        None where torch does not count it: on the CPU.
        """
        if not self._is_gpu:
            return None
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        work()
        self.wait()
        return torch.cuda.max_memory_allocated(self.device) / 1e9


@dataclass(frozen=True)
class Aim:
    """What a figure shall be: `least` or `most` of it, or so many times as good as the peer's."""

    least: float | None = None
    most: float | None = None
    ratio: float | None = None

    def met(self, ours: float, ratio: float | None) -> bool | None:
        """Return whether the aim is met; None: there is no peer to compare with."""
        if self.ratio is not None and ratio is None:
            return None
        return not (
            (self.least is not None and not ours >= self.least)
            or (self.most is not None and not ours <= self.most)
            or (self.ratio is not None and not (ratio or 0.0) >= self.ratio)
        )

    def __str__(self) -> str:
        parts = [
            f"{sign} {value:g}{unit}"
            for sign, value, unit in ((">=", self.least, ""), ("<=", self.most, ""), (">=", self.ratio, " x"))
            if value is not None
        ]
        return " ".join(parts)


class Report:
    """The lines of the table, and the time that is left for more of them."""

    def __init__(self, seconds: float, *, judges: bool = True, file: Path | None = None):
        """`judges`: say whether the aims are met; a rehearsal's figures mean nothing.

        `file`: each line is added to it at once, so that it is there whatever becomes of this process.
        """
        self._end = time.monotonic() + seconds
        self._judges = judges
        self._file = file
        self.lines: list[str] = []
        self.failed = False

    def prolong(self, end: float) -> None:
        """Let there be time until `end`, of the monotonic clock."""
        self._end = end

    @property
    def seconds_left(self) -> float:
        """Return the time that is left; below 0 where it is used up."""
        return self._end - time.monotonic()

    def has_time(self, name: str, seconds: float) -> bool:
        """Return whether `seconds` are left; where they are not, say so in the place of `name`."""
        if self.seconds_left >= seconds:
            return True
        self.leave_out(name, f"no time was left ({self.seconds_left:.0f} s of the {seconds:.0f} it may take)")
        return False

    def add(
        self, name: str, ours: float | None, unit: str, *, peer: float | None = None, aim: Aim | None = None
    ) -> None:
        """Add a measurement, beside a peer's of the same: time or memory, of which less is better."""
        if ours is None:
            self.leave_out(name, "cannot be measured on this device")
            return
        ratio = None if peer is None else peer / ours
        line = f"{name:44} {ours:10.3f} {unit:4}"
        line += f" {peer:10.3f} {ratio:6.2f} x" if peer is not None else " " * 20
        if aim is not None and self._judges:
            met = aim.met(ours, ratio)
            line += f"  {aim}: {'no peer' if met is None else 'met' if met else 'MISSED'}"
        self._keep(line)

    def leave_out(self, name: str, why: str) -> None:
        """Add a line without a measurement."""
        self._keep(f"{name:44} left out: {why}")

    def fail(self, name: str, why: str) -> None:
        """Add a line for what should have been measured."""
        self.failed = True
        self._keep(f"{name:44} FAILED: {why}")

    def _keep(self, line: str) -> None:
        self.lines.append(line.rstrip())
        print(line.rstrip(), flush=True)
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(f"{line.rstrip()}\n")

    def table(self, title: str) -> str:
        """Return all lines under a heading."""
        heading = f"{title}\n{'':44} {'ours':>10} {'':4} {'peer':>10} {'ratio':>8}  aim"
        return "\n".join([heading, *self.lines])
