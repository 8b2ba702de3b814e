"""Ranks of the tests that are short of memory; functions of a module, as other processes run them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from sharded_tasks import RATES, Case, model, options_of, shard_of, shot_of
from sharded_training_tasks import Plan, Trained, train
from torch import Tensor

from splatstudio.distributed.failures import OutOfMemory
from splatstudio.distributed.ranks import Ranks
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.optimization.gradients import StepInputs, StepPlan
from splatstudio.optimization.optim import SplatAdam
from splatstudio.optimization.train_step import begin_step
from splatstudio.runtime import looks as looks_module
from splatstudio.runtime.control import Turn
from splatstudio.runtime.crew import Leader, Member
from splatstudio.runtime.looks import ViewRequest, encoded_looks
from splatstudio.runtime.messages import ViewOptions
from splatstudio.scene import load_scene
from splatstudio.settings.config import TrainConfig
from splatstudio.strategy import trainable
from splatstudio.train.data import train_views as shots
from splatstudio.train.trainer import Trainer


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


def copy_twice(ranks: Ranks, folder: Path) -> tuple[str, Gaussians | None, Gaussians]:
    """Ask for a copy of the model that rank 0 has no memory for, then for another one."""
    trainer = Trainer(load_scene(folder), TrainConfig(), ranks=ranks)
    own = trainer.gaussians.map(Tensor.clone)
    refused, model = "", None
    try:
        if ranks.rank > 0:
            member = Member(trainer, ranks)
            member.take_part(Turn.COPY, b"")
            member.take_part(Turn.COPY, b"")
            return refused, model, own
        leader = Leader(trainer, ranks, lambda *_: None)
        try:
            with replaced(Tensor, "new_empty", no_memory):
                leader.whole_model()
        except MemoryError as error:
            refused = str(error)
        return refused, leader.whole_model(), own
    finally:
        trainer.close()


def descend_short(
    ranks: Ranks, case: Case, what: tuple[str, str], failing: int
) -> tuple[tuple[int, ...], bool]:
    """Try a step in which a rank has no memory for `what`; return of whom is told and if nothing changed."""
    shard = trainable(shard_of(model(sum(case.sizes)), case.sizes, ranks.rank).map(Tensor.clone))
    before, optimizer = shard.detach().map(Tensor.clone), SplatAdam.zeros(shard)
    plan = StepPlan(options_of(case), RATES, True)
    rounds = [[shot_of(view) for view in views[ranks.rank]] for views in case.views]
    work = StepInputs(lambda _, drawing: drawing.rgb.sum(), plan)
    told: tuple[int, ...] = ()
    module = import_module(what[0])
    with replaced(module, what[1], no_memory if ranks.rank == failing else getattr(module, what[1])):
        try:
            begin_step(ranks, shard, optimizer, rounds, work).apply()
        except OutOfMemory as error:
            told = error.ranks
    pairs = zip(shard.tensors().values(), before.tensors().values(), strict=True)
    return told, all(torch.equal(*pair) for pair in pairs) and optimizer.num_steps == 0


def train_short_of_photographs(ranks: Ranks, plan: Plan, failing: int) -> Trained:
    """Train where a rank once has no memory for the photographs of its fourth step."""
    calls, target_of = [0], shots.target_of

    def short(*args: Any) -> Any:
        calls[0] += 1
        return no_memory() if calls[0] == 4 and ranks.rank == failing else target_of(*args)

    with replaced(shots, "target_of", short):
        return train(ranks, plan)


def look_twice(ranks: Ranks, folder: Path, failing: int) -> list[tuple[str | None, int]]:
    """Gather a picture that a rank has no memory for, then another; return what is said and there."""
    scene = load_scene(folder)
    trainer = Trainer(scene, TrainConfig(), ranks=ranks)
    look = ViewRequest(scene.views[0].camera, ViewOptions())
    told: list[tuple[str | None, int]] = []
    for function in (no_memory, looks_module.seen_rows):
        with replaced(
            looks_module, "seen_rows", function if ranks.rank == failing else looks_module.seen_rows
        ):
            if ranks.rank > 0:
                Member(trainer, ranks).take_part(Turn.LOOK, encoded_looks([look]))
            else:
                (shown,) = Leader(trainer, ranks, lambda *_: None).seen_by([look])
                told.append((shown.notice, len(shown.gaussians)))
    trainer.close()
    return told


def evaluate_breathing(ranks: Ranks, folder: Path) -> int:
    """Evaluate; return how often a rank other than 0 has shown that it gets on."""
    trainer = Trainer(load_scene(folder), TrainConfig(), ranks=ranks)
    breaths = []
    if ranks.rank > 0:
        Member(trainer, ranks, lambda: breaths.append(1)).take_part(Turn.EVALUATE, b"")
    else:
        Leader(trainer, ranks, lambda *_: None).evaluate(lambda *_: None)
    trainer.close()
    return len(breaths)
