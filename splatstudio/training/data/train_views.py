"""The photographs of a training as its steps compare them with pictures: on its device, cut and reduced."""

from __future__ import annotations

import torch

from splatstudio.corrections import Corrections
from splatstudio.evaluation.evaluate import alpha_of, target_of
from splatstudio.optimization.gradients import TrainView
from splatstudio.scene.photo import Photo
from splatstudio.scene.photo_uploads import PhotoUploads
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.training.data.photo_queue import Batch, PhotoQueue
from splatstudio.training.data.random_crops import random_crop
from splatstudio.training.data.resolution import divisor_at, reduced


class TrainViewMaker:
    """Makes views of a scene's photographs, each from where its camera is by now and over its background.

    `generator` draws random backgrounds. The photographs of the next step are on their way to `device` while
    one is made.
    """

    def __init__(
        self,
        scene: Scene,
        queue: PhotoQueue,
        corrections: Corrections,
        generator: torch.Generator,
        device: torch.device,
    ) -> None:
        self._scene = scene
        self._queue = queue
        self._corrections = corrections
        self._generator = generator
        self._uploads = PhotoUploads(device)

    def of_batch(self, batch: Batch, step: int, config: TrainConfig) -> list[list[TrainView]]:
        """Return this rank's views of the step after `step` others, a round at a time."""
        backgrounds = [self._corrections.behind(config, self._generator) for _ in batch.indices]

        divisor = divisor_at(step, config)

        def view_at(place: int) -> TrainView:
            number = batch.drawn[place]
            view = self.of_photo(
                batch.indices[place], batch.photos[place], backgrounds[number], config, divisor
            )
            return random_crop(view, step, config, number)

        rounds = [[view_at(place) for place in places] for places in batch.rounds]
        self._uploads.send(self._queue.following(config))
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
        target, mask = target_of(pixels, background)
        alpha = alpha_of(pixels) if config.sky.enabled else None
        view = TrainView(index, name, self._corrections.camera(index), target, mask, background, alpha)
        return self._corrections.before_sky(reduced(view, divisor))

    def close(self) -> None:
        """Let the photographs go that were copied ahead."""
        self._uploads.send({})
