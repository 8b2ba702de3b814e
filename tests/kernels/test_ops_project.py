"""The native projection against the plain-torch reference, from activated and from stored parameters."""

from __future__ import annotations

import pytest
import torch
from test_ops import PROJECTED, camera_of, gaussians_of, leaves_of, random_like, relative_error

from splatstudio.cameras.camera import CameraModel
from splatstudio.kernels import ops, reference
from splatstudio.kernels.stages import ProjectSettings

MODELS: tuple[CameraModel, ...] = ("pinhole", "ortho", "fisheye")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("antialiased", [False, True])
@pytest.mark.parametrize("sh_degree", [0, 1, 2, 3])
def test_project_equals_the_reference(model: CameraModel, antialiased: bool, sh_degree: int) -> None:
    settings = ProjectSettings(sh_degree, antialiased)
    gradients = []
    outputs = []
    for backend in (ops, reference):
        leaves = leaves_of(gaussians_of(203))  # no multiple of the eight lanes
        projected = backend.project(*leaves, camera=camera_of(model), settings=settings)
        values = [getattr(projected, name) for name in PROJECTED]
        loss = sum((value * random_like(value, i)).sum() for i, value in enumerate(values))
        loss.backward()  # type: ignore[union-attr]
        outputs.append([*values, projected.radii])
        gradients.append([leaf.grad for leaf in leaves])
    assert torch.equal(outputs[0][-1], outputs[1][-1])
    assert int((outputs[0][-1] > 0).all(dim=1).sum()) > 50
    for name, ours, theirs in zip(PROJECTED, *outputs, strict=False):
        assert relative_error(ours, theirs) < 2e-5, name
    for ours, theirs in zip(*gradients, strict=True):
        if ours is None:  # coefficients that are not in use
            assert sh_degree == 0 and not theirs.any()
        else:
            assert relative_error(ours, theirs) < 1e-4


@pytest.mark.parametrize("antialiased", [False, True])
@pytest.mark.parametrize("sh_degree", [0, 1, 3])
def test_projecting_raw_parameters_equals_activating_them_before(antialiased: bool, sh_degree: int) -> None:
    settings = ProjectSettings(sh_degree, antialiased)
    values, gradients = [], []
    for raw in (True, False):
        means, quats, scales, opacities, *sh = gaussians_of(1203)
        leaves = leaves_of([means, quats, scales.log(), opacities.logit(), *sh])
        if raw:
            projected = ops.project_raw(*leaves, camera=camera_of(), settings=settings)
        else:
            rows = (*leaves[:2], leaves[2].exp(), leaves[3].sigmoid(), *leaves[4:])
            projected = ops.project(*rows, camera=camera_of(), settings=settings)
        outputs = [getattr(projected, name) for name in PROJECTED]
        sum((value * random_like(value, i)).sum() for i, value in enumerate(outputs)).backward()  # type: ignore[union-attr]
        values.append(outputs)
        gradients.append([leaf.grad for leaf in leaves if leaf.grad is not None])
    for name, ours, theirs in zip(PROJECTED, *values, strict=True):
        assert relative_error(ours, theirs) < 2e-6, name
    for ours, theirs in zip(*gradients, strict=True):
        assert relative_error(ours, theirs) < 1e-5
        assert torch.equal(ours == 0, theirs == 0)  # the same rows are left out


def test_raw_parameters_that_are_no_numbers_or_too_large_are_culled() -> None:
    means, quats, scales, opacities, *sh = gaussians_of(64)
    scales, opacities = scales.log(), opacities.logit() + 5.0
    odd = torch.tensor([float("nan"), float("inf"), 89.0, 200.0])
    scales[:4, 1], opacities[8:10] = odd, torch.tensor([float("nan"), float("-inf")])
    leaves = leaves_of([means, quats, scales, opacities, *sh])
    projected = ops.project_raw(*leaves, camera=camera_of(), settings=ProjectSettings())
    visible = (projected.radii > 0).all(dim=1)
    assert not visible[:4].any() and not visible[8:10].any() and int(visible.sum()) > 20
    (projected.conics.sum() + projected.opacities.sum()).backward()
    for leaf in leaves[:5]:
        assert leaf.grad is not None and leaf.grad.isfinite().all()
        assert not leaf.grad[:4].any() and not leaf.grad[8:10].any()
