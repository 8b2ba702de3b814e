"""What somebody new to the studio ran into within the first hour: wrong figures, words and files."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from gui_parts import Steered, scores

from splatstudio.cli.main import main
from splatstudio.evaluation.evaluate import write_evaluation
from splatstudio.evaluation.lpips import NOT_FOUND, short_notes
from splatstudio.files.run import Run
from splatstudio.gui.state.controller import Controller
from splatstudio.gui.state.history import History
from splatstudio.gui.state.project import open_project
from splatstudio.gui.state.setting_names import WORDS, setting_text
from splatstudio.gui.tabs.settings import SettingInput, live_settings
from splatstudio.models.scoring import EvaluationTask, evaluate_task
from splatstudio.runtime.messages import Evaluated, Progress, Started
from splatstudio.scene import load_training_scene
from splatstudio.settings.config import TrainConfig, changed, value_of
from splatstudio.train.session import Session
from splatstudio.train.step_stats import StepStats
from splatstudio.train.trainer import Trainer


@pytest.fixture
def controller(idle: Steered) -> Controller:
    return idle.controller


def test_a_training_that_had_to_go_back_shows_nothing_of_the_steps_it_has_not_made(
    controller: Controller, tmp_path: Path
) -> None:
    def at(step: int) -> None:
        controller._worker.receive(Progress(step, 100, 0.1, 20.0, 7, 9.0, 1.0, 0.5))
        controller._worker.receive(Evaluated(step, 20.0 + step, 0.5, 1, tmp_path))

    controller._worker.receive(Started(0, 100, 7, 9, 1))
    for step in (10, 20, 30):
        at(step)
    controller._worker.receive(Started(20, 100, 7, 9, 1))
    assert controller.status.test_psnr == 40.0, "what was known at the step it goes on from"
    assert controller.history.loss.arrays()[0].tolist() == [10.0, 20.0]
    controller._worker.receive(Started(0, 100, 7, 9, 1))
    assert controller.status.test_psnr is None and len(controller.history.test_psnr) == 0


def test_scores_of_steps_that_were_lost_are_not_those_of_the_run_that_is_opened(
    controller: Controller,
) -> None:
    project = controller.project
    assert project.run_dir is not None
    run = Run.create(project.run_dir, project.path, project.config)
    for step in (10, 2400, 10, 1200):  # killed at 2400, begun anew
        run.append_metrics({"step": step, "test_psnr": 0.01 * step})
    write_evaluation(run.path, 2400, scores(24.0))
    assert Controller(project, lambda _: None).status.test_psnr == 12.0
    write_evaluation(run.path, 1204, scores(13.0))  # between two lines of metrics.jsonl
    again = Controller(project, lambda _: None)
    assert again.status.test_psnr == 13.0 and again.history.test_psnr.last_step == 1204


class FakeHandle:
    """A field of the page, as far as the form uses it."""

    def __init__(self, _label: str, value: Any, **_settings: Any):
        self.value, self.visible = value, True

    def on_update(self, _told: Any) -> None: ...


def field_of(path: str) -> SettingInput:
    setting = next(each for each in live_settings(TrainConfig()) if each.path == path)
    gui = SimpleNamespace(add_text=FakeHandle, add_number=FakeHandle, add_checkbox=FakeHandle)
    return SettingInput(cast(Any, gui), setting, value_of(TrainConfig(), path))


def test_a_live_setting_says_in_words_what_is_no_number() -> None:
    paths = [each.path for each in live_settings(TrainConfig())]
    assert {"eval_every", "save_minutes", "keep"} <= set(WORDS) & set(paths)
    for path, words in WORDS.items():
        for number in words:
            assert value_of(changed(TrainConfig(), path, number), path) == number, "it may be chosen"
    every = field_of("eval_every")
    assert every.handle.value == "auto" and not every.edited
    every.handle.value = " Never"
    assert every.edited and every.read() == 0
    every.show(0)
    assert every.handle.value == "never" and not every.edited
    every.handle.value = "250"
    assert (every.read(), type(every.read())) == (250, int)
    every.handle.value = "often"
    with pytest.raises(ValueError, match="eval_every must be a whole number or auto or never, not 'often'"):
        every.read()
    assert type(field_of("save_minutes").read()) is float and field_of("keep").read() == 0
    assert field_of("steps").read() == 30_000
    assert setting_text("eval_every", -1) == "Evaluate every is auto"
    assert setting_text("shapes.max_ratio", 4.0) == "Shapes of splats: Max ratio is 4"


def test_a_run_remembers_where_its_photographs_were_found(blob_folder: Path, tmp_path: Path) -> None:
    config = TrainConfig(steps=1, test_every=4, eval_steps=(), save_steps=(), sh_degree=0)
    copy, run_dir, moved = tmp_path / "scene", tmp_path / "run", tmp_path / "moved"
    shutil.copytree(blob_folder, copy)
    scene = load_training_scene(copy, config)
    trainer = Trainer(scene, config)
    session = Session(trainer, Run.create(run_dir, copy, config))
    session.advance()
    session.close()
    (copy / "copied").mkdir()
    for file in (copy / "images").iterdir():
        shutil.copy(file, copy / "copied" / file.name)
    assert evaluate_task(EvaluationTask(run_dir, images="copied")).file is not None
    assert Run.open(run_dir).config.images == "", "for once: those of the training are still there"
    (copy / "images").rename(moved)
    with pytest.raises(ValueError, match="images"):
        evaluate_task(EvaluationTask(run_dir))
    assert "only the model is shown" in open_project(run_dir, TrainConfig(), None).problem
    evaluate_task(EvaluationTask(run_dir, images=str(moved)))
    assert evaluate_task(EvaluationTask(run_dir)).file is not None
    moved.rename(tmp_path / "again")
    project = open_project(run_dir, TrainConfig(images=str(tmp_path / "again")), None)
    assert project.scene is not None and project.run_dir == run_dir
    assert open_project(run_dir, TrainConfig(), None).scene is not None


def test_info_of_a_run_says_how_far_it_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.create(tmp_path / "run", tmp_path / "scene", TrainConfig(steps=2000, downscale=4))
    run.append_metrics({"step": 1200, "test_psnr": 27.5, "test_ssim": 0.8})
    run.append_metrics({"step": 1210, "setting": "steps", "value": 3000})
    monkeypatch.setattr("sys.argv", ["splatstudio", "info", str(run.path)])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr().out
    assert ended.value.code == 0
    for text in (str(tmp_path / "scene"), "1,210 of 3,000", "27.50 dB at step 1,200", "none yet", "1/4"):
        assert "".join(text.split()) in "".join(told.split()), "whole, however narrow the terminal is"


def test_who_reads_only_the_beginning_gets_no_error() -> None:
    asked = [sys.executable, "-m", "splatstudio", "train", "--help"]
    with subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_missing_weights_are_told_once() -> None:
    missing = [f"LPIPS ({name}){NOT_FOUND}, put them there" for name in ("AlexNet", "VGG16")]
    told = short_notes([missing[0], "a photograph is black", missing[1]])
    assert told[0] == "a photograph is black" and len(told) == 2 and "--fetch-lpips" in told[1]
    assert short_notes(["LPIPS (VGG16): vgg.pth is damaged"]) == ["LPIPS (VGG16): vgg.pth is damaged"]


def test_a_studio_that_ends_by_an_error_leaves_nothing_in_the_temporary_folder(
    blob_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    program = (
        "import sys; from pathlib import Path\n"
        "from splatstudio.settings.config import TrainConfig\n"
        "from splatstudio.runtime.client import WorkerClient\n"
        "from splatstudio.runtime.group import RankGroup\n"
        "from splatstudio.runtime.messages import TrainJob\n"
        "client = WorkerClient(TrainJob(Path(sys.argv[1]), Path('run'), TrainConfig()))\n"
        "def fail(*_): raise RuntimeError('an error')\n"
        "group = RankGroup(print, client.job, 1, client.log_path, None)\n"
        "group._new_processes = fail; group.abandon = lambda: None\n"
        "group.start()\n"
    )
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    ended = subprocess.run(
        [sys.executable, "-c", program, str(blob_folder)], capture_output=True, text=True, cwd=tmp_path
    )
    assert ended.returncode == 1 and "RuntimeError: an error" in ended.stderr
    assert list((tmp_path / "temporary").glob("splatstudio-*")) == []


def test_a_pause_is_no_time_of_the_training(
    blob_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    config = TrainConfig(steps=40, eval_steps=(), save_steps=(), eval_every=0, sh_degree=0)
    trainer = Trainer(load_training_scene(blob_folder, config), config)
    train_step = trainer.train_step

    def half_a_second() -> StepStats:
        nonlocal now
        now += 0.5
        return train_step()

    monkeypatch.setattr(trainer, "train_step", half_a_second)
    session = Session(trainer, Run.create(tmp_path / "run", blob_folder, config), clock=lambda: now)
    for step in range(1, 31):
        session.advance()
        if step in (7, 15):
            session.rest()
            now += 1000.0
    session.close()
    rows = session.run.metrics().rows
    assert [row["elapsed_s"] for row in rows if "loss" in row] == [5.0, 10.0, 15.0]
    history = History()
    history.load(rows)
    assert history.rate.arrays()[1].tolist() == [2.0, 2.0]
