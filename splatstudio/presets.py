"""Presets: whole sets of settings by one name, each for one wish."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from splatstudio.config import TrainConfig, changed, value_of

PresetName = Literal["preview", "default", "quality", "mcmc", "fast"]


@dataclass(frozen=True)
class Preset:
    """Settings that belong together, by their dotted names, and what they are for."""

    name: str
    description: str  # one line
    settings: Mapping[str, Any]

    def apply(self, config: TrainConfig, given: Collection[str] = ()) -> TrainConfig:
        """Return `config` with the preset's settings, but for those in `given`, which the user asked for.

        What other presets set and this one does not takes its default again.
        """
        for path in dict.fromkeys(path for preset in _PRESETS for path in preset.settings):
            if path not in given:
                config = changed(config, path, self.settings.get(path, value_of(TrainConfig(), path)))
        return config


_PRESETS = (
    Preset(
        "preview",
        "A usable picture in the shortest time.",
        {"steps": 1500, "strategy": "fast", "coarse.first": 4.0, "coarse.until": 0.6},
    ),
    Preset("default", "The rules of Kerbl et al. 2023, as they are best known.", {}),
    Preset(
        "quality",
        "The rules of default with room for twice as many Gaussians, for large scenes.",
        {"densify.max_gaussians": 4_000_000},
    ),
    Preset(
        "mcmc",
        "A chosen number of Gaussians that move to where they are needed (Kheradmand et al. 2024).",
        {
            "strategy": "mcmc",
            "shapes.opacity_weight": 0.01,
            "shapes.scale_weight": 0.01,
        },
    ),
    Preset("fast", "About the picture of default with half of the Gaussians.", {"strategy": "fast"}),
)
PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in _PRESETS}


def preset_of(config: TrainConfig) -> str | None:
    """Return the name of the preset whose settings `config` has, of several the one that says most."""
    fitting = [
        preset
        for preset in _PRESETS
        if all(value_of(config, path) == value for path, value in preset.settings.items())
    ]
    return max(fitting, key=lambda preset: len(preset.settings)).name if fitting else None
