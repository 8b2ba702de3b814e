"""The rules of all strategies on several ranks: their limits and choices hold for the whole model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rank_pool import RankPool
from sharded_training_tasks import Plan, Trained, train
from strategy_settings import COMMON, FAST, MCMC

MCMC |= {"shapes.opacity_weight": 0.01, "shapes.scale_weight": 0.01}


def even(parts: list[Trained]) -> bool:
    sizes = zip(*(part.sizes for part in parts), strict=True)
    return all(max(each) - min(each) <= max(1, 0.1 * sum(each) / len(each)) for each in sizes)


def test_mcmc_has_as_many_gaussians_as_are_wanted_over_all_ranks(pool: RankPool, blob_folder: Path) -> None:
    one = pool.run(1, train, Plan(blob_folder, {**COMMON, **MCMC, "batch_size": 3}, 36))[0]
    three = pool.run(3, train, Plan(blob_folder, {**COMMON, **MCMC}, 36))
    assert {part.num_gaussians for part in three} == {one.num_gaussians}
    assert one.num_gaussians > 80 and even(three)
    assert three[0].changes == three[1].changes == three[2].changes


@pytest.mark.parametrize(
    "settings", [{"strategy": "absgrad"}, MCMC, FAST], ids=lambda each: each.get("strategy")
)
def test_a_training_is_the_same_on_any_number_of_ranks(
    pool: RankPool, blob_folder: Path, settings: dict[str, Any]
) -> None:
    one = pool.run(1, train, Plan(blob_folder, {**COMMON, **settings, "batch_size": 6}, 26))[0]
    assert len(one.changes) >= 2 and one.changes[-1].num_changed + one.changes[-1].cloned > 0
    for num_ranks in (2, 3):
        plan = Plan(blob_folder, {**COMMON, **settings, "batch_size": 6 // num_ranks}, 26)
        parts = pool.run(num_ranks, train, plan)
        assert all(part.changes == one.changes for part in parts) and even(parts)
        assert parts[0].losses == one.losses and parts[0].psnr == pytest.approx(one.psnr, abs=1e-9)


def test_what_few_photographs_show_goes_on_all_ranks_alike(pool: RankPool, blob_folder: Path) -> None:
    settings = {"sh_degree": 0, "densify.enabled": False, "init_scale": 0.2}
    settings |= {"shapes.min_views": 5, "shapes.min_views_every": 4}
    one = pool.run(1, train, Plan(blob_folder, {**settings, "batch_size": 2}, 6))[0]
    two = pool.run(2, train, Plan(blob_folder, settings, 6))
    assert 30 < one.num_gaussians < 58
    assert {part.num_gaussians for part in two} == {one.num_gaussians}
    assert two[0].psnr == pytest.approx(one.psnr, abs=0.05)


@pytest.mark.parametrize("strategy", [MCMC, FAST], ids=["mcmc", "fast"])
def test_a_strategy_goes_on_bit_for_bit(
    pool: RankPool, blob_folder: Path, tmp_path: Path, strategy: dict[str, Any]
) -> None:
    settings = {**COMMON, **strategy}
    first = pool.run(2, train, Plan(blob_folder, settings, 11, save=tmp_path))
    rest = pool.run(2, train, Plan(blob_folder, {}, 9, resume=first[0].saved))
    whole = pool.run(2, train, Plan(blob_folder, settings, 20))
    assert rest[0].losses == whole[0].losses[11:] and rest[1].sizes == whole[1].sizes[11:]
