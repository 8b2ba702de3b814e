"""The Python interface: load a scene, train it, render it, keep it. What the README shows is here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from splatstudio.camera import Camera
from splatstudio.checkpoint import load_checkpoint, newest_checkpoint
from splatstudio.config import TrainConfig, changed
from splatstudio.evaluate import Evaluation, evaluate
from splatstudio.formats.ply import read_ply, write_ply
from splatstudio.gaussian_transform import transformed
from splatstudio.gaussians import Gaussians
from splatstudio.rendering import RenderOptions, render_image
from splatstudio.run import Run
from splatstudio.scene import load_scene
from splatstudio.scene.scene import Scene
from splatstudio.session import Advance, Session, options_for_display
from splatstudio.trainer import Trainer

__all__ = ["Model", "load_model", "load_scene", "render", "train"]


@dataclass(frozen=True, eq=False)
class Model:
    """A trained model: Gaussians in a scene's normalised frame and the way back to its files' coordinates."""

    gaussians: Gaussians
    transform: np.ndarray = field(default_factory=lambda: np.eye(4))  # [4, 4] from the files' world to this
    options: RenderOptions = field(default_factory=RenderOptions)

    def __len__(self) -> int:
        return len(self.gaussians)

    def save_ply(self, path: str | Path) -> Path:
        """Write the model as a PLY in the coordinates of the scene's files; return the path."""
        write_ply(Path(path), transformed(self.gaussians, np.linalg.inv(self.transform)))
        return Path(path)

    def evaluate(self, scene: Scene) -> Evaluation:
        """Compare renders with the scene's test photographs: PSNR and SSIM, per image and mean."""
        return evaluate(self.in_frame_of(scene).gaussians, scene, options=self.options)

    def in_frame_of(self, scene: Scene) -> Model:
        """Return the model in `scene`'s frame, by way of the files' coordinates that both share."""
        if np.allclose(self.transform, scene.transform, rtol=0.0, atol=1e-9):
            return self
        step = scene.transform @ np.linalg.inv(self.transform)
        return replace(self, gaussians=transformed(self.gaussians, step), transform=scene.transform)


def train(
    scene: Scene | str | Path,
    *,
    run_dir: str | Path | None = None,
    on_step: Callable[[Advance], None] | None = None,
    config: TrainConfig | None = None,
    **settings: object,
) -> Model:
    """Train a model of `scene` and return it; `settings` are fields of TrainConfig, as steps=2000.

    Dotted settings are written with two underscores: optim__means_lr=1e-4. With `run_dir` the run keeps
    checkpoints, metrics and evaluations there; without it nothing is written. `on_step` is called after each
    step. Raises ValueError for a scene or a setting that cannot be used.
    """
    for name, value in settings.items():
        config = changed(config or TrainConfig(), name.replace("__", "."), value)
    config = config or TrainConfig()
    if not isinstance(scene, Scene):
        scene = load_scene(scene, downscale=config.downscale, test_every=config.test_every)
    trainer = Trainer(scene, config)
    try:
        session = Session(trainer, Run.create(Path(run_dir), scene.path, config)) if run_dir else None
        while trainer.step < config.steps:
            advance = session.advance() if session else Advance(trainer.train_step())
            if on_step is not None:
                on_step(advance)
        return Model(trainer.gaussians, scene.transform, options_for_display(config))
    finally:
        trainer.close()


def load_model(path: str | Path) -> Model:
    """Load a model from a PLY, a checkpoint folder or a run folder (its newest good checkpoint).

    Raises ValueError, naming the file and the reason, when there is none or it is damaged.
    """
    path = Path(path)
    if path.suffix.lower() == ".ply":
        return Model(read_ply(path))
    folder = path if (path / "manifest.json").exists() else newest_checkpoint(path)
    if folder is None:
        raise ValueError(
            f"{path} holds no model: expected a .ply file, a checkpoint or a run with checkpoints"
        )
    checkpoint = load_checkpoint(folder)
    return Model(checkpoint.gaussians, checkpoint.scene_transform, options_for_display(checkpoint.config))


def render(model: Model, camera: Camera) -> np.ndarray:
    """Render `model` from `camera` as an image, [H, W, 3] uint8.

    For gradients and depth use `splatstudio.rendering.render`, which works on tensors.
    """
    with torch.no_grad():
        return render_image(model.gaussians, camera, model.options)
