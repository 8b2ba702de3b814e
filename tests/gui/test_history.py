"""The curves of a training: thinned, read from a run, counted by their own seconds, and drawn."""

from __future__ import annotations

import json
import math
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import viser
from gui_parts import TIMEOUT

from splatstudio.files.run import Run
from splatstudio.gui.state.controller import Controller
from splatstudio.gui.state.history import MAX_PLOT_POINTS, Curve, History
from splatstudio.gui.state.project import open_project
from splatstudio.gui.state.status import Status, followed
from splatstudio.gui.tabs.plots import TrainingPlots, axis_ranges, from_zero, joined
from splatstudio.runtime.messages import Evaluated, Event, Progress, StateChanged
from splatstudio.runtime.training_news import ProgressTeller, StepRate
from splatstudio.scene.load import load_training_scene
from splatstudio.settings.config import TrainConfig
from splatstudio.training.session import Advance, Session
from splatstudio.training.step import StepStats
from splatstudio.training.trainer import Trainer

EVAL_STEPS = (10, 20, 30)


def rows_of(num: int, elapsed: np.ndarray, first: int = 10) -> list[dict]:
    """Return lines of metrics.jsonl whose single photos differ by 6 dB, and a test score beside each."""
    swing = np.where(np.arange(num) % 2, 3.0, -3.0)
    return [
        {
            "step": first + 10 * i,
            "loss": 0.1 + 0.01 * float(swing[i]),
            "psnr": 25.0 + float(swing[i]),
            "test_psnr": 25.0 + float(swing[i]),
            "num_gaussians": 100 + i,
            "elapsed_s": float(elapsed[i]),
        }
        for i in range(num)
    ]


def test_curves_of_an_opened_run_are_smoothed_as_while_it_was_trained() -> None:
    history = History()
    # Ten steps take 1 s on average, 0.2 s or 1.8 s each.
    history.load(rows_of(100, np.cumsum(np.where(np.arange(100) % 2, 0.2, 1.8))))
    for curve, middle, swing in ((history.train_psnr, 25.0, 3.0), (history.loss, 0.1, 0.03)):
        late = curve.arrays()[1][40:]
        assert np.abs(late - middle).max() < 0.15 * swing, "single photos are not drawn as they are"
    assert np.ptp(history.test_psnr.arrays()[1]) == 6.0, "test scores are what they are"
    assert history.num_gaussians.arrays()[1].tolist() == list(range(100, 200))
    assert np.abs(history.rate.arrays()[1][10:] - 10.0).max() < 2.0, (
        "counted over seconds, not from line to line"
    )


def test_the_means_go_on_where_a_training_does() -> None:
    told: list[Event] = []
    teller, history = ProgressTeller(told.append), History()
    rows = rows_of(30, np.arange(30.0))
    history.load(rows[:20])
    trainer: Any = SimpleNamespace(step=200, num_gaussians=120, scene=None, config=TrainConfig())
    teller.go_on_from(rows, 200)
    stats = StepStats(201, 0.1, 120, 0.01, "a.png", 0, psnr=25.0)
    teller.count(trainer, Advance(stats), last=True)
    (progress,) = (event for event in told if isinstance(event, Progress))
    assert progress.psnr == pytest.approx(history.train_psnr.last * 0.9 + 2.5)
    assert progress.loss == pytest.approx(history.loss.last * 0.9 + 0.01)


