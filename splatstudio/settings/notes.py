"""What a user should know of the settings that were asked for: which of them change nothing, and why."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from splatstudio.settings.config import TrainConfig, value_of
from splatstudio.settings.presets import PRESETS, Preset
from splatstudio.settings.strategy_config import note_on_unread


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
        frozenset({"coarse.halves_within"}),
        "without coarse.halves_from",
        lambda config: not config.coarse.halves_from < 1.0,
    ),
    _Idle(
        frozenset({"coarse.halves_from"}),
        "beside exposure.grid, and in more steps than coarse.halves_within: photographs stay whole",
        lambda config: (
            config.coarse.halves_from < 1.0
            and (config.exposure.grid or config.steps > config.coarse.halves_within)
        ),
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
