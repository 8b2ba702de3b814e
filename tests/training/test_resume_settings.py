"""What a run that goes on is told anew: what the user named, and nothing else."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from splatstudio.checkpoints.checkpoint import load_checkpoint
from splatstudio.cli import train as train_command
from splatstudio.cli.main import main
from splatstudio.distributed.rank_devices import RankDevices
from splatstudio.files.run import Run
from splatstudio.gui.state.project import open_project
from splatstudio.runtime.messages import TrainJob
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig, settings_named
from splatstudio.settings.strategy_config import DensifyConfig
from splatstudio.training.session import Session
from splatstudio.training.trainer import Trainer

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


def train(*arguments: object) -> int:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setattr(sys, "argv", ["splatstudio", "train", *map(str, arguments)])
        main()
    return int(stop.value.code or 0)


def job_of(*arguments: object) -> TrainJob:
    """Return the job that the command gives to the background process."""
    jobs: list[TrainJob] = []

    class Attendance:
        def __init__(self, job: TrainJob, first: int, devices: RankDevices):
            jobs.append(job)

        def run(self) -> int:
            return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_command, "_Attendance", Attendance)
        assert train(*arguments) == 0
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
    assert train(*resume, "--test-every", "8") == 2
    assert train(*resume, "--densify.enabled") == 2
    assert train(*resume, "--test-every", "4", "--steps", "6") == 0  # nothing to do


def test_the_studio_follows_what_was_given(run_dir: Path, blob_folder: Path) -> None:
    live = replace(SHORT, steps=40, keep=0)
    for path, run in [(run_dir, None), (blob_folder, run_dir)]:
        assert open_project(path, TrainConfig(), run, frozenset()).config == live
        opened = open_project(path, TrainConfig(), run, {"steps", "test_every"})
        assert opened.config == replace(live, steps=30_000)
        assert any("own settings; test_every is not changed" in note for note in opened.notes)


def test_a_resume_deletes_no_checkpoint_that_was_to_be_kept(run_dir: Path, blob_folder: Path) -> None:
    assert train(blob_folder, "--run", run_dir, "--resume", "--steps", "8") == 0
    assert saved_steps(run_dir) == [2, 4, 6, 8]
    config = load_checkpoint(run_dir / "ckpts" / "step_00000008").config
    assert (config.steps, config.keep) == (8, 0)


def test_settings_are_found_however_they_are_spelt() -> None:
    arguments = "a --steps 7 --keep=0 --optim.means-lr 1 --densify.no-enabled --random_background --run steps"
    assert settings_named([*arguments.split(), "--no-antialiased", "--resume", "keep"]) == {
        "steps",
        "keep",
        "optim.means_lr",
        "densify.enabled",
        "random_background",
        "antialiased",
    }
