"""What the buttons do to a real training: start, pause, stop, crash, more steps, settings, a preview."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from blob_models import blobs
from gui_parts import MANY, Steered, trained_run, wait_until

from splatstudio.cameras.camera import Camera
from splatstudio.checkpoints.checkpoint import newest_checkpoint, verify_checkpoint
from splatstudio.formats.ply import write_ply
from splatstudio.gaussians.transform import transformed
from splatstudio.gui.state.history import History
from splatstudio.gui.state.project import open_project
from splatstudio.models.model import Model, load_model
from splatstudio.rendering.render import render_image
from splatstudio.runtime.messages import Save, Saved, Stop, ViewOptions
from splatstudio.runtime.supervisor import WorkerClient
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import DensifyConfig

Desks = Callable[..., Steered]


@pytest.fixture
def ready(steered: Desks, blob_folder: Path) -> Steered:
    """Return a training that waits for its start."""
    it = steered(blob_folder)
    it.wait(lambda status: status.state == "ready", "ready")
    return it


@pytest.fixture
def training(ready: Steered) -> Steered:
    """Return a training under way."""
    ready.controller.press_primary()
    ready.wait(lambda status: status.state == "training" and status.step > 3, "training")
    return ready


def saved(it: Steered) -> Path:
    """Return the checkpoint that is written now."""
    it.controller.send(Save())
    it.wait(lambda _: it.controller.last_saved is not None, "saved")
    return cast(Saved, it.controller.last_saved).path


def test_the_primary_button_through_a_training(ready: Steered) -> None:
    it, controller = ready, ready.controller
    assert controller.choice().label == "Start training" and not controller.can_begin_new_run
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
    controller.send(Stop())
    it.wait(lambda status: status.state == "finished", "stopped")
    assert controller.choice().label == "Resume" and controller.can_begin_new_run
    it.wait(lambda _: any(notice.title == "Training stopped" for notice in it.notices), "it is told")
    assert len(controller.history.loss) > 1


def test_a_killed_worker_is_failed_and_resume_goes_on(training: Steered) -> None:
    it, controller = training, training.controller
    saved(it)
    controller._worker.kill()  # which is not restarted
    status = it.wait(lambda status: status.state == "failed", "failed")
    assert "is safe" in status.message and not status.has_model
    it.wait(lambda _: bool(it.notices) and it.notices[-1].bad, "it is told")
    assert not any("finished" in notice.title for notice in it.notices)
    label = controller.choice().label
    assert label.startswith("Resume from step ")
    controller.press_primary()
    step = int(label.rpartition(" ")[2].replace(",", ""))
    status = it.wait(lambda status: status.state == "training" and status.step > step, "training again")
    assert status.message == ""


def test_a_training_whose_process_dies_goes_on_by_itself(training: Steered, blob_scene: Scene) -> None:
    it, controller = training, training.controller
    saved(it)
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


def test_start_works_after_a_crash_before_any_save(training: Steered) -> None:
    it, controller = training, training.controller
    controller._worker.kill()  # which is not restarted
    it.wait(lambda status: status.state == "failed", "failed")
    assert controller.choice().label == "Start training"
    controller.press_primary()
    it.wait(lambda status: status.state == "training" and status.step > 0, "training anew")
    assert controller.project.run_dir == Path("runs/blobs-2")


def test_a_worker_that_dies_after_the_training_leaves_buttons_that_work(training: Steered) -> None:
    it, controller = training, training.controller
    controller.send(Stop())
    it.wait(lambda _: any(notice.title == "Training stopped" for notice in it.notices), "stopped")
    step = controller.status.step
    os.kill(controller._worker.pid, signal.SIGKILL)
    it.wait(lambda status: status.state == "ended", "ended")
    assert controller.model_state().step is None
    it.wait(lambda _: controller.choice().label == f"Resume from step {step:,}", "offered to go on")
    controller.press_primary()
    it.wait(lambda status: status.state == "training" and status.step > step, "training again")


def test_a_process_that_dies_after_all_steps_leaves_the_way_to_its_model(
    steered: Desks, blob_folder: Path, blob_scene: Scene
) -> None:
    trained_run(blob_scene, Path("runs/blobs"))
    it = steered(blob_folder)
    controller = it.controller
    it.wait(lambda status: status.state == "viewing", "the model on view")
    controller.change_settings({"steps": 6})
    controller.press_primary()
    it.wait(lambda status: status.state == "finished", "all steps done")
    os.kill(controller._worker.pid, signal.SIGKILL)
    it.wait(lambda status: status.state == "ended", "ended")
    safe = "step 6 is safe; all planned steps are done"
    it.wait(lambda _: any(safe in notice.text for notice in it.notices), "told what is safe")
    it.wait(lambda _: controller.choice().label == "Show step 6", "offered to see it")
    controller.press_primary()
    it.wait(lambda status: status.state == "viewing" and status.step == 6, "it is in the view")


def test_starting_over_leaves_the_old_run_alone(steered: Desks, blob_folder: Path, blob_scene: Scene) -> None:
    checkpoint = trained_run(blob_scene, Path("runs/blobs"))
    before = {path: path.stat().st_mtime_ns for path in Path("runs/blobs").rglob("*") if path.is_file()}
    it = steered(blob_folder)
    status = it.wait(lambda status: status.state == "viewing", "the old model on view")
    assert status.step == 3 and it.controller.choice().label == "Resume from step 3"
    it.controller.begin_new_run()
    it.wait(lambda status: status.state == "ready", "its settings can be chosen")
    assert it.controller.can_set_up and it.controller.choice().label == "Start training"
    it.controller.change_settings({"sh_degree": 0})
    assert not Path("runs/blobs-2").exists()
    it.controller.press_primary()
    it.wait(lambda status: status.state == "training" and status.step > 0, "training anew")
    assert saved(it).parent.parent == Path("runs/blobs-2")
    assert open_project(Path("runs/blobs-2"), TrainConfig(), None).config == replace(MANY, sh_degree=0)
    it.controller.close()
    after = {path: path.stat().st_mtime_ns for path in Path("runs/blobs").rglob("*") if path.is_file()}
    assert before == after and newest_checkpoint(Path("runs/blobs")) == checkpoint


def test_a_running_training_takes_live_settings_and_refuses_the_rest(
    ready: Steered, blob_folder: Path
) -> None:
    controller, notices = ready.controller, ready.notices
    # Before the start everything can be chosen, and the training begins with it.
    controller.change_settings({"sh_degree": 0, "densify.max_gaussians": 99})
    controller.press_primary()
    ready.wait(lambda status: status.step > 3, "training")
    with pytest.raises(ValueError, match="sh_degree is read at the start"):
        controller.change_settings({"ssim_weight": 0.5, "sh_degree": 1})
    with pytest.raises(ValueError, match=r"optim\.means_lr is nan"):
        controller.change_settings({"optim.means_lr": float("nan")})
    with pytest.raises(ValueError, match="steps are done already, which is more than 1"):
        controller.change_settings({"steps": 1})
    assert controller.project.config.ssim_weight == 0.2, "nothing is changed where one is wrong"
    controller.change_settings({"ssim_weight": 0.5, "steps": 90_000})
    ready.wait(lambda status: status.total_steps == 90_000, "the number of steps is the new one")
    ready.wait(lambda _: controller.project.config.ssim_weight == 0.5, "confirmed")

    def times_told() -> int:
        return sum("SSIM weight changed to 0.5 at step" in notice.text for notice in notices)

    ready.wait(lambda _: times_told() > 0, "told")
    assert times_told() == 1
    controller.send(Stop())
    ready.wait(lambda status: status.state == "finished", "stopped")
    checkpoint = newest_checkpoint(Path("runs/blobs"))
    assert checkpoint is not None
    kept = verify_checkpoint(checkpoint)["config"]
    assert (kept["ssim_weight"], kept["sh_degree"], kept["densify"]["max_gaussians"]) == (0.5, 0, 99)
    # Opened again, the run has the settings that it had last.
    again = open_project(blob_folder, TrainConfig(), None).config
    assert (again.ssim_weight, again.steps, again.sh_degree) == (0.5, 90_000, 0)


def test_a_finished_run_opened_again_can_be_given_more_steps_and_other_settings(
    steered: Desks, blob_folder: Path
) -> None:
    short = TrainConfig(steps=6, eval_steps=(), save_steps=(), sh_degree=1)
    it = steered(blob_folder, short)
    first = it.controller
    it.wait(lambda status: status.state == "ready", "ready")
    first.press_primary()
    it.wait(lambda status: status.state == "finished", "all steps")
    assert not first.choice().enabled and first.can_train_more
    first.close()
    again = steered(blob_folder, TrainConfig())
    second = again.controller
    again.wait(lambda status: status.state == "viewing" and status.step == 6, "the finished model")
    assert not second.choice().enabled and second.can_train_more
    second.change_settings({"optim.sh0_lr": 0.01})
    second.train_more(5)
    again.wait(lambda status: status.state == "finished" and status.step == 11, "five more")
    checkpoint = newest_checkpoint(Path("runs/blobs"))
    assert checkpoint is not None and checkpoint.name == "step_00000011"
    config = verify_checkpoint(checkpoint)["config"]
    assert config["optim"]["sh0_lr"] == 0.01 and config["steps"] == 11
    assert open_project(blob_folder, TrainConfig(), None).resume_step is None, "all its steps are done"


def test_an_older_model_of_the_run_shows_its_own_figures_and_the_way_to_the_newest(
    steered: Desks, blob_folder: Path
) -> None:
    config = TrainConfig(steps=40, eval_steps=(20, 40), save_steps=(20,), sh_degree=0)
    it = steered(blob_folder, config)
    controller = it.controller
    it.wait(lambda status: status.state == "ready", "ready")
    controller.press_primary()
    it.wait(lambda status: status.state == "finished" and status.step == 40, "all steps")
    newest = controller.status
    controller.view(Path("runs/blobs/ckpts/step_00000020"))
    it.wait(lambda status: status.state == "viewing" and status.step == 20, "the older one")
    history, older = controller.history, controller.status
    assert controller.newer_step == 40 and not controller.can_train_more and not controller.shows_own_newest
    assert (older.loss, older.test_psnr) == (history.loss.at(20), history.test_psnr.of(20))
    assert older.loss != newest.loss and older.test_psnr != newest.test_psnr and older.test_psnr is not None
    assert controller.choice().label == "Show step 40" and controller.choice().enabled
    controller.press_primary()
    it.wait(lambda status: status.state == "viewing" and status.step == 40, "the newest again")
    assert controller.newer_step is None and controller.can_train_more and controller.shows_own_newest
    assert (controller.status.loss, controller.status.test_psnr) == (newest.loss, newest.test_psnr)
    stranger = blob_folder.parent / "stranger.ply"
    write_ply(stranger, blobs(seed=5, num=7))
    controller.view(stranger)
    it.wait(lambda status: status.state == "viewing" and status.num_gaussians == 7, "another model")
    assert controller.newer_step is None and not controller.shows_own_newest, "its steps are not this run's"
    assert controller.choice().label == "Show step 40" and controller.choice().enabled
    assert controller.status.test_psnr == newest.test_psnr
    controller.press_primary()
    it.wait(lambda status: status.state == "viewing" and status.step == 40, "this run's model again")
    assert controller.other_model is None and not controller.choice().enabled
    controller.close()
    again = steered(Path("runs/blobs/ckpts/step_00000020"), TrainConfig())
    again.wait(lambda status: status.state == "viewing" and status.step == 20, "the older one, opened alone")
    assert again.controller.newer_step == 40 and again.controller.choice().label == "Show step 40"
    alone = again.controller.status  # the curve on the disk has fewer points
    assert alone.test_psnr == older.test_psnr and alone.loss == again.controller.history.loss.at(20)
    assert alone.loss != newest.loss


def test_densifications_are_told_and_found_again_on_disk(steered: Desks, blob_folder: Path) -> None:
    densify = DensifyConfig(start_step=10, every=10, reset_every=25, grow_grad=1e-6)
    config = TrainConfig(steps=80, eval_steps=(), save_steps=(), sh_degree=0, densify=densify)
    it = steered(blob_folder, config)
    controller = it.controller
    it.wait(lambda status: status.state == "ready", "ready")
    controller.press_primary()
    it.wait(lambda status: status.state == "finished", "all steps")
    steps, numbers = controller.history.densified.arrays()
    assert list(steps) == [21, 31] and (np.diff(numbers) > 0).all()
    assert list(controller.history.resets.arrays()[0]) == [26]
    rows = [json.loads(line) for line in Path("runs/blobs/metrics.jsonl").read_text().splitlines()]
    loaded = History()
    loaded.load(rows)
    assert np.array_equal(loaded.densified.arrays(), controller.history.densified.arrays())
    assert list(loaded.resets.arrays()[0]) == [26] and loaded.num_gaussians.last == numbers[-1]
    assert (loaded.rate.arrays()[1] > 0).all() and len(loaded.rate) > 3


@pytest.fixture
def other(blob_scene: Scene, tmp_path: Path) -> Path:
    """Return a file of Gaussians, in the coordinates of the scene's files, that looks like no training."""
    few = blobs(seed=5, num=7)
    write_ply(tmp_path / "other.ply", transformed(few, np.linalg.inv(blob_scene.transform)))
    return tmp_path / "other.ply"


