"""The dock: its head, figures as people say them, and the offer to merge a part."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from blob_models import blobs
from gui_parts import as_user

from splatstudio.cameras.camera_path import CameraPath
from splatstudio.checkpoints.rank_parts import part_of
from splatstudio.cli import main as cli
from splatstudio.gui import app, dock, panel
from splatstudio.gui.amounts import size
from splatstudio.gui.dock import StatusPanel, TimeBar, header_html, part_html, suggested_steps
from splatstudio.gui.panel import PRESS_SECONDS, REST_SECONDS, Page, Rest, ShownMeaning, SinglePress
from splatstudio.gui.state.controller import Controller
from splatstudio.gui.state.project import open_project
from splatstudio.gui.state.status import Choice, Notice, Status
from splatstudio.gui.theme import duration
from splatstudio.models.merging import merge_to_open, place_of_merged
from splatstudio.models.model import load_model
from splatstudio.runtime.messages import JobDone, RenderPath
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig, changed
from splatstudio.training import memory_plan
from splatstudio.training.memory_plan import SPARE, plan_memory, sizes_of
from splatstudio.training.time_plan import StepTimes


def test_names_and_messages_cannot_inject_html() -> None:
    text = header_html('<img src=x onerror="alert(1)">', Status(state="failed", message="<script>"), 2)
    assert "<img" not in text and "<script" not in text and "2 viewers" in text and "Failed" in text


def test_a_training_that_was_stopped_is_not_called_finished() -> None:
    def shown(step: int) -> str:
        return header_html("demo", Status(state="finished", step=step, total_steps=50), 1)

    assert ">Stopped<" in shown(49) and "Finished" not in shown(49)
    assert ">Finished<" in shown(50) and "Stopped" not in shown(50)


def test_as_many_steps_again_are_proposed_but_not_for_days() -> None:
    assert [suggested_steps(done) for done in (1500, 3000, 30_000)] == [1500, 3000, 10_000]


def test_numbers_are_said_as_people_say_them() -> None:
    assert [duration(s) for s in (None, 7, 65, 3700, math.inf)] == ["–", "7 s", "1:05 min", "1:01 h", "–"]
    assert [size(n) for n in (12, 45_000, 1_234_567, 2.5e9)] == ["12 B", "45 kB", "1.2 MB", "2.50 GB"]


def test_a_button_that_comes_by_itself_cannot_be_pressed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panel, "REST_SECONDS", 0.05)
    ended = threading.Event()
    rest = Rest(ended.set)
    assert not rest.is_over(there=False) and not rest.is_over(there=True)
    assert ended.wait(60) and rest.is_over(there=True)
    assert not rest.is_over(there=False) and not rest.is_over(there=True), "each time that it comes"


def test_a_double_click_is_one_press() -> None:
    times = iter((0.0, 0.01, 0.2, 0.2 + PRESS_SECONDS, 5.0))
    single = SinglePress(lambda: next(times))
    assert [single.counts() for _ in range(5)] == [True, False, False, True, True]


def test_who_wants_to_pause_never_trains_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panel, "REST_SECONDS", 0.05)
    ended = threading.Event()
    meaning = ShownMeaning(ended.set)
    assert meaning.show("Start training") and meaning.counts("Start training")
    assert meaning.show("Pause")
    assert not meaning.counts("Train on"), "the training has ended, and the page says Pause still"
    assert not meaning.show("Train on") and not meaning.counts("Train on"), (
        "the page has said so for a moment"
    )
    assert ended.wait(60) and meaning.show("Train on") and meaning.counts("Train on")
    assert meaning.show("Pause") and meaning.counts("Pause")
    assert meaning.show("Resume") and meaning.counts("Resume"), "who has paused can resume at once"
    assert meaning.counts("Pause"), "to pause is always meant"
    meaning.show("Resume")
    meaning.show("Pause")
    assert not meaning.show("Save and finish") and not meaning.show("Train on"), "the rest begins anew"
    assert not meaning.counts("Train on")


def test_a_model_that_is_worked_with_is_not_put_away(
    page: Page, notices: list[Notice], tmp_path: Path
) -> None:
    """Resume takes the process that renders a video of a model from the disk."""
    pressed, controller = list[str](), cast(Any, page.controller)
    controller.status = replace(controller.status, state="viewing")
    controller.can_train_more, controller.can_begin_new_run = False, True
    controller.choice = lambda: Choice("Resume")
    controller.press_primary = lambda: pressed.append("resume")
    controller.begin_new_run = lambda: pressed.append("new")
    panel = StatusPanel(page)
    task = page.tasks.submit(RenderPath(CameraPath(()), tmp_path / "orbit.mp4"))
    assert task is not None
    panel._press()
    panel._begin_new_run()
    told = (
        "Rendering orbit.mp4 goes on with the model in the view: wait for its end, or cancel it there first."
    )
    assert pressed == [] and notices == [Notice("Not now", told)] * 2
    page.tasks.follow(JobDone(task.number, tmp_path / "orbit.mp4", 100))
    time.sleep(PRESS_SECONDS)
    panel._press()
    panel._begin_new_run()
    assert pressed == ["resume", "new"]


def test_more_steps_are_as_many_as_somebody_typed(page: Page) -> None:
    pressed, controller = list[int](), cast(Any, page.controller)
    controller.status = replace(controller.status, state="finished", step=40, total_steps=40)
    controller.can_train_more, controller.train_more = True, pressed.append
    controller.choice, controller.newer_step = (lambda: Choice("")), None
    controller.is_opening_model = controller.can_begin_new_run = controller.can_set_up = False
    cast(Any, page.viewport).num_viewers = 1
    panel = StatusPanel(page)
    panel.refresh()
    assert panel._primary.label == "Train on to step 80" and panel._more.value == 40
    panel._more._impl.value = 5  # has come from the browser, and nobody has been told yet
    panel.refresh()
    as_user(panel._more, 5)
    panel.refresh()
    assert panel._primary.label == "Train on to step 45" and panel._more.value == 5
    time.sleep(REST_SECONDS)  # of a button that has become another one by itself
    panel._press()
    assert pressed == [5]
    controller.can_train_more = False
    panel.refresh()
    controller.status, controller.can_train_more = replace(controller.status, step=45), True
    panel.refresh()
    assert panel._primary.label == "Train on to step 90" and panel._more.value == 45, "proposed anew"


def test_a_training_is_paused_while_it_renders(page: Page, tmp_path: Path) -> None:
    pressed, controller = list[str](), cast(Any, page.controller)
    controller.status = replace(controller.status, state="training")
    controller.can_train_more = False
    controller.choice = lambda: Choice("Pause")
    controller.press_primary = lambda: pressed.append("pause")
    panel = StatusPanel(page)
    page.tasks.submit(RenderPath(CameraPath(()), tmp_path / "orbit.mp4"))
    panel._press()
    panel._press()
    assert pressed == ["pause"], "a double click is one press"


@pytest.fixture
def asked_to_open(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Return what `splatstudio open` would have opened in the page."""
    opened: list[Path] = []

    class NoStudio:
        goes_home = False

        def offer_home(self) -> None:
            pass

        def run_forever(self) -> None:
            pass

    def take(path: Path, **_: object) -> NoStudio:
        opened.append(Path(path))
        return NoStudio()

    monkeypatch.setattr(app, "open_studio", take)
    yield opened


