"""Settings from the page: what is changed when, what is refused, and that nothing of it is forgotten."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from splatstudio.checkpoints.checkpoint import newest_checkpoint, verify_checkpoint
from splatstudio.devices.monitor import DeviceReading
from splatstudio.gui.state.controller import Controller
from splatstudio.gui.state.history import History
from splatstudio.gui.state.project import open_project
from splatstudio.gui.state.status import Notice, Status
from splatstudio.gui.tabs.devices import RankRow, devices_html
from splatstudio.gui.tabs.log import TAIL_BYTES, log_html, tail
from splatstudio.gui.tabs.plot import from_zero
from splatstudio.gui.tabs.settings import live_settings
from splatstudio.gui.tabs.train import preset_html
from splatstudio.scene import load_scene
from splatstudio.settings.config import DensifyConfig, TrainConfig, changed, declaration, value_of
from splatstudio.settings.presets import PRESETS
from splatstudio.train.memory_plan import splats_chosen

TIMEOUT = 120.0
MANY = TrainConfig(steps=100_000, eval_steps=(), save_steps=(), sh_degree=1)


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Controller]]:
    """Make controllers in an empty folder; their workers are ended after the test."""
    monkeypatch.chdir(tmp_path)
    made: list[Controller] = []

    def make(path: Path, config: TrainConfig = MANY, notices: list[Notice] | None = None) -> Controller:
        told = [] if notices is None else notices
        made.append(Controller(open_project(path, config, None), told.append))
        made[-1].open()
        return made[-1]

    yield make
    for controller in made:
        controller.close()


def wait(controller: Controller, condition: Callable[[Status], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition(controller.status):
        assert time.monotonic() < deadline, f"never: {what}; {controller.status}"
        time.sleep(0.02)


def test_every_live_setting_is_in_the_form_once_and_no_other() -> None:
    config = TrainConfig()
    found = [setting.path for setting in live_settings(config)]
    assert len(found) == len(set(found)) and {"steps", "optim.means_lr", "densify.enabled"} <= set(found)
    assert all(declaration(TrainConfig, path).live for path in found)
    assert not {"seed", "downscale", "densify.every", "optim.means_lr_decay"} & set(found)
    assert value_of(config, "optim.means_lr") == config.optim.means_lr


def test_a_preset_leaves_what_the_user_asked_for(
    control: Callable[..., Controller], blob_folder: Path
) -> None:
    controller = control(blob_folder, TrainConfig())
    wait(controller, lambda status: status.state == "ready", "ready")
    controller.change_settings({"steps": 77})
    controller.choose_preset("preview")
    config = controller.project.config
    assert (config.steps, config.strategy, config.coarse.first) == (77, "fast", 4.0)
    scene = controller.project.scene
    assert scene is not None
    assert preset_html("preview", config, scene).count("Changed: steps.") == 1
    controller.choose_preset("mcmc")
    config = controller.project.config
    assert (config.steps, config.strategy, config.coarse.first) == (77, "mcmc", 1.0)
    assert controller.status.total_steps == 77


def test_a_preset_tells_how_many_splats_it_comes_to_with_the_photographs_as_chosen(blob_folder: Path) -> None:
    half = load_scene(blob_folder, downscale=2)
    for scene in (half, load_scene(blob_folder)):
        config = PRESETS["mcmc"].apply(TrainConfig(downscale=2))
        text = preset_html("mcmc", config, scene)
        assert f"Here at most {splats_chosen(config, half):,} splats." in text
        limited = changed(config, "densify.max_gaussians", 7)
        assert "Here at most 7 splats." in preset_html("mcmc", limited, scene)
        assert "at most" not in preset_html("default", TrainConfig(downscale=2), scene)


def test_a_preset_is_left_again_but_not_what_was_typed_beside_it(blob_folder: Path, tmp_path: Path) -> None:
    typed = {"densify.max_gaussians"}
    config = PRESETS["preview"].apply(TrainConfig(densify=DensifyConfig(max_gaussians=99)), typed)
    project = open_project(blob_folder, config, tmp_path / "run", typed)
    assert project.given == typed
    assert PRESETS["default"].apply(project.config, project.given) == TrainConfig(densify=config.densify)


def test_a_running_training_takes_live_settings_and_refuses_the_rest(
    control: Callable[..., Controller], blob_folder: Path
) -> None:
    notices: list[Notice] = []
    controller = control(blob_folder, MANY, notices)
    wait(controller, lambda status: status.state == "ready", "ready")
    # Before the start everything can be chosen, and the training begins with it.
    controller.change_settings({"sh_degree": 0, "densify.max_gaussians": 99})
    controller.press_primary()
    wait(controller, lambda status: status.step > 3, "training")
    with pytest.raises(ValueError, match="sh_degree is read at the start"):
        controller.change_settings({"ssim_weight": 0.5, "sh_degree": 1})
    with pytest.raises(ValueError, match=r"optim\.means_lr is nan"):
        controller.change_settings({"optim.means_lr": float("nan")})
    with pytest.raises(ValueError, match="steps are done already, which is more than 1"):
        controller.change_settings({"steps": 1})
    assert controller.project.config.ssim_weight == 0.2, "nothing is changed where one is wrong"
    controller.change_settings({"ssim_weight": 0.5, "steps": 90_000})
    wait(controller, lambda status: status.total_steps == 90_000, "the number of steps is the new one")
    wait(controller, lambda _: controller.project.config.ssim_weight == 0.5, "confirmed")

    def times_told() -> int:
        return sum("SSIM weight is 0.5 from step" in notice.text for notice in notices)

    wait(controller, lambda _: times_told() > 0, "told")
    assert times_told() == 1
    controller.stop()
    wait(controller, lambda status: status.state == "finished", "stopped")
    checkpoint = newest_checkpoint(Path("runs/blobs"))
    assert checkpoint is not None
    kept = verify_checkpoint(checkpoint)["config"]
    assert (kept["ssim_weight"], kept["sh_degree"], kept["densify"]["max_gaussians"]) == (0.5, 0, 99)
    # Opened again, the run has the settings that it had last.
    again = open_project(blob_folder, TrainConfig(), None).config
    assert (again.ssim_weight, again.steps, again.sh_degree) == (0.5, 90_000, 0)


def test_a_finished_run_opened_again_can_be_given_more_steps_and_other_settings(
    control: Callable[..., Controller], blob_folder: Path
) -> None:
    short = TrainConfig(steps=6, eval_steps=(), save_steps=(), sh_degree=1)
    first = control(blob_folder, short)
    wait(first, lambda status: status.state == "ready", "ready")
    first.press_primary()
    wait(first, lambda status: status.state == "finished", "all steps")
    assert not first.choice().enabled and first.can_train_more
    first.close()
    second = control(blob_folder, TrainConfig())
    wait(second, lambda status: status.state == "viewing" and status.step == 6, "the finished model")
    assert not second.choice().enabled and second.can_train_more
    second.change_settings({"optim.sh0_lr": 0.01})
    second.train_more(5)
    wait(second, lambda status: status.state == "finished" and status.step == 11, "five more")
    checkpoint = newest_checkpoint(Path("runs/blobs"))
    assert checkpoint is not None and checkpoint.name == "step_00000011"
    config = verify_checkpoint(checkpoint)["config"]
    assert config["optim"]["sh0_lr"] == 0.01 and config["steps"] == 11
    assert open_project(blob_folder, TrainConfig(), None).resume_step is None, "all its steps are done"


def test_densifications_are_told_and_found_again_on_disk(
    control: Callable[..., Controller], blob_folder: Path
) -> None:
    densify = DensifyConfig(start_step=10, every=10, reset_every=25, grow_grad=1e-6)
    config = TrainConfig(steps=80, eval_steps=(), save_steps=(), sh_degree=0, densify=densify)
    controller = control(blob_folder, config)
    wait(controller, lambda status: status.state == "ready", "ready")
    controller.press_primary()
    wait(controller, lambda status: status.state == "finished", "all steps")
    steps, numbers = controller.history.densified.arrays()
    assert list(steps) == [21, 31] and (np.diff(numbers) > 0).all()
    assert list(controller.history.resets.arrays()[0]) == [26]
    rows = [json.loads(line) for line in Path("runs/blobs/metrics.jsonl").read_text().splitlines()]
    loaded = History()
    loaded.load(rows)
    assert np.array_equal(loaded.densified.arrays(), controller.history.densified.arrays())
    assert list(loaded.resets.arrays()[0]) == [26] and loaded.num_gaussians.last == numbers[-1]
    assert (loaded.rate.arrays()[1] > 0).all() and len(loaded.rate) > 3


def test_the_end_of_a_log_is_read_whatever_its_length(tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    path.write_bytes(b"start\n" + "".join(f"\x1b[31mline {i}\x1b[0m\n" for i in range(50_000)).encode())
    assert path.stat().st_size > TAIL_BYTES
    assert tail(path) == [f"line {i}" for i in range(49_800, 50_000)]
    path.write_bytes(b"10 %\r50 %\r100 %\nna\xffme <script>\n")
    assert tail(path) == ["10 %", "50 %", "100 %", "na\ufffdme <script>"]
    page = log_html(["RuntimeError: <b>", "all is well", "worker got SIGKILL"])
    assert page.count('data-splatstudio="bad"') == 2 and "&lt;b&gt;" in page and "<b>" not in page


def test_device_rows_never_claim_what_the_driver_did_not_tell() -> None:
    known = DeviceReading(0, "GPU <1>", 10**9, 2 * 10**9, 8 * 10**9, 55.0, 61.0, 250.0)
    page = devices_html((known,), (RankRow(1234, 0.02),))
    assert "GPU &lt;1&gt;" in page and "<1>" not in page
    for text in ("55 %", "61 °C", "250 W", "1.0 ours + 2.0 others’ of 8.0 GB", "1,234 splats, 20 ms/step"):
        assert text in page
    dead = devices_html((DeviceReading(0, "GPU"), DeviceReading(1, "GPU")), ())
    assert dead.count("not available") == 8 and "0 %" not in dead
    # In a container the driver does not tell which processes are ours.
    hidden = devices_html((DeviceReading(0, "GPU", None, 2 * 10**9, 8 * 10**9),), (RankRow(7, None),))
    assert "2.0 of 8.0 GB, ours not available" in hidden and "Rank 0: 7 splats" in hidden
    cpu = devices_html((DeviceReading(0, "CPU rank 0", 10**9, 0, 10**10, 50.0),), ())
    assert "°C" not in cpu and "CPU rank 0" in cpu and "not available" not in cpu


def test_axes_from_zero_hold_the_data() -> None:
    steps = np.array([0.0, 1500.0])
    assert from_zero((steps, np.array([np.nan, 31.0]))) == ((0.0, 2000.0), (0.0, 50.0))
    assert from_zero((steps, np.array([np.nan, np.nan]))) == ((0.0, 2000.0), (0.0, 1.0))
