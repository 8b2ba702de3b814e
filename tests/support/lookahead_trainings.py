"""Trainings on a GPU, real or emulated, with a step ahead or without: for the tests that compare them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.training.step import StepStats
from splatstudio.training.trainer import Trainer


@contextmanager
def training(scene: Scene, config: TrainConfig, *, waits: bool = False) -> Iterator[Trainer]:
    """Yield a training with its photos decoded; `waits`: the host asks how many instances there are."""
    one = Trainer(scene, config)
    if waits:
        one.parts.capacity = None
    decode(one)
    try:
        yield one
    finally:
        one.close()


def decode(one: Trainer) -> None:
    """Read all photos of a training, so that none of its steps waits for one."""
    for index in one.scene.train_indices:
        one.parts.queue.photo(index)


def made(one: Trainer) -> StepStats:
    """Make a step and return what it tells, but for the time that it took."""
    return replace(one.train_step(), seconds=0.0)


def take_room(one: Trainer) -> None:
    """Leave a training less room than any of its pictures needs: its next step is to be made again."""
    assert one.parts.capacity is not None
    one.lookahead.take_back()
    one.parts.capacity.size = 7


def all_of(one: Trainer) -> list[Tensor]:
    """Return copies of all that a training learns: Gaussians, moments, counts, corrections."""
    population, learned = one.parts.population, one.parts.corrections.save()
    models = (one.gaussians, population.optimizer.exp_avg, population.optimizer.exp_avg_sq)
    tensors = [tensor for model in models for tensor in model.tensors().values()]
    tensors += [*population.counts.values(), *([] if learned is None else learned.tensors.values())]
    return [tensor.detach().clone() for tensor in tensors]


def same(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    """Return whether two trainings have learned the same, to the bit."""
    return all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def check_steps(
    scene: Scene, config: TrainConfig, steps: int, before: Callable[[Trainer, int], None] | None = None
) -> int:
    """Assert that a training's steps are those of one that waits; return how often one was begun ahead.

    `before` is called with the training that does not wait and the number of the step that comes.
    """
    ahead = 0
    with training(scene, config) as one, training(scene, config, waits=True) as other:
        for number in range(steps):
            if before is not None:
                before(one, number)
            assert made(one) == made(other)
            assert one.parts.population.optimizer.num_steps == number + 1
            ahead += one.lookahead.begun is not None
            assert other.lookahead.begun is None
        assert same(all_of(one), all_of(other)) and one.parts.queue.costs == other.parts.queue.costs
    return ahead


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    """Let torch raise where the host waits for the queue of a real GPU."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
