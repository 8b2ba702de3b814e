"""What is said about a model on view."""

from __future__ import annotations

from splatstudio.gaussians import central_bounds
from splatstudio.model import Model
from splatstudio.worker.messages import ModelLoaded


def model_loaded(model: Model) -> ModelLoaded:
    """Describe a model for a viewer that must find its first point of view."""
    return ModelLoaded(model.step, len(model), *central_bounds(model.gaussians))
