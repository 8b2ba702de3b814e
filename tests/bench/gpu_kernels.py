"""The longest kernels of a training step on a GPU: their time, their bytes, and how near its limits they are.

    python tests/bench/gpu_kernels.py --millions 3 --json FILE

torch.profiler tells the times. Bytes and shares are those that ncu counts, where it is there and may; without
it, bytes are those of the tensors that a kernel's operator is given, and the share is that of a plain copy's
rate. `--device cpu` is a rehearsal, with operators in the place of kernels; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import splatstudio  # noqa: F401 - before torch: it says how torch's threads wait

# isort: split
import torch
from gpu_report import Clock
from gpu_workloads import cloud, find_garden, garden, training_step
from torch.profiler import ProfilerActivity, profile

ROOT = Path(__file__).resolve().parents[2]
MOST = 25  # lines of the table
STEPS = 5  # that are profiled
COPIED = 1 << 28  # numbers of 4 bytes, well above any cache
NCU_SECONDS = 60.0
BYTES, MEMORY, ARITHMETIC, NANOSECONDS = (
    "dram__bytes.sum",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__time_duration.sum",
)
SIZES = {"double": 8, "long int": 8, "c10::Half": 2, "unsigned char": 1, "signed char": 1, "bool": 1}


@dataclass(frozen=True)
class Kernel:
    """What the launches of a kernel in one step did, all together."""

    name: str
    operator: str  # that launched it; "" where the profiler does not tell
    launches: float
    milliseconds: float
    share: float  # of the time of all kernels
    gigabytes: float | None = None
    memory: float | None = None  # share of the rate at which memory can be read and written
    arithmetic: float | None = None  # share of what the multiprocessors can do

    def __str__(self) -> str:
        figures = f"{self.launches:6.1f} {self.milliseconds:9.4f} {_percent(self.share)}"
        found = "        -" if self.gigabytes is None else f"{self.gigabytes:9.4f}"
        return (
            f"{self.name[:58]:58} {figures} {found} {_percent(self.memory)} {_percent(self.arithmetic)}"
            f"  {self.operator}"
        )


HEADING = f"{'kernel':58} {'calls':>6} {'ms':>9} {'time':>6} {'GB':>9} {'memory':>6} {'arith.':>6}  operator"


def _percent(share: float | None) -> str:
    return "     -" if share is None else f"{100 * share:5.1f}%"


def short_name(signature: str) -> str:
    """Return a kernel's name without its return type, namespaces, and arguments; templates' are kept."""
    name = re.sub(r"^(void|int|float)\s+", "", signature.strip())
    name = re.sub(r"\(anonymous namespace\)::|<unnamed>::", "", name)
    depth = 0
    for place, letter in enumerate(name):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "(" and depth == 0:
            name = name[:place]
            break
    head, bracket, rest = name.partition("<")
    return head.split("::")[-1].strip() + bracket + rest


def alike(name: str) -> str:
    """Return a short name as the profiler and ncu agree on it: one writes <false>, the other <(bool)0>."""
    name = re.sub(r"\([\w:]+\)(?=\d)", "", name)
    for word, number in (("false", "0"), ("true", "1")):
        name = re.sub(rf"\b{word}\b", number, name)
    return name.replace(" ", "")


def profiled(step: Callable[[], object], device: torch.device) -> list[Kernel]:
    """Return the kernels of a step, the longest first; on the CPU its operators."""
    on_gpu = device.type == "cuda"
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=kinds, record_shapes=True) as found:
        for _ in range(STEPS):
            step()
        if on_gpu:
            torch.cuda.synchronize(device)
    launched_by, given = _operators(found), _bytes_given(found)
    launches: dict[str, int] = defaultdict(int)
    microseconds: dict[str, float] = defaultdict(float)
    for event in found.events() or ():
        if on_gpu and event.device_type.name == "CUDA":
            launches[event.name] += 1
            microseconds[event.name] += event.time_range.elapsed_us()
        elif not on_gpu and event.name.startswith(("splatstudio::", "aten::")):
            launches[event.name] += 1
            microseconds[event.name] += event.self_cpu_time_total
    total = sum(microseconds.values()) or math.nan
    kernels = []
    for name, time in microseconds.items():
        operator = launched_by.get(name, "" if on_gpu else name)
        size = given.get(operator)
        kernels.append(
            Kernel(
                short_name(name),
                operator,
                launches[name] / STEPS,
                time / STEPS / 1e3,
                time / total,
                None if size is None else size / STEPS / 1e9,
            )
        )
    return sorted(kernels, key=lambda kernel: -kernel.milliseconds)


def _operators(found: Any) -> dict[str, str]:
    """Return the operator that launched each kernel, by the kernels' names."""
    operators: dict[str, str] = {}
    for event in found.events() or ():
        for kernel in event.kernels:
            if "::" in event.name or kernel.name not in operators:
                operators[kernel.name] = event.name
    return operators


def _bytes_given(found: Any) -> dict[str, int]:
    """Return the bytes of the tensors that each operator was given, in all of its calls."""
    given: dict[str, int] = defaultdict(int)
    for event in found.profiler.kineto_results.events():
        if not event.name().startswith("splatstudio::"):
            continue
        # Older versions of torch do not tell the tensors of lists.
        shapes = getattr(event, "structured_input_shapes", event.shapes)()
        kinds = event.dtypes()
        for shape, kind in zip(shapes, kinds, strict=False):
            tensors: Iterable[Any] = shape if shape and isinstance(shape[0], (list, tuple)) else [shape]
            given[event.name()] += sum(math.prod(each) * SIZES.get(kind, 4) for each in tensors if each)
    return given


