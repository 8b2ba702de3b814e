"""What is said about a model on view."""

from __future__ import annotations

import numpy as np

from splatstudio.gaussians import Gaussians
from splatstudio.model import Model
from splatstudio.worker.messages import ModelLoaded


def model_loaded(model: Model) -> ModelLoaded:
    """Describe a model for a viewer that must find its first point of view."""
    return ModelLoaded(model.step, len(model), *central_bounds(model.gaussians))


def central_bounds(gaussians: Gaussians) -> tuple[tuple[float, float, float], float]:
    """Return the centre and the radius of the half of the Gaussians that lies most centrally, world units."""
    # A sample is enough for a camera's first position; the far background must not decide it.
    stride = max(1, len(gaussians) // 100_000)
    means = gaussians.means.detach()[::stride].double().cpu().numpy()
    means = means[np.isfinite(means).all(axis=1)]
    if len(means) == 0:
        return (0.0, 0.0, 0.0), 1.0
    center = np.median(means, axis=0)
    radius = float(np.quantile(np.linalg.norm(means - center, axis=1), 0.5))
    return (float(center[0]), float(center[1]), float(center[2])), max(radius, 1e-3)
