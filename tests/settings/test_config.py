"""Settings: each is declared once with help and range, and only values of the right kind get in."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from splatstudio.settings.config import (
    OptimConfig,
    TrainConfig,
    changed,
    check,
    declaration,
    from_json,
    to_json,
)
from splatstudio.settings.strategy_config import DensifyConfig


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
        ("densify", 1, "unknown setting 'densify'"),
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
