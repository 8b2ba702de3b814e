"""N steps, saved and resumed, and M more are N + M steps without a break, in every bit of a training."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rank_pool import RankPool
from resumed_trainings import CONFIG, assert_same, run
from sharded_training_tasks import Plan, train
from strategy_settings import COMMON, MCMC

from splatstudio.checkpoints.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint
from splatstudio.checkpoints.saver import CheckpointSaver
from splatstudio.cli import train as train_command
from splatstudio.cli.main import main
from splatstudio.distributed.rank_devices import RankDevices
from splatstudio.files.run import Run
from splatstudio.gui.state.project import open_project
from splatstudio.runtime.messages import TrainJob
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig, changed, settings_named
from splatstudio.settings.strategy_config import DensifyConfig
from splatstudio.training.plateau import PlateauWatch
from splatstudio.training.session import Session
from splatstudio.training.trainer import Trainer


@pytest.mark.parametrize(
    "num_steps", [8, 25, 36]
)  # before the first densification, after it, after the reset
@pytest.mark.parametrize("how", ["one file", "three shards", "in the background"])
def test_a_break_changes_nothing(blob_scene: Scene, tmp_path: Path, num_steps: int, how: str) -> None:
    straight = Trainer(blob_scene, CONFIG)
    run(straight, num_steps)
    if how == "in the background":
        saver = CheckpointSaver(tmp_path)
        saver.start(straight.checkpoint())
        losses = run(straight, 30)  # trains while it is written
        result = saver.take(wait=True)
        assert result is not None and result.path is not None
        saver.close()
        folder = result.path
    else:
        shards = 3 if how == "three shards" else 1
        folder = save_checkpoint(tmp_path, straight.checkpoint(), num_shards=shards)
        losses = run(straight, 30)
    resumed = Trainer.resume(blob_scene, folder)
    assert resumed.step == num_steps
    assert run(resumed, 30) == losses
    assert_same(resumed.checkpoint(), straight.checkpoint())
    assert len(resumed.gaussians) > 60, "a densification took place"
    straight.close()
    resumed.close()


def test_a_finished_run_goes_on_past_its_end_when_more_steps_are_asked_for(
    blob_scene: Scene, tmp_path: Path
) -> None:
    config = replace(CONFIG, steps=20, save_steps=(), eval_steps=())
    first = Session(Trainer(blob_scene, config), Run.create(tmp_path / "run", blob_scene.path, config))
    while not first.finished:
        last = first.advance()
    first.close()
    first.trainer.close()
    trainer = Trainer.resume(blob_scene, last.saved[-1], steps=45)
    second = Session(trainer, Run.open(tmp_path / "run"))
    assert not second.finished and trainer.step == 20
    steps = []
    while not second.finished:
        last = second.advance()
        steps.append(last.stats.step)
    assert steps == list(range(21, 46))
    saved = load_checkpoint(last.saved[-1])
    assert (saved.step, saved.config.steps) == (45, 45)
    rows = [row["step"] for row in second.run.metrics().rows if "loss" in row]
    assert rows == sorted(set(rows)) and set(rows) >= {10, 20, 30, 40, 45}
    second.close()
    trainer.close()


def test_counts_that_an_older_version_did_not_keep_begin_at_zero(blob_scene: Scene, tmp_path: Path) -> None:
    config = changed(replace(TrainConfig(), steps=100), "strategy", "mcmc")
    trainer = Trainer(blob_scene, config)
    for _ in range(3):
        trainer.train_step()
    saved = trainer.checkpoint()
    trainer.close()
    visible = saved.population.counts["visible"].clone()
    assert visible.max() > 0 and "grad2d" in saved.population.counts
    older = replace(saved, population=replace(saved.population, counts={"visible": visible}))
    resumed = Trainer.resume(blob_scene, save_checkpoint(tmp_path, older))
    assert torch.equal(resumed.parts.population.counts["visible"].cpu(), visible)
    resumed.train_step()
    assert resumed.parts.population.counts["grad2d"].max() > 0
    resumed.close()


def test_rows_of_several_ranks_that_an_older_version_gave_no_places_get_them(
    pool: RankPool, blob_folder: Path, tmp_path: Path
) -> None:
    first = pool.run(2, train, Plan(blob_folder, {**COMMON, **MCMC}, 11, save=tmp_path))[0]
    assert first.saved is not None
    saved = load_checkpoint(first.saved)
    counts = {name: count for name, count in saved.population.counts.items() if name != "place"}
    assert counts.keys() < saved.population.counts.keys()
    saved = replace(saved, population=replace(saved.population, counts=counts))
    older = save_checkpoint(tmp_path / "older", saved, num_shards=2)
    one, two = (
        pool.run(num, train, Plan(blob_folder, {"batch_size": 6 // num}, 10, resume=older))[0]
        for num in (1, 2)
    )
    assert two.changes == one.changes and any(change.num_changed for change in one.changes)
    assert two.losses == pytest.approx(one.losses, rel=1e-4)


SHORT = TrainConfig(
    steps=6, keep=2, eval_steps=(), save_steps=(), test_every=4, densify=DensifyConfig(enabled=False)
)


def saved_steps(run: Path) -> list[int]:
    return sorted(int(folder.name[5:]) for folder in (run / "ckpts").iterdir())


@pytest.fixture
def run_dir(blob_scene: Scene, tmp_path: Path) -> Path:
    """Return a run at step 6 whose keep was raised from 2 to all, and its steps to 40, while it trained."""
    trainer = Trainer(blob_scene, SHORT)
    run = Run.create(tmp_path / "run", blob_scene.path, SHORT)
    trainer.update_setting("keep", 0)
    trainer.update_setting("steps", 40)
    with closing(Session(trainer, run)) as session:
        for step in range(1, 7):
            session.advance()
            if step % 2 == 0:
                session.save()
    trainer.close()
    assert saved_steps(run.path) == [2, 4, 6]
    return run.path


def train_here(*arguments: object) -> int:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setattr(sys, "argv", ["splatstudio", "train", *map(str, arguments)])
        main()
    return int(stop.value.code or 0)


def job_of(*arguments: object) -> TrainJob:
    """Return the job that the command gives to the background process."""
    jobs: list[TrainJob] = []

    class Attendance:
        def __init__(self, job: TrainJob, first: int, devices: RankDevices, minutes: float | None):
            jobs.append(job)

        def run(self) -> int:
            return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_command, "_Attendance", Attendance)
        assert train_here(*arguments) == 0
    (job,) = jobs
    return job


def test_a_setting_at_its_default_was_asked_for_when_it_was_given(run_dir: Path, blob_folder: Path) -> None:
    assert (TrainConfig().steps, TrainConfig().keep) == (30_000, 0)
    live = replace(SHORT, steps=40, keep=0)
    resume = (blob_folder, "--run", run_dir, "--resume")
    assert job_of(*resume).config == live
    assert job_of(*resume, "--steps", "30000").config == replace(live, steps=30_000)
    assert job_of(*resume, "--keep=3", "--save-steps", "7000", "30000").config == replace(
        live, keep=3, save_steps=(7000, 30_000)
    )
    # A setting that cannot be followed is told, at its default too.
    assert train_here(*resume, "--test-every", "8") == 2
    assert train_here(*resume, "--densify.enabled") == 2
    assert train_here(*resume, "--test-every", "4", "--steps", "6") == 0  # nothing to do


def test_the_studio_follows_what_was_given(run_dir: Path, blob_folder: Path) -> None:
    live = replace(SHORT, steps=40, keep=0)
    for path, run_folder in [(run_dir, None), (blob_folder, run_dir)]:
        assert open_project(path, TrainConfig(), run_folder, frozenset()).config == live
        opened = open_project(path, TrainConfig(), run_folder, {"steps", "test_every"})
        assert opened.config == replace(live, steps=30_000)
        assert any("own settings; test_every is not changed" in note for note in opened.notes)


def test_a_resume_deletes_no_checkpoint_that_was_to_be_kept(run_dir: Path, blob_folder: Path) -> None:
    assert train_here(blob_folder, "--run", run_dir, "--resume", "--steps", "8") == 0
    assert saved_steps(run_dir) == [2, 4, 6, 8]
    config = load_checkpoint(run_dir / "ckpts" / "step_00000008").config
    assert (config.steps, config.keep) == (8, 0)


def test_settings_are_found_however_they_are_spelled() -> None:
    arguments = "a --steps 7 --keep=0 --optim.means-lr 1 --densify.no-enabled --random_background --run steps"
    assert settings_named([*arguments.split(), "--no-antialiased", "--resume", "keep"]) == {
        "steps",
        "keep",
        "optim.means_lr",
        "densify.enabled",
        "random_background",
        "antialiased",
    }


PLANNED = TrainConfig(steps=10, sh_degree=0, eval_every=0, eval_steps=(), save_minutes=0)


def go_on(run: Run, scene: Scene, steps: int, until: int) -> None:
    checkpoint = newest_checkpoint(run.path)
    assert checkpoint is not None
    trainer = Trainer.resume(scene, checkpoint, steps=steps)
    session = Session(trainer, run)
    while trainer.step < until:
        session.advance()
    session.save()
    session.close()
    trainer.close()


def test_other_steps_are_noted_once_and_what_was_told_after_holds(blob_scene: Scene, tmp_path: Path) -> None:
    run, trainer = Run.create(tmp_path / "run", blob_scene.path, PLANNED), Trainer(blob_scene, PLANNED)
    session = Session(trainer, run)
    while trainer.step < 10:
        session.advance()
    session.close()
    trainer.close()
    go_on(run, blob_scene, steps=40, until=20)
    # A stretch is told, and the training goes on once more with the same steps.
    told = {"step": 20, "flat_since": 15, "flat_psnr": 25.0, "stops": False}
    run.append_metrics(told)
    go_on(run, blob_scene, steps=40, until=30)
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    noted = [row for row in rows if "setting" in row]
    assert noted == [{"step": 10, "setting": "steps", "value": 40}]
    assert [row["step"] for row in rows] == sorted(row["step"] for row in rows)
    watch = PlateauWatch(rows, 30, planned=run.config.steps, steps=40)
    offer = watch.offer(TrainConfig(steps=40))
    assert not watch.replanned and offer is not None and offer.flat.psnr == 25.0
    again = PlateauWatch(rows, 30, planned=run.config.steps, steps=50)
    assert again.replanned and again.offer(TrainConfig(steps=50)) is None, "these are others"
