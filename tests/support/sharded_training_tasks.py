"""Trainings of the tests on several ranks; functions of a module, as other processes run them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from host_watch import watched
from torch import Tensor

from splatstudio.distributed.failures import FAULT_VARIABLE
from splatstudio.distributed.ranks import Ranks
from splatstudio.evaluation.evaluate import evaluate
from splatstudio.gaussians.change import Change
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.rendering.sharded_view import gathered
from splatstudio.scene.load import load_scene
from splatstudio.settings.config import TrainConfig, changed
from splatstudio.training.step import TrainingDiverged
from splatstudio.training.trainer import Trainer

GROWING: dict[str, Any] = {
    "sh_degree": 1,
    "densify.start_step": 3,
    "densify.every": 4,
    "densify.grow_grad": 1e-4,
    "densify.reset_every": 1000,
}  # settings by which the number of splats changes within six steps


@dataclass(frozen=True)
class Plan:
    """A training: where from, how many steps, and what to do at the end."""

    scene: Path
    settings: dict[str, Any]
    steps: int
    resume: Path | None = None
    save: Path | None = None
    fault: str = ""
    drop_before: int = 0  # the step (from 1) before which a step's photos are thrown away


@dataclass(frozen=True, eq=False)
class Trained:
    """What a rank knows in the end."""

    losses: list[float]
    sizes: list[int]  # of this rank's shard after each step
    num_gaussians: int
    changes: list[Change]
    problems: list[str]
    saved: Path | None
    psnr: float  # of the test photos, by all ranks together
    whole: Gaussians | None  # on rank 0
    moments: dict[str, Tensor]  # this rank's exp_avg_sq
    max_gaussians: int
    error: str = ""


def config_of(settings: dict[str, Any], steps: int) -> TrainConfig:
    config = replace(TrainConfig(), steps=steps)
    for path, value in settings.items():
        config = changed(config, path, value)
    return config


@contextmanager
def fault_of(plan: Plan) -> Iterator[None]:
    os.environ[FAULT_VARIABLE] = plan.fault
    try:
        yield
    finally:
        del os.environ[FAULT_VARIABLE]


def train(ranks: Ranks, plan: Plan, device: torch.device | None = None) -> Trained:
    """Make the steps of a plan, on a device or the fastest, and return what came of it."""
    scene = load_scene(plan.scene)
    with fault_of(plan):
        if plan.resume is None:
            trainer = Trainer(scene, config_of(plan.settings, 200), device=device, ranks=ranks)
        else:
            trainer = Trainer.resume(scene, plan.resume, device=device, ranks=ranks, **plan.settings)
    losses, sizes, changes, problems = [], [], [], []
    error, saved = "", None
    for _ in range(plan.steps):
        if trainer.step + 1 == plan.drop_before:
            trainer.parts.queue.next(trainer.config)
        try:
            stats = trainer.train_step()
        except (TrainingDiverged, MemoryError) as raised:
            error = f"{type(raised).__name__}: {raised}"
            break
        losses.append(stats.loss)
        sizes.append(len(trainer.live_gaussians))
        changes += [] if stats.change is None else [stats.change]
        problems += [] if stats.problem is None else [stats.problem]
    if plan.save is not None:
        saved = trainer.save(plan.save)
    evaluation = evaluate(trainer.gaussians, scene, ranks=ranks, options=trainer.display_options)
    moments = {
        name: tensor.clone()
        for name, tensor in trainer.parts.population.optimizer.exp_avg_sq.tensors().items()
    }
    result = Trained(
        losses,
        sizes,
        trainer.num_gaussians,
        changes,
        problems,
        saved,
        evaluation.psnr,
        gathered(ranks, trainer.gaussians),
        moments,
        trainer.config.densify.max_gaussians,
        error,
    )
    trainer.close()
    return result


def evaluate_shards(ranks: Ranks, scene_folder: Path, fails_on: int) -> tuple[list[str], str]:
    """Evaluate the first model of a scene; return the pictures of this rank and what was raised."""
    scene = load_scene(scene_folder, test_every=2)
    trainer = Trainer(scene, config_of({"test_every": 2}, 10), ranks=ranks)
    names, error = [], ""

    def on_image(score, picture, photo) -> None:
        names.append(score.name)
        if ranks.rank == fails_on:
            raise OverflowError("enough of it")

    try:
        evaluate(trainer.gaussians, scene, ranks=ranks, on_image=on_image)
    except Exception as raised:
        error = type(raised).__name__
    trainer.close()
    return names, error


def waits_of_steps(ranks: Ranks, plan: Plan) -> list[str]:
    """Return what the host would wait for in steps on a GPU, but for what `ReadBack` reads."""
    trainer = Trainer(load_scene(plan.scene), config_of(plan.settings, 200), ranks=ranks)
    for _ in range(2):
        trainer.train_step()
    found = watched(lambda: [trainer.train_step() for _ in range(plan.steps)])
    trainer.close()
    return found


def start_note(ranks: Ranks, scene: Path, init: Path) -> str | None:
    """Return what a training that begins with the model `init` tells of it, on each rank the same."""
    config = TrainConfig(init=str(init), sh_degree=0)
    trainer = Trainer(load_scene(scene, downscale=8), config, device="cpu", ranks=ranks)
    trainer.close()
    return trainer.start_note
