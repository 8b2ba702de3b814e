"""Live settings: each changes what the next steps do, and nothing before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from splatstudio.scene.scene import Scene
from splatstudio.settings.capture_config import ExposureConfig, PoseConfig, ShapeConfig, SkyConfig
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import AbsgradConfig, DensifyConfig
from splatstudio.training.trainer import Trainer

# Short enough that all that may happen in a training happens: more degrees, growth, pruning.
CONFIG = TrainConfig(
    steps=200,
    sh_degree=1,
    sh_degree_every=2,
    densify=DensifyConfig(start_step=0, every=5, grow_grad=1e-5),
)
BEFORE, AFTER = 4, 8  # steps before and after the change; Gaussians are added in between

# With what has the setting of a group, or a single one, that does nothing without.
BASES = {
    "exposure": replace(CONFIG, exposure=ExposureConfig(enabled=True, grid=True)),
    "poses": replace(CONFIG, poses=PoseConfig(enabled=True, start_step=0)),
    "sky": replace(CONFIG, sky=SkyConfig(enabled=True)),
    "absgrad": replace(CONFIG, strategy="absgrad", absgrad=AbsgradConfig(grow_grad=1e-5)),
    "shapes.min_views": replace(CONFIG, shapes=ShapeConfig(min_views_every=10)),
}

# Another value of each live setting, and what it must change: a tensor's name, "num", or "loss". Tensors are
# those of the model, and with a dot those of the corrections.
CHANGES: dict[str, tuple[Any, str]] = {
    "steps": (20, "means"),  # the rate of the positions falls faster
    "sh_degree_limit": (0, "shN"),
    "ssim_weight": (0.9, "loss"),
    "background": ((1.0, 1.0, 1.0), "loss"),
    "random_background": (True, "loss"),
    "optim.means_lr": (1e-2, "means"),
    "optim.scales_lr": (0.1, "scales"),
    "optim.quats_lr": (0.1, "quats"),
    "optim.opacities_lr": (0.5, "opacities"),
    "optim.sh0_lr": (0.1, "sh0"),
    "optim.shN_lr": (0.1, "shN"),
    "densify.enabled": (False, "num"),
    "densify.grow_grad": (1.0, "num"),
    "densify.prune_opacity": (0.1, "num"),
    "densify.max_gaussians": (61, "num"),
    "absgrad.grow_grad": (1.0, "num"),
    "exposure.lr": (0.5, "exposure.values"),
    "exposure.stay": (100.0, "exposure.values"),
    "exposure.grid_smooth": (1e4, "exposure.values"),
    "poses.lr": (0.01, "poses.values"),
    "sky.lr": (0.1, "sky.values"),
    "shapes.opacity_weight": (5.0, "opacities"),
    "shapes.scale_weight": (5.0, "scales"),
    "shapes.max_scale": (0.01, "scales"),
    "shapes.max_ratio": (1.01, "scales"),
    "shapes.max_thickness": (0.01, "scales"),
    "shapes.min_views": (7, "num"),
}
ELSEWHERE = {
    "eval_every",  # read by who evaluates
    "stop_when_flat",  # likewise
    "keep",  # read by who writes checkpoints
    "save_minutes",  # likewise
    "optim.visible_only",  # changes nothing where every photo shows all Gaussians, as here
}


def live_paths(config: Any, prefix: str = "") -> Iterator[str]:
    for field in fields(config):
        if is_dataclass(getattr(config, field.name)):
            yield from live_paths(getattr(config, field.name), prefix + field.name + ".")
        elif "setting" in field.metadata and field.metadata["setting"].live:
            yield prefix + field.name


def test_every_live_setting_is_tested_here() -> None:
    assert set(live_paths(TrainConfig())) == set(CHANGES) | ELSEWHERE


def base_of(path: str) -> TrainConfig:
    """Return the settings beside which the live setting `path` is tested."""
    return BASES.get(path, BASES.get(path.partition(".")[0], CONFIG))


def trained(
    scene: Scene, config: TrainConfig, change: tuple[str, Any] | None = None
) -> tuple[Trainer, list[float]]:
    """Return a trainer after BEFORE + AFTER steps, with one setting changed in between, and its losses."""
    trainer = Trainer(scene, config)
    losses = [trainer.train_step().loss for _ in range(BEFORE)]
    if change is not None:
        trainer.update_setting(*change)
    losses += [trainer.train_step().loss for _ in range(AFTER)]
    trainer.close()
    return trainer, losses


@pytest.fixture(scope="module")
def unchanged(blob_scene: Scene) -> Callable[[str], tuple[Trainer, list[float]]]:
    """Return for a live setting the training in which it stays as it is."""
    kept: dict[TrainConfig, tuple[Trainer, list[float]]] = {}

    def of(path: str) -> tuple[Trainer, list[float]]:
        config = base_of(path)
        if config not in kept:
            kept[config] = trained(blob_scene, config)
        return kept[config]

    return of


def tensor_of(trainer: Trainer, name: str) -> torch.Tensor:
    if "." not in name:
        return trainer.gaussians.tensors()[name]
    corrections = trainer.checkpoint().corrections
    assert corrections is not None
    return corrections.tensors[name]


@pytest.mark.parametrize("path", sorted(CHANGES))
def test_a_live_setting_holds_from_the_next_step_on(
    blob_scene: Scene, unchanged: Callable[[str], tuple[Trainer, list[float]]], path: str
) -> None:
    value, what = CHANGES[path]
    trainer, losses = trained(blob_scene, base_of(path), (path, value))
    before, before_losses = unchanged(path)
    assert losses[:BEFORE] == before_losses[:BEFORE]
    if what == "loss":
        assert losses[BEFORE] != before_losses[BEFORE], "the very next step takes it"
    elif what == "num":
        assert len(trainer.gaussians) < len(before.gaussians)
        if path == "densify.max_gaussians":
            assert len(trainer.gaussians) == value
    else:
        one, two = tensor_of(trainer, what), tensor_of(before, what)
        assert one.shape != two.shape or not torch.equal(one, two)


def test_the_degree_in_use_falls_and_rises_with_its_limit(blob_scene: Scene) -> None:
    trainer = Trainer(blob_scene, replace(CONFIG, sh_degree_every=1, densify=DensifyConfig(enabled=False)))
    assert [trainer.train_step().sh_degree for _ in range(3)] == [0, 1, 1]
    kept = trainer.gaussians.shN.clone()
    assert kept.abs().max() > 0
    trainer.update_setting("sh_degree_limit", 0)
    assert [trainer.train_step().sh_degree for _ in range(2)] == [0, 0]
    assert torch.equal(trainer.gaussians.shN, kept), "what is not in use is kept"
    trainer.update_setting("sh_degree_limit", 3)
    assert trainer.train_step().sh_degree == 1
    trainer.close()


def test_a_resumed_training_keeps_what_was_changed(blob_scene: Scene, tmp_path: Path) -> None:
    trainer = Trainer(blob_scene, CONFIG)
    trainer.train_step()
    for path, (value, _) in CHANGES.items():
        trainer.update_setting(path, value)
    folder = trainer.save(tmp_path)
    trainer.close()
    again = Trainer.resume(blob_scene, folder)
    assert again.config == trainer.config
    again.close()
