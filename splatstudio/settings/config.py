"""Every hyper-parameter of a training, declared once: default, help, range, and whether it may change live.

The command line, the studio's form and `run.json` are derived from these declarations.
"""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from splatstudio.settings.capture_config import (
    DepthConfig,
    DropoutConfig,
    ExposureConfig,
    PoseConfig,
    ShapeConfig,
    SkyConfig,
)
from splatstudio.settings.plateau_curve import PlateauConfig
from splatstudio.settings.setting import Setting, documented, setting, typed_path, typed_value
from splatstudio.settings.strategy_config import (
    AbsgradConfig,
    CoarseConfig,
    DensifyConfig,
    FastConfig,
    McmcConfig,
    StrategyName,
)

Precision = Literal["auto", "fp32", "mixed"]
Order = Literal["insertion", "morton"]

LIMIT = "densify.max_gaussians"  # the setting that `--max-splats` lowers


@documented
@dataclass(frozen=True)
class OptimConfig:
    """Learning rates of Adam; the defaults are those of gsplat's `default` preset."""

    means_lr: float = setting(
        1.6e-4, "Learning rate of positions, times the scene's extent.", 0, 1, live=True
    )
    means_lr_decay: float = setting(
        0.01, "Final learning rate of positions as a share of the initial one.", 1e-6, 1
    )
    scales_lr: float = setting(5e-3, "Learning rate of the log scales.", 0, 1, live=True)
    quats_lr: float = setting(1e-3, "Learning rate of the rotations.", 0, 1, live=True)
    opacities_lr: float = setting(5e-2, "Learning rate of the opacity logits.", 0, 1, live=True)
    sh0_lr: float = setting(2.5e-3, "Learning rate of the base color.", 0, 1, live=True)
    shN_lr: float = setting(1.25e-4, "Learning rate of the view-dependent color.", 0, 1, live=True)
    rest_lr_decay: float = setting(
        1.0, "Final value of the other learning rates as a share of the initial one; 1: constant.", 1e-6, 1
    )
    lr_scale_short_runs: float = setting(
        0.0,
        "In trainings of fewer than 30,000 steps, multiply all rates by (30,000 / steps) to this power.",
        0,
        1,
    )
    visible_only: bool = setting(
        False,
        "Update only splats visible in the photo, including Adam's moments; 0.4 to 1.3 dB worse in tests.",
        live=True,
    )


