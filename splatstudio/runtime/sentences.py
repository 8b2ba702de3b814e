"""Sentences for people: how a training stands or has ended, what is safe, and what to do next."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from splatstudio.checkpoints.checkpoint import newest_checkpoint, newest_or_why, photos_of, same_frame
from splatstudio.checkpoints.manifest import read_manifest, step_of
from splatstudio.error_text import as_sentence, essence
from splatstudio.files.run import read_metrics
from splatstudio.runtime.command_replay import LIMIT
from splatstudio.runtime.messages import Job, PlateauReached, TrainJob
from splatstudio.runtime.root_cause import MEMORY, Cause
from splatstudio.scene.scene import Scene
from splatstudio.training.plateau import AT_REST


def error_sentence(error: BaseException) -> str:
    """Return what to tell the user about an exception in the worker."""
    text = essence(error)
    if isinstance(error, ValueError):
        # A ValueError of ours already is a sentence about something the user can change.
        return as_sentence(text)
    if isinstance(error, MemoryError):
        return "The memory was not enough."
    return as_sentence(f"An unexpected error ended the background process ({type(error).__name__}: {text})")


def failure_sentence(why: str, job: Job) -> str:
    """Return what to tell the user about a worker that is gone for good, `why` it is, in sentences, given."""
    return f"{why} {_what_is_safe(job)}"


def restart_sentence(cause: Cause, checkpoint: Path | None, job: Job, *, started: bool, paused: bool) -> str:
    """Return what to tell the user about a worker in whose place another one is started."""
    if not isinstance(job, TrainJob):
        return f"{cause.sentence} The model is loaded again."
    if not started:
        return f"{cause.sentence} Nothing was lost; it is started again."
    limit = dict(job.settings).get(LIMIT) if cause.kind == MEMORY else None
    fewer = "" if limit is None else f" No splats are added above {limit:,} from now on."
    verb = "waits" if paused else "goes on by itself"
    if checkpoint is None:
        return f"{cause.sentence} Nothing had been saved yet; the training {verb} from its beginning.{fewer}"
    step = checkpoint_step(checkpoint)
    return f"{cause.sentence} The training {verb} from the checkpoint of step {step:,}.{fewer}"


def saved_sentence(run_dir: Path, step: int) -> str:
    """Return what the disk holds of a training that was last heard of at `step`, whatever was said before."""
    while True:
        (newest, why), folders = newest_or_why(run_dir), _checkpoint_folders(run_dir)
        # Verifying takes a while, in which a save in the background may have been completed.
        if folders == _checkpoint_folders(run_dir):
            break
    if newest is None:
        # A process that was killed may have done steps that it could not tell of any more.
        step = max([step, *(row.get("step", 0) for row in read_metrics(run_dir).rows)])
    if why:
        return f"It is not known what was saved: {why}."
    if newest is None and step == 0:
        return "No step was done yet, so nothing had to be saved."
    if newest is None:
        return (
            f"Nothing was saved: {run_dir} holds no good checkpoint, and all its steps ({step:,}) are lost."
        )
    lost = step - checkpoint_step(newest)
    if lost <= 0:
        return f"Saved {newest}."
    steps = "1 step" if lost == 1 else f"{lost:,} steps"
    return f"The newest good checkpoint is {newest}; what was trained after it ({steps}) is lost."


def joined_sentence(checkpoint: Path, scene: Scene) -> str | None:
    """Return that a scene has photos which the run of a checkpoint has not seen, None where it has none.

    Nor where the run cannot go on with them, as the scene lies in another frame now. Raises ValueError where
    the checkpoint cannot be read.
    """
    manifest = read_manifest(checkpoint)
    known = scene.known or photos_of(manifest)
    num = 0 if known is None else len(scene.photos.keys() - set(known.names))
    if num == 0 or not same_frame(np.array(manifest["scene"]["transform"]), scene.transform):
        return None
    return f"{num} more photos have a pose now: the training that goes on takes them in, splats stay"


def _checkpoint_folders(run_dir: Path) -> set[str]:
    return {path.name for path in (run_dir / "ckpts").glob("step_*")}


def checkpoint_step(folder: Path) -> int:
    """Return the step in the name of a checkpoint folder, step_00012000."""
    step = step_of(folder)
    assert step is not None, folder
    return step


def _what_is_safe(job: Job) -> str:
    if not isinstance(job, TrainJob):
        return "The file is unchanged."
    newest, why = newest_or_why(job.run_dir)
    if why:
        return f"It is not known what was saved: {why}."
    if newest is None:
        kept = job.before is not None and newest_checkpoint(job.before) is not None
        old = f" The run before, {job.before}, is as it was." if kept else ""
        return f"Nothing was saved yet; press Start to begin again.{old}"
    step = checkpoint_step(newest)
    planned = dict(job.settings).get("steps", job.config.steps)
    assert isinstance(planned, int)
    then = "press Resume to go on from it" if step < planned else "all planned steps are done"
    return f"The checkpoint of step {step:,} is safe; {then}."


def plateau_words(event: PlateauReached) -> str:
    """Return what stands still, and since when, without a full stop."""
    return f"The test score has been flat since step {event.since:,} ({event.psnr:.1f} dB)"


def plateau_advice(event: PlateauReached) -> str:
    """Return what the user may want to know before he stops, one or two sentences; "" where that is nothing.

    Where learning rates fall to the planned end, the score often rises with that once more.
    """
    if event.rates_left >= AT_REST:
        return ""
    fall = f"The learning rates still fall to {100 * event.rates_left:.0f} % of now by step"
    # So many steps that these would be done to 85 %.
    shorter = -(-event.step // 85) * 100
    advice = f"{fall} {event.total_steps:,}, which may lift it once more"
    if not event.waits and shorter < 0.95 * event.total_steps:
        return f"{advice}; with {shorter:,} steps planned they do so sooner."
    return f"{advice}."


def stopped_sentence(event: PlateauReached) -> str:
    """Return why a training has ended before its last step."""
    return (
        f"Stopped at step {event.step:,}: test score flat since step {event.since:,} ({event.psnr:.1f} dB)."
    )


def plateau_sentence(event: PlateauReached, how_to_stop: str) -> str:
    """Return what a line of text tells of it; `how_to_stop` is one sentence."""
    if event.stops:
        return stopped_sentence(event)
    if event.waits:
        how_to_stop = "The training stops when they are nearly at rest."
    return " ".join(filter(None, (f"{plateau_words(event)}.", plateau_advice(event), how_to_stop)))