def test_the_speed_of_a_later_part_is_counted_by_its_own_seconds() -> None:
    history = History()
    history.load(rows_of(20, np.arange(1, 21) * 100.0) + rows_of(20, np.arange(1, 21) * 1.0, first=210))
    steps, rates = history.rate.arrays()
    assert np.allclose(rates[steps <= 200], 0.1) and np.allclose(rates[steps > 210], 10.0)
    assert 210 not in steps, "no speed between the parts"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time by which a speed is counted; it stands still but where a test moves `now`."""
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr("splatstudio.runtime.training_news.time", clock)
    return clock


def test_the_speed_after_a_pause_is_not_that_of_its_first_step(clock: SimpleNamespace) -> None:
    rate = StepRate()
    rate.restart(0)
    told: list[float] = []
    for step in range(1, 101):
        clock.now += 0.1
        told.append(rate.count(step))
    clock.now += 60.0
    rate.restart(100)
    told.append(rate.count(100))
    for step in range(101, 151):
        clock.now += 0.001 if step == 101 else 0.2  # the first picture was there already
        told.append(rate.count(step))
    assert min(told) > 4.9 and max(told) < 11.0
    assert abs(told[99] - 10.0) < 0.5 and abs(told[-1] - 5.0) < 0.3


def test_the_speed_does_not_count_evaluations_and_saves(clock: SimpleNamespace) -> None:
    rate = StepRate()
    rate.restart(0)
    told: list[float] = []
    for step in range(1, 101):
        clock.now += 0.1
        if step in (1, 50, 100):
            clock.now += 20.0
            rate.skip(20.0)
        told.append(rate.count(step))
    assert min(told) > 9.9 and max(told) < 10.1


def test_who_pauses_reads_no_speed() -> None:
    status = followed(Status(), StateChanged("training"))
    progress = Progress(7, 20, 0.1, 25.0, 60, 4.0, 3.0)
    assert followed(status, progress).steps_per_second == 4.0
    paused = followed(followed(status, StateChanged("paused")), progress)
    assert paused.step == 7 and paused.steps_per_second is None and paused.eta_seconds is None


def test_curves_are_thinned_and_overwritten_after_a_resume() -> None:
    curve = Curve()
    for step in range(50_000):
        curve.add(step, math.sin(step / 3000))
    steps, values = curve.arrays()
    assert MAX_PLOT_POINTS / 3 < len(steps) <= MAX_PLOT_POINTS and (np.diff(steps) > 0).all()
    assert steps[0] == 0 and steps[-1] > 49_500
    assert np.abs(np.interp(np.arange(40_000), steps, values) - np.sin(np.arange(40_000) / 3000)).max() < 0.01
    curve.add(1024, 7.0)
    assert curve.arrays()[0][-1] == 1024 and curve.arrays()[1][-1] == 7.0


def test_curves_are_read_while_they_grow() -> None:
    curve, done = Curve(), threading.Event()

    def grow() -> None:
        for _ in range(4):
            for step in range(20_000):
                curve.add(step, float(step))
        done.set()

    thread = threading.Thread(target=grow)
    thread.start()
    while not done.is_set():
        steps, values = curve.arrays()
        assert np.array_equal(steps, values)
    thread.join()


def test_curves_of_different_steps_share_one_axis() -> None:
    history = History()
    history.load(
        [
            {"step": 10, "psnr": 20.0},
            {"step": 20, "psnr": None, "test_psnr": 18.0},
            {"step": 30, "psnr": 22.0},
        ]
    )
    steps, train, test = joined([history.train_psnr, history.test_psnr])
    assert steps.tolist() == [10, 20, 30]
    assert np.array_equal(train, [20, np.nan, 20.2], equal_nan=True)  # smoothed as while it was trained
    assert np.array_equal(test, [np.nan, 18, np.nan], equal_nan=True)


def test_plot_axes_hold_the_data_and_seldom_change() -> None:
    steps = np.array([3.0, 250.0])
    assert np.allclose(axis_ranges((steps, np.array([0.31, 0.12])), 0.1), ((0.0, 300.0), (0.1, 0.4)))
    with_gap = (steps, np.array([13.0, np.nan]), np.array([np.nan, np.nan]))
    assert axis_ranges(with_gap, 5.0) == ((0.0, 300.0), (10.0, 15.0))
    assert axis_ranges((np.array([40.0]), np.array([20.0])), 5.0) == ((0.0, 100.0), (20.0, 25.0))


def test_axes_from_zero_hold_the_data() -> None:
    steps = np.array([0.0, 1500.0])
    assert from_zero((steps, np.array([np.nan, 31.0]))) == ((0.0, 2000.0), (0.0, 50.0))
    assert from_zero((steps, np.array([np.nan, np.nan]))) == ((0.0, 2000.0), (0.0, 1.0))


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


def test_the_curve_of_the_test_photos_has_a_point_for_each_evaluation(
    blob_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: viser.ViserServer
) -> None:
    monkeypatch.chdir(tmp_path)
    config = TrainConfig(steps=40, eval_steps=EVAL_STEPS, save_steps=(), sh_degree=1)
    controller = Controller(open_project(blob_folder, config, None), lambda notice: None)
    told: list[Event] = []
    controller.listen(told.append)
    fake: Any = SimpleNamespace(server=server, controller=controller)
    plots = TrainingPlots(fake, server.gui.add_tab_group().add_tab("Train"))
    controller.open()
    try:
        controller.train_at_once()
        deadline = time.monotonic() + TIMEOUT
        while controller.status.state != "finished":
            assert time.monotonic() < deadline, controller.status
            time.sleep(0.02)
    finally:
        controller.close()
    steps = [*EVAL_STEPS, 40]  # the last step is evaluated too
    scores = [event for event in told if isinstance(event, Evaluated)]
    assert [event.step for event in scores] == steps
    files = [json.loads(file.read_text()) for file in sorted(Path("runs").glob("*/eval/*.json"))]
    assert [file["step"] for file in files] == steps
    assert [event.psnr for event in scores] == pytest.approx([file["psnr"] for file in files], abs=1e-9)
    plots.refresh()
    handle = plots._plots[1]._handle
    assert handle is not None
    at, training, test = handle.data
    shown = np.isfinite(test)
    assert at[shown].tolist() == steps
    np.testing.assert_allclose(test[shown], [file["psnr"] for file in files], rtol=1e-6)
    assert np.isfinite(training).sum() > 0
    assert controller.status.test_psnr == scores[-1].psnr


def test_splats_that_were_only_moved_are_a_dot_also_after_a_resume() -> None:
    history = History()
    rows = [{"step": 100, "num_gaussians": 50}, {"step": 200, "num_gaussians": 50}]
    history.load([*rows[:1], {**rows[1], "densified": {"cloned": 0, "relocated": 7}}])
    assert history.densified.of(200) == 50.0