@documented
@dataclass(frozen=True)
class TrainConfig:
    """One training: what to optimize, how long, and what to write when."""

    steps: int = setting(30_000, "Training steps.", 1, 10**9, live=True)
    downscale: int = setting(1, "Divide the width and height of the photos by this (area filter).", 1, 64)
    images: str = setting(
        "", "Folder of the photos, inside or outside the scene, if it is not the one named in its files."
    )
    model: int = setting(
        -1,
        "Number of the COLMAP model to use if there are several; -1: the one with the most photos.",
        -1,
    )
    test_every: int = setting(8, "Hold out every n-th photo, sorted by name, for the test; 0: none.", 0)
    test_images: tuple[str, ...] = setting(
        (), "Names of the photos to hold out instead of every n-th one, separated by commas."
    )
    batch_size: int = setting(
        1, "Photos per step on each GPU (or CPU process); learning rates follow the total number.", 1, 64
    )
    accumulate: int = setting(
        1, "Rounds of batch_size photos per step: like a larger batch_size, but with less memory.", 1, 64
    )
    seed: int = setting(42, "Seed of every random choice.", -(2**63), 2**63 - 1)
    sh_degree: int = setting(3, "Highest degree of the spherical harmonics (view-dependent color).", 0, 3)
    sh_degree_every: int = setting(1000, "Steps between two increases of the degree in use.", 1)
    sh_photos: float = setting(
        0.0,
        "Photos needed per coefficient before a degree is used; 0: no minimum.",
        0,
    )
    sh_degree_limit: int = setting(
        3,
        "Highest degree in use from now on; coefficients of higher degrees stay unchanged.",
        0,
        3,
        live=True,
    )
    ssim_weight: float = setting(0.2, "Weight of 1 - SSIM in the loss; the rest is L1.", 0, 1, live=True)
    init_opacity: float = setting(0.1, "Opacity of the initial splats.", 0.001, 0.999)
    init_scale: float = setting(
        1.0, "Size of the initial splats relative to the distance to their neighbors.", 1e-3
    )
    init: str = setting(
        "", "Model to start from (a file, run or checkpoint), at full SH degree; default: the scene's points."
    )
    init_fit: bool = setting(
        False,
        "Rotate, scale and shift a starting model in other coordinates onto the scene's points.",
    )
    init_random: int = setting(20_000, "Number of random initial splats if the scene has no points.", 1)
    antialiased: bool = setting(False, "Reduce the opacity of splats smaller than a pixel (anti-aliasing).")
    background: tuple[float, float, float] = setting(
        (0.0, 0.0, 0.0),
        "Color behind the scene; photos with transparency learn over random ones.",
        0,
        1,
        live=True,
    )
    random_background: bool = setting(
        False, "Use a random background in each step, which discourages transparency.", live=True
    )
    near: float = setting(0.01, "Nearest depth that is rendered, in scene units.", 1e-6)
    far: float = setting(1e10, "Farthest depth that is rendered, in scene units.", 1e-6)
    eval_steps: tuple[int, ...] = setting(
        (7000, 30_000), "Steps after which the test photos are evaluated.", 1
    )
    eval_every: int = setting(
        -1,
        "Steps between two evaluations of the test photos, in addition to eval_steps; 0: none; -1: chosen"
        " from the number of photos to take about 2 % of the time.",
        -1,
        live=True,
    )
    stop_when_flat: bool = setting(
        False,
        "Save and end the training when the test PSNR stops improving; evaluates even if eval_every is 0.",
        live=True,
    )
    save_steps: tuple[int, ...] = setting((7000, 30_000), "Steps after which a checkpoint is written.", 1)
    save_minutes: float = setting(
        10.0,
        "Minutes between automatic checkpoints, each of which replaces the one before; 0: never. The first"
        " ones come sooner, after 1, 2, 4, ... minutes of training.",
        0,
        live=True,
    )
    keep: int = setting(
        0, "Number of newest checkpoints to keep; older ones are deleted. 0: keep all.", 0, live=True
    )
    precision: Precision = setting(  # noqa: RUF009 - likewise
        "auto",
        "Precision of what ranks exchange: everything in 32 bits (fp32), or colors and most gradients in 16"
        " (mixed); auto: mixed between machines, fp32 within one. No effect on one rank.",
    )
    order: Order = setting(  # noqa: RUF009 - likewise
        "insertion",
        "Order of the splats in memory: as inserted, or sorted along a Morton curve after each densification"
        " (morton), which is faster with very many splats. Random choices do not depend on it.",
    )
    strategy: StrategyName = setting(  # noqa: RUF009 - a field like the others, whose type has a name
        "default",
        "Densification strategy: how splats are added and removed; --preset also sets what suits it.",
    )
    optim: OptimConfig = field(default_factory=OptimConfig)
    densify: DensifyConfig = field(default_factory=DensifyConfig)
    absgrad: AbsgradConfig = field(default_factory=AbsgradConfig)
    exposure: ExposureConfig = field(default_factory=ExposureConfig)
    poses: PoseConfig = field(default_factory=PoseConfig)
    sky: SkyConfig = field(default_factory=SkyConfig)
    depth: DepthConfig = field(default_factory=DepthConfig)
    shapes: ShapeConfig = field(default_factory=ShapeConfig)
    dropout: DropoutConfig = field(default_factory=DropoutConfig)
    mcmc: McmcConfig = field(default_factory=McmcConfig)
    fast: FastConfig = field(default_factory=FastConfig)
    coarse: CoarseConfig = field(default_factory=CoarseConfig)
    flat: PlateauConfig = field(default_factory=PlateauConfig)


def check(config: Any, path: str = "") -> None:
    """Raise ValueError naming the first setting that lies outside its declared range (NaN included)."""
    for f in fields(config):
        value, name = getattr(config, f.name), path + f.name
        if is_dataclass(value):
            check(value, name + ".")
            continue
        declared: Setting | None = f.metadata.get("setting")
        for number in value if isinstance(value, tuple) else (value,):
            if declared is None or isinstance(number, (bool, str)):
                continue
            if isinstance(number, float) and math.isinf(number):
                raise ValueError(f"setting {name} is {number}, but must be a finite number")
            if declared.low is not None and not number >= declared.low:
                raise ValueError(f"setting {name} is {number}, but must be at least {declared.low:g}")
            if declared.high is not None and not number <= declared.high:
                raise ValueError(f"setting {name} is {number}, but must be at most {declared.high:g}")
            if declared.least is not None and 0 < number < declared.least:
                raise ValueError(
                    f"setting {name} is {number}, but must be 0, which is off, or at least {declared.least:g}"
                )


def declaration(cls: type, path: str) -> Setting:
    """Return what is declared of the setting at a dotted `path`, as "optim.means_lr".

    Raises ValueError where there is no such setting.
    """
    *groups, name = path.split(".")
    for group in groups:
        cls = typing.get_type_hints(cls).get(group, object) if is_dataclass(cls) else object
    declared = {f.name: f for f in fields(cls)}.get(name) if is_dataclass(cls) else None
    if declared is None:
        raise ValueError(f"unknown setting {path!r:.60}")
    if "setting" not in declared.metadata:
        names = ", ".join(f.name for f in fields(typing.get_type_hints(cls)[name]))
        raise ValueError(f"{path} is a group of settings: name one of it, {names}")
    return declared.metadata["setting"]


def value_of(config: Any, path: str) -> Any:
    """Return the value of the setting at a dotted `path`, as "optim.means_lr"."""
    for name in path.split("."):
        config = getattr(config, name)
    return config


