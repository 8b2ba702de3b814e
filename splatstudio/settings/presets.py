"""Sets of settings tuned for one goal each, and notes on settings that do not go together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from splatstudio.settings.config import TrainConfig, changed, value_of
from splatstudio.settings.strategy_config import note_on_unread

PresetName = Literal["preview", "default", "quality", "mcmc", "fast", "surface"]


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
        for path in _paths():
            if path not in given:
                config = changed(config, path, self._value(path))
        return config

    def changes(self, config: TrainConfig) -> list[str]:
        """Return the names of the settings of `config` that any preset sets and that are not this one's."""
        return [path for path in _paths() if value_of(config, path) != self._value(path)]

    def _value(self, path: str) -> Any:
        return self.settings.get(path, value_of(TrainConfig(), path))


# Rates that are large at first, the larger the shorter the training, and come to rest; colors that depend on
# the view early, but only as far as the photos can tell.
_BRISK: Mapping[str, Any] = {
    "optim.lr_scale_short_runs": 0.4,
    "optim.rest_lr_decay": 0.15,
    # Sizes and rotations twice as fast as in `default`, colors by the view 2.4 times, opacities 0.7 times: in
    # 2000 steps +0.3 dB and +.010 SSIM with `fast`, +0.4 and +.008 with `mcmc` (means of five scenes, three
    # seeds), in 7000 with `fast` +0.4 dB on statue and drone, and nothing on the fox.
    "optim.scales_lr": 1e-2,
    "optim.quats_lr": 2e-3,
    "optim.shN_lr": 3e-4,
    "optim.opacities_lr": 0.035,
    "sh_degree_every": 200,
    # Gives the 43 photos of the fox degree 3: +0.3 dB with `fast` in 2000 steps, +0.4 in 7000, and
    # +0.2 with `mcmc`.
    "sh_photos": 2.5,
}
# Where a scene tells which photo shows which point. Two sets of held-out photos each, 2000 steps: with `mcmc`
# +0.8 dB on the statue (full orbit, far background), +0.2 on the banana, nothing on drone and fox.
_POINTS: Mapping[str, Any] = {"depth.weight": 0.1}
# With 11 or 12 photos of the banana, 7000 steps came to show those better and all else worse: there this
# is 0.7 to 1.6 dB with `mcmc`. With 13 of the fox it costs 0.1 to 0.2 dB; with all 43 it is off.
_FEW: Mapping[str, Any] = {"dropout.rate": 0.12}
_MCMC: Mapping[str, Any] = {
    **_BRISK,
    "strategy": "mcmc",
    # The paper's 0.01 costs 0.2 dB on statue, drone and banana beside the points' depths, and 1 on the statue
    # without them.
    "shapes.opacity_weight": 0.003,
    "shapes.scale_weight": 0.01,
    **_POINTS,
    **_FEW,
    "dropout.grown_at": 4000,  # +0.4 dB on the banana in 2000 steps
}
# Small photos first, then halves, and whole ones again in the end: two thirds of the time of whole ones of
# full size, for 0.1 dB (2000 steps, means of five scenes).
_FAST: Mapping[str, Any] = {
    **_MCMC,
    "strategy": "fast",
    "coarse.first": 4.0,
    "coarse.until": 0.4,
    "coarse.halves_from": 0.4,
    "coarse.halves_until": 0.8,
    "mcmc.noise_every": 4,
}
_PRESETS = (
    Preset(
        "preview",
        "A usable result in the shortest time.",
        {**_FAST, "steps": 1500, "fast.density": 0.09, "coarse.halves_until": 1.0},
    ),
    Preset("default", "The original 3DGS method (Kerbl et al. 2023).", {}),
    Preset(
        "quality",
        "Like mcmc with twice as many splats: the finest detail.",
        {**_MCMC, "mcmc.density": 0.6},
    ),
    Preset(
        "mcmc",
        "A fixed number of splats, moved to where they are needed (Kheradmand et al. 2024).",
        _MCMC,
    ),
    Preset(
        "fast",
        "Nearly mcmc's quality in about half its time, with half its splats.",
        _FAST,
    ),
    Preset(
        "surface",
        "Flat splats that lie on surfaces, for meshes and measuring.",
        {"shapes.max_thickness": 0.1},
    ),
)
PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in _PRESETS}


def _paths() -> list[str]:
    """Return the names of all settings that any preset sets."""
    return list(dict.fromkeys(path for preset in _PRESETS for path in preset.settings))


def nearest_preset(config: TrainConfig) -> Preset:
    """Return the preset from which `config` differs least: one of its strategy, if there is one.

    Of all settings the number of steps says least about what was chosen.
    """

    def distance(preset: Preset) -> tuple[bool, int, int]:
        changes = preset.changes(config)
        return "strategy" in changes, len(set(changes) - {"steps"}), len(changes)

    return min(_PRESETS, key=distance)


def preset_in_words(config: TrainConfig) -> str:
    """Return which preset a training is of, with "changed" where some of its settings were: "fast, changed".

    How many steps it has says nothing about that.
    """
    preset = nearest_preset(config)
    return preset.name + (", changed" if set(preset.changes(config)) - {"steps"} else "")


