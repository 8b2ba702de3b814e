"""The tests marked cuda on a pretended GPU: what Python does wrong with one fails here, not on a real one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = HERE.parent
KERNELS = TESTS / "kernels"
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": f"{HERE}:{TESTS / 'support'}:{KERNELS}:{TESTS.parent}",
    "OMP_NUM_THREADS": "1",
}
PYTEST = [
    "-m",
    "pytest",
    "-q",
    "-p",
    "no:cacheprovider",
    "--noconftest",
    "-p",
    "blob_scenes",
    "-p",
    "pretend_gpu",
]
# Of sources, and of graphs, which need a real one.
OTHERS = {"test_cuda_sources", "test_cuda_capture"}
FILES = sorted(path.name for path in KERNELS.glob("test_cuda*.py") if path.stem not in OTHERS)


def test_there_are_tests_for_a_gpu() -> None:
    assert len(FILES) >= 5


@pytest.mark.skipif(
    "libasan" in os.environ.get("LD_PRELOAD", ""), reason="it takes minutes under the sanitizers"
)
@pytest.mark.parametrize("name", FILES)
def test_what_is_marked_cuda_passes(name: str) -> None:
    # A graph and a bound on memory need a real one, and the emulation draws the garden for minutes.
    kept = "not graph and not garden and not without_memory"
    command = [sys.executable, *PYTEST, "-m", "cuda", "-k", kept, str(KERNELS / name)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) > 0


def test_tensors_of_both_devices_and_waits_are_found() -> None:
    code = """
import torch, pretend_gpu
pretend_gpu.pytest_configure()
there = torch.ones(3, device="cuda")
assert there.device.type == "cuda" and (there + 1).cpu().tolist() == [2.0, 2.0, 2.0]
bits = torch.tensor([12], device="cuda")
assert [(bits >> 2).tolist(), (bits << 1).tolist(), bits.tolist()] == [[3], [24], [12]]
bits >>= 1
assert bits.tolist() == [6]
def refused(work, why):
    try:
        work()
    except RuntimeError as error:
        return why in str(error)
    return False
assert refused(lambda: there + torch.ones(3), "on cuda:0 and on the CPU")
torch.cuda.set_sync_debug_mode("error")
host = torch.ones(3)
for work in (lambda: there.sum().item(), there.nonzero, lambda: there[there > 0], there.cpu, there.tolist):
    assert refused(work, "synchronizing"), work
assert refused(lambda: host.to("cuda", non_blocking=True), "synchronizing")
assert host.pin_memory().to("cuda", non_blocking=True).device == there.device
"""
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
