"""`splatstudio info`: what a scene, a model, a run or a folder of runs holds.

What needs torch is imported where it is there to be told: a scene is described in a moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from splatstudio.cli.poses import out_of_archive
from splatstudio.cli.terminal import console, print_part, print_rows, print_scene, print_table
from splatstudio.files.run import Run, is_checkpoint, newest_scored, newest_step
from splatstudio.models.other_outputs import output_in, scene_of_output
from splatstudio.scene.describe import scene_values
from splatstudio.scene.layout import is_video, pose_files
from splatstudio.scene.scene import Scene
from splatstudio.scene.unread_poses import unread_poses
from splatstudio.settings.presets import preset_in_words

if TYPE_CHECKING:
    from splatstudio.models.model import Model


@dataclass(frozen=True)
class PathContents:
    """What lies at a path: a run and its model, a model, some runs, or a scene."""

    path: Path
    run: Run | None = None
    model: Model | None = None
    trained_on: Path | None = None  # the scene that another program's settings beside a model name
    runs: tuple[Run, ...] = ()
    problems: tuple[str, ...] = ()  # a sentence for each run or checkpoint that cannot be read
    scene: Scene | None = None

    @property
    def values(self) -> dict[str, Any]:
        """Return all of it as plain values by documented names, as `--json` prints them."""
        if self.scene is not None:
            return {"kind": "scene", **scene_values(self.scene)}
        if self.run is not None:
            model = None if self.model is None else model_values(self.model)
            return {"kind": "run", **run_values(self.run), "model": model, "problems": self.problems}
        if self.model is not None:
            return {"kind": "model", "path": self.path, "scene": self.trained_on, **model_values(self.model)}
        runs = [run_values(run) for run in self.runs]
        return {"kind": "runs", "path": self.path, "runs": runs, "problems": self.problems}


def contents_of(path: Path, images: str, model: int = -1, *, strict: bool = False) -> PathContents:
    """Return what `path` holds; `images` is the folder of a scene's photos, "": where its files say.

    `model` is the number of its COLMAP model, -1: the one with most images; `strict` is as of `load_model`.

    Raises ValueError where that is nothing that can be told.
    """
    from splatstudio.scene.load import is_of_scene, load_scene

    if not path.exists():
        raise ValueError(f"{path} does not exist")
    path = out_of_archive(path)
    run = Run.open(path) if (path / "run.json").exists() else None
    passed_over: tuple[str, ...] = ()
    if run is not None:
        from splatstudio.checkpoints.checkpoint import newest_and_passed_over

        newest, passed_over = newest_and_passed_over(path)
        if newest is None:
            return PathContents(path, run, problems=passed_over)
    ours = run is not None or is_checkpoint(path)
    parts = [*path.glob("ckpt_*_rank*.pt"), *path.glob("ckpts/ckpt_*_rank*.pt")]
    is_model = path.is_file() and not (is_of_scene(path) or is_video(path) or unread_poses(path))
    if is_model or ours or parts or (pose_files(path) is None and output_in(path) is not None):
        from splatstudio.models.model import load_model

        loaded = load_model(path, strict=strict)
        notes = tuple(note for note in loaded.notes if note not in passed_over)  # told once, as problems
        loaded = replace(loaded, notes=notes)
        other = None if ours else scene_of_output(path)
        return PathContents(path, run, loaded, None if other is None else other.path, problems=passed_over)
    if folders := sorted(file.parent for file in path.glob("*/run.json")):
        return _runs_that_can_be_read(path, folders)
    return PathContents(path, scene=load_scene(path, images_folder=images or None, model=model))


def print_contents(found: PathContents) -> None:
    """Print what a path holds."""
    if found.run is not None:
        _print_run(found.run)
    if found.model is not None:
        print_part(found.path)
        _print_model(found.path, found.model)
    if found.trained_on is not None:
        console.print(f"trained on the scene {found.trained_on}", soft_wrap=True)
    if found.runs:
        _print_runs(found.runs)
    for problem in found.problems:
        console.print(problem, style="yellow", soft_wrap=True)
    if found.scene is not None:
        print_scene(found.scene)


def _runs_that_can_be_read(path: Path, folders: Sequence[Path]) -> PathContents:
    runs, problems = list[Run](), list[str]()
    for folder in folders:
        try:
            runs.append(Run.open(folder))
        except ValueError as error:
            problems.append(str(error))
    return PathContents(path, runs=tuple(runs), problems=tuple(problems))


def model_values(model: Model) -> dict[str, Any]:
    """Return what a model holds and where it lies, in the coordinates that a crop takes, by name.

    "low" and "high" are the corners of the box that holds 98 % of the centers on each axis.
    """
    gaussians = model.gaussians
    low = high = opacity = None
    if len(model):
        to_files = np.linalg.inv(model.transform)
        places = gaussians.means.numpy() @ to_files[:3, :3].T + to_files[:3, 3]
        low, high = np.percentile(places, [1, 99], axis=0).tolist()
        opacity = float(gaussians.opacities.sigmoid().median())
    return {
        "splats": len(model),
        "sh_degree": gaussians.sh_degree,
        "antialiased": model.options.antialiased,
        "step": model.step,
        "low": low,
        "high": high,
        "median_opacity": opacity,
        "part": model.part,
        "notes": model.notes,
    }


def run_values(run: Run) -> dict[str, Any]:
    """Return what a run folder holds by name: its scene, how far it has come, its last score, checkpoints."""
    from splatstudio.checkpoints.checkpoint import checkpoint_folders
    from splatstudio.checkpoints.manifest import step_of

    steps = None
    with suppress(OSError):  # told where they are read
        steps = [step_of(folder) for folder in checkpoint_folders(run.path)]
    return {
        "path": run.path.resolve(),
        "scene": run.scene_path,
        "downscale": run.config.downscale,
        "preset": preset_in_words(run.config),
        "strategy": run.config.strategy,
        **_progress_of(run),
        "checkpoints": None if steps is None else [step for step in steps if step is not None],
    }


def _progress_of(run: Run) -> dict[str, Any]:
    rows = run.metrics().rows
    scored = next((row for row in reversed(rows) if isinstance(row.get("test_psnr"), float)), {})
    later = newest_scored(run.path)  # measured since by `eval`, or by the page
    if later and later["step"] >= scored.get("step", 0):
        scored = {"step": later["step"], "test_psnr": later["psnr"], "test_ssim": later["ssim"]}
    return {
        "steps": max(rows[-1]["step"] if rows else 0, newest_step(run.path) or 0),
        "saved_step": newest_step(run.path),
        "planned_steps": run.planned_steps or run.config.steps,
        "psnr": scored.get("test_psnr"),
        "ssim": scored.get("test_ssim"),
        "scored_at": scored.get("step"),
    }


def _print_model(path: Path, model: Model) -> None:
    values = model_values(model)
    console.print(f"{path}: {len(model):,} splats, spherical harmonics of degree {values['sh_degree']}")
    if values["antialiased"]:
        console.print("trained anti-aliased, and drawn so")
    for note in model.notes:
        console.print(note, style="yellow", soft_wrap=True)
    if len(model):
        low, high = (", ".join(f"{value:.2f}" for value in values[corner]) for corner in ("low", "high"))
        console.print(f"98 % of the centers lie between ({low}) and ({high})")
        console.print(f"median opacity {values['median_opacity']:.2f}")


def _print_run(run: Run) -> None:
    values = run_values(run)
    steps, score = _how_far(values)
    downscale = values["downscale"]
    told = [
        ("Run", str(values["path"])),
        ("Scene", str(values["scene"])),
        ("Photos", f"1/{downscale} of their size" if downscale > 1 else "full size"),
        ("Preset", values["preset"]),
        ("Strategy", values["strategy"]),
        ("Steps", steps),
        ("Test PSNR", score or "none yet"),
        ("Checkpoints", _checkpoints_in_words(values["checkpoints"])),
    ]
    print_rows(told)


def _checkpoints_in_words(steps: Sequence[int] | None) -> str:
    if steps is None:
        return "cannot be listed"
    return ", ".join(f"{step:,}" for step in steps) or "none yet"


def _print_runs(runs: Sequence[Run]) -> None:
    table = Table("run", "scene", "preset", "steps", "test PSNR", box=None)
    for run in runs:
        preset, progress = preset_in_words(run.config), _how_far(_progress_of(run))
        table.add_row(str(run.path), run.scene_path.name, preset, *progress)
    print_table(table)


def _how_far(values: dict[str, Any]) -> tuple[str, str]:
    """Return how many of its steps a run has made, and its last score or nothing, in words."""
    psnr = values["psnr"]
    score = "" if psnr is None else f"{psnr:.2f} dB at step {values['scored_at']:,}"
    steps, saved = f"{values['steps']:,} of {values['planned_steps']:,}", values["saved_step"]
    if (saved or 0) != values["steps"]:
        steps += ", none saved" if saved is None else f", saved until {saved:,}"
    return steps, score
