"""The studio as a whole, without a browser: it starts, saves, ends, and hands events on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from blob_models import blobs
from gui_parts import MANY, TIMEOUT, trained_run

from splatstudio.checkpoints.checkpoint import newest_checkpoint
from splatstudio.formats.ply import write_ply
from splatstudio.gui.app import Studio, last_words, open_studio
from splatstudio.gui.server.access import Listen
from splatstudio.gui.state.status import Status
from splatstudio.models.model import load_model
from splatstudio.runtime.messages import ModelLoaded, Saved, StateChanged
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.training.device_options import DeviceOptions
from splatstudio.training.time_plan import StepTimes

LOADED = ModelLoaded(7, 100, (0.0, 0.0, 0.0), 1.0)


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


def test_who_leaves_by_a_button_is_not_told_of_ctrl_c(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_ply(tmp_path / "model.ply", blobs())
    studio = Studio(tmp_path / "model.ply", network=Listen(port=0))

    def press() -> None:
        while studio._request is None:
            time.sleep(0.05)
        studio.go_home()

    threading.Thread(target=press).start()
    assert not studio.run_forever() and studio.goes_home
    told = capsys.readouterr().out
    assert "Going to the start page ..." in told and "Ctrl-C" not in told and "Closing" not in told


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
        # Read here: what waits in this pipe's buffer communicate() would not return.
        trains_on = process.stdout.readline()
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
    assert trains_on.startswith(("CPU: ", "GPU: ")), "what trains is said below the address"


def test_a_finished_model_cannot_be_trained(own_folder: Path, tmp_path: Path) -> None:
    write_ply(tmp_path / "model.ply", blobs())
    with pytest.raises(ValueError, match="cannot be trained"):
        open_studio(tmp_path / "model.ply", network=Listen(port=0), train=True, browser=False)


@pytest.mark.parametrize("given", [(), ("steps",)])
def test_one_button_starts_what_is_proposed_where_the_full_training_takes_long(
    own_folder: Path, blob_folder: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...]
) -> None:
    monkeypatch.setattr("splatstudio.gui.app.measured_times", lambda _: StepTimes(1.0, 1e-9, 1e-9))
    options = DeviceOptions(ranks=1)
    studio = Studio(blob_folder, network=Listen(port=0), config=TrainConfig(), given=given, devices=options)
    started: list[TrainConfig] = []
    with monkeypatch.context() as patch:
        patch.setattr(
            studio.controller, "train_at_once", lambda: started.append(studio.controller.project.config)
        )
        studio.start_proposed_training()
        studio.close()
    (config,) = started
    told = [item.notice.title for item in studio._news.items]
    if given:
        assert config.steps == 30_000 and config.strategy == "default", "what was asked for stays"
        assert not any(title.startswith("Training for") for title in told)
    else:
        assert config.steps < 2000 and config.strategy == "fast"
        assert any(title.startswith("Training for about") for title in told)


def test_a_second_model_of_the_same_step_is_drawn_and_a_bad_panel_stops_nothing() -> None:
    told: list[str] = []

    class Bad:
        def follow(self, event: Any) -> None:
            raise KeyError("gone")

    studio = SimpleNamespace(
        controller=SimpleNamespace(project=SimpleNamespace(scene=object())),
        _tasks=SimpleNamespace(follow=lambda _: None),
        _refresher=SimpleNamespace(
            panels=[Bad(), SimpleNamespace(follow=lambda _: told.append("second panel"))],
            changed=lambda: told.append("refreshed"),
        ),
        _viewport=SimpleNamespace(
            invalidate=lambda: told.append("drawn again"), model_changed=lambda: told.append("looked")
        ),
        _tell_of=lambda panel, error: told.append(type(error).__name__),
    )
    Studio._follow(cast(Studio, studio), LOADED)
    assert told == ["KeyError", "second panel", "drawn again", "refreshed"]
    told.clear()
    Studio._follow(cast(Studio, studio), StateChanged("viewing"))
    assert told[-2:] == ["looked", "refreshed"]
