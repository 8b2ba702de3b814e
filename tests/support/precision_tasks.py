"""Ranks of the tests of what travels in 16 bits; functions of a module, as other processes run them."""

from __future__ import annotations

from pathlib import Path

import torch
from sharded_tasks import RATES, Case, Recorded, cameras_of_rounds, model, options_of, shard_of, shot_of
from sharded_training_tasks import config_of
from shortage_tasks import replaced
from torch import Tensor

from splatstudio.distributed.exchange import ExchangeRoute, Fp16Packing, Return, Splits, exchange
from splatstudio.distributed.ranks import Ranks
from splatstudio.evaluation.evaluate import evaluate
from splatstudio.optimization.gradients import StepInputs, StepPlan
from splatstudio.optimization.losses import photometric
from splatstudio.optimization.train_step import begin_step
from splatstudio.rendering.sharded_view import gathered
from splatstudio.scene.load import load_scene
from splatstudio.strategy.population import trainable
from splatstudio.training import precision as precision_module
from splatstudio.training.trainer import Trainer

STEPS = 60  # of `train_in`


def rows_of(rank: int, counts: list[int], num_columns: int) -> Tensor:
    """Return what a rank has for the others, [sum(counts), num_columns], with numbers that are none."""
    generator = torch.Generator().manual_seed(100 * num_columns + rank)
    rows = torch.randn(sum(counts), num_columns, generator=generator)
    rows[::7, 8], rows[1::7, 8], rows[2::7, 9] = float("nan"), float("inf"), float("-inf")
    return rows


def swap(
    ranks: Ranks, counts: list[list[int]], num_back: int, halves: Fp16Packing | None
) -> dict[str, Tensor]:
    """Send rows and radii to all ranks, counts[from][to] of them, and as many numbers of each back."""
    own = counts[ranks.rank]
    rows = rows_of(ranks.rank, own, 10)
    radii = torch.arange(2 * sum(own), dtype=torch.int32).view(-1, 2) * 40 + ranks.rank
    splits = Splits(own, [part[ranks.rank] for part in counts])
    route = ExchangeRoute(ranks, splits, [splits], halves)
    before = ranks.num_bytes
    got = exchange(torch.cat([rows, radii.view(torch.float32)], dim=1), (4, 5, 1), route, num_back)
    there = ranks.num_bytes - before
    values = rows_of(9 + ranks.rank, list(splits.received), num_back)
    got.back.given.copy_(values)
    got_back = Return(got.back, route).wait_for_all()
    num_bytes = torch.tensor([there, ranks.num_bytes - before - there])
    got_rows = torch.cat(got.columns, dim=1)
    return {"rows": got_rows, "radii": got.radii, "values": values, "back": got_back, "bytes": num_bytes}


def descend_in(
    ranks: Ranks, case: Case, halves: Fp16Packing | None
) -> tuple[Tensor, dict[str, Tensor | None]]:
    """Make a step; return the first picture and the gradients."""
    gaussians = trainable(shard_of(model(sum(case.sizes)), case.sizes, ranks.rank).map(Tensor.clone))
    optimizer = Recorded(gaussians.map(torch.zeros_like).detach(), gaussians.map(torch.zeros_like).detach())
    rounds = [[shot_of(view) for view in views[ranks.rank]] for views in case.views]
    work = StepInputs(
        lambda shot, drawing: photometric(drawing.rgb, shot.target, ssim_weight=0.2, mask=None),
        StepPlan(options_of(case), RATES, True),
        packing=halves,
    )
    cameras = cameras_of_rounds(ranks, rounds)
    step = begin_step(ranks, gaussians, optimizer, rounds, work, cameras=cameras)
    step.apply()
    return step.pictures[0], optimizer.gradients


def train_in(
    ranks: Ranks, folder: Path, precision: str, machines: tuple[str, ...], steps: int, save: Path | None
) -> dict[str, object]:
    """Train on machines of these names; return what came of it."""
    scene = load_scene(folder)
    with replaced(precision_module, "machine", lambda: machines[ranks.rank]):
        settings = {"precision": precision, "densify.enabled": False, "sh_degree_every": 20}
        trainer = Trainer(scene, config_of(settings, STEPS), ranks=ranks)
    before = ranks.num_bytes
    losses = [trainer.train_step().loss for _ in range(steps)]
    sent, saved = ranks.num_bytes - before, None if save is None else trainer.save(save)
    options = trainer.display_options
    psnr = evaluate(trainer.gaussians, scene, ranks=ranks, options=options).psnr
    whole = gathered(ranks, trainer.gaussians)
    alone = None if whole is None else evaluate(whole, scene, options=options).psnr
    trainer.close()
    return {"losses": losses, "bytes": sent, "saved": saved, "psnr": psnr, "psnr of the whole": alone}