def with_rate_of_copies(kernels: list[Kernel], gigabytes_a_second: float) -> list[Kernel]:
    """Return kernels with the share of a plain copy's rate, as far as their operators' bytes tell it.

    All kernels of an operator share its bytes: each is told the operator's share.
    """
    seconds: dict[str, float] = defaultdict(float)
    for kernel in kernels:
        seconds[kernel.operator] += 1e-3 * kernel.milliseconds

    def share(kernel: Kernel) -> float | None:
        if kernel.gigabytes is None or not seconds[kernel.operator]:
            return None
        return kernel.gigabytes / seconds[kernel.operator] / gigabytes_a_second

    return [replace(kernel, memory=share(kernel)) for kernel in kernels]


def copy_rate(clock: Clock, numbers: int) -> float:
    """Return how many gigabytes a second a copy within the device reads and writes, both counted."""
    source = torch.ones(numbers, device=clock.device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / 1e9 / (1e-3 * clock.milliseconds(lambda: target.copy_(source)))


def counted(file: Path) -> dict[str, dict[str, float]]:
    """Return what ncu wrote (`--csv --page raw --print-units base`) of each kernel: sums over its launches.

    The names are those of `alike`.
    Of shares the mean, weighted with the launches' times. Raises ValueError for a file without such a table.
    """
    lines = file.read_text().splitlines()
    first = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        raise ValueError(next((line for line in lines if "==ERROR==" in line), "ncu wrote no table"))
    kernels: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in csv.DictReader(lines[first:]):
        if not row["ID"]:
            continue  # the line of the units
        kernel = kernels[alike(short_name(row["Kernel Name"]))]
        time = _number(row[NANOSECONDS])
        kernel[NANOSECONDS] += time
        kernel[BYTES] += _number(row[BYTES])
        for share in (MEMORY, ARITHMETIC):
            kernel[share] += time * _number(row[share]) / 100.0
    for kernel in kernels.values():
        for share in (MEMORY, ARITHMETIC):
            kernel[share] /= kernel[NANOSECONDS] or math.nan
    return kernels


def _number(text: str) -> float:
    return float(text.replace(",", "") or "nan")


def count_with_ncu(millions: float) -> dict[str, dict[str, float]]:
    """Let ncu count what one step does, in a process of its own. Raises ValueError where it cannot."""
    ncu = shutil.which("ncu")
    if ncu is None:
        raise ValueError("there is no ncu on the PATH")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        command = [ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"]
        command += ["--profile-from-start", "off", "--log-file", str(log)]
        command += ["--metrics", ",".join((BYTES, MEMORY, ARITHMETIC, NANOSECONDS))]
        command += [sys.executable, __file__, "--millions", str(millions), "--one-step"]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=NCU_SECONDS)
        except subprocess.TimeoutExpired:
            raise ValueError(f"ncu did not end within {NCU_SECONDS:.0f} s") from None
        if not log.exists():
            raise ValueError(f"ncu ended with status {ended.returncode}: {ended.stderr.strip()[-200:]}")
        return counted(log)


def with_counts(kernels: list[Kernel], counts: dict[str, dict[str, float]]) -> list[Kernel]:
    """Return kernels with what ncu counted, by their names."""
    told = []
    for kernel in kernels:
        found = counts.get(alike(kernel.name))
        if found is None:
            told.append(replace(kernel, gigabytes=None, memory=None, arithmetic=None))
        else:
            shares = {"memory": found[MEMORY], "arithmetic": found[ARITHMETIC]}
            told.append(replace(kernel, gigabytes=found[BYTES] / 1e9, **shares))
    return told


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, profile, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--millions", type=float, default=3.0, help="of Gaussians")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", type=Path, help="a file for the table as JSON")
    parser.add_argument("--one-step", action="store_true", help="make the step that ncu counts, no table")
    given = parser.parse_args(arguments)
    device, num = torch.device(given.device), round(1e6 * given.millions)
    size = (1920, 1080) if given.device == "cuda" else (64, 48)
    file = find_garden(ROOT)
    workload = cloud(num, size, device) if file is None else garden(file, num, size, device)
    step = training_step(workload)
    for _ in range(3):
        step()
    if given.one_step:
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        step()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
        return
    clock = Clock(device)
    rate = copy_rate(clock, COPIED if device.type == "cuda" else 1 << 20)
    kernels = with_rate_of_copies(profiled(step, device), rate)
    source = f"memory: share of a copy's {rate:.0f} GB/s, by the bytes that operators are given"
    if device.type == "cuda":
        try:
            kernels = with_counts(kernels, count_with_ncu(given.millions))
            source = "bytes and shares of the peaks: as ncu counts them"
        except (ValueError, OSError, KeyError) as error:
            source += f" ({error})"
    title = f"step with {workload.millions:g} M Gaussians of the {workload.name}, {size[0]} x {size[1]}"
    print(f"{title}; a copy moves {rate:.0f} GB/s\n{source}\n{HEADING}")
    for kernel in kernels[:MOST]:
        print(kernel)
    print(f"{'all':58} {sum(k.launches for k in kernels):6.1f} {sum(k.milliseconds for k in kernels):9.4f}")
    if given.json is not None:
        told = {"title": title, "source": source, "copy_gigabytes_a_second": rate}
        given.json.write_text(json.dumps(told | {"kernels": [asdict(kernel) for kernel in kernels]}))


if __name__ == "__main__":
    main()
