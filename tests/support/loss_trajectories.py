"""Short trainings of the demo, and what must come of them on every processor.

`python tests/support/loss_trajectories.py` prints them as JSON, `--write` keeps them in tests/data. They hold
for the version of torch in requirements.txt: another one may round in other ways.
"""

from __future__ import annotations

import atexit
import gc
import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import splatstudio  # noqa: F401 - before torch: it says how torch and its libraries compute

# isort: split
import torch
from torch.utils._python_dispatch import TorchDispatchMode

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


# What Intel's library rounds in another way on processors of another maker, whatever it is told. So it does
# with logarithms of float64, but a training rounds those to float32 at once.
BY_MAKER = {"sqrt", "acos"}


class AlikeOnAllProcessors(TorchDispatchMode):
    """Lets a training ask torch for nothing that it does in other ways on each maker's processors."""

    def __torch_dispatch__(
        self, op: Any, types: Any, args: tuple[Any, ...] = (), named: Mapping[str, Any] | None = None
    ) -> Any:
        name = op.__name__.partition(".")[0].rstrip("_")
        assert name not in BY_MAKER, f"torch.{name} depends on the processor's maker; see square_root"
        return op(*args, **(named or {}))


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
    with AlikeOnAllProcessors():
        made = {"torch": torch.__version__.partition("+")[0], **{name: trajectory(name) for name in OPTIONS}}
    text = json.dumps(made, indent=1) + "\n"
    if "--write" in sys.argv:
        RECORD.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    atexit.register(gc.freeze)  # Python looks through all of torch else, a third of a second
    main()
