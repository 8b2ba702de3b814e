"""A training on several ranks of the CPU, driven as the studio drives it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from worker_watcher import MANY, TIMEOUT, Launch, Watcher, alive, front_camera

from splatstudio.checkpoints.checkpoint import load_checkpoint
from splatstudio.checkpoints.manifest import read_manifest
from splatstudio.distributed.rank_devices import choose_devices
from splatstudio.evaluation.evaluate import evaluate
from splatstudio.formats.ply import read_ply
from splatstudio.models.model import load_model
from splatstudio.rendering.render import render_image
from splatstudio.runtime import messages
from splatstudio.runtime.supervisor import plan_for
from splatstudio.scene.scene import Scene


def start(launch: Launch, job: messages.TrainJob, num_ranks: int = 2) -> Watcher:
    worker = launch(job, plan_for(job, choose_devices(ranks=num_ranks))).start()
    return worker


def pause(worker: Watcher) -> int:
    """Pause and return the step."""
    worker.pause()
    return worker.client.step


def test_two_ranks_train_one_model_and_everything_about_it_is_of_the_whole(
    launch: Launch, blob_folder: Path, blob_scene: Scene, tmp_path: Path
) -> None:
    worker = start(launch, messages.TrainJob(blob_folder, tmp_path / "run", MANY))
    num = worker.wait(messages.ModelLoaded).num_gaussians
    assert num == len(blob_scene.points) == worker.wait(messages.Started).num_gaussians
    worker.wait(messages.Progress, lambda event: event.step > 20)
    worker.send(messages.UpdateSettings((("optim.means_lr", 1e-5), ("seed", 3))))
    assert worker.wait(messages.SettingChanged).path == "optim.means_lr"
    assert "seed" in worker.wait(messages.Warned).sentence
    report = worker.wait(messages.RanksReport)
    assert [row.rank for row in report.ranks] == [0, 1]
    assert sum(row.num_gaussians for row in report.ranks) == num
    assert all(0 <= row.wait_seconds <= row.step_seconds for row in report.ranks)

    step = pause(worker)
    worker.send(messages.Step(3))
    worker.reach("paused")
    assert worker.client.step == step + 3
    saved = worker.save().path
    assert [entry["rows"] for entry in read_manifest(saved)["ranks"]] == [num // 2, num - num // 2]
    model = load_model(saved)

    camera, options = front_camera(blob_scene), messages.ViewOptions(background=(1.0, 0.0, 1.0))
    for seq in range(1, 8):  # more frames than slots: credits come back
        worker.send(messages.SetView(3, seq, camera, options))
        received = worker.client.wait_for_frame(3, seq, TIMEOUT)
        assert received is not None and received.frame.seq == seq
    expected = render_image(model.gaussians, camera, replace(model.options, background=(1.0, 0.0, 1.0)))
    assert np.abs(received.image.astype(int) - expected.astype(int)).max() <= 1

    worker.send(messages.Evaluate())
    evaluated = worker.wait(messages.Evaluated)
    alone = evaluate(model.gaussians, blob_scene, options=model.options)
    assert evaluated.num_images == len(alone.images) and abs(evaluated.psnr - alone.psnr) < 1e-4

    worker.send(messages.Export(tmp_path / "model.ply", job=7))
    assert worker.wait(messages.JobDone).job == 7
    assert len(read_ply(tmp_path / "model.ply")) == num
    worker.send(messages.Resume())
    worker.send(messages.Stop())
    finished = worker.wait(messages.Finished)
    assert not finished.completed and finished.checkpoint is not None
    pids = worker.client.pids
    worker.client.close()
    assert worker.client.state == "ended" and not any(alive(pid) for pid in pids)


def test_every_mode_of_the_view_draws_while_two_ranks_train(
    launch: Launch, blob_folder: Path, blob_scene: Scene, tmp_path: Path
) -> None:
    worker = start(launch, messages.TrainJob(blob_folder, tmp_path / "run", MANY))
    worker.wait(messages.Progress)
    camera = front_camera(blob_scene)
    pictures = {}
    for seq, mode in enumerate(("color", "depth", "normals", "ellipsoids", "points", "count", "error"), 1):
        options = messages.ViewOptions(mode=mode, photo=4, splat_scale=0.5 if mode == "points" else 1.0)
        worker.send(messages.SetView(1, seq, camera, options))
        received = worker.client.wait_for_frame(1, seq, TIMEOUT)
        assert received is not None and received.frame.notice is None
        pictures[mode] = received.image
        assert received.image.std() > 1.0, mode
    assert len({picture.tobytes() for picture in pictures.values()}) == len(pictures)
    pause(worker)
    # The comparison stands where its photo was taken, wherever the view is.
    far = replace(camera, viewmat=camera.viewmat @ np.diag([-1.0, 1.0, -1.0, 1.0]))
    for seq, view in ((8, camera), (9, far)):
        worker.send(messages.SetView(1, seq, view, messages.ViewOptions(mode="error", photo=4)))
        received = worker.client.wait_for_frame(1, seq, TIMEOUT)
        assert received is not None
        pictures[str(seq)] = received.image
    assert (pictures["8"] == pictures["9"]).all()


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_a_run_of_two_ranks_goes_on_on_other_numbers(
    launch: Launch, blob_folder: Path, tmp_path: Path, num_ranks: int
) -> None:
    config = replace(MANY, steps=12, save_steps=(6,))
    run = tmp_path / "run"
    worker = start(launch, messages.TrainJob(blob_folder, run, config))
    assert worker.wait(messages.Finished).completed
    saves = [event.step for event in worker.of(messages.Saved)]
    assert saves == [6, 12]
    worker.client.close()
    middle = run / "ckpts" / "step_00000006"
    again = start(launch, messages.TrainJob(blob_folder, run, config, middle), num_ranks)
    assert again.wait(messages.Started).step == 6
    finished = again.wait(messages.Finished)
    assert finished.completed and finished.checkpoint is not None
    assert len(read_manifest(finished.checkpoint)["ranks"]) == num_ranks
    assert load_checkpoint(finished.checkpoint).step == 12


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("oom@step=4,rank=1", "Memory ran out on rank 1"),
        ("nan@step=4,rank=1", "The loss became nan at step 4, on "),
    ],
)
def test_a_rank_without_memory_is_survived_and_one_that_diverges_ends_the_training(
    launch: Launch,
    blob_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    words: str,
) -> None:
    monkeypatch.setenv("SPLATSTUDIO_FAULT", fault)
    worker = start(launch, messages.TrainJob(blob_folder, tmp_path / "run", replace(MANY, steps=12)))
    if fault.startswith("oom"):
        num = worker.wait(messages.Started).num_gaussians
        assert words in worker.wait(messages.Warned).sentence
        assert worker.wait(messages.Finished).completed
        assert worker.of(messages.SettingChanged)[-1].value == int(num * 0.9), "the limit is made known"
    else:
        failed = worker.wait(messages.Failed)
        assert failed.sentence.startswith(words) and "(rank 1)" in failed.sentence and failed.expected
        assert failed.log_path is not None, "what each rank has to say of it is where the user is pointed to"
        log = failed.log_path.read_text()
        assert log.count("worker started") == 2 and log.count("Traceback") >= 2
