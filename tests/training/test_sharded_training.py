"""A training on several ranks is one training: its model, its limits, its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from compared_trainings import SETTINGS, assert_same
from rank_pool import RankPool
from sharded_training_tasks import Plan, Trained, evaluate_shards, train

from splatstudio.checkpoints.checkpoint import load_checkpoint
from splatstudio.evaluation.evaluate import evaluate
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.rendering.render import options_for_display
from splatstudio.scene.load import load_scene

CALM = {**SETTINGS, "densify.enabled": False}


@pytest.fixture(scope="module")
def saved_by_two(
    pool: RankPool, blob_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[Trained]:
    """A training of 25 steps on two ranks that grows, and is saved."""
    run = tmp_path_factory.mktemp("two")
    return pool.run(2, train, Plan(blob_folder, SETTINGS, 25, save=run))


def sorted_rows(gaussians: Gaussians | None) -> torch.Tensor:
    assert gaussians is not None
    rows = torch.cat(
        [tensor.flatten(1) for tensor in gaussians.tensors().values() if tensor.dim() > 1], dim=1
    )
    return torch.cat([rows, gaussians.opacities[:, None]], dim=1).unique(dim=0)


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_two_hundred_steps_are_those_of_one_process_to_the_last_bit(
    pool: RankPool, blob_folder: Path, num_ranks: int
) -> None:
    settings = {**SETTINGS, "densify.every": 20, "densify.max_gaussians": 150}
    one = pool.run(1, train, Plan(blob_folder, {**settings, "batch_size": num_ranks}, 200))[0]
    ranks = pool.run(num_ranks, train, Plan(blob_folder, settings, 200))
    assert all(part.losses == ranks[0].losses for part in ranks)
    assert ranks[0].losses == one.losses and ranks[0].psnr == pytest.approx(one.psnr, abs=1e-9)
    assert ranks[0].changes == one.changes and one.changes[0].num_changed + one.changes[0].cloned > 20
    assert ranks[0].num_gaussians == one.num_gaussians > 100
    assert torch.equal(sorted_rows(ranks[0].whole), sorted_rows(one.whole))
    assert one.psnr > 17.5 and one.losses[-1] < 0.5 * one.losses[0]


def test_what_is_learned_beside_the_model_is_the_same(pool: RankPool, blob_folder: Path) -> None:
    more: dict[str, Any] = {"exposure.enabled": True, "exposure.grid": True, "sky.enabled": True}
    more |= {"poses.enabled": True, "poses.start_step": 2, "antialiased": True, "order": "morton"}
    more |= {"coarse.first": 2.0, "coarse.until": 0.02, "coarse.halves_from": 0.04}
    one = pool.run(1, train, Plan(blob_folder, {**CALM, **more, "batch_size": 2}, 12))[0]
    two = pool.run(2, train, Plan(blob_folder, {**CALM, **more}, 12))[0]
    assert two.losses == pytest.approx(one.losses, rel=1e-3)
    without = pool.run(2, train, Plan(blob_folder, CALM, 12))[0]
    assert without.losses[1:] != pytest.approx(two.losses[1:], rel=1e-3)


def test_random_backgrounds_are_the_same(pool: RankPool, blob_folder: Path) -> None:
    settings = {**CALM, "random_background": True}
    one = pool.run(1, train, Plan(blob_folder, {**settings, "batch_size": 3}, 5))[0]
    three = pool.run(3, train, Plan(blob_folder, settings, 5))[0]
    assert three.losses == pytest.approx(one.losses, rel=1e-3)


def test_rounds_are_as_good_as_a_batch(pool: RankPool, blob_folder: Path) -> None:
    one = pool.run(1, train, Plan(blob_folder, {**CALM, "batch_size": 4}, 5))[0]
    for num_ranks, accumulate in ((1, 4), (2, 2), (4, 1)):
        settings = {**CALM, "accumulate": accumulate}
        other = pool.run(num_ranks, train, Plan(blob_folder, settings, 5))[0]
        exact = num_ranks == 1 or accumulate == 1  # else photos of like cost come into one round
        assert other.losses == (one.losses if exact else pytest.approx(one.losses, rel=1e-4))


def test_shards_stay_even_while_the_model_grows(saved_by_two: list[Trained]) -> None:
    first, second = saved_by_two
    assert first.changes == second.changes and sum(change.num_changed for change in first.changes) > 20
    for ours, theirs in zip(first.sizes, second.sizes, strict=True):
        assert abs(ours - theirs) <= max(1, 0.1 * (ours + theirs) / 2)
    assert first.num_gaussians == second.num_gaussians == first.sizes[-1] + second.sizes[-1]
    assert first.num_gaussians > 60 + 20


def test_the_limit_holds_for_all_ranks_together(pool: RankPool, blob_folder: Path) -> None:
    settings = {**SETTINGS, "densify.max_gaussians": 75, "densify.prune_opacity": 1e-4}
    parts = pool.run(3, train, Plan(blob_folder, settings, 12))
    assert {part.num_gaussians for part in parts} == {75}
    assert parts[0].changes == parts[2].changes and parts[0].changes[0].capped > 0


def test_the_same_number_of_ranks_goes_on_bit_for_bit(
    pool: RankPool, blob_folder: Path, saved_by_two: list[Trained]
) -> None:
    whole = pool.run(2, train, Plan(blob_folder, SETTINGS, 45))
    rest = pool.run(2, train, Plan(blob_folder, {}, 20, resume=saved_by_two[0].saved))
    for ours, theirs in zip(rest, whole, strict=True):
        assert ours.losses == theirs.losses[25:] and ours.sizes == theirs.sizes[25:]
        for name, moment in ours.moments.items():
            assert torch.equal(moment, theirs.moments[name])
    assert_same(rest[0].whole, whole[0].whole)


@pytest.fixture(scope="module")
def two_go_on(pool: RankPool, blob_folder: Path, saved_by_two: list[Trained]) -> list[Trained]:
    return pool.run(2, train, Plan(blob_folder, {"accumulate": 6}, 10, resume=saved_by_two[0].saved))


@pytest.mark.parametrize("num_ranks", [1, 3, 4])
def test_any_number_of_ranks_goes_on(
    pool: RankPool,
    blob_folder: Path,
    saved_by_two: list[Trained],
    two_go_on: list[Trained],
    num_ranks: int,
) -> None:
    settings = {"accumulate": 12 // num_ranks}  # the same twelve photos
    other = pool.run(num_ranks, train, Plan(blob_folder, settings, 10, resume=saved_by_two[0].saved))
    assert other[0].losses[0] == pytest.approx(two_go_on[0].losses[0], rel=1e-7)
    assert other[0].losses == pytest.approx(two_go_on[0].losses, rel=1e-3)
    assert two_go_on[0].changes and other[0].changes == two_go_on[0].changes
    sizes = [part.sizes[0] for part in other]
    assert sum(sizes) == saved_by_two[0].num_gaussians and max(sizes) - min(sizes) <= 1


def test_the_evaluation_is_that_of_the_merged_checkpoint(
    saved_by_two: list[Trained], blob_folder: Path
) -> None:
    assert saved_by_two[0].saved == saved_by_two[1].saved and saved_by_two[0].saved is not None
    checkpoint = load_checkpoint(saved_by_two[0].saved)
    assert_same(checkpoint.gaussians, saved_by_two[0].whole)
    merged = evaluate(
        checkpoint.gaussians, load_scene(blob_folder), options=options_for_display(checkpoint.config)
    )
    for part in saved_by_two:
        assert part.psnr == pytest.approx(merged.psnr, abs=1e-4)


def test_an_evaluation_that_one_rank_breaks_off_ends_on_all(pool: RankPool, blob_folder: Path) -> None:
    parts = pool.run(2, evaluate_shards, blob_folder, 1)
    assert [error for _, error in parts] == ["AbandonedElsewhere", "OverflowError"]
    whole = pool.run(2, evaluate_shards, blob_folder, -1)
    assert [error for _, error in whole] == ["", ""]
    assert sorted(whole[0][0] + whole[1][0]) == [
        load_scene(blob_folder, test_every=2).views[i].name
        for i in load_scene(blob_folder, test_every=2).test_indices
    ]


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_step_without_memory_is_left_out_by_all(pool: RankPool, blob_folder: Path, num_ranks: int) -> None:
    rank = num_ranks - 1
    plan = Plan(blob_folder, SETTINGS, 8, fault=f"oom@step=4,rank={rank}")
    hit = pool.run(num_ranks, train, plan)
    spared = pool.run(num_ranks, train, Plan(blob_folder, SETTINGS, 8, drop_before=4))
    for ours, theirs in zip(hit, spared, strict=True):
        assert ours.losses == theirs.losses and len(ours.losses) == 8
        for name, moment in ours.moments.items():
            assert torch.equal(moment, theirs.moments[name])
        assert len(ours.problems) == 1 and "Memory ran out" in ours.problems[0]
        assert ("on rank 1" in ours.problems[0]) == (num_ranks == 2)
        assert ours.max_gaussians == 54  # nine tenths of the sixty
    assert_same(hit[0].whole, spared[0].whole)


def test_memory_that_stays_short_ends_the_training_on_all(pool: RankPool, blob_folder: Path) -> None:
    parts = pool.run(2, train, Plan(blob_folder, CALM, 5, fault="oom@step=2,rank=0,times=9"))
    for part in parts:
        assert len(part.losses) == 1 and part.error.startswith("MemoryError: there is no memory for a step")


def test_a_loss_that_is_no_number_ends_the_training_on_all(pool: RankPool, blob_folder: Path) -> None:
    parts = pool.run(3, train, Plan(blob_folder, CALM, 5, fault="nan@step=3,rank=2"))
    calm = pool.run(3, train, Plan(blob_folder, CALM, 2))
    for part in parts:
        assert len(part.losses) == 2
        assert part.error.startswith("TrainingDiverged: the loss became nan at step 3, on view_0")
        assert "(rank 2)" in part.error
    assert_same(parts[0].whole, calm[0].whole)
