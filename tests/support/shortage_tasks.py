"""Ranks of the tests that are short of memory; functions of a module, as other processes run them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from sharded_tasks import RATES, Case, cameras_of_rounds, model, options_of, shard_of, shot_of
from sharded_training_tasks import Plan, Trained, config_of, train
from torch import Tensor

from splatstudio.distributed.failures import OutOfMemory
from splatstudio.distributed.ranks import Ranks
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.optimization.gradients import StepInputs, StepPlan
from splatstudio.optimization.optim import SplatAdam
from splatstudio.optimization.train_step import begin_step
from splatstudio.runtime import messages, shared_views
from splatstudio.runtime.activity import WorkerContext
from splatstudio.runtime.training import Training
from splatstudio.scene.load import load_scene
from splatstudio.settings.config import TrainConfig
from splatstudio.strategy.population import trainable
from splatstudio.training.data import train_views as shots
from splatstudio.training.trainer import Trainer


@contextmanager
def replaced(owner: Any, name: str, other: Callable[..., Any]) -> Iterator[None]:
    """Put `other` in the place of what `owner` has as `name`."""
    before = getattr(owner, name)
    setattr(owner, name, other)
    try:
        yield
    finally:
        setattr(owner, name, before)


def no_memory(*_: object, **__: object) -> None:
    raise torch.OutOfMemoryError("there is no room left")


def started(ranks: Ranks, folder: Path, run_dir: Path, **context: Any) -> Training:
    """Return a training on these ranks after its Start; the others do by hand what rank 0 announces."""
    training = Training(messages.TrainJob(folder, run_dir), WorkerContext(ranks=lambda: ranks, **context))
    training.execute(messages.Start())
    return training


def copy_twice(ranks: Ranks, folder: Path, run_dir: Path) -> tuple[str, Gaussians | None]:
    """Ask for a copy of the model that rank 0 has no memory for, then for another one."""
    training = started(ranks, folder, run_dir)
    refused, model = "", None
    if ranks.rank > 0:
        training.execute(messages.GatherModel())
        training.execute(messages.GatherModel())
    else:
        try:
            with replaced(Tensor, "new_empty", no_memory):
                training.model_copy()
        except MemoryError as error:
            refused = str(error)
        model = training.model_copy()
    trainer_closes(training)
    return refused, None if model is None else model.gaussians


def trainer_closes(training: Training) -> None:
    """End a training without a last save, which the ranks would have to write together."""
    for part in (training._session, training._trainer):
        if part is not None:
            part.close()


def descend_short(
    ranks: Ranks, case: Case, what: tuple[str, str], failing: int
) -> tuple[tuple[int, ...], bool]:
    """Try a step in which a rank has no memory for `what`; return of whom is told and if nothing changed."""
    shard = trainable(shard_of(model(sum(case.sizes)), case.sizes, ranks.rank).map(Tensor.clone))
    before, optimizer = shard.detach().map(Tensor.clone), SplatAdam.zeros(shard)
    plan = StepPlan(options_of(case), RATES, True)
    rounds = [[shot_of(view) for view in views[ranks.rank]] for views in case.views]
    work = StepInputs(lambda _, drawing: drawing.rgb.sum(), plan)
    cameras = cameras_of_rounds(ranks, rounds)
    told: tuple[int, ...] = ()
    module = import_module(what[0])
    with replaced(module, what[1], no_memory if ranks.rank == failing else getattr(module, what[1])):
        try:
            begin_step(ranks, shard, optimizer, rounds, work, cameras=cameras).apply()
        except OutOfMemory as error:
            told = error.ranks
    pairs = zip(shard.tensors().values(), before.tensors().values(), strict=True)
    return told, all(torch.equal(*pair) for pair in pairs) and optimizer.num_steps == 0


@contextmanager
def _short_of_photos(fails: bool) -> Iterator[None]:
    """Let the fourth photo be too much for memory, where the rank `fails`."""
    calls, target_of = [0], shots.target_of

    def short(*args: Any) -> Any:
        calls[0] += 1
        return no_memory() if calls[0] == 4 and fails else target_of(*args)

    with replaced(shots, "target_of", short):
        yield


def train_short_of_photos(ranks: Ranks, plan: Plan, failing: int) -> Trained:
    """Train where a rank once has no memory for the photos of its fourth step."""
    with _short_of_photos(ranks.rank == failing):
        return train(ranks, plan)


def chance_after_shortage(ranks: Ranks, plan: Plan, failing: int) -> list[int]:
    """Train as `train_short_of_photos` does; return the state of the rank's generator."""
    trainer = Trainer(load_scene(plan.scene), config_of(plan.settings, 200), ranks=ranks)
    with _short_of_photos(ranks.rank == failing):
        problems = [trainer.train_step().problem for _ in range(plan.steps)]
    assert sum(problem is not None for problem in problems) == 1
    trainer.close()
    return trainer.parts.generator.get_state().tolist()


def look_twice(ranks: Ranks, folder: Path, failing: int) -> list[tuple[str | None, int]]:
    """Gather a picture that a rank has no memory for, then another; return what is said and there."""
    scene = load_scene(folder)
    trainer = Trainer(scene, TrainConfig(), ranks=ranks)
    request = messages.ViewRequest(scene.views[0].camera, messages.ViewOptions())
    views = shared_views.SharedViews(trainer, ranks, lambda _: None)
    told: list[tuple[str | None, int]] = []
    for function in (no_memory, shared_views.seen_rows):
        with replaced(
            shared_views, "seen_rows", function if ranks.rank == failing else shared_views.seen_rows
        ):
            told += [(shown.notice, len(shown.gaussians)) for shown in views.gather([request])]
    trainer.close()
    return told


def evaluate_breathing(ranks: Ranks, folder: Path, run_dir: Path) -> int:
    """Evaluate; return how often a rank other than 0 has shown that it gets on."""
    breaths = []
    training = started(ranks, folder, run_dir, breathe=lambda: breaths.append(1))
    training.execute(messages.EvaluateShare() if ranks.rank > 0 else messages.Evaluate())
    trainer_closes(training)
    return len(breaths) if ranks.rank > 0 else 0
