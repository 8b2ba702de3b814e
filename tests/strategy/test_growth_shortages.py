"""A change that a rank has no memory for is made on none, and the training goes on with a lower limit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from compared_trainings import assert_same
from growth_tasks import Shortage, balance_short, grow_short
from rank_pool import RankPool
from sharded_training_tasks import Plan, config_of, train
from strategy_settings import COMMON, FAST, MCMC
from worker_watcher import MANY, Launch

from splatstudio.distributed.failures import Fault, OutOfMemory
from splatstudio.distributed.rank_devices import choose_devices
from splatstudio.evaluation.evaluate import Evaluation
from splatstudio.files.run import Run
from splatstudio.runtime.messages import Evaluated, Finished, SettingChanged, TrainJob, Warned
from splatstudio.runtime.supervisor import plan_for
from splatstudio.scene.load import load_scene
from splatstudio.scene.scene import Scene
from splatstudio.strategy import after_step as growth
from splatstudio.training.session import Session
from splatstudio.training.trainer import Trainer

EDIT, MOMENTS = "splatstudio.strategy.population", "splatstudio.optimization.optim"
PRUNE = {"densify.enabled": False, "init_scale": 0.2, "shapes.min_views": 5, "shapes.min_views_every": 4}


@pytest.mark.parametrize(
    ("num_ranks", "settings", "where"),
    [
        (2, {}, ("splatstudio.strategy.default", "_halves", 1)),
        (1, {}, (EDIT, "with_rows", 3)),
        (2, {}, (EDIT, "with_rows", 8)),  # of the counts
        (1, MCMC, (MOMENTS, "with_rows", 9)),
        (2, MCMC, (EDIT, "_apart", 2)),
        (2, MCMC, ("splatstudio.strategy.mcmc", "normal_noise", 2)),  # when some are drawn already
        (2, FAST, (MOMENTS, "with_rows", 1)),
        (2, FAST, ("splatstudio.strategy.survey", "projected_from", 2)),
        (2, PRUNE, (MOMENTS, "with_rows", 12)),
        (1, PRUNE, ("splatstudio.strategy.survey", "project_for_all", 3)),
    ],
    ids=lambda value: f"{value[1]}-{value[2]}" if isinstance(value, tuple) else None,
)
def test_what_was_half_changed_is_as_it_was_on_all_ranks(
    pool: RankPool, blob_folder: Path, num_ranks: int, settings: dict[str, Any], where: tuple[str, str, int]
) -> None:
    shortage = Shortage(*where, rank=num_ranks - 1)
    parts = pool.run(num_ranks, grow_short, blob_folder, {**COMMON, **settings}, shortage)
    for part in parts:
        assert part.short == (num_ranks - 1,) and part.unchanged
        assert part.max_gaussians == int(0.9 * part.num_before)
        assert "a change of their number was left out" in part.problem
        assert part.problem.startswith(f"Memory ran out{' on rank 1' if num_ranks == 2 else ''} with")
        assert part.num_later > 0, "the next change is made"
        assert part.losses == parts[0].losses


@pytest.mark.parametrize("nth", [1, 6, 7, 13, 18, 19])
def test_ranks_keep_their_own_where_one_has_no_room_for_what_comes(pool: RankPool, nth: int) -> None:
    sizes = (5, 150, 40)
    assert pool.run(3, balance_short, sizes, nth, 0) == [((0,), True, size) for size in sizes]
    assert pool.run(3, balance_short, sizes, 0, 0) == [((), False, 65)] * 3


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("rebalance", "sharing them out evenly over the ranks was left out"),
        ("reorder", "putting them in the order of space was left out"),
    ],
)
def test_what_was_left_out_behind_a_change_is_told_by_its_name(
    blob_scene: Scene, monkeypatch: pytest.MonkeyPatch, what: str, says: str
) -> None:
    def short(_: object) -> None:
        raise OutOfMemory([0])

    monkeypatch.setattr(growth, what, short)
    trainer = Trainer(blob_scene, config_of({**COMMON, "order": "morton"}, 200))
    told = [stats for stats in (trainer.train_step() for _ in range(12)) if stats.problem is not None]
    trainer.close()
    assert len(told) == 1 and told[0].change is not None and told[0].change.num_changed > 0
    assert f"{says}, and none are added above {trainer.config.densify.max_gaussians:,}" in str(
        told[0].problem
    )


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_training_goes_on_as_without_that_change(pool: RankPool, blob_folder: Path, num_ranks: int) -> None:
    plan = Plan(blob_folder, COMMON, 14, fault=f"oom@step=11,rank={num_ranks - 1},site=growth")
    hit = pool.run(num_ranks, train, plan)
    # The only change until then, as the rules are first due in the eleventh step.
    spared = pool.run(num_ranks, train, replace(plan, fault="", settings={**COMMON, "densify.every": 1000}))
    for ours, theirs in zip(hit, spared, strict=True):
        assert ours.losses == theirs.losses and len(ours.problems) == 1 and not theirs.problems
    assert_same(hit[0].whole, spared[0].whole)


def test_an_evaluation_without_memory_is_told_and_the_training_goes_on(
    blob_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(MANY, steps=6, eval_every=2, test_every=4)
    monkeypatch.setenv("SPLATSTUDIO_FAULT", "oom@step=2,rank=0,site=evaluation")
    trainer = Trainer(load_scene(blob_folder, test_every=4), config)
    session = Session(trainer, Run.create(tmp_path / "run", blob_folder, config))
    advances = [session.advance() for _ in range(6)]
    session.close()
    trainer.close()
    (told,) = [advance.problem for advance in advances if advance.problem]
    assert told.startswith("Step 2 could not be evaluated: there is no memory for it.")
    assert [advance.stats.step for advance in advances if advance.evaluation] == [4, 6]


def test_a_shortage_on_which_ranks_have_not_agreed_is_not_passed_over(
    blob_scene: Scene, tmp_path: Path
) -> None:
    def short(_: object) -> Evaluation:
        raise torch.OutOfMemoryError("there is no room left")

    trainer = Trainer(blob_scene, MANY)
    session = Session(trainer, Run.create(tmp_path / "run", blob_scene.path, MANY), evaluator=short)
    with pytest.raises(torch.OutOfMemoryError):
        session.evaluate()
    assert not session.evaluating
    session.close()
    trainer.close()


def test_an_evaluation_without_memory_on_a_rank_ends_nothing(
    launch: Launch, blob_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    config = replace(MANY, steps=16, eval_every=8, test_every=4)
    monkeypatch.setenv("SPLATSTUDIO_FAULT", "oom@step=8,rank=1,site=evaluation")
    job = TrainJob(blob_folder, run, config)
    worker = launch(job, plan_for(job, choose_devices(ranks=2))).start()
    told = worker.wait(Warned).sentence
    assert "Step 8 could not be evaluated: there is no memory for it on rank 1." in told
    assert "the training goes on" in told
    assert worker.wait(Evaluated).step == 16 and worker.wait(Finished).step == 16
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "test_psnr" in line] == [16]


def test_a_limit_that_a_change_without_memory_has_set_is_told(
    launch: Launch, blob_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(MANY, steps=20, densify=replace(MANY.densify, start_step=2, every=5, grow_grad=1e-4))
    monkeypatch.setenv("SPLATSTUDIO_FAULT", "oom@step=6,rank=0,site=growth")
    worker = launch(TrainJob(blob_folder, tmp_path / "run", config)).start()
    limit = worker.wait(SettingChanged).value
    sentence = worker.wait(Warned).sentence
    assert "Memory ran out with" in sentence and f"none are added above {limit:,}" in sentence
    assert worker.wait(Finished).completed


def test_a_fault_has_a_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPLATSTUDIO_FAULT", "oom@step=3,rank=1,times=2,site=growth")
    fault = Fault.from_environment()
    assert fault == Fault("oom", 3, 1, 2, "growth")
    assert fault is not None and fault.strike(3, 1) == 1.0 and fault.strike(3, 1, "evaluation") == 1.0
    monkeypatch.setenv("SPLATSTUDIO_FAULT", "oom@step=3,rank=1,site=moon")
    with pytest.raises(ValueError, match="must be like"):
        Fault.from_environment()
