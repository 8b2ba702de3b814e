"""A test score that stands still, from the training to who watches it: told once, an end where asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from plateau_settings import ANYHOW
from worker_watcher import Launch

import splatstudio as ss
from splatstudio.checkpoints.checkpoint import newest_checkpoint
from splatstudio.checkpoints.manifest import step_of
from splatstudio.cli.main import main
from splatstudio.cli.terminal import event_line
from splatstudio.distributed.rank_devices import choose_devices
from splatstudio.evaluation.evaluate import Evaluation
from splatstudio.files.run import Run
from splatstudio.gui.dock import offer_text
from splatstudio.gui.state.status import Status, followed, notice_of
from splatstudio.runtime import messages
from splatstudio.runtime.sentences import plateau_sentence, stopped_sentence
from splatstudio.runtime.supervisor import plan_for
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import OptimConfig
from splatstudio.settings.plateau_curve import PlateauConfig
from splatstudio.training.session import Advance, Session
from splatstudio.training.trainer import Trainer

FIRST = 20
OFFER = messages.PlateauReached(3400, 4000, 2200, 27.94, stops=False, waits=False, rates_left=1.0)


# ---- the session


@pytest.fixture
def session_of(blob_scene: Scene) -> Iterator[Callable[..., Session]]:
    """Open a session of which the test scores are a function of the step."""
    opened: list[Session] = []

    def make(run: Run, psnr: Callable[[int], float], checkpoint: Path | None = None) -> Session:
        trainer = (
            Trainer(blob_scene, run.config) if checkpoint is None else Trainer.resume(blob_scene, checkpoint)
        )

        def evaluator(on_image: object) -> Evaluation:
            return Evaluation(psnr(trainer.step), 0.9, trainer.num_gaussians, (), 0.01)

        opened.append(Session(trainer, run, evaluator=evaluator))
        return opened[-1]

    yield make
    for session in opened:
        session.close()
        session.trainer.close()


def new_run(path: Path, scene: Scene, **settings: object) -> Run:
    config = replace(ANYHOW, flat=PlateauConfig(share=0.2, scores=4), **settings)
    return Run.create(path, scene.path, config)


def news_of(session: Session, num_steps: int) -> list[int]:
    advances: list[Advance] = [session.advance() for _ in range(num_steps)]
    return [advance.stats.step for advance in advances if advance.flat is not None]


def test_a_session_tells_once_and_again_only_after_a_rise(
    session_of: Callable[..., Session], blob_scene: Scene, tmp_path: Path
) -> None:
    def psnr(step: int) -> float:
        return 28.0 if step <= 30 else 28.5

    run = new_run(tmp_path / "run", blob_scene)
    session = session_of(run, psnr)
    assert news_of(session, 26) == [20]
    (row,) = [row for row in run.metrics().rows if "flat_since" in row]
    assert row == {"step": 20, "flat_since": 2, "flat_psnr": 28.0, "stops": False}
    saved = session.save()
    session.close()
    again = session_of(run, psnr, saved)
    told = news_of(again, 34)
    assert len(told) == 1 and 36 <= told[0] <= 46, "the stretch before was told by the session before"


def test_a_session_looks_anew_after_a_setting_was_changed(
    session_of: Callable[..., Session], blob_scene: Scene, tmp_path: Path
) -> None:
    run = new_run(tmp_path / "run", blob_scene)
    session = session_of(run, lambda step: 28.0)
    assert news_of(session, 19) == []
    session.note_setting("optim.sh0_lr", 1e-3)
    assert run.metrics().rows[-1] == {"step": 19, "setting": "optim.sh0_lr", "value": 1e-3}
    (told,) = news_of(session, 30)
    assert told >= 19 + 0.75 * 0.2 * 60


def test_a_session_without_test_photos_or_numbers_tells_nothing(
    session_of: Callable[..., Session], blob_folder: Path, blob_scene: Scene, tmp_path: Path
) -> None:
    nan = session_of(new_run(tmp_path / "nan", blob_scene), lambda step: float("nan"))
    assert news_of(nan, 60) == []
    config = replace(ANYHOW, test_every=0)
    trainer = Trainer(ss.load_scene(blob_folder, test_every=0), config)
    with closing(Session(trainer, Run.create(tmp_path / "none", blob_folder, config))) as session:
        assert news_of(session, 60) == []
    trainer.close()


def test_what_cannot_be_noted_is_told_all_the_same(
    session_of: Callable[..., Session], blob_scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of(new_run(tmp_path / "run", blob_scene), lambda step: 28.0)
    assert news_of(session, 19) == []
    append = Run.append_metrics

    def refuse(run: Run, *rows: dict) -> None:
        if any("flat_since" in row for row in rows):
            raise OSError(28, "No space left on device")
        append(run, *rows)

    monkeypatch.setattr(Run, "append_metrics", refuse)
    advance = session.advance()
    assert advance.flat is not None and "No space left" in str(advance.problem)


def test_the_last_step_ends_a_training_anyway(
    session_of: Callable[..., Session], blob_scene: Scene, tmp_path: Path
) -> None:
    run = new_run(tmp_path / "run", blob_scene, steps=20)
    session = session_of(run, lambda step: 28.0)
    advances = [session.advance() for _ in range(20)]
    assert session.finished and advances[-1].flat is None and advances[-1].evaluation is not None


# ---- the background process


def test_a_training_on_two_ranks_ends_where_the_score_stands_still_and_goes_on_when_asked(
    launch: Launch, blob_folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    job = messages.TrainJob(blob_folder, run, replace(ANYHOW, steps=30, stop_when_flat=True))
    worker = launch(job, plan_for(job, choose_devices(ranks=2))).start()
    flat = worker.wait(messages.PlateauReached)
    end = worker.wait(messages.Finished)
    assert flat.stops and flat.step == 10 and flat.total_steps == 30
    assert (end.step, end.completed) == (10, False)
    assert end.checkpoint is not None and step_of(end.checkpoint) == 10
    assert newest_checkpoint(run) == end.checkpoint
    assert [event.state for event in worker.of(messages.StateChanged)][-1] == "finished"
    worker.send(messages.Resume())
    end = worker.wait(messages.Finished)
    assert (end.step, end.completed) == (30, True), "one stretch ends one training"
    assert len(worker.of(messages.PlateauReached)) == 1
    worker.client.close()


def test_a_training_tells_and_goes_on_until_it_is_told_to_stop_there(
    launch: Launch, blob_folder: Path, tmp_path: Path
) -> None:
    config = replace(ANYHOW, optim=OptimConfig(rest_lr_decay=0.1))
    worker = launch(messages.TrainJob(blob_folder, tmp_path / "run", config))
    worker.send(messages.Start(pause_at=30))
    worker.reach("paused")
    (flat,) = worker.of(messages.PlateauReached)
    assert not flat.stops and not flat.waits and flat.rates_left == pytest.approx(0.1 ** (1 - FIRST / 60))
    # Told to stop for it, it waits until the rates are nearly at rest.
    worker.send(messages.UpdateSettings((("stop_when_flat", True),)))
    assert worker.wait(messages.SettingChanged).value is True
    worker.send(messages.Resume())
    end = worker.wait(messages.Finished)
    stop = worker.of(messages.PlateauReached)[-1]
    assert stop.stops and stop.step == end.step < 60 and stop.rates_left >= 0.7 and not end.completed
    worker.client.close()


def test_to_stop_without_test_photos_is_answered_with_a_word(
    launch: Launch, blob_folder: Path, tmp_path: Path
) -> None:
    config = replace(ANYHOW, steps=3, test_every=0, stop_when_flat=True)
    worker = launch(messages.TrainJob(blob_folder, tmp_path / "run", config)).start()
    assert "no test photos" in worker.wait(messages.Warned).sentence
    assert worker.wait(messages.Finished).completed
    worker.client.close()


# ---- the command line and Python


def train(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    quick = ("--steps", 60, "--sh-degree", 0, "--eval-every", 2, "--flat.gain", 10, "--flat.share", 0.1)
    quick += ("--densify.no-enabled",)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setattr(sys, "argv", ["splatstudio", "train", *map(str, (*arguments, *quick))])
        patch.setattr("splatstudio.cli.train.console.width", 500)
        main()
    return int(stop.value.code or 0), capsys.readouterr().out


def test_the_command_line_tells_once_and_stops_only_when_asked(
    blob_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    code, output = train(capsys, blob_folder, "--run", run, "--flat.scores", 4)
    assert code == 0 and output.count("has been flat since") == 1
    assert "Ctrl-C saves and stops here." in output and "60 steps in" in output

    run = tmp_path / "stopped"
    code, output = train(capsys, blob_folder, "--run", run, "--flat.scores", 4, "--stop-when-flat")
    assert code == 0 and f"Stopped at step {FIRST}: test score flat since step " in output
    assert output.count("flat") == 1 and "--resume" in output
    newest = newest_checkpoint(run)
    assert newest is not None and step_of(newest) == FIRST and f"Saved {newest}." in output
    code, output = train(capsys, blob_folder, "--run", run, "--resume", "--flat.scores", 4)
    assert code == 0 and f"Resuming at step {FIRST}" in output and "40 steps in" in output


def test_python_stops_as_well(blob_scene: Scene, tmp_path: Path) -> None:
    settings = {"steps": 60, "sh_degree": 0, "eval_every": 2, "flat__gain": 10.0, "flat__share": 0.1}
    settings["densify__enabled"] = False
    model = ss.train(blob_scene, run_dir=tmp_path / "run", stop_when_flat=True, flat__scores=4, **settings)
    newest = newest_checkpoint(tmp_path / "run")
    assert model.step == FIRST and newest is not None and step_of(newest) == FIRST


# ---- who watches


def test_what_is_said_of_it() -> None:
    text = plateau_sentence(OFFER, "Ctrl-C stops.")
    assert text == "The test score has been flat since step 2,200 (27.9 dB). Ctrl-C stops."
    falling = structs.replace(OFFER, step=1700, rates_left=0.3)
    assert "fall to 30 % of now by step 4,000" in offer_text(falling)
    assert "with 2,000 steps planned they do so sooner" in offer_text(falling)
    waiting = plateau_sentence(structs.replace(falling, waits=True), "Ctrl-C stops.")
    assert "planned" not in waiting and waiting.endswith("The training stops when they are nearly at rest.")
    stopped = "Stopped at step 3,400: test score flat since step 2,200 (27.9 dB)."
    assert stopped_sentence(OFFER) == plateau_sentence(structs.replace(OFFER, stops=True), "") == stopped


def test_it_is_told_in_the_terminal_of_who_watches_from_elsewhere() -> None:
    assert event_line(OFFER, "Type: stop") == plateau_sentence(OFFER, "Type: stop")


def test_the_offer_holds_while_the_score_stands_still() -> None:
    training = followed(followed(Status(), messages.StateChanged("training")), OFFER)
    assert training.flat == OFFER
    notice = notice_of(OFFER)
    assert notice is not None and not notice.bad and "2,200 (27.9 dB)" in notice.text

    def after(event: object) -> messages.PlateauReached | None:
        return followed(training, event).flat  # type: ignore[arg-type]

    assert (
        after(messages.StateChanged("paused")) == after(messages.Evaluated(3600, 40.0, 0.9, 1, None)) == OFFER
    )
    assert after(messages.PlateauLeft(3600)) is None
    assert (
        after(messages.Finished(3500, False, None)) is None
        and after(structs.replace(OFFER, stops=True)) is None
    )
    assert after(messages.Started(3000, 4000, 9, 9, 9)) is None, "it goes on from a checkpoint of before"
    assert after(messages.Started(3500, 4000, 9, 9, 9)) == OFFER, "it is not told again"
    stopped = notice_of(structs.replace(OFFER, stops=True))
    assert stopped is not None and stopped.text == stopped_sentence(OFFER)
