"""What the ranks of the tests of sharded descents do; functions of a module, as other processes run them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from view_rows import summed

from splatstudio.cameras.camera import Camera, look_at
from splatstudio.distributed.failures import OutOfMemory
from splatstudio.distributed.process_ranks import ProcessRanks
from splatstudio.distributed.ranks import Ranks, Transfer
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels.ops_training import NO_REGULARIZATION, Regularization
from splatstudio.optimization import sharded_gradients
from splatstudio.optimization.gradients import RenderOutput, StepInputs, StepPlan, TrainView
from splatstudio.optimization.losses import photometric
from splatstudio.optimization.optim import SplatAdam
from splatstudio.optimization.train_step import begin_step
from splatstudio.rendering.render import RenderOptions
from splatstudio.rendering.sharded_view import as_seen_from, cameras_of_all, drawn, gathered, received_for
from splatstudio.strategy.population import trainable

RATES = {"means": 1e-3, "quats": 2e-3, "scales": 3e-3, "opacities": 4e-3, "sh0": 5e-3, "shN": 6e-3}


@dataclass(frozen=True)
class Case:
    """A model cut into shards of `sizes`, and the numbers of the views that each rank draws, by round."""

    sizes: tuple[int, ...]
    views: tuple[tuple[tuple[int, ...], ...], ...]
    antialiased: bool = False
    absgrad: bool = False
    masked: bool = False
    visible_only: bool = False
    regularization: Regularization = NO_REGULARIZATION
    steps: int = 1


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a rank found in the last step."""

    losses: tuple[float, ...]
    pictures: tuple[Tensor, ...]
    gradients: dict[str, Tensor | None]
    gradients2d: tuple[Tensor, ...]
    radii: tuple[Tensor, ...]
    exposure: Tensor
    gaussians: Gaussians
    exp_avg: Gaussians


class Recorded(SplatAdam):
    """The optimizer, which keeps the gradients that it got."""

    gradients: dict[str, Tensor | None]

    def step(self, gaussians, gradients, rates, *args, **options) -> None:
        self.gradients = gradients
        super().step(gaussians, gradients, rates, *args, **options)

    def step_views(self, gaussians, runs, rates, *, settings, **options) -> None:
        runs = list(runs)
        found = [summed(gaussians.detach()[rows], views, settings)[0] for rows, views in runs]
        self.gradients = dict.fromkeys(found[0])
        for name in self.gradients:
            parts = [part for each in found if (part := each[name]) is not None]
            self.gradients[name] = torch.cat(parts) if parts else None
        super().step_views(gaussians, runs, rates, settings=settings, **options)


def model(num: int) -> Gaussians:
    generator = torch.Generator().manual_seed(num)
    normal = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    means = 0.7 * normal(num, 3)
    means[num // 2 :: 7] = means[: len(means[num // 2 :: 7])]  # at equal depths the order must stay
    return Gaussians(
        means=means,
        quats=normal(num, 4),
        scales=0.4 * normal(num, 3) - 2.2,
        opacities=normal(num),
        sh0=normal(num, 1, 3),
        shN=0.2 * normal(num, 15, 3),
    )


def camera_of(view: int) -> Camera:
    """Return a camera round the model, of a size of its own; the views from 100 on see nothing of it."""
    angle = 1.3 * view
    eye = np.array([3.0 * np.cos(angle), 0.4, 3.0 * np.sin(angle)])
    target = np.zeros(3) if view < 100 else 2.0 * eye
    width, height = 40 + 7 * (view % 3), 30 + 5 * (view % 2)
    K = np.array([[40.0, 0, width / 2], [0, 42.0, height / 2], [0, 0, 1]])
    return Camera(look_at(eye, target, np.array([0.0, -1.0, 0.0])), K, width, height)


def shot_of(view: int, *, masked: bool = False) -> TrainView:
    camera = camera_of(view)
    generator = torch.Generator().manual_seed(view)
    target = torch.rand(camera.height, camera.width, 3, generator=generator)
    mask = torch.rand(camera.height, camera.width, generator=generator) > 0.3 if masked else None
    return TrainView(view, f"view {view}", camera, target, mask, (0.1 * (view % 5), 0.2, 0.3))


def options_of(case: Case) -> RenderOptions:
    return RenderOptions(sh_degree=2, antialiased=case.antialiased, absgrad=case.absgrad)


def shard_of(whole: Gaussians, sizes: tuple[int, ...], rank: int) -> Gaussians:
    return whole[slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))]


def cameras_of_rounds(ranks: Ranks, rounds: list[list[TrainView]]) -> list[list[list[Camera]]]:
    """Return the cameras of all ranks' views, by round and rank."""
    return [cameras_of_all(ranks, [view.camera for view in views]) for views in rounds]


