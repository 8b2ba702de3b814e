"""Models half way through a training, and the fused step of Adam on the emulated kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from emulated_kernels import native
from torch import Tensor

from splatstudio.cameras.camera import Camera, CameraModel, look_at
from splatstudio.kernels.ops import camera_numbers
from splatstudio.kernels.stages import ProjectSettings

NUM = 150  # more than a block, and no whole number of blocks
RATES = [1e-3, 2e-3, 3e-3, 4e-3, 5e-3, 6e-3, 0.9, 0.999, 1e-15]
NO_WEIGHTS, WEIGHTS = [0.0, 0.0], [30.0, 50.0]
USED = 24  # columns of shN that have moments, more than degree 1 uses


@dataclass(frozen=True, eq=False)
class State:
    """A model half way through a training, and the gradients of its projection."""

    params: list[Tensor]
    exp_avg: list[Tensor]
    exp_avg_sq: list[Tensor]
    radii: Tensor
    colors: Tensor
    v_projected: list[Tensor]

    def on(self, device: int) -> State:
        return self.mapped(lambda tensor: native.to_device(tensor, device))

    def copied(self) -> State:
        return self.mapped(Tensor.clone)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> State:
        return State(
            [change(tensor) for tensor in self.params],
            [change(tensor) for tensor in self.exp_avg],
            [change(tensor) for tensor in self.exp_avg_sq],
            change(self.radii),
            change(self.colors),
            [change(tensor) for tensor in self.v_projected],
        )

    def moving(self) -> list[Tensor]:
        return [*self.params, *self.exp_avg, *self.exp_avg_sq]


def camera_of(model: CameraModel = "pinhole") -> Camera:
    eye = np.array([0.3, 0.1, -2.5])
    K = np.array([[40.0, 0, 20.0], [0, 40.0, 15.0], [0, 0, 1]])
    viewmat = look_at(eye, np.array([0.6, 0.2, 0.0]), np.array([0.0, -1.0, 0.0]))
    return Camera(viewmat, K, 40, 30, model=model)


def settings_of(sh_degree: int = 1, antialiased: bool = False) -> ProjectSettings:
    return ProjectSettings(sh_degree, antialiased)


def state_of(camera: Camera, settings: ProjectSettings, num: int = NUM) -> State:
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    params = [
        2.0 * normal(num, 3),
        normal(num, 4),
        0.5 * normal(num, 3) - 2.0,
        normal(num),
        normal(num, 1, 3),
        0.3 * normal(num, 15, 3),
    ]
    *projected, radii = native.project_fwd(*params, *camera_numbers(camera, settings, raw=True), 1)
    v_projected = [normal(*tensor.shape) for tensor in projected]
    exp_avg = [0.1 * normal(*param.shape) for param in params]
    exp_avg_sq = [(0.1 * normal(*param.shape)) ** 2 for param in params]
    for moment in (exp_avg[5], exp_avg_sq[5]):
        moment.view(num, 45)[:, USED:] = 0.0
    return State(params, exp_avg, exp_avg_sq, radii, projected[4], v_projected)


def step(
    s: State,
    camera: Camera,
    settings: ProjectSettings,
    *,
    weights: list[float] = NO_WEIGHTS,
    used: int = USED,
    visible_only: bool = False,
) -> None:
    """Make the sixth step of Adam in place, out of sight, too."""
    late = nothing_late(s)
    moving = (s.params, s.exp_avg, s.exp_avg_sq, s.radii, s.colors, s.v_projected)
    view = camera_numbers(camera, settings, raw=True)
    native.project_adam(*moving, *view, RATES, weights, 6, *late, 1, used, visible_only, 1)
    if used > 0 and not visible_only:
        flush(s, late, used=used)


def nothing_late(s: State) -> tuple[Tensor, Tensor]:
    """Return how many steps each row of shN has made since all had made all, and room for their rates."""
    steps_done, device = torch.zeros(len(s.radii), dtype=torch.int32), native.device_index(s.radii)
    return (steps_done if device < 0 else native.to_device(steps_done, device)), torch.zeros(128, 2)


def flush(s: State, late: tuple[Tensor, Tensor], *, num_late: int = 1, used: int = USED) -> None:
    """Let all rows of shN make the steps that they have missed."""
    native.flush_lazy_adam(s.params[5], s.exp_avg[5], s.exp_avg_sq[5], *late, num_late, used, RATES[6:], 1)
