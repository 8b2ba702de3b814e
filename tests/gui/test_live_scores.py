"""From --eval-steps to the curve of the test photographs on the page, and how far an evaluation is."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import viser

from splatstudio.gui.state.controller import Controller
from splatstudio.gui.state.project import open_project
from splatstudio.gui.tabs.plot import TrainingPlots
from splatstudio.runtime.messages import Evaluated, Event
from splatstudio.settings.config import TrainConfig

TIMEOUT = 180.0  # for a training of forty steps on a busy machine
EVAL_STEPS = (10, 20, 30)


def test_the_curve_of_the_test_photographs_has_a_point_for_each_evaluation(
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
