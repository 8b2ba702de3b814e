"""`splatstudio info`: what a scene, a model, a run or a folder of runs holds.

What needs torch is imported where it is there to be told: a scene is described in a moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from splatstudio.cli.poses import out_of_archive
from splatstudio.cli.terminal import console, print_model, print_part, print_run, print_runs, print_scene
from splatstudio.files.run import Run
from splatstudio.models.other_outputs import output_in, scene_of_output
from splatstudio.scene.layout import pose_files


def print_what_is_there(path: Path, images: str, model: int = -1, *, strict: bool = False) -> None:
    """Print what `path` holds; `images` is the folder of a scene's photographs, "": where its files say.

    `model` is the number of its COLMAP model, -1: the one with most images; `strict` is as of `load_model`.

    Raises ValueError where that is nothing that can be told.
    """
    if not path.exists():
        raise ValueError(f"{path} does not exist")
    path = out_of_archive(path)
    if (path / "run.json").exists():
        from splatstudio.checkpoints.checkpoint import newest_checkpoint

        print_run(Run.open(path))
        if newest_checkpoint(path) is None:
            return
    ours = any((path / name).exists() for name in ("run.json", "manifest.json"))
    parts = [*path.glob("ckpt_*_rank*.pt"), *path.glob("ckpts/ckpt_*_rank*.pt")]
    if path.is_file() or ours or parts or (pose_files(path) is None and output_in(path) is not None):
        from splatstudio.models.model import load_model

        print_part(path, "Use splatstudio merge.")
        print_model(path, load_model(path, strict=strict))
        if not ours and (scene := scene_of_output(path)) is not None:
            console.print(f"trained on the scene {scene.path}", soft_wrap=True)
    elif folders := sorted(file.parent for file in path.glob("*/run.json")):
        _print_those_that_can_be_read(folders)
    else:
        from splatstudio.scene.load import load_scene

        print_scene(load_scene(path, images_folder=images or None, model=model))


def _print_those_that_can_be_read(folders: Sequence[Path]) -> None:
    """Print a line for each run, and a sentence for each that is damaged or of another release."""
    runs, problems = list[Run](), list[str]()
    for folder in folders:
        try:
            runs.append(Run.open(folder))
        except ValueError as error:
            problems.append(str(error))
    if runs:
        print_runs(runs)
    for problem in problems:
        console.print(problem, style="yellow", soft_wrap=True)
