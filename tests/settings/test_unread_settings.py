"""Settings of one strategy under another: they are named at the start, and the page does not offer them."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from splatstudio.cli.train import launched_job
from splatstudio.gui.state.project import open_project
from splatstudio.scene.scene import Scene
from splatstudio.settings.capture_config import SkyConfig
from splatstudio.settings.config import TrainConfig, changed, value_of
from splatstudio.settings.presets import PRESETS, notes_on_settings, switched_off
from splatstudio.settings.strategy_config import (
    AbsgradConfig,
    DensifyConfig,
    FastConfig,
    McmcConfig,
    StrategyName,
    note_on_unread,
    unread_settings,
)
from splatstudio.training.device_options import AS_FOUND
from splatstudio.training.trainer import Trainer

# Short trainings in which every strategy does something.
CONFIG = TrainConfig(
    steps=30,
    densify=DensifyConfig(every=5, grow_grad=1e-5),
    absgrad=AbsgradConfig(grow_grad=1e-5),
    mcmc=McmcConfig(every=5, max_gaussians=80),
    fast=FastConfig(density=2.0),
)


def test_what_another_strategy_reads_is_named() -> None:
    given = [
        "steps",
        "densify.grow_grad",
        "densify.enabled",
        "fast.density",
        "mcmc.noise",
        "absgrad.grow_grad",
    ]
    assert unread_settings("default", given) == ["absgrad.grow_grad", "fast.density", "mcmc.noise"]
    assert unread_settings("absgrad", given) == ["densify.grow_grad", "fast.density", "mcmc.noise"]
    assert unread_settings("mcmc", given) == ["absgrad.grow_grad", "densify.grow_grad", "fast.density"]
    assert unread_settings("fast", [*given, "mcmc.density"]) == [
        "absgrad.grow_grad",
        "densify.grow_grad",
        "mcmc.density",
    ]
    assert note_on_unread("default", ["steps", "densify.every"]) is None


def test_the_studio_says_so_at_the_start(blob_folder: Path, tmp_path: Path) -> None:
    config = TrainConfig(strategy="fast")
    project = open_project(blob_folder, config, tmp_path / "run", {"strategy", "densify.grow_grad"})
    assert "The strategy fast does not read densify.grow_grad: it changes nothing." in project.notes
    project = open_project(blob_folder, config, tmp_path / "run", {"strategy", "mcmc.start_step"})
    assert not any("does not read" in note for note in project.notes)


# Another value of every setting of the strategies.
OTHER: dict[str, Any] = {
    "densify.enabled": False,
    "densify.start_step": 12,
    "densify.stop_step": 9,
    "densify.every": 7,
    "densify.reset_every": 11,
    "densify.pause_after_reset": 14,
    "densify.grow_grad": 1.0,
    "densify.grow_scale3d": 0.5,
    "densify.grow_scale2d": 0.9,
    "densify.prune_opacity": 0.05,
    "densify.prune_scale3d": 0.01,
    "densify.prune_scale2d": 0.01,
    "densify.stop_scale2d_step": 30,
    "densify.max_gaussians": 61,
    "absgrad.grow_grad": 1.0,
    "mcmc.start_step": 12,
    "mcmc.stop_step": 9,
    "mcmc.every": 3,
    "mcmc.max_gaussians": 70,
    "mcmc.density": 1e-3,
    "mcmc.grow_factor": 2.0,
    "mcmc.min_opacity": 0.09,
    "mcmc.noise": 1.0,
    "mcmc.noise_every": 7,
    "mcmc.guided": False,
    "mcmc.spread": 0.0,
    "fast.density": 1e-3,
    "fast.long_growth": 0.0,
    "fast.min_weight": 10.0,
    "fast.thin_at": 0.5,
    "fast.thin_share": 0.6,
}


def trained(scene: Scene, config: TrainConfig) -> tuple[list[float], int]:
    """Return the losses of 30 steps, and how many Gaussians there are then."""
    trainer = Trainer(scene, config)
    losses = [trainer.train_step().loss for _ in range(30)]
    trainer.close()
    return losses, trainer.num_gaussians


@pytest.mark.parametrize("strategy", ["default", "absgrad", "mcmc", "fast"])
def test_what_is_called_unread_changes_nothing(blob_scene: Scene, strategy: StrategyName) -> None:
    """Trained twice, with other values of all that is called unread: bit for bit the same."""
    groups = ("densify", "absgrad", "mcmc", "fast")
    assert set(OTHER) == {f"{group}.{f.name}" for group in groups for f in fields(getattr(CONFIG, group))}
    base = replace(CONFIG, strategy=strategy)
    other = base
    for path in unread_settings(strategy, OTHER):
        assert OTHER[path] != value_of(base, path)
        other = changed(other, path, OTHER[path])
    losses, num = trained(blob_scene, base)
    assert num != 60 and (losses, num) == trained(blob_scene, other) and other != base


def test_the_page_offers_no_setting_of_what_a_run_was_started_without() -> None:
    paths = ["steps", "exposure.lr", "exposure.grid_smooth", "poses.lr", "sky.lr", "shapes.max_ratio"]
    assert switched_off(TrainConfig(), paths) == ["exposure.lr", "exposure.grid_smooth", "poses.lr", "sky.lr"]
    config = changed(changed(TrainConfig(), "exposure.enabled", True), "sky.enabled", True)
    assert switched_off(config, paths) == ["exposure.grid_smooth", "poses.lr"]
    assert switched_off(changed(config, "exposure.grid", True), paths) == ["poses.lr"]
    grid_alone = changed(TrainConfig(), "exposure.grid", True)
    assert switched_off(grid_alone, paths) == ["poses.lr", "sky.lr"]
    behind = ["background", "random_background", "ssim_weight"]
    assert switched_off(TrainConfig(), behind) == []
    assert switched_off(TrainConfig(sky=SkyConfig(enabled=True)), behind) == behind[:2]


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"poses.lr": 1e-3, "poses.start_step": 9}, "poses.lr and poses.start_step change nothing without"),
        ({"exposure.lr": 0.1}, "exposure.lr changes nothing without exposure.enabled or exposure.grid."),
        ({"exposure.lr": 0.1, "exposure.grid": True}, None),
        (
            {"exposure.grid_size": 8, "exposure.enabled": True},
            "grid_size changes nothing without exposure.grid",
        ),
        ({"sky.enabled": True, "background": (1.0, 1.0, 1.0)}, "background changes nothing before a sky"),
        (
            {"densify.prune_scale2d": 0.1},
            "densify.prune_scale2d changes nothing without densify.stop_scale2d",
        ),
        ({"coarse.halves_from": 0.5}, "coarse.halves_from changes nothing beside exposure.grid, and in more"),
        ({"coarse.halves_from": 0.5, "steps": 7000}, None),
        ({"coarse.until": 0.35}, "coarse.until changes nothing without coarse.first."),
        ({"coarse.halves_until": 0.9}, "coarse.halves_until changes nothing without coarse.halves_from."),
        ({"shapes.min_views": 2, "shapes.min_views_every": 500}, None),
        ({"steps": 9, "densify.every": 50}, None),
        ({"strategy": "mcmc"}, "chooses its rules alone; --preset mcmc also sets what they work best with: "),
        ({"strategy": "absgrad"}, None),
    ],
)
def test_what_was_asked_for_and_changes_nothing_is_told(asked: dict[str, Any], sentence: str | None) -> None:
    config = TrainConfig()
    for path, value in asked.items():
        config = changed(config, path, value)
    notes = notes_on_settings(config, asked)
    assert len(notes) == (0 if sentence is None else 1) and all(
        sentence in note for note in notes if sentence
    )


def test_a_share_that_is_never_thinned_out_is_told() -> None:
    never = changed(
        changed(PRESETS["fast"].apply(TrainConfig()), "fast.thin_at", 1.0), "fast.thin_share", 0.5
    )
    told = ("fast.thin_share changes nothing where fast.thin_at is 1.",)
    assert notes_on_settings(never, {"fast.thin_share"}) == told
    assert notes_on_settings(changed(never, "fast.thin_at", 0.9), {"fast.thin_share"}) == ()


@pytest.mark.parametrize("name", PRESETS)
def test_of_what_a_preset_sets_nothing_is_told(name: str) -> None:
    preset = PRESETS[name]
    assert notes_on_settings(preset.apply(TrainConfig()), set(preset.settings)) == ()
    # What nobody asked for is not told either where the user switches off what it belongs to.
    off = {"dropout.rate": 0.0, "coarse.first": 1.0, "coarse.halves_from": 1.0}
    config = preset.apply(TrainConfig())
    for path, value in off.items():
        config = changed(config, path, value)
    assert notes_on_settings(config, {*preset.settings, *off}) == ()


def test_a_rank_of_a_launcher_says_so_too(blob_folder: Path, tmp_path: Path) -> None:
    config = TrainConfig(densify=DensifyConfig(prune_scale2d=0.1))
    asked: dict[str, Any] = {"given": {"densify.prune_scale2d", "mcmc.noise"}, "devices": AS_FOUND}
    _, notes = launched_job(blob_folder, config, tmp_path / "run", resume=False, **asked)
    assert [note.partition(":")[0] for note in notes] == [
        "The strategy default does not read mcmc.noise",
        "densify.prune_scale2d changes nothing without densify.stop_scale2d_step, until which it holds.",
    ]
