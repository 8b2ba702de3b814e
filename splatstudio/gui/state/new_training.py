"""The settings of a training that is still to be started, made to fit into the memory where it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from splatstudio.gui.state.project import Fit, Project
from splatstudio.gui.state.status import Notice
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig, changed
from splatstudio.settings.presets import PRESETS
from splatstudio.train.device_options import DeviceOptions
from splatstudio.train.memory_plan import describe, plan_memory, sizes_of, splats_wanted

LIMIT = "densify.max_gaussians"


def on_devices(project: Project, options: DeviceOptions) -> Project:
    """Return the project with where it trains; settings of a new training are made to fit as asked.

    Of a run that goes on the limit on the number of splats alone. Raises ValueError for devices that are not
    there, or without the memory for any training.
    """
    options.check_alone()
    project = replace(project, devices=options.chosen())
    if project.scene is None or not project.can_train:
        return project
    if project.model_path is not None:
        return _limited(project, project.scene, options)
    fitting, sentence = _fitted(replace(project, fit=Fit(options)), project.config)
    return replace(fitting, notes=(*project.notes, sentence))


def with_settings(project: Project, values: Mapping[str, Any]) -> tuple[Project, Notice | None]:
    """Return the project with other settings by dotted names, and what is to be told of what fits.

    A limit that the user types is not made smaller. Raises ValueError for what cannot be.
    """
    config = project.config_with(values)
    project = replace(project, given=project.given | values.keys())
    if LIMIT in values:
        project = replace(project, fit=Fit(replace(project.fit.options, max_splats=values[LIMIT])))
    if not _moves_what_fits(project, values):
        return replace(project, config=config), None
    return _fitted_and_told(project, config)


def _moves_what_fits(project: Project, values: Mapping[str, Any]) -> bool:
    """Say whether what fits, or how many splats *fast* chooses, depends on one of `values`."""
    chooses = project.config.strategy == "fast" and project.fit.options.max_splats is None
    return not values.keys().isdisjoint({LIMIT, "downscale", "steps"} if chooses else {LIMIT, "downscale"})


def with_preset(project: Project, name: str) -> tuple[Project, Notice | None]:
    """Return the project with a preset's settings, but for those that the user asked for, and the same."""
    return _fitted_and_told(project, PRESETS[name].apply(project.config, project.given))


def _fitted_and_told(project: Project, config: TrainConfig) -> tuple[Project, Notice | None]:
    fitting, sentence = _fitted(project, config)
    asked = changed(config, LIMIT, fitting.fit.asked)
    if _numbers(fitting.config) not in (_numbers(asked), _numbers(project.config)):
        return fitting, Notice("Made to fit", sentence)
    return fitting, _shortage(fitting) if isinstance(fitting.fit.options.max_splats, int) else None


def _shortage(project: Project) -> Notice | None:
    """Return what to tell of a training for which there is not the memory, None where there is."""
    assert project.scene is not None
    scene = project.scene.resized(project.config.downscale)
    plan = plan_memory(project.config, sizes_of(scene), project.devices)
    wanted = splats_wanted(project.config, scene)
    if wanted <= plan.num_splats:
        return None
    sentences = describe(plan, wanted, "lower Max splats, or choose smaller photographs")
    return Notice("May not fit", sentences, bad=True)


def _numbers(config: TrainConfig) -> tuple[int, ...]:
    return config.densify.max_gaussians, config.batch_size, config.accumulate


def _fitted(project: Project, config: TrainConfig) -> tuple[Project, str]:
    """Return the project with `config` as it fits, and a sentence on what it needs.

    The limit on splats is made from the one that was asked for, so that it rises again with more room; one
    that a running training was given since is kept.
    """
    assert project.scene is not None
    fit, limit = project.fit, config.densify.max_gaussians
    if limit == fit.made:
        config = changed(config, LIMIT, fit.asked)
    elif fit.made is not None:
        fit = Fit(replace(fit.options, max_splats=limit))
    scene = project.scene.resized(config.downscale)
    fitting, sentence = fit.options.fitted(config, scene, project.devices)
    fit = replace(fit, asked=config.densify.max_gaussians, made=fitting.densify.max_gaussians)
    return replace(project, config=fitting, fit=fit), sentence


def _limited(project: Project, scene: Scene, options: DeviceOptions) -> Project:
    notes = project.notes
    if options.fit_batch:
        notes += ("This run goes on with its own batches: --batch-size auto is not followed.",)
    if options.max_splats is None:
        return replace(project, notes=notes)
    options = replace(options, fit_batch=False)
    config, sentence = options.fitted(project.config, scene, project.devices)
    # For the run that follows when this one is started over.
    fit = Fit(options, project.config.densify.max_gaussians, config.densify.max_gaussians)
    notes = (*notes, sentence)
    return replace(project, config=config, notes=notes, live_on_resume=(LIMIT,), fit=fit)