def seen(it: Steered, camera: Camera) -> np.ndarray:
    received = it.controller.render(1, camera, ViewOptions())
    assert received is not None
    return received.image.astype(int)


def test_a_model_is_shown_while_the_training_goes_on_and_back(
    training: Steered, other: Path, blob_scene: Scene
) -> None:
    controller, camera = training.controller, blob_scene.cameras[0]
    drawn: list[int] = []
    controller.preview.on_change = lambda: drawn.append(1)
    controller.view(other)
    wait_until(lambda: controller.preview.worker is not None and drawn, "it is read, and drawn")
    assert controller.preview.path == other and not controller.model_state().training
    model: Model = load_model(other).in_frame_of(blob_scene)
    expected = render_image(model.gaussians, camera, model.options).astype(int)
    assert np.abs(seen(training, camera) - expected).max() <= 1
    step = controller.status.step
    training.wait(lambda status: status.state == "training" and status.step > step + 5, "it goes on")
    # The figures, and what the buttons do, are the training's.
    assert controller.choice().label == "Pause" and controller.status.num_gaussians != 7
    process = controller.preview.worker
    controller.preview.leave()
    assert len(drawn) > 1 and controller.preview.path is None and controller.model_state().training
    assert np.abs(seen(training, camera) - expected).max() > 20
    assert process is not None
    wait_until(lambda: not process.alive, "its process leaves")