def open_command(*arguments: object) -> int:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setattr(sys, "argv", ["splatstudio", "open", *map(str, arguments)])
        cli.main()
    return int(str(stop.value.code or 0))


def test_a_part_is_merged_and_opened_by_one_command(
    part: Path,
    asked_to_open: list[Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert open_command(part, "--merge") == 0
    owner = part.parent.name
    assert asked_to_open == [part.parent.resolve() / "exports" / f"{owner}-9-merged.pt"]
    whole = load_model(asked_to_open[0])
    assert len(whole) == len(blobs()) and whole.part is None
    assert f"Opening {asked_to_open[0]}" in capsys.readouterr().out.replace("\n", "")
    # Nothing is written over, and the parts stay what they are.
    assert open_command(part, "--merge") == 0
    assert asked_to_open[1].name == f"{owner}-9-merged-2.pt"
    assert part_of(part) == part_of(part) and len(load_model(part)) < len(blobs())
    assert open_command(part.parent, "--merge") == 0, "the folder has them all"
    assert asked_to_open[2].name == f"{owner}-9-merged-3.pt"


def test_our_own_part_opens_as_its_checkpoint(shard: Path, asked_to_open: list[Path]) -> None:
    assert open_command(shard, "--merge") == 0
    assert asked_to_open == [shard.parent] and not (shard.parent.parent / "exports").exists()


def test_what_cannot_be_merged_is_not_opened(
    part: Path,
    asked_to_open: list[Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    (part.parent / "ckpt_9_rank1.pt").rename(part.parent / "ckpt_8_rank1.pt")
    assert open_command(part, "--merge") == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "the file of rank 1 is not beside it: copy it there and merge again" in error
    with pytest.raises(ValueError, match="is not the part of a rank"):
        merge_to_open(part.parent.parent)
    assert asked_to_open == []


def test_a_file_name_cannot_inject_html(tmp_path: Path) -> None:
    folder = tmp_path / "<img src=x>"
    folder.mkdir()
    for rank in range(2):
        (folder / f"ckpt_1_rank{rank}.pt").touch()
    found = part_of(folder / "ckpt_1_rank0.pt")
    assert found is not None and "<img" not in part_html(found)
    assert place_of_merged(found.path) == folder / "exports" / "<img src=x>-1-merged.pt"


@pytest.fixture
def large(blob_scene: Scene) -> Scene:
    """Return the scene as if its photos had 1600 x 1200 pixels."""
    views = tuple(replace(view, camera=view.camera.resized(1600, 1200)) for view in blob_scene.views)
    return replace(blob_scene, views=views)


def time_bar(
    page: Page, scene: Scene, config: TrainConfig, patch: pytest.MonkeyPatch
) -> tuple[TimeBar, Controller]:
    """Return the bar of a slow machine after that was measured, and its controller."""
    slow = StepTimes(step=2e-3, pixel=2e-7, splat=5e-7)
    patch.setattr(dock, "measured_times", lambda device: slow)
    project = replace(open_project(scene.path, config, None), scene=scene)
    controller = Controller(project, page.notify)
    controller.status = replace(controller.status, state="ready")
    measured = threading.Event()
    bar = TimeBar(replace(page, controller=controller, changed=lambda panel: measured.set()))
    assert measured.wait(30)
    bar.refresh()
    return bar, controller


def test_a_long_training_gives_way_to_a_planned_one_and_a_button_takes_it_again(
    page: Page, large: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    bar, controller = time_bar(page, large, TrainConfig(), monkeypatch)
    text, button = bar._kept[0][0], bar._kept[-1][0]
    planned = controller.project.config
    assert planned.strategy == "fast" and planned.steps < 30_000 and planned.downscale > 1
    assert f"{planned.steps:,} steps. The full training, default, 30,000 steps, takes" in text.content
    assert text.visible
    assert button.visible and button.label.startswith("Full training, about")
    assert controller.status.total_steps == planned.steps, "what Start begins"
    as_user(button, True)
    bar.refresh()
    assert controller.project.config == TrainConfig() and controller.project.preset == "default"
    assert button.label.startswith("Shorter training, about") and "hours" in text.content
    assert "the shorter training is fast, " in text.content
    assert f" size, {planned.steps:,} steps" in text.content
    as_user(button, True)
    bar.refresh()
    assert controller.project.config == planned
    controller.change_settings({"steps": 700})
    bar.refresh()
    assert "The full training" not in text.content, "it is no longer what was planned"
    assert not button.visible, "nor is there anything that it would be the full one of"
    controller.status = replace(controller.status, state="training")
    bar.refresh()
    assert not text.visible and not button.visible


@pytest.mark.parametrize("config", [changed(TrainConfig(), "ssim_weight", 0.3), TrainConfig(steps=25_000)])
def test_what_somebody_has_chosen_is_not_planned_anew(
    page: Page, large: Scene, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    bar, controller = time_bar(page, large, config, monkeypatch)
    assert controller.project.config == config
    assert bar._kept[-1][0].label.startswith("Shorter training, about")


def test_a_short_training_is_told_its_time_and_no_other(
    page: Page, blob_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    bar, controller = time_bar(page, blob_scene, replace(TrainConfig(), steps=2000), monkeypatch)
    assert "Takes about" in bar._kept[0][0].content and not bar._kept[-1][0].visible
    assert controller.project.config.steps == 2000


def test_a_plan_that_was_made_to_fit_leaves_no_limit_behind(
    page: Page, large: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    bar, controller = time_bar(page, large, TrainConfig(), monkeypatch)
    button, short = bar._kept[-1][0], controller.project.config
    as_user(button, True)
    asked = controller.project.fit
    plan = plan_memory(short, sizes_of(large.resized(short.downscale)), controller.project.devices)
    with monkeypatch.context() as little:
        little.setattr(memory_plan, "free_bytes", lambda _: int(plan.bytes_for(20_000) / SPARE))
        as_user(button, True)
    assert controller.project.config.densify.max_gaussians < 25_000, "as many as fit"
    as_user(button, True)
    assert controller.project.config == TrainConfig()
    assert controller.project.fit.options == asked.options, "nobody has asked for a limit"
