"""How much memory a real training needs at its peak, measured in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BYTES_A_GAUSSIAN, BYTES_A_PIXEL = 1200, 150  # float32, harmonics of degree 3, Adam
SCRIPT = """
import json, sys
from pathlib import Path
import splatstudio
import blob_models

# Photographs large enough to count beside the Gaussians.
blob_models.WIDTH, blob_models.HEIGHT, blob_models.FOCAL = 480, 360, 430.0
import conftest
from splatstudio.settings.config import DensifyConfig, TrainConfig
from splatstudio.scene import load_scene
from splatstudio.training.trainer import Trainer


def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def train(scene, num, steps):
    cap = num + num // 5
    densify = DensifyConfig(start_step=2, every=4, grow_grad=1e-4, reset_every=7, max_gaussians=cap)
    config = TrainConfig(
        steps=2 * steps, init_random=num, sh_degree_every=1, densify=densify, init_scale=0.3
    )
    trainer = Trainer(scene, config)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on
    most = max(trainer.train_step().num_gaussians for _ in range(steps))
    trainer.close()
    return most


folder = conftest.write_blob_scene(Path(sys.argv[1]))
(folder / "sparse" / "0" / "points3D.txt").write_text("")  # so that the first Gaussians are random
scene = load_scene(folder)
train(scene, 500, 12)  # loads every library and starts every thread
before = status("VmRSS")
most = train(scene, int(sys.argv[2]), 12)
peak = status("VmHWM") - before
print(json.dumps({"num_gaussians": most, "num_pixels": 480 * 360, "peak": peak}))
"""


def test_a_training_stays_within_its_memory(tmp_path: Path) -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak of a process can be counted anew on Linux only")
    tests = Path(__file__).parents[1]
    code = f"import sys; sys.path[:0] = {[str(tests / 'support'), str(tests)]!r}\n" + SCRIPT
    command = [sys.executable, "-c", code, str(tmp_path / "scene"), "150000"]
    # Every large tensor has pages of its own, which go with it: what lies in the heap depends on chance.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert result.returncode == 0, result.stderr
    measured = json.loads(result.stdout.splitlines()[-1])
    allowed = BYTES_A_GAUSSIAN * measured["num_gaussians"] + BYTES_A_PIXEL * measured["num_pixels"]
    assert measured["num_gaussians"] > 155_000, "nothing was born"
    # The model and its moments alone are 708 bytes a Gaussian: less cannot have been measured rightly.
    assert 708 * measured["num_gaussians"] < measured["peak"] < allowed, measured
