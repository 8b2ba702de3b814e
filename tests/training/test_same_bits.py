"""One seed gives one model, on every x86 processor with AVX2 and by any number of threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from loss_trajectories import RECORD
from loss_trajectories import __file__ as SCRIPT

from splatstudio.kernels import ops

KNOWN = json.loads(RECORD.read_text())
# What chooses among instructions by the processor: torch and its libraries, numpy and its own, OpenCV.
WIDE = "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR"
PROCESSORS = {
    "this, two threads": {"OMP_NUM_THREADS": "2"},
    "one of AVX2, one thread": {
        "SPLATSTUDIO_CPU": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
        "NPY_DISABLE_CPU_FEATURES": WIDE,
        "OPENCV_IPP": "avx2",
        "OMP_NUM_THREADS": "1",
    },
    "of another maker, three threads": {
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "OPENBLAS_CORETYPE": "Zen",
        "NPY_DISABLE_CPU_FEATURES": WIDE,
        "OPENCV_IPP": "disabled",
        "OMP_NUM_THREADS": "3",
    },
}


@pytest.mark.cpu_kernels
@pytest.mark.skipif(ops.native_version() == "portable", reason="no x86 processor with AVX2")
@pytest.mark.skipif(
    torch.__version__.partition("+")[0] != KNOWN["torch"], reason=f"recorded with torch {KNOWN['torch']}"
)
@pytest.mark.parametrize("processor", PROCESSORS)
def test_a_training_gives_the_recorded_losses_and_model_on_every_processor(processor: str) -> None:
    environment = {**os.environ, **PROCESSORS[processor]}
    environment.pop("MKL_CBWR", None)  # splatstudio says it by itself
    environment["PYTHONPATH"] = os.pathsep.join(folder for folder in sys.path if folder)
    done = subprocess.run([sys.executable, SCRIPT], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    for name, known in KNOWN.items():
        assert made[name] == known, name
