"""How trainings on several ranks are compared."""

from __future__ import annotations

from typing import Any

import torch

from splatstudio.gaussians.gaussians import Gaussians

SETTINGS: dict[str, Any] = {
    "sh_degree": 1,
    "sh_degree_every": 20,
    "densify.start_step": 5,
    "densify.every": 10,
    "densify.reset_every": 1000,
    "densify.grow_grad": 1e-4,
}


def assert_same(ours: Gaussians | None, theirs: Gaussians | None) -> None:
    assert ours is not None and theirs is not None
    for name, tensor in ours.tensors().items():
        assert torch.equal(tensor, theirs.tensors()[name]), name
