"""However the Gaussians are dealt, the strategies make the same choices, also the random ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from alike_tasks import NUM, decide, numbered
from rank_pool import RankPool

DENSIFY: dict[str, Any] = {"densify.start_step": 5, "densify.every": 10, "densify.max_gaussians": 300}
CASES: dict[str, dict[str, Any]] = {
    "default": {**DENSIFY, "densify.grow_grad": 2e-4},
    "absgrad": {**DENSIFY, "strategy": "absgrad", "absgrad.grow_grad": 1.5e-4},
    "mcmc": {"strategy": "mcmc", "mcmc.start_step": 5, "mcmc.every": 10, "mcmc.max_gaussians": 300}
    | {"mcmc.grow_factor": 1.2, "shapes.opacity_weight": 0.01, "shapes.scale_weight": 0.01},
    "fast": {**DENSIFY, "densify.max_gaussians": 2000, "strategy": "fast", "fast.every": 10}
    | {"fast.thin_at": (0.02,), "fast.density": 0.12},
}
CASES["the paper's mcmc"] = {**CASES["mcmc"], "mcmc.guided": False, "mcmc.spread": 0.0}


@pytest.mark.parametrize("case", CASES)
def test_the_same_gaussians_are_born_and_go_on_any_number_of_ranks(pool: RankPool, case: str) -> None:
    changes, whole = pool.run(1, decide, CASES[case], (NUM,))[0]
    assert sum(change.cloned + change.relocated for change in changes) > 20
    assert sum(change.pruned + change.relocated for change in changes) > 10
    assert any(change.capped for change in changes) or "mcmc" in case
    for sizes in ((70, NUM - 70), (0, 90, NUM - 90)):
        for ours, rows in pool.run(len(sizes), decide, CASES[case], sizes):
            assert ours == changes
            for name, expected in whole.items():
                torch.testing.assert_close(rows[name], expected, rtol=1e-6, atol=1e-6, msg=name)


def test_places_of_a_checkpoint_stay_where_each_is_there_once(pool: RankPool) -> None:
    first = [(6, [0, 1]), (6, [2]), (6, [3, 4, 5])]
    assert pool.run(3, numbered, None) == first
    known = [[5, 0], [3], [1, 4, 2]]
    assert pool.run(3, numbered, known) == [(6, part) for part in known]
    for wrong in ([[5, 0], [3], [1, 4, 3]], [[5, 0], [3], [1, 4, 6]], [[5, 0], [-1], [1, 4, 2]]):
        assert pool.run(3, numbered, wrong) == first
    assert pool.run(1, numbered, None) == [(2, None)]
    assert pool.run(1, numbered, [[1, 0]]) == [(2, [1, 0])] and pool.run(1, numbered, [[1, 1]]) == [
        (2, [0, 1])
    ]