def test_a_file_that_cannot_be_read_leaves_the_training_in_the_view(
    training: Steered, tmp_path: Path, blob_scene: Scene
) -> None:
    (tmp_path / "broken.ply").write_bytes(b"ply\nnonsense")
    controller = training.controller
    controller.view(tmp_path / "broken.ply")
    wait_until(lambda: training.notices and training.notices[-1].bad, "it is told")
    wait_until(lambda: controller.preview.path is None, "it is given up")
    assert (
        "broken.ply" in training.notices[-1].text
        and "The training is not touched" in training.notices[-1].text
    )
    step = controller.status.step
    training.wait(lambda status: status.state == "training" and status.step > step, "it goes on")
    assert seen(training, blob_scene.cameras[0]).shape[2] == 3


def test_a_process_that_cannot_start_is_told_and_the_one_before_stays(
    training: Steered, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = training.controller
    controller.view(other)
    wait_until(lambda: controller.preview.worker is not None, "it is read")
    before = controller.preview.worker

    def no_process(self: WorkerClient) -> WorkerClient:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(WorkerClient, "start", no_process)
    with pytest.raises(ValueError, match=r"cannot be shown: .*The training is not touched\."):
        controller.view(other.with_name("b.ply"))
    assert controller.preview.worker is before and controller.status.state == "training"
