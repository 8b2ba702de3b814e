"""What goes wrong with the background process, what the user sees of it, and that the training goes on."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from pathlib import Path

import pytest
from started_programs import run_program
from worker_faults import FAULTY, QUICK, faulty, plan_fault
from worker_watcher import MANY, TIMEOUT, Launch, Watcher, front_camera, states, train, wait_until

from splatstudio.cameras.camera_path import CameraPath, keyframe_of
from splatstudio.checkpoints.checkpoint import load_checkpoint, newest_checkpoint
from splatstudio.runtime import messages
from splatstudio.runtime.channel.codec import encode_order
from splatstudio.runtime.fork_server import begin_fork_server
from splatstudio.runtime.heartbeat import Limits
from splatstudio.runtime.rank import activity_of, rank_main
from splatstudio.runtime.rank_group import RankGroup
from splatstudio.runtime.supervisor import Plan
from splatstudio.scene.scene import Scene


def endless(scene: Scene) -> CameraPath:
    """Return a path whose frames take longer than any test."""
    key = keyframe_of(scene.cameras[1])
    return CameraPath((key, key), default_seconds=4000.0, width=64, height=48, fps=25)


def trains_again(worker: Watcher, step: int, since: int = 0) -> None:
    """Assert that another process has taken over at the checkpoint of `step`, and that this was said."""
    started = worker.wait(messages.Started)
    assert started.step == step
    assert worker.wait(messages.Progress).step > step
    said = [event.sentence for event in worker.events[since:] if isinstance(event, messages.Warned)]
    assert len(said) == 1 and said[0].endswith(f"goes on by itself from the checkpoint of step {step:,}.")
    assert states(worker, since) == ["restarting", "loading", "training"]
    assert not worker.of(messages.Failed) and worker.client.alive


def test_a_killed_rank_is_replaced_and_everything_goes_on(
    launch: Launch, blob_folder: Path, blob_scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    begin_fork_server()  # whose folder lasts as long as these tests
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    worker = train(launch, messages.TrainJob(blob_folder, tmp_path / "run", MANY))
    step, client = worker.of(messages.Saved)[-1].step, worker.client
    client.send(messages.UpdateSettings((("optim.means_lr", 1e-5),)))
    client.send(messages.SetView(3, 1, front_camera(blob_scene)))
    assert client.wait_for_frame(3, 1, TIMEOUT) is not None
    worker.wait(messages.Progress)
    pid, since = client.pid, len(worker.events)
    os.kill(pid, signal.SIGKILL)
    client.send(messages.SetView(3, 2, front_camera(blob_scene)))
    trains_again(worker, step, since)
    assert "killed (SIGKILL" in worker.of(messages.Warned)[-1].sentence
    assert client.pid != pid and client.state == "training"
    received = client.wait_for_frame(3, 2, TIMEOUT)
    assert received is not None and received.image.std() > 5, "the browsers' pictures do not go on"
    client.send(messages.Save())
    saved = worker.wait(messages.Saved)
    assert load_checkpoint(saved.path).config.optim.means_lr == 1e-5, "a live setting was forgotten"
    assert list(temporary.iterdir()), "the test looks at the wrong place"
    client.close()
    assert client.state == "ended" and not list(temporary.iterdir()), "something is left for good"


def test_a_paused_training_is_paused_again(launch: Launch, blob_folder: Path, tmp_path: Path) -> None:
    worker = train(launch, messages.TrainJob(blob_folder, tmp_path / "run", MANY))
    worker.pause()
    step = worker.save().step
    os.kill(worker.client.pid, signal.SIGKILL)
    assert "waits from the checkpoint" in worker.wait(messages.Warned).sentence
    worker.reach("paused")
    worker.send(messages.Step(2))
    worker.reach("paused")
    assert worker.of(messages.Progress)[-1].step == step + 2


def test_a_rank_killed_before_any_checkpoint_begins_again(
    launch: Launch, blob_folder: Path, tmp_path: Path
) -> None:
    worker = launch(messages.TrainJob(blob_folder, tmp_path / "run", MANY))
    worker.reach("ready")
    os.kill(worker.client.pid, signal.SIGKILL)
    assert "Nothing was lost" in worker.wait(messages.Warned).sentence
    worker.reach("ready")
    worker.send(messages.Start())
    worker.wait(messages.Progress, lambda event: event.step > 3)
    os.kill(worker.client.pid, signal.SIGKILL)
    assert worker.wait(messages.Warned).sentence.endswith(
        "the training goes on by itself from its beginning."
    )
    assert worker.wait(messages.Started).step == 0
    worker.wait(messages.Progress)


@pytest.mark.parametrize(
    ("fault", "later", "words"),
    [("hang", 0, r"did not get on for \d s"), ("raise", 7, r"\(RuntimeError: the injected fault\)")],
)
def test_a_step_that_hangs_or_fails_costs_the_steps_since_the_checkpoint(
    launch: Launch, blob_folder: Path, blob_scene: Scene, tmp_path: Path, fault: str, later: int, words: str
) -> None:
    run = tmp_path / "run"
    worker = launch(messages.TrainJob(blob_folder, run, MANY), Plan(rank_main, faulty, limits=QUICK)).start()
    worker.send(messages.Step(5))
    worker.reach("paused")
    step = worker.save().step
    plan_fault(run, fault, step + later, times=1)
    since = len(worker.events)
    worker.send(messages.RenderPath(endless(blob_scene), tmp_path / "out" / "frames", job=1))
    worker.wait(messages.JobProgress, lambda event: event.done > 0)
    worker.send(messages.Step(1000))
    failed = worker.wait(messages.JobFailed)
    assert failed.job == 1 and "ended before" in failed.sentence, "nobody has cancelled it"
    assert re.search(words, worker.wait(messages.Warned).sentence)
    assert worker.wait(messages.Started).step == step and not list((tmp_path / "out").iterdir())
    worker.wait(messages.Progress, lambda event: event.step > step + later)
    assert states(worker, since) == ["training", "restarting", "loading", "training"]


def test_native_code_that_holds_all_threads_is_no_fault(
    launch: Launch, blob_folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    plan_fault(run, "hold", step=20, times=1)
    plan = Plan(rank_main, faulty, limits=Limits(frozen=1.0))
    worker = launch(messages.TrainJob(blob_folder, run, MANY), plan).start()
    pid = worker.client.pid
    worker.wait(messages.Progress, lambda event: event.step > 30)
    assert (run.parent / "fault.json").read_text().count('"times": 0') == 1, "nothing was held"
    assert worker.client.pid == pid and not worker.of(messages.Warned)


def test_a_stopped_rank_that_owes_nothing_is_left_alone(
    launch: Launch, blob_folder: Path, tmp_path: Path
) -> None:
    plan = Plan(rank_main, activity_of, limits=QUICK)
    worker = train(launch, messages.TrainJob(blob_folder, tmp_path / "run", MANY), plan)
    worker.pause()
    pid = worker.client.pid
    time.sleep(2.0)  # what it was told has come
    os.kill(pid, signal.SIGSTOP)
    time.sleep(2.5)
    list(worker.take())
    assert worker.client.pid == pid and not worker.of(messages.Warned), "nothing was asked of it"
    worker.send(messages.Save())
    worker.wait(messages.Saved)
    told = worker.of(messages.Warned)[-1].sentence
    assert "was stopped from outside (SIGSTOP) and is woken" in told and "Nothing is lost" in told
    assert worker.client.pid == pid, "it was woken, and nobody else put in its place"


def test_a_rank_that_is_stopped_in_a_training_is_woken_and_loses_no_step(
    launch: Launch, blob_folder: Path, tmp_path: Path
) -> None:
    plan = Plan(rank_main, activity_of, limits=QUICK)
    worker = train(launch, messages.TrainJob(blob_folder, tmp_path / "run", MANY), plan)
    pid, step, since = worker.client.pid, worker.of(messages.Progress)[-1].step, len(worker.events)
    os.kill(pid, signal.SIGSTOP)
    assert "is woken after" in worker.wait(messages.Warned).sentence
    worker.wait(messages.Progress, lambda event: event.step > step + 20)
    assert worker.client.pid == pid and "restarting" not in states(worker, since)
    assert len(worker.of(messages.Warned)) == 1


def test_an_exception_in_a_step_restarts_once_but_not_at_the_same_step_again(
    launch: Launch, blob_folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    plan_fault(run, "raise", step=12)
    worker = launch(messages.TrainJob(blob_folder, run, MANY), FAULTY).start()
    warned = worker.wait(messages.Warned).sentence
    assert "(RuntimeError: the injected fault)" in warned and "goes on by itself" in warned
    failed = worker.wait(messages.Failed)
    assert "the injected fault" in failed.sentence and "at step 12 for the second time" in failed.sentence
    assert failed.sentence.endswith("press Start to begin again.") and failed.step == 12
    assert failed.log_path is not None and failed.log_path.read_text().count("Traceback") == 2
    wait_until(lambda: not worker.client.alive, "the worker ends")
    assert len(worker.of(messages.Failed)) == 1 and len(worker.of(messages.Started)) == 2


def test_a_training_that_diverged_is_not_started_again(
    launch: Launch, blob_folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    plan_fault(run, "diverge", step=9)
    worker = launch(messages.TrainJob(blob_folder, run, MANY), FAULTY).start()
    failed = worker.wait(messages.Failed)
    assert failed.sentence.startswith("The loss became nan at step 10.")
    assert (
        "restarting" not in states(worker)
        and not worker.of(messages.Warned)
        and not worker.of(messages.Saved)
    )


def test_a_rank_that_dies_while_loading_is_tried_once_more(
    launch: Launch, blob_folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    plan_fault(run, "die while loading")
    worker = launch(messages.TrainJob(blob_folder, run, MANY), FAULTY).start()
    failed = worker.wait(messages.Failed)
    assert "SIGKILL" in failed.sentence and "before the first step for the second time" in failed.sentence
    assert len(worker.of(messages.Warned)) == 1 and not worker.of(messages.Started)
    plan_fault(run, "die while loading", times=1)
    again = launch(messages.TrainJob(blob_folder, run, MANY), FAULTY).start()
    assert again.wait(messages.Started).step == 0
    again.wait(messages.Progress)
    assert len(again.of(messages.Warned)) == 1


def test_there_is_a_limit_to_restarts(launch: Launch, blob_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    worker = train(launch, messages.TrainJob(blob_folder, run, MANY), FAULTY)
    worker.pause()
    saved = worker.save()
    plan_fault(run, "die", saved.step + 10)
    worker.send(messages.Resume())
    failed = worker.wait(messages.Failed)
    assert "restarted 3 times within 10 minutes" in failed.sentence
    assert f"step {saved.step:,} is safe; press Resume" in failed.sentence and failed.step == saved.step + 40
    assert [event.step for event in worker.of(messages.Started)[1:]] == 3 * [saved.step]
    assert len(worker.of(messages.Warned)) == 3 and not worker.of(messages.Finished)
    assert failed.log_path == run / "logs" / "worker.log"
    assert newest_checkpoint(run) == saved.path


def test_a_killed_viewer_of_a_finished_model_comes_back(
    launch: Launch, blob_folder: Path, blob_scene: Scene, tmp_path: Path
) -> None:
    trained = train(launch, messages.TrainJob(blob_folder, tmp_path / "run", MANY))
    trained.client.close()
    viewer = launch(messages.ViewJob(tmp_path / "run"))
    viewer.send(messages.SetView(1, 1, front_camera(blob_scene)))
    assert viewer.client.wait_for_frame(1, 1, TIMEOUT) is not None
    viewer.reach("viewing")
    os.kill(viewer.client.pid, signal.SIGKILL)
    assert viewer.wait(messages.Warned).sentence.endswith("The model is loaded again.")
    viewer.reach("viewing")
    viewer.send(messages.SetView(1, 2, front_camera(blob_scene)))
    assert viewer.client.wait_for_frame(1, 2, TIMEOUT) is not None


def test_a_rank_told_to_leave_is_not_started_again(launch: Launch, blob_folder: Path, tmp_path: Path) -> None:
    worker = train(launch, messages.TrainJob(blob_folder, tmp_path / "run", MANY))
    os.kill(worker.client.pid, signal.SIGTERM)
    worker.reach("ended")
    assert worker.of(messages.Finished)[-1].checkpoint == newest_checkpoint(tmp_path / "run")
    assert "restarting" not in states(worker)


def test_a_studio_that_never_reads_does_not_stop_the_training(blob_folder: Path, tmp_path: Path) -> None:
    job = messages.TrainJob(blob_folder, tmp_path / "run", MANY)
    group = RankGroup(rank_main, job, 1, tmp_path / "log", activity_of)
    group.start()
    try:
        group.connection.send_bytes(encode_order(messages.Start()))
        for number in range(3000):  # each is answered, and the answers fill the pipe
            order = messages.UpdateSettings((("no.such.setting." + "x" * 100 + str(number), number),))
            group.connection.send_bytes(encode_order(order, number + 1))
        wait_until(lambda: group.heartbeats.read(0).step > 50, "the training goes on")
        before = group.heartbeats.read(0).step
        wait_until(lambda: group.heartbeats.read(0).step > before + 20, "and on")
    finally:
        group.kill()
        ends = group.finish()
    assert [end.exitcode for end in ends] == [-signal.SIGKILL]


def test_a_long_name_of_the_folder_for_temporary_files_does_no_harm(
    blob_folder: Path, tmp_path: Path
) -> None:
    temporary = tmp_path / ("x" * 100)
    temporary.mkdir()
    arguments = ["train", blob_folder, "--run", tmp_path / "run", "--ranks", 2, "--steps", 3]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    ended = run_program("-m", "splatstudio", *arguments, env=environment, timeout=TIMEOUT)
    assert ended.returncode == 0, ended.stderr
    assert newest_checkpoint(tmp_path / "run") is not None and not list(temporary.iterdir())
