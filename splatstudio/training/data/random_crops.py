"""Halves of photographs: at full size, and as cheap as smaller ones.

With smaller photographs to the end Gaussians would learn to look right in large pixels; a half shows them as
they will be seen, and what one step does not see the next ones do.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from splatstudio.optimization.gradients import TrainView
from splatstudio.settings.config import TrainConfig
from splatstudio.strategy.chance import generator_of
from splatstudio.training.data.resolution import full_size_from

SMALLEST_TO_CUT = 128  # px of the shorter side: below it a step costs hardly less with fewer pixels
VARIATION = 0.12  # of a side: how far from its middle a photograph may be cut
TILE = 16  # px: the rasteriser's, of which halves have whole ones


def random_crop(view: TrainView, step: int, config: TrainConfig, number: int = 0) -> TrainView:
    """Return what the step after `step` others learns from: the view, or a half of it.

    `number` is the view's among those of the step. From `crops_begin` on it is cut across one of its sides,
    near the middle: every pixel is as often in the half that is kept as in the other. Which half follows from
    the seed.
    """
    begin, camera = crops_begin(config), view.camera
    if begin is None or step < begin:
        return view
    if min(camera.width, camera.height) < SMALLEST_TO_CUT:
        return view
    generator = generator_of(config.seed, (step << 20) + number)
    side, place, end = torch.rand(3, generator=generator).tolist()
    across = side * (camera.width + camera.height) < camera.width
    length = camera.width if across else camera.height
    # Cut anywhere, the two parts are seen equally often; cut always in one place, SSIM would never see it.
    share = 0.5 + VARIATION * (2.0 * place - 1.0)
    kept = round(share * length / TILE) * TILE
    first = 0 if end < 0.5 else length - kept
    left, top = (first, 0) if across else (0, first)
    width, height = (kept, camera.height) if across else (camera.width, kept)

    def cut(image: Tensor) -> Tensor:
        return image[top : top + height, left : left + width].contiguous()

    return replace(
        view,
        camera=camera.cropped(left, top, width, height),
        target=cut(view.target),
        mask=None if view.mask is None else cut(view.mask),
        alpha=None if view.alpha is None else cut(view.alpha),
    )


def crops_begin(config: TrainConfig) -> int | None:
    """Return after how many steps photographs are halved; None: they stay whole.

    Not before they have their full size. Maps of exposure are of whole photographs, and with them all stay
    whole.
    """
    coarse = config.coarse
    if config.steps > coarse.halves_within or config.exposure.grid or not coarse.halves_from < 1.0:
        return None
    return max(math.ceil(coarse.halves_from * config.steps), full_size_from(config))
