"""Settings of one strategy under another: they are named at the start, and the page does not offer them."""

from __future__ import annotations

from pathlib import Path

import pytest

from splatstudio.config import TrainConfig, changed, value_of
from splatstudio.scene.scene import Scene
from splatstudio.strategy_config import note_on_unread, unread_settings
from splatstudio.studio.panels.settings import switched_off
from splatstudio.studio.project import open_project
from splatstudio.trainer import Trainer


def test_what_another_strategy_reads_is_named() -> None:
    given = ["steps", "densify.grow_grad", "densify.enabled", "fast.views", "mcmc.noise", "absgrad.grow_grad"]
    assert unread_settings("default", given) == ["absgrad.grow_grad", "fast.views", "mcmc.noise"]
    assert unread_settings("absgrad", given) == ["densify.grow_grad", "fast.views", "mcmc.noise"]
    assert unread_settings("mcmc", given) == ["absgrad.grow_grad", "densify.grow_grad", "fast.views"]
    assert unread_settings("fast", given) == ["absgrad.grow_grad", "densify.grow_grad", "mcmc.noise"]
    assert note_on_unread("default", ["steps", "densify.every"]) is None


def test_the_studio_says_so_at_the_start(blob_folder: Path, tmp_path: Path) -> None:
    config = TrainConfig(strategy="fast")
    project = open_project(blob_folder, config, tmp_path / "run", {"strategy", "densify.grow_grad"})
    assert "The strategy fast does not read densify.grow_grad: it changes nothing." in project.notes
    project = open_project(blob_folder, config, tmp_path / "run", {"strategy", "densify.start_step"})
    assert not any("does not read" in note for note in project.notes)


@pytest.mark.parametrize("strategy", ["default", "absgrad", "mcmc", "fast"])
def test_what_is_called_unread_changes_nothing(blob_scene: Scene, strategy: str) -> None:
    """Trained twice, with other values of all that is called unread: bit for bit the same."""
    changes = {"densify.grow_grad": 1.0, "densify.every": 7, "densify.prune_opacity": 0.3}
    changes |= {"densify.grow_scale3d": 0.5, "densify.start_step": 3, "densify.stop_step": 9}
    changes |= {"densify.reset_every": 11, "densify.prune_scale3d": 0.01, "densify.prune_scale2d": 0.01}
    changes |= {"fast.every": 3, "fast.grow_grad": 1.0, "mcmc.every": 3, "mcmc.noise": 1.0}
    changes |= {"absgrad.grow_grad": 1.0, "densify.max_gaussians": 61}
    losses = []
    unread = unread_settings(strategy, changes)  # type: ignore[arg-type]
    base = TrainConfig(steps=30, strategy=strategy)  # type: ignore[arg-type]
    for path in ("fast.every", "mcmc.every", "densify.every"):
        base = changed(base, path, 5)
    other = base
    for path in unread:
        assert changes[path] != value_of(base, path)
        other = changed(other, path, changes[path])
    for config in (base, other):
        trainer = Trainer(blob_scene, config)
        losses.append([trainer.train_step().loss for _ in range(30)])
        trainer.close()
    assert losses[0] == losses[1] and len(unread) >= 3


def test_the_page_offers_no_setting_of_what_a_run_was_started_without() -> None:
    paths = ["steps", "exposure.lr", "exposure.grid_smooth", "poses.lr", "sky.lr", "shapes.max_ratio"]
    assert switched_off(TrainConfig(), paths) == ["exposure.lr", "exposure.grid_smooth", "poses.lr", "sky.lr"]
    config = changed(changed(TrainConfig(), "exposure.enabled", True), "sky.enabled", True)
    assert switched_off(config, paths) == ["exposure.grid_smooth", "poses.lr"]
    assert switched_off(changed(config, "exposure.grid", True), paths) == ["poses.lr"]
