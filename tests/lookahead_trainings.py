"""Trainings on a GPU, real or emulated, with a step ahead or without: for the tests that compare them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from splatstudio.config import TrainConfig
from splatstudio.scene.scene import Scene
from splatstudio.trainer import StepStats, Trainer


@contextmanager
def training(scene: Scene, config: TrainConfig, *, waits: bool = False) -> Iterator[Trainer]:
    """Yield a training with its photographs decoded; `waits`: the host asks how many instances there are."""
    one = Trainer(scene, config)
    if waits:
        one._room = None
    for index in scene.train_indices:
        one._queue.photo(index)
    try:
        yield one
    finally:
        one.close()


def made(one: Trainer) -> StepStats:
    """Make a step and return what it tells, but for the time that it took."""
    return replace(one.train_step(), seconds=0.0)
