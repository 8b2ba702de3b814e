"""Which photographs the next steps learn from, decoded ahead, and which rank draws which."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from splatstudio.config import TrainConfig
from splatstudio.descent import Shot
from splatstudio.distributed import Ranks
from splatstudio.evaluate import target_image
from splatstudio.scene.images import Photo, PhotoLoader
from splatstudio.scene.scene import Scene

LOOKAHEAD = 8  # steps whose photographs are decoded before it is their turn


@dataclass(frozen=True, eq=False)
class Photographs:
    """What a step learns from."""

    rounds: tuple[tuple[Shot, ...], ...]  # this rank's, a round at a time
    names: tuple[str, ...]  # of all ranks' photographs, by round, then by rank

    @property
    def shots(self) -> tuple[Shot, ...]:
        """Return this rank's shots."""
        return tuple(shot for shots in self.rounds for shot in shots)


class PhotoQueue:
    """The photographs of a training: epochs, each in an order of its own, that all ranks draw alike.

    `generator` must be in the same state on all ranks, and is afterwards. Of every batch_size photographs of
    a round a rank takes its own: rank 0 the first ones.
    """

    def __init__(self, scene: Scene, generator: torch.Generator, ranks: Ranks) -> None:
        self.scene = scene
        self._generator = generator
        self._ranks = ranks
        self._upcoming: deque[int] = deque()
        self._loader = PhotoLoader(scene)

    @property
    def upcoming(self) -> tuple[str, ...]:
        """Return the names of the photographs already drawn for the next steps."""
        return tuple(self.scene.views[index].name for index in self._upcoming)

    def draw_again(self, names: Sequence[str]) -> None:
        """Take up a checkpoint's drawn photographs; where the scene has others now, a new epoch starts."""
        by_name = {self.scene.views[index].name: index for index in self.scene.train_indices}
        if all(name in by_name for name in names):
            self._upcoming.extend(by_name[name] for name in names)

    def next(self, config: TrainConfig, device: torch.device) -> Photographs:
        """Return the photographs of the next step on `device`, each over a background of its own.

        Raises ValueError for one that cannot be read.
        """
        per_round = config.batch_size * self._ranks.num_ranks
        num = per_round * config.accumulate
        self._draw(LOOKAHEAD * num)
        indices = [self._upcoming.popleft() for _ in range(num)]
        photos = {position: self._loader.get(indices[position]) for position in self._own(config, num)}
        self._prefetch(config)
        backgrounds = [self._background(config) for _ in indices]
        shots = {
            position: self._shot(indices[position], photo, backgrounds[position], device)
            for position, photo in photos.items()
        }
        rounds = (range(start, start + per_round) for start in range(0, num, per_round))
        return Photographs(
            tuple(tuple(shots[position] for position in one if position in shots) for one in rounds),
            tuple(self.scene.views[index].name for index in indices),
        )

    def close(self) -> None:
        """Stop the threads that decode photographs."""
        self._loader.close()

    def _own(self, config: TrainConfig, num: int) -> list[int]:
        """Return which of the next `num` photographs are this rank's."""
        size, ranks = config.batch_size, self._ranks
        return [position for position in range(num) if position // size % ranks.num_ranks == ranks.rank]

    def _shot(
        self, index: int, photo: Photo, background: tuple[float, float, float], device: torch.device
    ) -> Shot:
        target, mask = target_image(photo, background, device)
        view = self.scene.views[index]
        return Shot(index, view.name, view.camera, target, mask, background)

    def _background(self, config: TrainConfig) -> tuple[float, float, float]:
        if not config.random_background:
            return config.background
        red, green, blue = torch.rand(3, generator=self._generator).tolist()
        return red, green, blue

    def _draw(self, num: int) -> None:
        """Draw whole epochs, each in an order of its own, until more than `num` photographs are known."""
        views = self.scene.train_indices
        while len(self._upcoming) <= num:
            order = torch.randperm(len(views), generator=self._generator)
            self._upcoming.extend(views[i] for i in order.tolist())

    def _prefetch(self, config: TrainConfig) -> None:
        per_step = config.batch_size * config.accumulate
        upcoming = list(self._upcoming)
        for position in self._own(config, len(upcoming))[: LOOKAHEAD * per_step]:
            self._loader.prefetch(upcoming[position])
