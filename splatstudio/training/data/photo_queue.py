"""Which photos the next steps learn from, decoded ahead, and which rank draws which."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from splatstudio.distributed.ranks import Ranks
from splatstudio.scene.images import PhotoLoader, default_memory_budget
from splatstudio.scene.photo import Photo
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig

LOOKAHEAD = 8  # steps whose photos are decoded before it is their turn


@dataclass(frozen=True)
class Batch:
    """The photos of a step, of all ranks: places in `indices` name them, as one may come twice."""

    indices: tuple[int, ...]  # of the scene's views
    drawn: tuple[int, ...]  # the place of each in the order in which they were drawn
    rounds: tuple[tuple[int, ...], ...]  # this rank's places, a round at a time


class PhotoQueue:
    """The photos of a training: epochs, each in an order of its own, that all ranks draw alike.

    `generator` must be in the same state on all ranks, and is afterward. What a photo has cost before
    says which rank takes it, see `assign_views`.
    """

    def __init__(self, scene: Scene, generator: torch.Generator, ranks: Ranks) -> None:
        self.scene = scene
        self._generator = generator
        self._ranks = ranks
        self._upcoming: deque[int] = deque()
        self._costs: dict[int, float] = {}  # of the views, the same on all ranks
        # Ranks of one machine share its memory; those of several could keep more.
        self._loader = PhotoLoader(scene, memory_bytes=default_memory_budget() // ranks.num_ranks)

    @property
    def upcoming(self) -> tuple[str, ...]:
        """Return the names of the photos already drawn for the next steps."""
        return tuple(self.scene.views[index].name for index in self._upcoming)

    @property
    def costs(self) -> dict[str, float]:
        """Return what each photo has cost, by its name; see `count`."""
        return {self.scene.views[index].name: cost for index, cost in self._costs.items()}

    def count(self, batch: Batch, costs: Sequence[float]) -> None:
        """Note what the photos of a step have cost, in any unit but the same on all ranks."""
        self._costs.update(zip(batch.indices, costs, strict=False))

    def draw_again(self, names: Sequence[str], costs: Mapping[str, float], config: TrainConfig) -> None:
        """Take up a checkpoint's drawn photos; where the scene has others now, a new epoch starts.

        `costs`, by name, are what is known of them.
        """
        by_name = {self.scene.views[index].name: index for index in self.scene.train_indices}
        if all(name in by_name for name in names):
            self._upcoming.extend(by_name[name] for name in names)
        self._costs = {by_name[name]: cost for name, cost in costs.items() if name in by_name}
        self._prefetch(config)

    def next(self, config: TrainConfig) -> Batch:
        """Return which photos the next step learns from; nothing is waited for."""
        per_round = config.batch_size * self._ranks.num_ranks
        num = per_round * config.accumulate
        self._draw(LOOKAHEAD * num)
        drawn = [self._upcoming.popleft() for _ in range(num)]
        order = self._assigned(config, drawn)
        indices = tuple(drawn[place] for place in order)
        own = self._own(config, num)
        for place in own:
            self._loader.prefetch(indices[place])
        self._prefetch(config)
        rounds = (range(start, start + per_round) for start in range(0, num, per_round))
        return Batch(indices, order, tuple(tuple(place for place in one if place in own) for one in rounds))

    def put_back(self, batch: Batch) -> None:
        """Let the photos that were taken last be the next ones again."""
        places = sorted(range(len(batch.indices)), key=lambda place: batch.drawn[place], reverse=True)
        self._upcoming.extendleft(batch.indices[place] for place in places)

    def following(self, config: TrainConfig, steps: int = 0) -> dict[int, Photo]:
        """Return by view what this rank draws after `steps` others, as far as it is decoded by now."""
        photos = {index: self._loader.ready(index) for index in sorted(self._own_following(config, steps))}
        return {index: photo for index, photo in photos.items() if photo is not None}

    def decoded(self, config: TrainConfig) -> frozenset[int]:
        """Return the views that this rank draws in the next step where all are decoded by now, else none."""
        own = self._own_following(config)
        return own if all(self._loader.ready(index) is not None for index in own) else frozenset()

    def _own_following(self, config: TrainConfig, steps: int = 0) -> frozenset[int]:
        num = config.batch_size * self._ranks.num_ranks * config.accumulate
        indices = list(self._upcoming)[steps * num : (steps + 1) * num]
        if len(indices) < num:
            return frozenset()
        order = self._assigned(config, indices)
        return frozenset(indices[order[place]] for place in self._own(config, num))

    def photo(self, index: int) -> Photo:
        """Return the photo of view `index`, waiting for it; ValueError if it is unreadable."""
        return self._loader.get(index)

    def close(self) -> None:
        """Stop the threads that decode photos."""
        self._loader.close()

    def _own(self, config: TrainConfig, num: int) -> list[int]:
        """Return which of the next `num` photos are this rank's."""
        size, ranks = config.batch_size, self._ranks
        return [place for place in range(num) if place // size % ranks.num_ranks == ranks.rank]

    def _assigned(self, config: TrainConfig, indices: Sequence[int]) -> tuple[int, ...]:
        num_ranks = self._ranks.num_ranks
        return assign_views(indices, self._costs, num_ranks=num_ranks, batch_size=config.batch_size)

    def _draw(self, num: int) -> None:
        """Draw whole epochs, each in an order of its own, until more than `num` photos are known."""
        views = self.scene.train_indices
        while len(self._upcoming) <= num:
            order = torch.randperm(len(views), generator=self._generator)
            self._upcoming.extend(views[i] for i in order.tolist())

    def _prefetch(self, config: TrainConfig) -> None:
        num = config.batch_size * self._ranks.num_ranks * config.accumulate
        upcoming = list(self._upcoming)[: LOOKAHEAD * num]
        for start in range(0, len(upcoming) - num + 1, num):
            order = self._assigned(config, upcoming[start : start + num])
            for place in self._own(config, num):
                self._loader.prefetch(upcoming[start + order[place]])


def assign_views(
    indices: Sequence[int], costs: Mapping[int, float], *, num_ranks: int, batch_size: int
) -> tuple[int, ...]:
    """Return the places of a step's photos, `indices` of views, as rounds and ranks take them.

    Of each round rank 0 takes the first `batch_size`, then rank 1. Photos of like cost come into one
    round; within it the dearest go one by one to the rank with the least to do. `costs` are by view, in any
    unit; while one of them is not known yet, the order stays as it is. The same on all ranks.
    """
    per_round = num_ranks * batch_size
    assert len(indices) % per_round == 0, "whole rounds"
    if num_ranks == 1 or any(index not in costs for index in indices):
        return tuple(range(len(indices)))
    cost = [costs[index] for index in indices]
    dearest_first = sorted(range(len(indices)), key=lambda place: -cost[place])
    order: list[int] = []
    for start in range(0, len(indices), per_round):
        shares: list[list[int]] = [[] for _ in range(num_ranks)]
        for place in dearest_first[start : start + per_round]:
            free = [share for share in shares if len(share) < batch_size]
            min(free, key=lambda share: sum(cost[held] for held in share)).append(place)
        order += [place for share in shares for place in share]
    return tuple(order)