def applied_settings(config: TrainConfig, given: Collection[str]) -> frozenset[str]:
    """Return the names of the settings of the preset from which `config` differs in some of `given` alone."""
    for preset in (PRESETS["default"], *_PRESETS):
        if set(preset.changes(config)) <= set(given):
            return frozenset(preset.settings)
    return frozenset()


@dataclass(frozen=True)
class _Idle:
    """Settings that change nothing unless something else is as it must be."""

    names: frozenset[str]
    why: str  # behind "changes nothing"
    is_idle: Callable[[TrainConfig], bool]


def _exposed(config: TrainConfig) -> bool:
    return config.exposure.enabled or config.exposure.grid


_RULES = (
    _Idle(
        frozenset({"exposure.lr", "exposure.lr_decay", "exposure.stay"}),
        "without exposure.enabled or exposure.grid",
        lambda config: not _exposed(config),
    ),
    _Idle(
        frozenset({"exposure.grid_size", "exposure.grid_depth", "exposure.grid_smooth"}),
        "without exposure.grid",
        lambda config: not config.exposure.grid,
    ),
    _Idle(
        frozenset({"poses.start_step", "poses.lr", "poses.lr_decay"}),
        "without poses.enabled",
        lambda config: not config.poses.enabled,
    ),
    _Idle(frozenset({"sky.degree", "sky.lr"}), "without sky.enabled", lambda config: not config.sky.enabled),
    _Idle(frozenset({"background"}), "before a sky (sky.enabled)", lambda config: config.sky.enabled),
    _Idle(
        frozenset({"depth.weight_decay"}), "without depth.weight", lambda config: not config.depth.weight > 0
    ),
    _Idle(
        frozenset({"shapes.min_views_every"}),
        "without shapes.min_views",
        lambda config: not config.shapes.min_views > 0,
    ),
    _Idle(
        frozenset({"dropout.grown_at", "dropout.photos"}),
        "without dropout.rate",
        lambda config: not config.dropout.rate > 0,
    ),
    _Idle(frozenset({"coarse.until"}), "without coarse.first", lambda config: not config.coarse.first > 1.0),
    _Idle(
        frozenset({"coarse.halves_within", "coarse.halves_until"}),
        "without coarse.halves_from",
        lambda config: not config.coarse.halves_from < 1.0,
    ),
    _Idle(
        frozenset({"coarse.halves_from"}),
        "beside exposure.grid, and in more steps than coarse.halves_within: photos stay whole",
        lambda config: (
            config.coarse.halves_from < 1.0
            and (config.exposure.grid or config.steps > config.coarse.halves_within)
        ),
    ),
    _Idle(
        frozenset({"fast.thin_share", "fast.min_weight"}),
        "where fast.thin_at is 1",
        lambda config: not config.fast.thin_at < 1.0,
    ),
    _Idle(
        frozenset({"densify.grow_scale2d", "densify.prune_scale2d"}),
        "without densify.stop_scale2d_step, until which it holds",
        lambda config: not config.densify.stop_scale2d_step > 0,
    ),
)


def switched_off(config: TrainConfig, names: Iterable[str]) -> list[str]:
    """Return those of the settings `names` that change nothing for what `config` has switched off."""
    off = frozenset().union(*(rule.names for rule in _RULES if rule.is_idle(config)))
    # Beside a sky it is refused.
    off |= {"random_background"} if config.sky.enabled else frozenset()
    return [name for name in names if name in off]


def notes_on_settings(config: TrainConfig, given: Collection[str]) -> tuple[str, ...]:
    """Return a sentence on each reason for which settings `given` do not do what one may expect of them."""
    unread = note_on_unread(config.strategy, given)
    notes = [] if unread is None else [unread]
    for rule in _RULES:
        idle = sorted(name for name in rule.names.intersection(given) if not _is_of_a_preset(config, name))
        if idle and rule.is_idle(config):
            verb = "changes" if len(idle) == 1 else "change"
            notes.append(f"{' and '.join(idle)} {verb} nothing {rule.why}.")
    missing = _left_by_strategy(config, given)
    if missing:
        notes.append(
            f"--strategy {config.strategy} chooses its rules alone; --preset {config.strategy} also sets what"
            f" they work best with: {', '.join(missing)}."
        )
    return tuple(notes)


def _is_of_a_preset(config: TrainConfig, name: str) -> bool:
    """Return whether a setting has a value that some preset gives it: then nobody may have asked for it."""
    value = value_of(config, name)
    return any(preset.settings.get(name) == value for preset in PRESETS.values())


def _left_by_strategy(config: TrainConfig, given: Collection[str]) -> list[str]:
    """Return what the preset of a strategy that was asked for by itself sets, and nobody else has set."""
    if config.strategy not in PRESETS or "strategy" not in given:
        return []
    plain = TrainConfig()

    def left(preset: Preset) -> list[str]:
        unset = [name for name in preset.settings if name not in given]
        return [name for name in unset if value_of(config, name) == value_of(plain, name)]

    # Of several presets with the strategy any may have been chosen.
    alike = [preset for preset in PRESETS.values() if preset.settings.get("strategy") == config.strategy]
    return left(PRESETS[config.strategy]) if all(left(preset) for preset in alike) else []
