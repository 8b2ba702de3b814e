"""Takes each barrier and each mask out of the CUDA kernels, one at a time, and runs the search for races.

    python tests/mutants/barriers.py            all of them, half an hour on two cores; after make cuda-on-cpu
    python tests/mutants/barriers.py raster     those in files whose names hold one of these words
    python tests/mutants/barriers.py --list

Each must be found: a barrier that nothing needs costs time, and a search that does not see one is blind.
The exit code is 1 where one survives.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "barriers"
TESTS = (
    "tests/cuda_on_cpu/test_races.py",
    "tests/cuda_on_cpu/test_long_lists.py",
    "tests/cuda_on_cpu/test_fused.py",
    "tests/cuda_on_cpu/test_pose.py",
    "tests/kernels/test_ops.py",
    "tests/kernels/test_modes.py",
    "tests/kernels/test_mcmc_kernels.py",
)
# A lane that the mask leaves out does not wait for the others.
FAULTS = (
    (re.compile(r"__sync(?:threads|warp)\(\);"), ""),
    (re.compile(r"(?<=\()kAllLanes(?=,)"), "0x7fffffffu"),
)


@dataclass(frozen=True)
class Fault:
    """One place in a source and what stands there instead."""

    file: str
    line: int
    begin: int
    end: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {'barrier gone' if not self.text else 'lane 31 left out'}"


def faults() -> Iterator[Fault]:
    """Return every barrier and every mask of the kernels."""
    for path in sorted((ROOT / "csrc" / "cuda").glob("*.cu*")):
        source = path.read_text()
        for pattern, text in FAULTS:
            for found in pattern.finditer(source):
                line = source.count("\n", 0, found.start()) + 1
                yield Fault(path.name, line, found.start(), found.end(), text)


def copy_sources() -> None:
    """Copy what the emulation is built from; a file that is the same keeps its date."""
    for folder in ("csrc", "tests/cuda_on_cpu"):
        for path in sorted((ROOT / folder).rglob("*")):
            target = PLACE / path.relative_to(ROOT)
            same = target.exists() and path.is_file() and target.read_bytes() == path.read_bytes()
            if path.is_file() and "__pycache__" not in path.parts and not same:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)


def build() -> bool:
    """Build the extension whose accesses are watched, and return whether that worked."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    configure = ["cmake", "-S", str(PLACE / "tests" / "cuda_on_cpu"), "-B", str(PLACE / "build")]
    make = ["cmake", "--build", str(PLACE / "build"), "-j", "2", "--target", "races"]
    for command in (configure, make):
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            print(done.stdout[-2000:], done.stderr[-2000:])
            return False
    return True


def found_by() -> str | None:
    """Return the first test that fails, and why; None where all pass."""
    environment = {**os.environ, "SPLATSTUDIO_EXTENSION": str(PLACE / "build" / "races.so")}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not cpu_kernels", "-p", "no:cacheprovider"]
    # Slow: about threads of the CPU, and lists that are longer than they need be for this.
    slow = ("forked_process", "all_chunks", "large_picture", "without_gradients", "checkpoints")
    skipped = " and ".join(f"not {name}" for name in slow)
    done = subprocess.run(
        [*command, "-k", skipped, *TESTS], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    if done.returncode == 0:
        return None
    said = re.search(r"emulator: ([^\n]*?)(?: with nothing between| \(addr2line|\n|$)", done.stdout)
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return f"{failed[1] if failed else done.stdout[-300:]}: {said[1] if said else 'another value'}"


def main() -> int:
    """Try each fault and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    chosen = [
        fault
        for fault in faults()
        if not arguments.words or any(word in fault.file for word in arguments.words)
    ]
    if arguments.list:
        print(*chosen, sep="\n")
        return 0
    copy_sources()
    if not build() or (why := found_by()) is not None:
        print(f"the kernels as they are do not pass: {why}")
        return 1
    survivors = 0
    for fault in chosen:
        began = time.monotonic()
        path = PLACE / "csrc" / "cuda" / fault.file
        source = path.read_text()
        path.write_text(source[: fault.begin] + fault.text + source[fault.end :])
        try:
            found = found_by() if build() else "it does not compile"
        finally:
            path.write_text(source)
        survivors += found is None
        verdict = "SURVIVES" if found is None else "found"
        print(f"{verdict}  {fault}  {found or ''}  {time.monotonic() - began:.0f} s", flush=True)
    print(f"{survivors} of {len(chosen)} survive")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
