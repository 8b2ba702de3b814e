"""Scores of steps that were lost: those of a model that no checkpoint has, as after a training was killed."""

from __future__ import annotations

from pathlib import Path

from splatstudio.checkpoints.checkpoint import checkpoint_folders, step_of

LOST = "lost"  # the folder below eval/ that they go to


def set_lost_scores_aside(run_dir: Path, step: int) -> str:
    """Move scores of steps after `step`, from which a training goes on, to eval/lost/; return a sentence.

    It is "" where there are none. Those of a checkpoint that is there stay: it can still be looked at.
    """
    try:
        moved = _moved(run_dir, step)
    except OSError as error:
        return f"Scores of steps after {step:,}, which are lost, stay in eval/: {error}."
    if not moved:
        return ""
    return f"Scores of steps after {step:,}, which no checkpoint has, are put into {moved[0].parent}."


def _moved(run_dir: Path, step: int) -> list[Path]:
    folder = run_dir / "eval"
    kept = {step_of(checkpoint) for checkpoint in checkpoint_folders(run_dir)}
    moved: list[Path] = []
    for file in sorted(folder.glob("step_*.*")):
        digits = file.stem.removeprefix("step_")
        if digits.isdecimal() and int(digits) > step and int(digits) not in kept:
            (folder / LOST).mkdir(exist_ok=True)
            moved.append(file.replace(folder / LOST / file.name))
    return moved
