"""Settings on the page: their names, words and presets, and what fits into the memory."""

from __future__ import annotations

import html
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from plateau_settings import ANYHOW, FLAT_NEWS

from splatstudio.gui.state.controller import Controller
from splatstudio.gui.state.project import on_devices, open_project
from splatstudio.gui.state.status import HELP, LABELS, WORDS, Notice, label_of, notice_of, setting_text
from splatstudio.gui.tabs.train import (
    SettingInput,
    SettingsForm,
    hint_of,
    live_settings,
    most_splats,
    preset_html,
    settings_html,
)
from splatstudio.runtime.messages import Job, Saved, SettingChanged, TrainJob
from splatstudio.runtime.training_news import plateau_reached
from splatstudio.scene.load import load_scene
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig, changed, declaration, value_of
from splatstudio.settings.presets import PRESETS
from splatstudio.training import memory_plan
from splatstudio.training.device_options import DeviceOptions
from splatstudio.training.memory_plan import SPARE, plan_memory, sizes_of, splats_chosen, splats_wanted

pytestmark = pytest.mark.usefixtures("own_folder")


def controller_of(path: Path, config: TrainConfig, told: list[Notice], state: Any) -> Controller:
    """Return a controller whose worker is not started, in a state as if it were."""
    controller = Controller(open_project(path, config, None), told.append)
    controller.status = replace(controller.status, state=state)
    return controller


