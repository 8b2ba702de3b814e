"""Short trainings of the demo, and what must come of them on every processor.

`python tests/support/loss_trajectories.py` prints them as JSON, `--write` keeps them in tests/data. They hold
for the version of torch in requirements.txt: another one may round in other ways.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import splatstudio  # noqa: F401 - before torch: it says how torch and its libraries compute

# isort: split
import torch

from splatstudio.scene.load import load_training_scene
from splatstudio.settings.config import TrainConfig, changed
from splatstudio.settings.presets import PRESETS
from splatstudio.training.trainer import Trainer

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "tests" / "data" / "loss_trajectories.json"
STEPS, EVERY = 48, 8
# Between them all three strategies, the sky, exposures, poses and depths.
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {"poses.enabled": True, "poses.start_step": 8, "exposure.enabled": True},
    "mcmc": {"depth.weight": 0.05, "exposure.grid": True},
    "fast": {"sky.enabled": True},
    "preview": {},
}


def trajectory(preset: str) -> dict[str, Any]:
    """Return the losses of a short training, as hexadecimal numbers, and a digest of its model."""
    config = TrainConfig(steps=STEPS, downscale=4, sh_degree_every=STEPS // 4)
    config = PRESETS[preset].apply(config, {"steps", "downscale", "sh_degree_every"})
    often = {"start_step": 8, "every": 8}
    early = {f"{group}.{name}": value for group in ("densify", "mcmc") for name, value in often.items()}
    for path, value in {**early, **OPTIONS[preset]}.items():
        config = changed(config, path, value)
    trainer = Trainer(load_training_scene(ROOT / "assets" / "demo", config), config)
    losses = [trainer.train_step().loss for _ in range(STEPS)]
    tensors = trainer.checkpoint().population.gaussians.tensors().values()
    digest = hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)).hexdigest()
    num = trainer.num_gaussians
    trainer.close()
    return {"losses": [loss.hex() for loss in losses[EVERY - 1 :: EVERY]], "splats": num, "model": digest}


def main() -> None:
    """Print the trajectories, or keep them."""
    made = {"torch": torch.__version__.partition("+")[0], **{name: trajectory(name) for name in OPTIONS}}
    text = json.dumps(made, indent=1) + "\n"
    if "--write" in sys.argv:
        RECORD.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
