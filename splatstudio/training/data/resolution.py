"""Coarse to fine: small pictures first, whose few pixels show all that the first steps can learn.

After DashGaussian (Chen et al. 2025), with a fixed schedule.
"""

from __future__ import annotations

import math
from dataclasses import replace

from splatstudio.cameras.camera import Camera
from splatstudio.optimization.gradients import TrainView
from splatstudio.rendering.render import area_means
from splatstudio.settings.config import TrainConfig

SMALLEST_SIDE = 32  # px: smaller pictures say nothing and cost no less
LARGE_SIDE = 256  # px of the shorter side, from which on half the size tells who contributes how much


def divisor_at(step: int, config: TrainConfig) -> float:
    """Return by what to divide the sides of the photos at the step after `step` others.

    It falls geometrically from `coarse.first` to 1 at `coarse.until` of the steps.
    """
    coarse = config.coarse
    if step >= full_size_from(config):
        return 1.0
    progress = step / max(config.steps, 1)
    return coarse.first ** (1.0 - progress / coarse.until)


def full_size_from(config: TrainConfig) -> int:
    """Return after how many steps the photos have their full size."""
    if not config.coarse.first > 1.0:
        return 0
    return math.ceil(config.coarse.until * config.steps - 1e-6)  # 0.55 * 100 is a little more than 55


def survey_divisor_at(step: int, config: TrainConfig, camera: Camera) -> float:
    """Return by what to divide the sides of a photo that is asked after `step` steps, see `survey`.

    Of a large photo, seen by `camera`, half the size is enough, for about a quarter of the time.
    """
    return max(divisor_at(step, config), 2.0 if min(camera.width, camera.height) >= LARGE_SIDE else 1.0)


def reduced_size(camera: Camera, divisor: float) -> tuple[int, int]:
    """Return width and height of a camera's picture whose sides are divided by `divisor`, 1 or more.

    No side becomes shorter than `SMALLEST_SIDE`.
    """
    divisor = min(divisor, max(min(camera.width, camera.height) / SMALLEST_SIDE, 1.0))
    return round(camera.width / divisor), round(camera.height / divisor)


def reduced(view: TrainView, divisor: float) -> TrainView:
    """Return a view of which the sides are divided by `divisor`: its pixels are means of areas.

    A pixel counts where all that it covers does. A target that has that size already stays.
    """
    width, height = reduced_size(view.camera, divisor)
    if (width, height) == (view.camera.width, view.camera.height):
        return view
    mask = None
    if view.mask is not None:
        # Of what does not count: a mean of zeros is zero always, one of ones may be a last bit below one.
        mask = area_means((~view.mask)[..., None].float(), width=width, height=height)[..., 0] == 0.0
    alpha, target = view.alpha, view.target
    if alpha is not None:
        alpha = area_means(alpha[..., None], width=width, height=height)[..., 0]
    if target.shape[:2] != (height, width):
        target = area_means(target, width=width, height=height)
    return replace(view, camera=view.camera.resized(width, height), target=target, mask=mask, alpha=alpha)


def sh_degree_at(index: int, config: TrainConfig, num_photos: int) -> int:
    """Return the highest degree in use at the step after `index` steps, with `num_photos` to learn from.

    Degree d has (d + 1)^2 coefficients for each color, and a photo says one thing about them: with too
    few photos they take up the differences between these (see `TrainConfig.sh_photos`).
    """
    # A model to start from has settled base colors already, and must not lose what depends on the view.
    reached = config.sh_degree if config.init else index // config.sh_degree_every
    if config.sh_photos > 0 and not config.init:
        reached = min(reached, max(math.isqrt(int(num_photos / config.sh_photos)) - 1, 0))
    return min(reached, config.sh_degree, config.sh_degree_limit)
