"""How long work takes on a device, how much memory it holds, and the table of what was found.

python tests/bench/gpu_report.py LOGS     gathers what the parts have left in a folder in LOGS/on_gpu.json
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

WARM_UPS, REPEATS = 3, 15
FEWEST_REPEATS = 5  # where REPEATS would take longer than LONGEST
LONGEST = 3.0  # s


class Clock:
    """Times work on a device: a GPU by its own events, the CPU by the wall clock."""

    def __init__(self, device: torch.device):
        self.device = device
        self._is_gpu = device.type == "cuda"

    def milliseconds(
        self, work: Callable[[], object], *, in_a_row: int = 1, rounds: int | None = None
    ) -> float:
        """Return the median time of `work`, done so many times without a pause.

        In a row the host may prepare the next while the device is at work, as in a training. `rounds`: how
        many such rows are timed, after one that is not; None: as many as a median of short work needs.
        """
        times: list[float] = []
        warm_ups, repeats = (WARM_UPS, REPEATS) if rounds is None else (1, rounds)
        started = time.perf_counter()
        for number in range(warm_ups + repeats):
            if rounds is None and len(times) >= FEWEST_REPEATS and time.perf_counter() - started > LONGEST:
                break
            taken = self._once(work, in_a_row) / in_a_row
            if number >= warm_ups:
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

    def milliseconds_of_kernels(self, work: Callable[[], object], times: int) -> float | None:
        """Return how long the kernels of `work` run, the mean of so many times; None on the CPU."""
        if not self._is_gpu:
            return None
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
            for _ in range(times):
                work()
            self.wait()
        kernels = [event for event in found.events() or () if event.device_type.name == "CUDA"]
        return sum(kernel.time_range.elapsed_us() for kernel in kernels) / times / 1e3

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


@dataclass(frozen=True)
class Row:
    """A line of the table: a figure, or why there is none."""

    name: str
    ours: float | None = None
    unit: str = ""
    peer: float | None = None
    ratio: float | None = None  # how many times as good as the peer's ours is
    aim: str = ""
    verdict: str = ""  # "met", "MISSED" or "no peer"
    why: str = ""  # "left out: ..." or "FAILED: ..."

    def __str__(self) -> str:
        if self.ours is None:
            return f"{self.name:56} {self.why}"
        line = f"{self.name:56} {self.ours:10.3f} {self.unit:4}"
        line += " " * 20 if self.peer is None else f" {self.peer:10.3f} {self.ratio:6.2f} x"
        return f"{line}  {self.aim}: {self.verdict}" if self.verdict else line.rstrip()


class Report:
    """The lines of the table, and the time that is left for more of them."""

    def __init__(self, seconds: float, *, judges: bool = True, file: Path | None = None):
        """`judges`: say whether the aims are met; a rehearsal's figures mean nothing.

        `file`: each line is added to it at once, so that it is there whatever becomes of this process, and
        beside it, in a file that ends with .jsonl, as JSON.
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
        ratio, verdict = None if peer is None else peer / ours, ""
        if aim is not None and self._judges:
            met = aim.met(ours, ratio)
            verdict = "no peer" if met is None else "met" if met else "MISSED"
        self._keep(Row(name, ours, unit, peer, ratio, "" if aim is None else str(aim), verdict))

    def leave_out(self, name: str, why: str) -> None:
        """Add a line without a measurement."""
        self._keep(Row(name, why=f"left out: {why}"))

    def fail(self, name: str, why: str) -> None:
        """Add a line for what should have been measured."""
        self.failed = True
        self._keep(Row(name, why=f"FAILED: {why}"))

    def _keep(self, row: Row) -> None:
        self.lines.append(str(row))
        print(row, flush=True)
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(f"{row}\n")
            with self._file.with_suffix(".jsonl").open("a") as file:
                file.write(json.dumps(asdict(row)) + "\n")

    def table(self, title: str) -> str:
        """Return all lines under a heading."""
        heading = f"{title}\n{'':56} {'ours':>10} {'':4} {'peer':>10} {'ratio':>8}  aim"
        return "\n".join([heading, *self.lines])


def everything(logs: Path, machine: str, seconds: float, failed: list[str]) -> dict[str, object]:
    """Return all that on_gpu.sh has found, from the files that its parts have left in `logs`."""
    rows = [
        json.loads(line) for file in sorted(logs.glob("*.jsonl")) for line in file.read_text().splitlines()
    ]
    longest = logs / "longest.json"
    # Of each log of tests the last line, which counts them.
    ends = {log.stem: log.read_text(errors="replace").strip().splitlines()[-1:] for log in logs.glob("*.log")}
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    return {
        "machine": machine,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": commit.stdout.strip() or None,
        "seconds": seconds,
        "failed": failed,
        "rows": rows,
        "longest_kernels": json.loads(longest.read_text()) if longest.exists() else None,
        "last_lines": {name: line[0] for name, line in ends.items() if line},
    }


def main() -> None:
    """Gather what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("logs", type=Path)
    parser.add_argument("--machine", default="")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--failed", nargs="*", default=[])
    given = parser.parse_args()
    found = everything(given.logs, given.machine, given.seconds, given.failed)
    (given.logs / "on_gpu.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
