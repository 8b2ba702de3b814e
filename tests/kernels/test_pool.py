"""What becomes of an error in a thread of the kernels: it reaches the caller, and the threads stay usable."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Every splat covers all of a huge image: listing its tiles takes 8 GB, of which there are a few hundred MB.
TOO_LARGE = """
import resource
import torch
from splatstudio.kernels import ops
from splatstudio.kernels.stages import Projected, RasterSettings

def projected(num, radius):
    conics = torch.tensor([1e-9, 0.0, 1e-9]).expand(num, 3).contiguous()
    radii = torch.full((num, 2), radius, dtype=torch.int32)
    return Projected(torch.full((num, 2), 9.0), conics, torch.ones(num), torch.full((num,), 0.5),
                     torch.ones(num, 3), radii)

torch.set_num_threads({threads})
small = lambda: ops.rasterize(projected(9, 99), RasterSettings(50, 50, torch.zeros(3))).rgb
before = small()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 400_000_000, resource.RLIM_INFINITY))
try:
    ops.rasterize(projected(8192, 10_000), RasterSettings(8192, 8192, torch.zeros(3)))
except MemoryError as error:
    print(error)
print(torch.equal(small(), before))
"""


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("threads", [1, 3])
def test_too_little_memory_is_a_memory_error(threads: int) -> None:
    command = [sys.executable, "-c", TOO_LARGE.format(threads=threads)]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines() == [
        "the kernels need more memory than there is: use fewer Gaussians or fewer pixels",
        "True",
    ]


def has_libraries(compiler: str, sanitizers: str) -> bool:
    names = {"address,undefined": ("asan", "ubsan"), "thread": ("tsan",)}[sanitizers]
    commands = [
        [compiler, f"-print-file-name=lib{name}.so"] for name in names
    ]  # a bare name where there is none
    return all(
        Path(subprocess.check_output(command, text=True).strip()).is_absolute() for command in commands
    )


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_an_exception_reaches_the_caller(sanitizers: str, tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None or not has_libraries(compiler, sanitizers):
        pytest.skip("needs g++ with its sanitizers")
    program = tmp_path / "pool_faults"
    sources = [ROOT / "tests/support/pool_faults.cpp", ROOT / "csrc/cpu/pool.cpp"]
    options = ["-std=c++17", "-g", "-O1", f"-fsanitize={sanitizers}", f"-I{ROOT / 'csrc'}", "-pthread"]
    subprocess.run([compiler, *options, *sources, "-o", program], check=True, timeout=250)
    told = subprocess.run([program], capture_output=True, text=True, timeout=250)
    assert (told.returncode, told.stdout) == (0, "all as promised\n"), told.stderr
