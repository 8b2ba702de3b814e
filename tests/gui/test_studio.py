"""The studio without a browser: what is opened, what the buttons do, cameras, curves, pictures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from conftest import blobs, write_blob_scene

from splatstudio.checkpoints.checkpoint import newest_checkpoint
from splatstudio.formats.ply import write_ply
from splatstudio.gui.app import Studio, last_words, open_studio
from splatstudio.gui.server.network import Listen
from splatstudio.gui.state.controller import Controller, Notice, Status
from splatstudio.gui.state.project import open_project
from splatstudio.models.model import load_model
from splatstudio.runtime.messages import Saved, TrainJob, ViewJob, ViewOptions
from splatstudio.scene import load_scene
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.train.trainer import Trainer

TIMEOUT = 120.0
MANY = TrainConfig(steps=100_000, eval_steps=(), save_steps=(), sh_degree=1)


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blob_folder: Path) -> Path:
    """The current folder is an empty one, in which the studio makes its runs/."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained_run(scene: Scene, run: Path, steps: int = 3, config: TrainConfig = MANY) -> Path:
    """Make a run folder with a checkpoint, without a worker."""
    from splatstudio.files.run import Run

    Run.create(run, scene.path, config)
    trainer = Trainer(scene, config)
    for _ in range(steps):
        trainer.train_step()
    checkpoint = trainer.save(run)
    trainer.close()
    return checkpoint


# ---- what is opened


def test_a_scene_folder_waits_for_start_in_a_new_run(own_folder: Path, blob_folder: Path) -> None:
    project = open_project(blob_folder, MANY, None)
    assert project.can_train and project.name == "blobs" and project.resume_step is None
    assert project.run_dir == Path("runs/blobs") and not Path("runs").exists()
    job = project.first_job()
    assert isinstance(job, TrainJob) and job.checkpoint is None


def test_a_scene_with_a_run_offers_to_go_on_and_to_start_over(
    own_folder: Path, blob_scene: Scene, blob_folder: Path
) -> None:
    checkpoint = trained_run(blob_scene, Path("runs/blobs"))
    project = open_project(blob_folder, TrainConfig(), None)
    assert project.resume_step == 3 and project.config == MANY, "a run goes on with its own settings"
    assert project.first_job() == ViewJob(checkpoint)
    assert project.training_job(resume=True).checkpoint == checkpoint
    again = project.started_over()
    assert again.run_dir == Path("runs/blobs-2") and again.resume_step is None
    assert isinstance(again.first_job(), TrainJob)
    assert open_project(blob_folder, TrainConfig(steps=3), None).resume_step is None, "all steps are done"


def test_a_run_folder_a_checkpoint_and_a_ply(own_folder: Path, tmp_path: Path) -> None:
    folder = write_blob_scene(tmp_path / "capture")
    checkpoint = trained_run(load_scene(folder), Path("elsewhere/one"))
    opened = open_project(Path("elsewhere/one"), TrainConfig(), None)
    assert opened.scene is not None and opened.resume_step == 3 and opened.model_path == checkpoint
    assert open_project(checkpoint, TrainConfig(), None).model_path == checkpoint
    (folder / "sparse" / "0" / "cameras.txt").unlink()
    without = open_project(Path("elsewhere/one"), TrainConfig(), None)
    assert without.scene is None and not without.can_train and without.model_path == checkpoint
    assert "only the model is shown" in without.notes[0]
    write_ply(tmp_path / "a.PLY", blobs())
    ply = open_project(tmp_path / "a.PLY", TrainConfig(), None)
    assert ply.first_job() == ViewJob(tmp_path / "a.PLY") and not ply.can_train


