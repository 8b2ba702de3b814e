"""The photos of a training as its steps compare them with pictures: on its device, cut and reduced."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from splatstudio.corrections.corrections import Corrections
from splatstudio.evaluation.evaluate import alpha_of, target_of
from splatstudio.optimization.gradients import TrainView
from splatstudio.scene.photo import Photo
from splatstudio.scene.photo_uploads import PhotoUploads
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.strategy.sampling import generator_of
from splatstudio.training.data.photo_queue import Batch, PhotoQueue
from splatstudio.training.data.resolution import divisor_at, full_size_from, reduced, reduced_size

SMALLEST_TO_CUT = 128  # px of the shorter side: below it a step costs hardly less with fewer pixels
VARIATION = 0.12  # of a side: how far from its middle a photo may be cut
TILE = 16  # px: the rasterizer's, of which halves have whole ones


def random_crop(view: TrainView, step: int, config: TrainConfig, number: int = 0) -> TrainView:
    """Return what the step after `step` others learns from: the view, or a half of it.

    `number` is the view's among those of the step. In those of `crops` it is cut across one of its sides,
    near the middle: every pixel is as often in the half that is kept as in the other. Which half follows from
    the seed.
    """
    camera = view.camera
    if step not in crops(config):
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


def crops(config: TrainConfig) -> range:
    """Return the steps, by how many others came before, whose photos are halved.

    Not before they have their full size. Maps of exposure are of whole photos, and with them all stay
    whole.
    """
    coarse = config.coarse
    if config.steps > coarse.halves_within or config.exposure.grid:
        return range(0)
    begin = max(math.ceil(coarse.halves_from * config.steps), full_size_from(config))
    return range(begin, math.ceil(coarse.halves_until * config.steps - 1e-6))


def behind_transparency(seed: int, step: int, number: int) -> tuple[float, float, float]:
    """Return the color over which view `number` of a step is drawn where its photo has transparent pixels.

    It is another one each time: over one color alone, splats of that color are as good as none, and whoever
    shows the model over another one sees them.
    """
    generator = generator_of(seed, (step << 20) + (1 << 19) + number)  # others than those of `random_crop`
    red, green, blue = torch.rand(3, generator=generator).tolist()
    return red, green, blue


class TrainViewMaker:
    """Makes views of a scene's photos, each from where its camera is by now and over its background.

    `generator` draws random backgrounds where the settings ask for them. The photos of the next step are on
    their way to `device` while one is made, and stay there until `keep_bytes` are full.
    """

    def __init__(
        self,
        scene: Scene,
        queue: PhotoQueue,
        corrections: Corrections,
        generator: torch.Generator,
        device: torch.device,
        keep_bytes: int = 0,
    ) -> None:
        self._scene = scene
        self._queue = queue
        self._corrections = corrections
        self._generator = generator
        self._uploads = PhotoUploads(device, keep_bytes=keep_bytes)

    def of_batch(self, batch: Batch, step: int, config: TrainConfig) -> list[list[TrainView]]:
        """Return this rank's views of the step after `step` others, a round at a time.

        Raises ValueError for a photo that cannot be read. What is drawn by chance is drawn before.
        """
        backgrounds = [self._corrections.behind(config, self._generator) for _ in batch.indices]
        divisor = divisor_at(step, config)

        def view_at(place: int) -> TrainView:
            number = batch.drawn[place]
            index = batch.indices[place]
            photo, behind = self._queue.photo(index), backgrounds[number]
            if photo.alpha is not None and not config.sky.enabled:
                behind = behind_transparency(config.seed, step, number)
            view = self.of_photo(index, photo, behind, config, divisor)
            return random_crop(view, step, config, number)

        rounds = [[view_at(place) for place in places] for places in batch.rounds]
        self._uploads.send(self._queue.following(config), self._queue.following(config, 1))
        return rounds

    def of_photo(
        self,
        index: int,
        photo: Photo,
        background: tuple[float, float, float],
        config: TrainConfig,
        divisor: float,
    ) -> TrainView:
        """Return the view of view `index`, whole, its sides divided by `divisor`."""
        name, pixels = self._scene.views[index].name, self._uploads.take(index, photo)
        camera = self._corrections.camera(index)
        target, mask = target_of(pixels, background, reduced_size(camera, divisor))
        corrected = config.sky.enabled or config.exposure.enabled or config.exposure.grid
        alpha = alpha_of(pixels) if corrected else None
        view = TrainView(index, name, camera, target, mask, background, alpha)
        return self._corrections.over_what_is_behind(reduced(view, divisor))

    def close(self) -> None:
        """Let all photos go."""
        self._uploads.close()

    def keep_none(self) -> None:
        """Keep no photos on the device from now on: their memory is needed."""
        self._uploads.keep_none()