def descend_case(ranks: Ranks, case: Case) -> Outcome:
    gaussians = trainable(shard_of(model(sum(case.sizes)), case.sizes, ranks.rank).map(Tensor.clone))
    optimizer = Recorded(gaussians.map(torch.zeros_like).detach(), gaussians.map(torch.zeros_like).detach())
    exposure = torch.tensor([1.1, 0.9, 1.0], requires_grad=True)

    def loss_of(shot: TrainView, drawing: RenderOutput) -> Tensor:
        loss = photometric(drawing.rgb * exposure, shot.target, ssim_weight=0.2, mask=shot.mask)
        return loss + 0.01 * drawing.alpha.mean() + 0.01 * drawing.depth_sum.mean()

    plan = StepPlan(options_of(case), RATES, True, case.visible_only, case.regularization)
    rounds = [[shot_of(view, masked=case.masked) for view in views[ranks.rank]] for views in case.views]
    cameras = cameras_of_rounds(ranks, rounds)
    work = StepInputs(loss_of, plan, (exposure,))
    for _ in range(case.steps):
        step = begin_step(ranks, gaussians, optimizer, rounds, work, cameras=cameras)
        step.apply()
    (v_exposure,) = step.others
    assert v_exposure is not None and step.result is not None
    return Outcome(
        step.result.losses,
        step.pictures,
        optimizer.gradients,
        tuple(seen.gradients2d for seen in step.observations),
        tuple(seen.radii for seen in step.observations),
        v_exposure,
        gaussians.detach(),
        optimizer.exp_avg,
    )


class LateRanks(ProcessRanks):
    """Ranks whose exchanges are made when they are waited for, as late as may be."""

    num_late = num_waited = 0

    def begin_all_to_all(
        self, rows: Tensor, sent: Sequence[int], received: Sequence[int], into: Tensor
    ) -> Transfer:
        """Fill `into` with what is no number, and send nothing yet."""
        self.num_late += 1
        into.fill_(math.nan)
        return _Late(self, lambda: self.all_to_all(rows, sent, received, into=into))


class _Late(Transfer):
    def __init__(self, ranks: LateRanks, make: Callable[[], object]) -> None:
        self._ranks = ranks
        self._make = make

    def wait(self) -> None:
        """Make the exchange."""
        self._ranks.num_waited += 1
        self._make()


def descend_in_runs(ranks: Ranks, case: Case, num_runs: int) -> tuple[Outcome, int]:
    """Make the steps of a case with the Gaussians in runs; return how many exchanges were late, too."""
    late = LateRanks(ranks._group)  # type: ignore[attr-defined]
    with patch.object(sharded_gradients, "runs_on", lambda *_: num_runs):
        return descend_case(late, case), late.num_late


def give_up_in_round_two(ranks: Ranks, case: Case, failing: int) -> tuple[tuple[int, ...], int, int]:
    """Try a step of which a rank has no memory for the second round.

    Return who is told of, how many exchanges were late, and how many of them were waited for.
    """
    late, project_for_all = LateRanks(ranks._group), sharded_gradients.project_for_all  # type: ignore
    rounds, told = iter((False, ranks.rank == failing)), ()

    def short(*given: Any) -> Any:
        if next(rounds):
            raise torch.OutOfMemoryError("there is no room left")
        return project_for_all(*given)

    with (
        patch.object(sharded_gradients, "runs_on", lambda *_: 2),
        patch.object(sharded_gradients, "project_for_all", short),
    ):
        try:
            descend_case(late, case)
        except OutOfMemory as error:
            told = error.ranks
    return told, late.num_late, late.num_waited


def draw_views(ranks: Ranks, sizes: tuple[int, ...], views: tuple[tuple[int, ...], ...]) -> list[Tensor]:
    """Return the pictures of this rank's views, drawn together."""
    shard = shard_of(model(sum(sizes)), sizes, ranks.rank)
    options = RenderOptions(background=(0.1, 0.2, 0.3), antialiased=True)
    cameras = [camera_of(view) for view in views[ranks.rank]]
    received = received_for(ranks, shard, cameras, options)
    pictures = drawn(shard, received, cameras, options)
    return [torch.cat([p.rgb, p.alpha[..., None], p.depth_sum[..., None]], dim=-1) for p in pictures]


def collect(ranks: Ranks, sizes: tuple[int, ...], view: int) -> tuple[Gaussians | None, Gaussians | None]:
    """Return the whole model, and what a view sees of it, as rank 0 gets them."""
    shard = shard_of(model(sum(sizes)), sizes, ranks.rank)
    return gathered(ranks, shard), gathered(ranks, as_seen_from(shard, camera_of(view)))


def descend_without_memory(ranks: Ranks, case: Case, failing: int) -> tuple[tuple[int, ...], bool]:
    """Try a step that a rank has no memory for; return who is told of and whether nothing changed."""
    project_for_all = sharded_gradients.project_for_all

    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("there is no room left")

    if ranks.rank == failing:
        sharded_gradients.project_for_all = fail
    shard = trainable(shard_of(model(sum(case.sizes)), case.sizes, ranks.rank).map(Tensor.clone))
    before = shard.detach().map(Tensor.clone)
    optimizer = SplatAdam.zeros(shard)
    plan = StepPlan(options_of(case), RATES, True)
    rounds = [[shot_of(view) for view in views[ranks.rank]] for views in case.views]
    told: tuple[int, ...] = ()
    try:
        inputs = StepInputs(lambda _, drawing: drawing.rgb.sum(), plan)
        begin_step(ranks, shard, optimizer, rounds, inputs, cameras=cameras_of_rounds(ranks, rounds)).apply()
    except OutOfMemory as error:
        told = error.ranks
    finally:
        sharded_gradients.project_for_all = project_for_all
    pairs = zip(shard.tensors().values(), before.tensors().values(), strict=True)
    same = all(torch.equal(ours, theirs) for ours, theirs in pairs)
    return told, same and optimizer.num_steps == 0
