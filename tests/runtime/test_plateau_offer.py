"""Scores that nobody asked for, and the offer to stop by them: how often, when not, and until when."""

from __future__ import annotations

import hashlib
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from plateau_settings import ANYHOW
from worker_watcher import Launch

from splatstudio.checkpoints.checkpoint import newest_checkpoint
from splatstudio.files.run import Run
from splatstudio.gui.tabs.train import evaluated_when
from splatstudio.runtime import messages
from splatstudio.runtime.training_news import plateau_reached
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import OptimConfig, TrainConfig, from_json
from splatstudio.settings.plateau_curve import RISEN, Score
from splatstudio.settings.strategy_config import DensifyConfig, FastConfig, McmcConfig
from splatstudio.strategy import Strategy
from splatstudio.strategy.make_strategy import make_strategy
from splatstudio.training.plateau import PlateauNews, PlateauWatch, evaluation_interval, settled_after
from splatstudio.training.session import Session
from splatstudio.training.trainer import Trainer

STEPS, EVERY = 10_000, 300
STEADY = TrainConfig(steps=STEPS, sh_degree=0, densify=DensifyConfig(enabled=False))


# ---- how often


@pytest.mark.parametrize(
    ("steps", "num_photos", "interval"),
    [(30_000, 6, 1000), (30_000, 50, 2500), (7000, 2, 250), (7000, 7, 400), (2000, 6, 300), (1, 0, 50)],
)
def test_the_interval_that_nobody_chose_costs_about_two_per_cent(
    steps: int, num_photos: int, interval: int
) -> None:
    assert evaluation_interval(TrainConfig(steps=steps), num_photos) == interval
    # Each photo takes about the time of a step.
    assert num_photos * (steps // interval) <= 0.02 * steps


def test_what_was_chosen_is_followed() -> None:
    assert evaluation_interval(TrainConfig(eval_every=0), 6) == 0
    assert evaluation_interval(TrainConfig(eval_every=70), 6) == 70
    assert evaluation_interval(TrainConfig(stop_when_flat=True), 50) == 900, "five in what is looked back on"
    with pytest.raises(ValueError, match="eval_every is -2, but must be at least -1"):
        from_json(TrainConfig, {"eval_every": -2})


def test_the_page_says_how_often() -> None:
    assert evaluated_when(TrainConfig(), 6) == "every 1,000 steps, at the end"
    assert evaluated_when(TrainConfig(), 50) == "every 2,500 steps, at step 7,000, at the end"
    assert evaluated_when(TrainConfig(eval_every=0, eval_steps=()), 6) == "at the end"
    assert evaluated_when(TrainConfig(), 0).startswith("never")


def steps_evaluated(session: Session, num_steps: int) -> list[int]:
    advances = [session.advance() for _ in range(num_steps)]
    return [advance.stats.step for advance in advances if advance.evaluation is not None]


def fingerprint(trainer: Trainer) -> str:
    gaussians = trainer.gaussians.detach()
    tensors = (gaussians.means, gaussians.quats, gaussians.scales, gaussians.opacities, gaussians.sh0)
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()


def test_a_training_has_a_curve_without_asking_and_none_when_told_so(
    blob_scene: Scene, tmp_path: Path
) -> None:
    config = TrainConfig(steps=210, sh_degree=0, save_steps=(), densify=DensifyConfig(enabled=False))
    run = Run.create(tmp_path / "run", blob_scene.path, config)
    trainer = Trainer(blob_scene, config)
    with closing(Session(trainer, run)) as session:
        assert steps_evaluated(session, 120) == [100]
        trainer.update_setting("eval_every", 0)
        assert steps_evaluated(session, 90) == [210]
    trainer.close()
    assert [row["step"] for row in run.metrics().rows if "test_psnr" in row] == [100, 210]


@pytest.mark.parametrize("strategy", ["default", "mcmc"])
def test_evaluating_changes_nothing_of_the_training(strategy: str, blob_scene: Scene, tmp_path: Path) -> None:
    results = []
    for every in (0, 7):
        config = TrainConfig(
            steps=60,
            sh_degree=1,
            strategy=strategy,  # type: ignore[arg-type]
            save_steps=(),
            eval_every=every,
            random_background=True,
            densify=DensifyConfig(start_step=5, every=10, reset_every=25),
            mcmc=McmcConfig(start_step=5, every=10),
        )
        trainer = Trainer(blob_scene, config)
        with closing(Session(trainer, Run.create(tmp_path / f"{every}", blob_scene.path, config))) as session:
            num = len(steps_evaluated(session, 60))
        results.append((num, trainer.num_gaussians, fingerprint(trainer)))
        trainer.close()
    assert [num for num, *_ in results] == [1, 9]
    assert results[0][1:] == results[1][1:]


# ---- when it is told, and how often


def told_of(
    config: TrainConfig, curve: list[tuple[int, float]], watch: PlateauWatch | None = None
) -> list[PlateauNews]:
    watch, told = watch or PlateauWatch(), []
    for step, psnr in curve:
        watch.add(Score(step, psnr, 1000))
        if (news := watch.news(config, 50)) is not None:
            told.append(news)
    return told


def level(psnr: float = 28.0, first: int = EVERY, last: int = STEPS) -> list[tuple[int, float]]:
    return [(step, psnr) for step in range(first, last + 1, EVERY)]


def test_a_slow_rise_is_not_told_again_and_again() -> None:
    # 0.045 dB in 15 % of the steps: flat always, and 0.2 dB in the end.
    told = told_of(STEADY, [(step, 28.0 + 0.045 * step / 1500) for step, _ in level()])
    assert 1 <= len(told) <= 2
    assert all(later.flat.psnr - news.flat.psnr > RISEN for news, later in pairwise(told))
    assert len(told_of(STEADY, level())) == 1
    assert told_of(STEADY, [(step, 25.0 + 2.0 * step / STEPS) for step, _ in level()]) == []


def strategy_of(config: TrainConfig, scene: Scene) -> Strategy:
    return make_strategy(scene, config, extent=1.0, generator=torch.Generator(), survey=lambda *_: iter(()))


@pytest.mark.parametrize(
    ("settings", "end"),
    [
        ({}, 5000),
        ({"densify": DensifyConfig(stop_step=4000)}, 4000),
        ({"densify": DensifyConfig(enabled=False)}, 0),
        ({"strategy": "absgrad"}, 5000),
        ({"strategy": "mcmc", "mcmc": McmcConfig(stop_step=6000)}, 6000),
        ({"strategy": "mcmc"}, 8333),
        ({"strategy": "fast"}, 8333),
        ({"strategy": "fast", "fast": FastConfig(thin_at=0.85)}, 8500),
    ],
)
def test_nothing_is_told_before_the_number_of_splats_settles_even_at_its_limit(
    settings: dict, end: int, blob_scene: Scene
) -> None:
    config = replace(STEADY, **{"densify": DensifyConfig(), **settings})
    assert settled_after(config, 50) == end
    strategy = strategy_of(config, blob_scene)
    assert not any(strategy.changes_at(step) for step in range(end + 1, STEPS)), "as the strategy has it"
    assert end == 0 or any(strategy.changes_at(step) for step in range(end - 101, end + 1))
    told = told_of(config, level())
    assert len(told) == 1
    assert all(news.step > end + 0.1 * STEPS and news.flat.since > end for news in told if end)


# ---- until when it holds


def watch_with_offer() -> tuple[PlateauWatch, PlateauNews]:
    watch = PlateauWatch()
    (news,) = told_of(STEADY, level(last=4800), watch)
    assert watch.offer(STEADY) == news
    return watch, news


def test_an_offer_holds_until_the_score_has_risen_for_good() -> None:
    watch, news = watch_with_offer()
    for step, psnr in ((5100, 28.3), (5400, 28.0), (5700, 27.0), (6000, 28.3)):
        watch.add(Score(step, psnr, 1000))
        assert watch.offer(STEADY) == news, "one is high by chance"
    watch.add(Score(6300, 28.2, 1000))
    assert watch.offer(STEADY) is None


def test_a_changed_setting_takes_it_away_and_the_same_level_is_told_anew() -> None:
    watch, news = watch_with_offer()
    watch.note_setting(4800, "eval_every")
    assert watch.offer(STEADY) == news, "that changes nothing in how it learns"
    watch.note_setting(4800, "optim.sh0_lr")
    assert watch.offer(STEADY) is None
    (again,) = told_of(STEADY, level(first=5100), watch)
    assert again.step > news.step and watch.offer(STEADY) == again


def test_who_goes_on_with_a_run_knows_what_still_holds() -> None:
    _, news = watch_with_offer()
    rows: list[dict] = [{"step": step, "test_psnr": psnr} for step, psnr in level(last=news.step)]
    rows.append(news.row())
    later = {"step": 5100, "test_psnr": 29.0}, {"step": 5400, "test_psnr": 29.0}

    def offer(rows: list[dict], step: int = 5400, steps: int = STEPS) -> PlateauNews | None:
        return PlateauWatch(rows, step, planned=STEPS, steps=steps).offer(STEADY)

    assert offer(rows) == offer([*rows, later[0]]) == offer([*rows, *later], step=5100) == news
    assert offer(rows, step=news.step - 1) is None, "it was told after the checkpoint"
    assert offer([*rows, *later]) is None and offer(rows, steps=2 * STEPS) is None
    assert offer([*rows[:-1], {**news.row(), "stops": True}]) is None, "it has ended the training"


def test_what_is_told_of_it_says_that_the_training_waits() -> None:
    news = PlateauNews(4800, watch_with_offer()[1].flat, False, 0.3)
    event = plateau_reached(news, replace(STEADY, stop_when_flat=True))
    assert event.waits and (event.step, event.total_steps) == (4800, STEPS)


# ---- the background process


def test_a_new_process_that_goes_on_with_a_run_tells_what_was_told(
    launch: Launch, blob_folder: Path, tmp_path: Path
) -> None:
    config = replace(ANYHOW, optim=OptimConfig(rest_lr_decay=0.5))
    job = messages.TrainJob(blob_folder, tmp_path / "run", config)
    first = launch(job)
    first.send(messages.Start(pause_at=26))
    first.reach("paused")
    (told,) = first.of(messages.PlateauReached)
    first.client.close()
    checkpoint = newest_checkpoint(tmp_path / "run")

    second = launch(replace(job, checkpoint=checkpoint))
    second.send(messages.Start(pause_at=28))
    second.reach("paused")
    assert second.of(messages.PlateauReached) == [told] and [
        event.step for event in second.of(messages.Started)
    ] == [26]
    assert second.of(messages.PlateauLeft) == []
    second.send(messages.UpdateSettings((("optim.sh0_lr", 0.01),)))
    assert second.wait(messages.PlateauLeft).step == 28, "said at once, while it stands still"
    second.client.close()

    # With other steps planned it does not hold, and who was told by the process before is told so.
    third = launch(replace(job, config=replace(config, steps=80), checkpoint=checkpoint))
    third.send(messages.Start(pause_at=27))
    third.reach("paused")
    assert third.of(messages.PlateauReached) == [] and [
        event.step for event in third.of(messages.PlateauLeft)
    ] == [26]
    third.client.close()
