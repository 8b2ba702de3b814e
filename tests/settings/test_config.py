"""Settings: each is declared once with help and range, and only values of the right kind get in."""

from __future__ import annotations

import math
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from splatstudio.cli import main as cli
from splatstudio.settings.config import (
    OptimConfig,
    TrainConfig,
    changed,
    check,
    declaration,
    from_json,
    to_json,
    value_of,
)
from splatstudio.settings.presets import PRESETS, applied_settings, nearest_preset
from splatstudio.settings.strategy_config import DensifyConfig
from splatstudio.training.data.resolution import sh_degree_at

OF_DENSIFY = [field.name for field in fields(DensifyConfig)]


@pytest.mark.parametrize("cls", [TrainConfig, OptimConfig, DensifyConfig])
def test_every_setting_has_a_help_that_is_in_the_docstring(cls: type) -> None:
    for f in fields(cls):
        if not is_dataclass(f.default_factory):
            text = f.metadata["setting"].help
            assert text.endswith(".") and text in (cls.__doc__ or "")


def test_json_gives_the_same_configuration_back() -> None:
    config = TrainConfig(steps=10, background=(0.1, 0.2, 0.3), eval_steps=(1, 5), save_steps=())
    config = changed(config, "optim.means_lr", 0.5)
    assert from_json(TrainConfig, to_json(config)) == config


def test_missing_settings_take_their_defaults() -> None:
    assert from_json(TrainConfig, {"steps": 5, "densify": {"every": 7}}) == TrainConfig(
        steps=5, densify=DensifyConfig(every=7)
    )


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("steps", 0, "setting steps is 0, but must be at least 1"),
        ("steps", 2.5, "setting steps must be a whole number, not 2.5"),
        ("steps", True, "setting steps must be a whole number, not True"),
        ("antialiased", 1, "setting antialiased must be true or false, not 1"),
        ("ssim_weight", 1.5, "setting ssim_weight is 1.5, but must be at most 1"),
        ("ssim_weight", math.nan, "setting ssim_weight is nan, but must be at least 0"),
        ("ssim_weight", "0.2", "setting ssim_weight must be a number, not '0.2'"),
        ("background", (0.0, 0.0), "setting background must be 3 numbers, not (0.0, 0.0)"),
        ("background", (0.0, 0.0, math.nan), "setting background is nan, but must be at least 0"),
        ("eval_steps", (100, 0), "setting eval_steps is 0, but must be at least 1"),
        ("densify.prune_opacity", 0.6, "setting densify.prune_opacity is 0.6, but must be at most 0.4"),
        ("densify.nothing", 1, "unknown setting 'densify.nothing'"),
        ("densify", 1, f"densify is a group of settings: name one of it, {', '.join(OF_DENSIFY)}"),
        ("steps", 10**20, "setting steps is 100000000000000000000, but must be at most 1e+09"),
        ("seed", 2**63, "setting seed is 9223372036854775808, but must be at most 9.22337e+18"),
        ("init_scale", math.inf, "setting init_scale is inf, but must be a finite number"),
        ("steps.more", 1, "unknown setting 'steps.more'"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name(path: str, value: Any, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        changed(TrainConfig(), path, value)
    assert str(caught.value) == sentence


def test_whole_numbers_serve_as_floats_and_lists_as_tuples() -> None:
    assert changed(TrainConfig(), "background", [1, 0, 0]).background == (1.0, 0.0, 0.0)
    assert isinstance(changed(TrainConfig(), "ssim_weight", 1).ssim_weight, float)


@pytest.mark.parametrize("values", [{"stepz": 1}, {"optim": 3}, {"optim": {"lr": 1}}, {"steps": "many"}])
def test_a_file_with_wrong_settings_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"setting"):
        from_json(TrainConfig, values)


def test_check_finds_a_wrong_value_in_a_nested_group() -> None:
    with pytest.raises(ValueError, match=r"optim\.quats_lr is nan"):
        check(TrainConfig(optim=OptimConfig(quats_lr=math.nan)))


def test_what_may_change_live_is_declared() -> None:
    assert declaration(TrainConfig, "optim.means_lr").live
    assert not declaration(TrainConfig, "sh_degree").live


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


def test_fast_takes_the_highest_colors_of_forty_photos_and_few_of_twelve() -> None:
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
    assert cli.run_command(*arguments) == 0
    (_, config, _), asked = seen[0]
    assert config == PRESETS["quality"].apply(TrainConfig(steps=7), {"steps"})
    assert asked["given"] == {"steps", *PRESETS["quality"].settings}
    with pytest.raises(ValueError, match="its own settings"):
        cli.run_command(*arguments, "--resume")