def test_a_preset_that_is_chosen_on_the_page_fits_the_memory(
    blob_folder: Path, blob_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, told = changed(TrainConfig(), "fast.density", 90.0), []
    controller = controller_of(blob_folder, config, told, "ready")
    fast = PRESETS["fast"].apply(config, controller.project.given)
    wanted = splats_wanted(fast, blob_scene)
    plan = plan_memory(fast, sizes_of(blob_scene), controller.project.devices)
    half = int(plan.bytes_for(wanted // 2) / memory_plan.SPARE) + 1
    monkeypatch.setattr(memory_plan, "free_bytes", lambda _: 4 * half)
    controller.choose_preset("fast")
    assert controller.project.config == fast and told == []
    monkeypatch.setattr(memory_plan, "free_bytes", lambda _: half)
    controller.choose_preset("default")
    assert controller.project.config == config and told == [], "of others the user chooses the number"
    controller.choose_preset("fast")
    limit = controller.project.config.densify.max_gaussians
    assert limit == pytest.approx(wanted // 2, abs=2)
    assert controller.project.config == changed(fast, "densify.max_gaussians", limit)
    (notice,) = told
    assert f"it would be {wanted:,}, but no more fit" in notice.text
    assert "densify.max_gaussians" not in controller.project.given
    controller.choose_preset("default")
    assert controller.project.config == config, "the limit was made for the other preset"
    assert len(told) == 1


def test_what_fits_follows_the_photos_size(
    blob_folder: Path, blob_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = PRESETS["fast"].apply(changed(TrainConfig(), "fast.density", 90.0), {"fast.density"})
    sizes, told = sizes_of(blob_scene), []
    controller = controller_of(blob_folder, config, told, "ready")
    wanted = splats_wanted(config, blob_scene)
    half = int(plan_memory(config, sizes, controller.project.devices).bytes_for(wanted // 2) / SPARE) + 1
    monkeypatch.setattr(memory_plan, "free_bytes", lambda _: half)

    def limit() -> int:
        return controller.project.config.densify.max_gaussians

    asked = limit()
    controller.change_settings({"ssim_weight": 0.3})
    assert limit() == asked and told == [], "nothing that memory depends on"
    controller.change_settings({"downscale": 4})
    assert limit() == asked and told == [], "all fit"
    controller.change_settings({"downscale": 1})
    assert limit() == pytest.approx(wanted // 2, abs=2) and len(told) == 1
    assert told[0].title == "Made to fit" and f"it would be {wanted:,}" in told[0].text
    controller.change_settings({"downscale": 4})
    assert limit() == asked and len(told) == 1, "there is room again"
    controller.change_settings({"densify.max_gaussians": wanted - 1})
    assert limit() == wanted - 1 and len(told) == 1
    controller.change_settings({"downscale": 1})
    assert limit() == wanted - 1, "what the user types is not made smaller"
    assert len(told) == 2 and told[1].title == "May not fit" and " fit: lower Max splats" in told[1].text


def test_how_many_fit_follows_the_steps_only_where_the_strategy_asks_for_them(
    blob_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frees = iter(range(2 << 30, 3 << 30, 1 << 20))
    monkeypatch.setattr(memory_plan, "free_bytes", lambda _: next(frees))
    told: list[Notice] = []
    controller = controller_of(blob_folder, TrainConfig(), told, "ready")
    controller.project = on_devices(controller.project, DeviceOptions(ranks=1, max_splats="auto"))
    limit = controller.project.config.densify.max_gaussians
    for steps in (70, 700, 7000):
        controller.change_settings({"steps": steps})
    assert controller.project.config.steps == 7000 and told == []
    assert controller.project.config.densify.max_gaussians == limit


def test_no_preset_is_chosen_after_the_start(blob_folder: Path) -> None:
    controller = controller_of(blob_folder, TrainConfig(), [], "training")
    with pytest.raises(ValueError, match="chosen before the start"):
        controller.choose_preset("preview")
    assert controller.project.config == TrainConfig()


def test_as_many_as_fit_is_found_anew_with_the_photos_size(
    blob_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_plan, "free_bytes", lambda _: 2 << 30)
    told: list[Notice] = []
    controller = controller_of(blob_folder, TrainConfig(), told, "ready")
    controller.project = on_devices(controller.project, DeviceOptions(ranks=1, max_splats="auto"))
    limits = []
    for downscale in (1, 4, 1):
        controller.change_settings({"downscale": downscale})
        limits.append(controller.project.config.densify.max_gaussians)
    assert limits[0] == limits[2] < limits[1]
    assert len(told) == 2
    assert all(f"{limit:,} splats" in notice.text for limit, notice in zip(limits[1:], told, strict=True))
    # A running training was given another limit, and failed before its first checkpoint.
    controller.project = replace(
        controller.project, config=changed(controller.project.config, "densify.max_gaussians", 99)
    )
    controller.change_settings({"downscale": 4})
    assert controller.project.config.densify.max_gaussians == 99


def test_a_preset_fits_with_photos_of_the_size_chosen_on_the_page(
    blob_folder: Path, blob_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, told = changed(TrainConfig(), "fast.density", 90.0), []
    controller = controller_of(blob_folder, config, told, "ready")
    small = changed(PRESETS["fast"].apply(config, controller.project.given), "downscale", 4)
    scene = load_scene(blob_folder, downscale=4)
    plan = plan_memory(small, sizes_of(scene), controller.project.devices)
    enough = plan.bytes_for(splats_wanted(small, scene)) / memory_plan.SPARE * 1.01
    monkeypatch.setattr(memory_plan, "free_bytes", lambda _: int(enough))
    controller.change_settings({"downscale": 4})
    controller.choose_preset("fast")
    assert controller.project.config == small and told == []


@pytest.mark.usefixtures("flat_run")
def test_a_run_on_view_says_that_its_score_is_flat(blob_folder: Path) -> None:
    controller = controller_of(blob_folder, TrainConfig(), [], "viewing")
    assert controller.status.flat == plateau_reached(FLAT_NEWS, ANYHOW)
    assert "The test score has been flat since step 2 (17.8 dB)." in settings_html(controller)
    controller._turn_to_new_run()
    assert "flat" not in settings_html(controller), "another run has no score yet"
    done = controller_of(blob_folder, TrainConfig(steps=22), [], "viewing")
    assert done.status.flat is None, "there is nothing to stop"


@pytest.mark.usefixtures("flat_run")
def test_resume_takes_the_limit_of_the_command_and_what_the_page_has_changed(
    blob_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = controller_of(blob_folder, TrainConfig(), [], "viewing")
    limited = changed(controller.project.config, "densify.max_gaussians", 4321)
    controller.project = replace(
        controller.project, config=limited, live_on_resume=("densify.max_gaussians",)
    )
    controller.change_settings({"ssim_weight": 0.5})
    jobs: list[Job] = []
    monkeypatch.setattr(controller, "_replace_worker", lambda job, _: jobs.append(job))
    controller.press_primary()
    (job,) = jobs
    assert isinstance(job, TrainJob) and job.checkpoint is not None
    assert dict(job.settings) == {"densify.max_gaussians": 4321, "ssim_weight": 0.5}


def test_what_is_saved_for_safety_is_told_as_that(tmp_path: Path) -> None:
    kept, passing = (notice_of(Saved(7, tmp_path, autosave=autosave)) for autosave in (False, True))
    assert kept is not None and passing is not None and kept.title == "Saved step 7"
    assert passing.title == "Saved step 7 for safety" and "the next save takes its place" in passing.text


def test_settings_are_called_as_in_the_form() -> None:
    notice = notice_of(SettingChanged(75, "densify.max_gaussians", 225_000))
    assert notice == Notice("Changed", "Densification: Max splats changed to 225,000 at step 76.")
    assert setting_text("optim.means_lr", 8e-5) == "Learning rates: Positions changed to 0.00008"
    assert setting_text("optim.means_lr", 2e-4) == "Learning rates: Positions changed to 0.0002"
    assert setting_text("densify.enabled", False) == "Densification: Add and remove splats changed to off"
    assert setting_text("background", (0.0, 0.5, 1.0)) == "Background changed to 0, 0.5, 1"


def test_every_setting_has_a_plain_name_of_its_own_and_says_by_which_the_command_line_knows_it() -> None:
    settings = live_settings()
    labels = [(path.rpartition(".")[0], label_of(path)) for path in settings]
    assert len(set(labels)) == len(labels) and all(label[:1].isupper() for _, label in labels)
    assert LABELS.keys() | HELP.keys() <= {*settings}, "none that is no more"
    hints = {path: hint_of(path) for path in settings}
    assert all(
        hint.endswith(f" On the command line: --{path.replace('_', '-')}.") for path, hint in hints.items()
    )
    told = "How fast splats grow and shrink. From 0 to 1. On the command line: --optim.scales-lr."
    assert hints["optim.scales_lr"] == told


def test_the_button_that_applies_stands_above_the_settings(page: Any) -> None:
    form = SettingsForm(page)
    first = min(each.handle.order for each in form._inputs)
    assert form._apply.order < form._undo.order < form._answer.order < first


class FakeHandle:
    """A field of the page, as far as the form uses it."""

    def __init__(self, _label: str, value: Any, **_settings: Any):
        self.value, self.visible = value, True

    def on_update(self, _told: Any) -> None: ...


def field_of(path: str) -> SettingInput:
    gui = SimpleNamespace(add_text=FakeHandle, add_number=FakeHandle, add_checkbox=FakeHandle)
    return SettingInput(cast(Any, gui), path, value_of(TrainConfig(), path))


def test_a_live_setting_says_in_words_what_is_no_number() -> None:
    assert {"eval_every", "save_minutes", "keep"} <= set(WORDS) & set(live_settings())
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
    with pytest.raises(ValueError, match="Evaluate every must be a whole number or auto or never"):
        every.read()
    assert type(field_of("save_minutes").read()) is float and field_of("keep").read() == 0
    assert field_of("steps").read() == 30_000
    assert setting_text("eval_every", -1) == "Evaluate every changed to auto"
    assert setting_text("shapes.max_ratio", 4.0) == "Shapes of splats: Max ratio changed to 4"


def test_a_number_out_of_its_range_is_refused_in_the_words_of_the_page(server: Any) -> None:
    field = SettingInput(server.gui, "optim.means_lr", 1e-4)
    for typed, told in [
        ("-1", "Positions must be 0 or more"),
        ("nan", "Positions must be 0"),
        ("2", "1 or less"),
    ]:
        field.handle.value = typed
        with pytest.raises(ValueError, match=told):
            field.read()
    field.handle.value = "2e-4"
    assert field.read() == 2e-4
    every = SettingInput(server.gui, "eval_every", -1)
    every.handle.value = "-5"
    with pytest.raises(ValueError, match="Evaluate every must be auto, never or above 0"):
        every.read()


def test_all_that_is_wrong_is_named_and_nothing_is_changed(page: Any) -> None:
    form = SettingsForm(page)
    for each in form._inputs:
        if each.path in ("eval_every", "optim.means_lr"):
            each.handle.value = "-5"
        if each.path == "steps":
            each.handle.value = 77
    form._send()
    told = html.unescape(form._answer.content)
    assert "Evaluate every must be auto, never or above 0; Positions must be 0 or more." in told
    assert page.controller.project.config.steps != 77


def test_every_live_setting_is_in_the_form_once_and_no_other() -> None:
    found = live_settings()
    assert len(found) == len(set(found)) and {"steps", "optim.means_lr", "densify.enabled"} <= set(found)
    assert all(declaration(TrainConfig, path).live for path in found)
    assert not {"seed", "downscale", "densify.every", "optim.means_lr_decay"} & set(found)
    assert value_of(TrainConfig(), "optim.means_lr") == TrainConfig().optim.means_lr


def test_a_preset_leaves_what_the_user_asked_for(
    blob_folder: Path,
) -> None:
    controller = controller_of(blob_folder, TrainConfig(), [], "ready")
    controller.change_settings({"steps": 77})
    controller.choose_preset("preview")
    config = controller.project.config
    assert (config.steps, config.strategy, config.coarse.first) == (77, "fast", 4.0)
    scene = controller.project.scene
    assert scene is not None
    assert preset_html("preview", config, scene).count("Changed: Steps.") == 1
    controller.choose_preset("mcmc")
    config = controller.project.config
    assert (config.steps, config.strategy, config.coarse.first) == (77, "mcmc", 1.0)
    assert controller.status.total_steps == 77


def test_a_preset_counts_those_that_a_scene_without_points_begins_with(blob_scene: Scene) -> None:
    without = replace(blob_scene, points=blob_scene.points[:0], colors=blob_scene.colors[:0])
    config = PRESETS["mcmc"].apply(TrainConfig())
    assert "at most 20,000 splats." in preset_html("mcmc", config, without)
    assert splats_wanted(config, without) == 20_000 > splats_wanted(config, blob_scene)


def test_a_preset_tells_how_many_splats_it_comes_to_with_the_photos_as_chosen(blob_folder: Path) -> None:
    half = load_scene(blob_folder, downscale=2)
    for scene in (half, load_scene(blob_folder)):
        config = PRESETS["mcmc"].apply(TrainConfig(downscale=2))
        text = preset_html("mcmc", config, scene)
        assert f"at most {splats_chosen(config, half):,} splats." in text
        limited = changed(config, "densify.max_gaussians", 7)
        assert "at most 7 splats." in preset_html("mcmc", limited, scene)
        assert "at most" not in preset_html("default", TrainConfig(downscale=2), scene)
        own = f"{splats_chosen(config, half):,}, chosen by the photos; 2,000,000 are allowed"
        assert most_splats(config, scene) == own and most_splats(limited, scene) == "7"
        assert most_splats(TrainConfig(), scene) == "2,000,000"
