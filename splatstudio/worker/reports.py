"""Sentences about a worker that ended: the cause, what is safe, and what to do next."""

from __future__ import annotations

import signal
from pathlib import Path

from splatstudio.checkpoint import newest_checkpoint, step_of
from splatstudio.worker.messages import Job, TrainJob


def failure_sentence(error: BaseException, job: Job) -> str:
    """Return what to tell the user about an exception in the worker."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if isinstance(error, ValueError):
        # A ValueError of ours already is a sentence about something the user can change.
        cause = text
    elif isinstance(error, MemoryError):
        cause = "The memory was not enough."
    else:
        cause = f"An unexpected error ended the background process ({type(error).__name__}: {text})."
    return f"{_as_sentence(cause)} {_what_is_safe(job)}"


def death_sentence(exitcode: int | None, job: Job) -> str:
    """Return what to tell the user about a worker that died without a word."""
    if exitcode is not None and exitcode < 0:
        try:
            name = signal.Signals(-exitcode).name
        except ValueError:
            name = f"signal {-exitcode}"
        reason = {"SIGKILL": "by the system when memory runs out, or by hand"}.get(name, "")
        cause = f"The background process was killed ({name}{', ' + reason if reason else ''})."
    else:
        cause = f"The background process ended unexpectedly (exit code {exitcode})."
    return f"{cause} {_what_is_safe(job)}"


def checkpoint_step(folder: Path) -> int:
    """Return the step in the name of a checkpoint folder, step_00012000."""
    step = step_of(folder)
    assert step is not None, folder
    return step


def _what_is_safe(job: Job) -> str:
    if not isinstance(job, TrainJob):
        return "The file is unchanged; open it again."
    newest = newest_checkpoint(job.run_dir)
    if newest is None:
        return "Nothing was saved yet; press Start to begin again."
    return f"The checkpoint of step {checkpoint_step(newest):,} is safe; press Resume to go on from it."


def _as_sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."
