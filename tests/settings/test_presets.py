"""Presets, and what the settings of older runs are called now."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from splatstudio.cli import main as cli
from splatstudio.settings.config import TrainConfig, changed, from_json, value_of
from splatstudio.settings.presets import PRESETS, applied_settings, nearest_preset
from splatstudio.training.data.resolution import sh_degree_at


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_is_applied_known_again_and_undone_by_another(name: str) -> None:
    applied = PRESETS[name].apply(TrainConfig())
    for path, value in PRESETS[name].settings.items():
        assert value_of(applied, path) == value
    assert PRESETS["default"].apply(applied) == TrainConfig()
    assert len(PRESETS[name].description) > 10 and "\n" not in PRESETS[name].description


def test_what_was_given_wins_over_the_preset() -> None:
    config = TrainConfig(steps=777, strategy="default")
    applied = PRESETS["fast"].apply(config, {"steps", "strategy"})
    assert (applied.steps, applied.strategy) == (777, "default")
    assert PRESETS["preview"].apply(config, ()).steps != 777


def test_the_nearest_preset_is_one_of_the_strategy_and_its_changes_are_named() -> None:
    config = changed(PRESETS["mcmc"].apply(TrainConfig()), "shapes.opacity_weight", 0.0)
    config = changed(config, "shapes.scale_weight", 0.0)
    assert nearest_preset(config).name == "mcmc"
    assert nearest_preset(config).changes(config) == ["shapes.opacity_weight", "shapes.scale_weight"]
    assert PRESETS["default"].changes(TrainConfig(strategy="mcmc")) == ["strategy"]
    short = PRESETS["preview"].apply(TrainConfig(steps=77), {"steps"})
    assert nearest_preset(short).name == "preview" and nearest_preset(short).changes(short) == ["steps"]
    longer = PRESETS["fast"].apply(TrainConfig(steps=2000), {"steps"})
    assert nearest_preset(longer).name == "fast" and nearest_preset(longer).changes(longer) == ["steps"]
    brief = PRESETS["fast"].apply(TrainConfig(steps=PRESETS["preview"].settings["steps"]), {"steps"})
    assert nearest_preset(brief).name == "fast" and nearest_preset(brief).changes(brief) == ["steps"]
    assert nearest_preset(TrainConfig(strategy="absgrad")).name == "default"
    assert applied_settings(short, {"steps"}) == set(PRESETS["preview"].settings)
    assert applied_settings(short, {"steps", *PRESETS["preview"].settings}) == set()
    assert applied_settings(config, {"strategy"}) == set()


def test_fast_takes_the_highest_colours_of_forty_photographs_and_few_of_twelve() -> None:
    for name in ("fast", "preview"):
        config = PRESETS[name].apply(TrainConfig(steps=2000))
        assert [sh_degree_at(1999, config, num) for num in (12, 30, 43)] == [1, 2, 3]


def test_the_command_trains_with_the_preset(
    blob_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, seen = tmp_path / "run", []
    monkeypatch.setattr("splatstudio.cli.train.train_scene", lambda *a, **k: seen.append((a, k)) or 0)
    arguments = ["train", str(blob_folder), "--preset", "quality", "--steps", "7", "--run", str(run)]
    monkeypatch.setattr(sys, "argv", ["splatstudio", *arguments])
    assert cli.app.cli(prog="splatstudio", args=arguments) == 0
    (_, config, _), asked = seen[0]
    assert config == PRESETS["quality"].apply(TrainConfig(steps=7), {"steps"})
    assert asked["given"] == {"steps", *PRESETS["quality"].settings}
    with pytest.raises(ValueError, match="its own settings"):
        cli.app.cli(prog="splatstudio", args=[*arguments, "--resume"])


def test_older_settings_are_read_by_their_old_name() -> None:
    old = json.loads('{"steps": 9, "densify": {"absgrad": true, "grow_grad": 0.001, "every": 50}}')
    config = from_json(TrainConfig, old)
    assert (config.strategy, config.absgrad.grow_grad, config.densify.every) == ("absgrad", 0.001, 50)
    config = from_json(TrainConfig, {"densify": {"absgrad": False}})
    assert config == TrainConfig()
