"""Finished models from disk, as the viewer shows them and as they are exported."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from splatstudio.checkpoint import load_checkpoint, newest_checkpoint
from splatstudio.formats.ply import read_ply, write_ply
from splatstudio.gaussian_transform import transformed
from splatstudio.gaussians import Gaussians
from splatstudio.rendering import RenderOptions, options_for_display


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model in the frame it is shown in, and the way there from its files' coordinates."""

    gaussians: Gaussians
    step: int | None = None
    transform: np.ndarray = field(default_factory=lambda: np.eye(4))
    options: RenderOptions = field(default_factory=RenderOptions)


def load_shown_model(path: Path) -> LoadedModel:
    """Load a PLY file, a checkpoint folder, or the newest good checkpoint of a run folder.

    A PLY is shown in its own coordinates, a checkpoint in its scene's normalised frame. Raises ValueError,
    naming the file and the reason, when there is no model or it is damaged.
    """
    if path.suffix.lower() == ".ply":
        return LoadedModel(read_ply(path))
    folder = path if (path / "manifest.json").exists() else newest_checkpoint(path)
    if folder is None:
        raise ValueError(
            f"{path} holds no model: expected a .ply file, a checkpoint or a run with checkpoints"
        )
    checkpoint = load_checkpoint(folder)
    return LoadedModel(
        checkpoint.gaussians,
        checkpoint.step,
        checkpoint.scene_transform,
        options_for_display(checkpoint.config),
    )


def export_ply(path: Path, gaussians: Gaussians, transform: np.ndarray) -> int:
    """Write Gaussians of a normalised frame as a PLY in their files' coordinates; return its bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        in_file = gaussians
        if not np.array_equal(transform, np.eye(4)):
            in_file = transformed(gaussians, np.linalg.inv(transform))
        write_ply(path, in_file)
    return path.stat().st_size


def central_bounds(gaussians: Gaussians) -> tuple[tuple[float, float, float], float]:
    """Return the centre and the radius of the 90 % of Gaussians that lie most centrally, world units."""
    # A sample is enough for a camera's first position; far floaters must not decide it.
    stride = max(1, len(gaussians) // 100_000)
    means = gaussians.means.detach()[::stride].double().cpu().numpy()
    means = means[np.isfinite(means).all(axis=1)]
    if len(means) == 0:
        return (0.0, 0.0, 0.0), 1.0
    center = np.median(means, axis=0)
    radius = float(np.quantile(np.linalg.norm(means - center, axis=1), 0.9))
    return (float(center[0]), float(center[1]), float(center[2])), max(radius, 1e-3)