def to_json(config: Any) -> dict[str, Any]:
    """Return a configuration as plain JSON values."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def from_json(cls: type, values: dict[str, Any]) -> Any:
    """Return the configuration that `to_json` wrote; missing settings take their defaults.

    Raises ValueError for an unknown setting, a value of the wrong type or outside its range.
    """
    config = _from_json(cls, values, "")
    check(config)
    return config


def changed(config: Any, path: str, value: Any) -> Any:
    """Return the configuration with one setting replaced; `path` is dotted, as "optim.means_lr".

    Raises ValueError for an unknown setting, a value of the wrong type or outside its range.
    """
    declaration(type(config), path)
    result = _replaced(config, path.split("."), value, path)
    check(result)
    return result


def _from_json(cls: type, values: Any, path: str) -> Any:
    if not isinstance(values, dict):
        raise ValueError(
            f"the settings {path.rstrip('.') or cls.__name__} must be an object, not {values!r:.60}"
        )
    hints, known = typing.get_type_hints(cls), {f.name for f in fields(cls)}
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise ValueError(f"unknown setting {path + name!r:.60}")
        if is_dataclass(hints[name]):
            arguments[name] = _from_json(hints[name], value, f"{path}{name}.")
        else:
            arguments[name] = typed_value(hints[name], value, f"setting {path}{name}")
    return cls(**arguments)


def _replaced(config: Any, path: list[str], value: Any, full_path: str) -> Any:
    head, *rest = path
    if rest:
        new = _replaced(getattr(config, head), rest, value, full_path)
    else:
        new = typed_value(typing.get_type_hints(type(config))[head], value, f"setting {full_path}")
    return dataclasses.replace(config, **{head: new})


def with_whole_paths(config: TrainConfig, scene_path: Path) -> TrainConfig:
    """Return the settings with the paths that they name made absolute, for other folders' use.

    A folder of photos that lies in the scene keeps its short name. Raises ValueError when nothing is
    there.
    """
    scene = scene_path if scene_path.is_dir() else scene_path.parent
    if config.images and not (scene / config.images).is_dir():
        folder = typed_path(config.images).resolve()
        if not folder.is_dir():
            raise ValueError(f"there is no folder of photos at {config.images}: correct --images")
        config = dataclasses.replace(config, images=str(folder))
    if not config.init:
        return config
    path = typed_path(config.init).resolve()
    if not path.exists():
        raise ValueError(f"there is no model to start from at {config.init}: give a file, run or checkpoint")
    return dataclasses.replace(config, init=str(path))


def differing(config: Any, other: Any, path: str = "") -> list[str]:
    """Return the dotted names of the settings in which two configurations of one class differ."""
    names: list[str] = []
    for f in fields(config):
        one, two = getattr(config, f.name), getattr(other, f.name)
        if is_dataclass(one):
            names += differing(one, two, path + f.name + ".")
        elif one != two:
            names.append(path + f.name)
    return names


# What a run that goes on may be told again: when to stop, to evaluate and to save.
FREE_ON_RESUME = (
    "images",  # the same photos may have been moved
    "steps",
    "eval_steps",
    "eval_every",
    "stop_when_flat",
    "save_steps",
    "save_minutes",
    "keep",
)


def settings_named(arguments: Iterable[str]) -> frozenset[str]:
    """Return the dotted names of the settings that a command's arguments give, whatever their values are.

    As "--steps 7", "--steps=7", "--optim.means-lr", "--densify.no-enabled".
    """
    known = set(setting_names(TrainConfig))
    named: set[str] = set()
    for argument in arguments:
        if argument.startswith("--"):
            *groups, last = argument[2:].partition("=")[0].replace("-", "_").split(".")
            named |= {".".join([*groups, name]) for name in (last, last.removeprefix("no_"))}
    return frozenset(named & known)


def setting_names(cls: Any, path: str = "") -> list[str]:
    """Return the dotted names of all settings of a class in the order of their declaration."""
    names: list[str] = []
    for name, hint in typing.get_type_hints(cls).items():
        names += setting_names(hint, f"{path}{name}.") if is_dataclass(hint) else [path + name]
    return names


def test_names(test_images: Collection[str]) -> frozenset[str]:
    """Return the names of the photos that are held out, which may be given one by one or by commas."""
    return frozenset(name.strip() for item in test_images for name in item.split(",") if name.strip())


def resumed(saved: TrainConfig, asked: TrainConfig, given: Collection[str]) -> TrainConfig:
    """Return the settings with which a run goes on: its own, and of `FREE_ON_RESUME` those that were given.

    `given` are the dotted names of the settings of `asked` that the user named. Raises ValueError for one
    that differs from the run's and is not about when to stop, to evaluate and to save.
    """
    if test_names(asked.test_images) == test_names(saved.test_images):
        asked = dataclasses.replace(asked, test_images=saved.test_images)
    fixed = [name for name in differing(asked, saved) if name in given and name not in FREE_ON_RESUME]
    if fixed:
        raise ValueError(
            f"a run goes on with its own settings, but {', '.join(fixed)} would change; omit that, "
            "or start a new training instead"
        )
    return dataclasses.replace(
        saved, **{name: getattr(asked, name) for name in FREE_ON_RESUME if name in given}
    )
