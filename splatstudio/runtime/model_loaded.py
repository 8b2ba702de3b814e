"""What is said about a model on view."""

from __future__ import annotations

from splatstudio.gaussians.gaussians import central_bounds
from splatstudio.models.model import Model
from splatstudio.runtime.messages import ModelLoaded


def model_loaded(model: Model, num_gaussians: int | None = None) -> ModelLoaded:
    """Describe a model for a viewer that must find its first point of view.

    `num_gaussians` are those of all ranks where `model` has a part of them alone.
    """
    num_gaussians = len(model) if num_gaussians is None else num_gaussians
    center, radius = central_bounds(model.gaussians)
    return ModelLoaded(model.step, num_gaussians, center, radius, model.gaussians.sh_degree)