def test_what_cannot_be_opened_is_said_in_a_sentence(
    own_folder: Path, blob_folder: Path, blob_scene: Scene, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        open_project(tmp_path / "nothing", MANY, None)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty"):
        open_project(tmp_path / "empty", MANY, None)
    trained_run(load_scene(write_blob_scene(tmp_path / "other")), Path("taken"))
    with pytest.raises(ValueError, match=r"belongs to .*other"):
        open_project(blob_folder, MANY, Path("taken"))


def test_an_unreadable_run_of_another_is_left_aside_with_a_note(
    own_folder: Path, blob_folder: Path, blob_scene: Scene
) -> None:
    checkpoint = trained_run(blob_scene, Path("runs/blobs"))
    Path("runs/blobs-9").mkdir()
    Path("runs/blobs-9/run.json").write_text("{cut off")
    project = open_project(blob_folder, TrainConfig(), None)
    assert project.model_path == checkpoint and any("blobs-9 is left aside" in n for n in project.notes)
    with pytest.raises(ValueError, match="damaged"):
        open_project(blob_folder, TrainConfig(), Path("runs/blobs-9"))


def test_brackets_in_a_scenes_name_are_no_pattern(own_folder: Path, tmp_path: Path) -> None:
    folder = write_blob_scene(tmp_path / "room [1]")
    checkpoint = trained_run(load_scene(folder), Path("runs/room [1]"))
    assert open_project(folder, TrainConfig(), None).model_path == checkpoint


def test_given_settings_are_followed_or_it_is_said_that_they_are_not(
    own_folder: Path, blob_folder: Path, blob_scene: Scene
) -> None:
    checkpoint = trained_run(blob_scene, Path("runs/blobs"))
    steps = TrainConfig(steps=77)
    for path in (blob_folder, Path("runs/blobs")):
        longer = open_project(path, steps, None)
        assert longer.config == replace(MANY, steps=77) and longer.run_dir is not None
        assert longer.run_dir.name == "blobs" and not any("own settings" in note for note in longer.notes)
    other = TrainConfig(sh_degree=2)
    anew = open_project(blob_folder, other, None)
    assert anew.run_dir == Path("runs/blobs-2") and anew.config == other and anew.model_path is None
    assert any("sh_degree" in note and "blobs-2" in note for note in anew.notes)
    for kept in (
        open_project(Path("runs/blobs"), other, None),
        open_project(blob_folder, other, Path("runs/blobs")),
    ):
        assert kept.config == MANY and kept.model_path == checkpoint
        assert any("own settings; sh_degree is not changed" in note for note in kept.notes)


# ---- what the buttons do


@dataclass
class Steered:
    """A controller and what it told the user."""

    controller: Controller
    notices: list[Notice]

    def wait(self, condition: Callable[[Status], bool], what: str) -> Status:
        deadline = time.monotonic() + TIMEOUT
        while not condition(self.controller.status):
            assert time.monotonic() < deadline, f"never: {what}; {self.controller.status}"
            time.sleep(0.02)
        return self.controller.status


@pytest.fixture
def steered(own_folder: Path) -> Iterator[Callable[..., Steered]]:
    """Make controllers; their workers are ended after the test."""
    desks: list[Steered] = []

    def make(path: Path, config: TrainConfig = MANY) -> Steered:
        notices: list[Notice] = []
        desks.append(Steered(Controller(open_project(path, config, None), notices.append), notices))
        desks[-1].controller.open()
        return desks[-1]

    yield make
    for each in desks:
        each.controller.close()


def test_the_primary_button_through_a_training(steered: Callable[..., Steered], blob_folder: Path) -> None:
    it = steered(blob_folder)
    controller = it.controller
    it.wait(lambda status: status.state == "ready", "ready")
    assert controller.choice().label == "Start training" and not controller.can_start_over
    assert controller.model_state().step is None
    controller.press_primary()
    it.wait(lambda status: status.state == "training" and status.step > 3, "training")
    assert controller.choice().label == "Pause" and controller.model_state().training
    controller.press_primary()
    it.wait(lambda status: status.state == "paused", "paused")
    step = controller.status.step
    time.sleep(0.3)
    assert controller.status.step == step
    assert controller.choice().label == "Resume" and controller.status.eta_seconds is None
    controller.press_primary()
    it.wait(lambda status: status.step > step, "going on")
    controller.stop()
    it.wait(lambda status: status.state == "finished", "stopped")
    assert controller.choice().label == "Resume" and controller.can_start_over
    it.wait(lambda _: any(notice.title == "Training stopped" for notice in it.notices), "it is told")
    assert len(controller.history.loss) > 1


def test_a_killed_worker_is_failed_and_resume_goes_on(
    steered: Callable[..., Steered], blob_folder: Path
) -> None:
    it = steered(blob_folder)
    controller = it.controller
    controller.press_primary()
    it.wait(lambda status: status.state == "ready", "ready")
    controller.press_primary()
    it.wait(lambda status: status.step > 3, "training")
    controller.save()
    run = cast(Path, controller.project.run_dir)
    it.wait(lambda _: newest_checkpoint(run) is not None, "saved")
    controller._worker.kill()  # which is not restarted
    status = it.wait(lambda status: status.state == "failed", "failed")
    assert "is safe" in status.message and not status.has_model
    it.wait(lambda _: bool(it.notices) and it.notices[-1].bad, "it is told")
    assert not any("finished" in notice.title for notice in it.notices)
    label = controller.choice().label
    assert label.startswith("Resume from step ")
    controller.press_primary()
    saved = int(label.rpartition(" ")[2].replace(",", ""))
    status = it.wait(lambda status: status.state == "training" and status.step > saved, "training again")
    assert status.message == ""


def test_a_training_whose_process_dies_goes_on_by_itself(
    steered: Callable[..., Steered], blob_folder: Path, blob_scene: Scene
) -> None:
    it = steered(blob_folder)
    controller = it.controller
    it.wait(lambda status: status.state == "ready", "ready")
    controller.press_primary()
    it.wait(lambda status: status.step > 3, "training")
    controller.save()
    it.wait(lambda _: controller.last_saved is not None, "saved")
    assert controller.render(1, blob_scene.cameras[0], ViewOptions()) is not None
    os.kill(controller._worker.pid, signal.SIGKILL)
    it.wait(lambda _: any("goes on by itself" in notice.text for notice in it.notices), "said so")
    # A browser that looks on gets its next picture, whatever happens in between; it asks until it comes.
    it.wait(lambda _: controller.render(1, blob_scene.cameras[0], ViewOptions()) is not None, "its picture")
    step = cast(Saved, controller.last_saved).step
    it.wait(lambda status: status.state == "training" and status.step > step, "training again")
    assert controller.choice().label == "Pause" and controller.status.message == ""
    steps = controller.history.loss.arrays()[0]
    assert (np.diff(steps) > 0).all(), "the plot goes back in time"


def test_start_works_after_a_crash_before_any_save(
    steered: Callable[..., Steered], blob_folder: Path
) -> None:
    it = steered(blob_folder)
    controller = it.controller
    it.wait(lambda status: status.state == "ready", "ready")
    controller.press_primary()
    it.wait(lambda status: status.step > 3, "training")
    controller._worker.kill()  # which is not restarted
    it.wait(lambda status: status.state == "failed", "failed")
    assert controller.choice().label == "Start training"
    controller.press_primary()
    it.wait(lambda status: status.state == "training" and status.step > 0, "training anew")
    assert controller.project.run_dir == Path("runs/blobs-2")


def test_a_worker_that_dies_after_the_training_leaves_buttons_that_work(
    steered: Callable[..., Steered], blob_folder: Path
) -> None:
    it = steered(blob_folder)
    controller = it.controller
    it.wait(lambda status: status.state == "ready", "ready")
    controller.press_primary()
    it.wait(lambda status: status.step > 3, "training")
    controller.stop()
    it.wait(lambda _: any(notice.title == "Training stopped" for notice in it.notices), "stopped")
    step = controller.status.step
    os.kill(controller._worker.pid, signal.SIGKILL)
    it.wait(lambda status: status.state == "ended", "ended")
    assert controller.model_state().step is None
    it.wait(lambda _: controller.choice().label == f"Resume from step {step:,}", "offered to go on")
    controller.press_primary()
    it.wait(lambda status: status.state == "training" and status.step > step, "training again")


def test_the_last_words_name_only_a_save_that_holds_the_last_step(
    own_folder: Path, blob_scene: Scene
) -> None:
    run = Path("runs/blobs")
    checkpoint = trained_run(blob_scene, run)
    saved = Saved(3, checkpoint)
    assert last_words(Status("ended", step=3), saved, run).startswith(f"Saved {checkpoint}. Go on with")
    lost = last_words(Status("ended", step=9), saved, run)
    assert f"newest good checkpoint is {checkpoint}; what was trained after it (6 steps) is lost" in lost
    # Whatever was said of it: the disk is asked.
    assert f"Saved {checkpoint}." in last_words(Status("failed", step=3, message="It died."), None, run)
    assert "holds no good checkpoint" in last_words(Status("failed", step=9), None, Path("runs/none"))
    spaced = run.rename("runs/two words")
    assert last_words(Status("failed", step=3), None, spaced).endswith("studio open 'runs/two words'")


def test_starting_over_leaves_the_old_run_alone(
    steered: Callable[..., Steered], blob_folder: Path, blob_scene: Scene
) -> None:
    checkpoint = trained_run(blob_scene, Path("runs/blobs"))
    before = {path: path.stat().st_mtime_ns for path in Path("runs/blobs").rglob("*") if path.is_file()}
    it = steered(blob_folder)
    status = it.wait(lambda status: status.state == "viewing", "the old model on view")
    assert status.step == 3 and it.controller.choice().label == "Resume from step 3"
    it.controller.start_over()
    it.wait(lambda status: status.state == "ready", "its settings can be chosen")
    assert it.controller.can_set_up and it.controller.choice().label == "Start training"
    it.controller.change_settings({"sh_degree": 0})
    assert not Path("runs/blobs-2").exists()
    it.controller.press_primary()
    it.wait(lambda status: status.state == "training" and status.step > 0, "training anew")
    it.controller.save()
    it.wait(lambda _: newest_checkpoint(Path("runs/blobs-2")) is not None, "saved in a new folder")
    assert open_project(Path("runs/blobs-2"), TrainConfig(), None).config == replace(MANY, sh_degree=0)
    it.controller.close()
    after = {path: path.stat().st_mtime_ns for path in Path("runs/blobs").rglob("*") if path.is_file()}
    assert before == after and newest_checkpoint(Path("runs/blobs")) == checkpoint


def test_the_studio_starts_by_itself_and_saves_when_closed(own_folder: Path, blob_folder: Path) -> None:
    studio = Studio(blob_folder, network=Listen(port=0), config=MANY)
    try:
        studio.start_training()
        deadline = time.monotonic() + TIMEOUT
        while studio.controller.status.step < 5:
            assert time.monotonic() < deadline, studio.controller.status
            time.sleep(0.05)
        assert studio.url.startswith("http://127.0.0.1:") and "token=" in studio.url
        port = studio._gated.port
        with pytest.raises(ValueError, match=str(port)):
            Studio(blob_folder, network=Listen(port=port), config=MANY)
    finally:
        studio.close()
    saved = newest_checkpoint(Path("runs/blobs"))
    assert saved is not None and load_model(saved).step == studio.controller.status.step


def test_ctrl_c_saves_and_says_where(own_folder: Path, blob_folder: Path) -> None:
    command = [sys.executable, "-m", "splatstudio", "open", str(blob_folder)]
    command += ["--train", "--no-browser", "--port", "0", "--steps", "100000", "--sh-degree", "1"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert "http://127.0.0.1:" in process.stdout.readline()
        metrics = Path("runs/blobs/metrics.jsonl")
        deadline = time.monotonic() + TIMEOUT
        while not metrics.exists():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)  # to the whole group, as a terminal does
        output, _ = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
    checkpoint = newest_checkpoint(Path("runs/blobs"))
    assert process.returncode == 0 and checkpoint is not None
    assert f"Saved {checkpoint}" in output.replace("\n", "") and "Traceback" not in output


def test_a_finished_model_cannot_be_trained(own_folder: Path, tmp_path: Path) -> None:
    write_ply(tmp_path / "model.ply", blobs())
    with pytest.raises(ValueError, match="cannot be trained"):
        open_studio(tmp_path / "model.ply", network=Listen(port=0), train=True, browser=False)
