"""`splatstudio poses`, and what `open` and `train` do with photographs whose camera poses are not known."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from splatstudio.cli.terminal import LINE_SECONDS, console
from splatstudio.poses.estimate import (
    OnProgress,
    PoseProgress,
    estimate_poses,
    lacks_poses,
    note_on_changes,
    scene_of,
)
from splatstudio.poses.words import report_lines


def estimate_and_print(
    path: Path, frames: int | None = None, tell: Callable[[str], object] = lambda words: None
) -> None:
    """Estimate the poses of photographs or a video with a bar for each stage, and print the report.

    `tell` gets how far it is, in words, as often as that changes. Raises ValueError with one sentence where
    there is too little to go by.
    """
    try:
        with stage_progress() as show:

            def follow(progress: PoseProgress) -> None:
                show(progress)
                tell(in_words(progress))

            report = estimate_poses(path, frames=frames, on_progress=follow)
    except KeyboardInterrupt:
        console.print(f"What is finished is kept: splatstudio poses {quote(str(path))} goes on from there.")
        raise
    first, *lines = report_lines(report)
    console.print(first)
    for line in lines:
        console.print(line, style="yellow" if line.startswith("Note: ") else None, markup=False)
    console.print(f"The report is {Path(report.store) / 'report.txt'}", soft_wrap=True)


def with_poses(path: Path, tell: Callable[[str], object] = lambda words: None) -> Path:
    """Return what is opened of `path`, after estimating the poses of photographs that have none.

    `tell` gets how far that is, in words. Raises ValueError with one sentence where they give no poses.
    """
    from splatstudio.runtime.launched import launched_rank  # here, as it needs torch

    # The ranks of a launcher would all do it: there the reader's message says what to run before.
    if launched_rank(os.environ) is None and lacks_poses(path):
        console.print(f"{path} has no camera poses yet: they are estimated first", soft_wrap=True)
        estimate_and_print(path, tell=tell)
    elif (note := note_on_changes(path)) is not None:
        console.print(note, style="yellow", markup=False)
    return scene_of(path)


@contextmanager
def stage_progress() -> Iterator[OnProgress]:
    """Show a bar for each stage of an estimation; where no bar can be drawn, a line now and then."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}"),
    )
    due, before = 0.0, ""
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = None

        def show(progress: PoseProgress) -> None:
            nonlocal task, due, before
            left = _left(progress)
            if progress.stage != before:
                task = bar.add_task(progress.title, total=None, left="")
                before, due = progress.stage, 0.0
            if task is not None:
                bar.update(task, completed=progress.done, total=progress.total or None, left=left)
            if not console.is_terminal and time.monotonic() >= due:
                due = time.monotonic() + LINE_SECONDS
                console.print(in_words(progress))

        yield show


def in_words(progress: PoseProgress) -> str:
    """Return how far an estimation is, as "Matching: 30 of 120 pairs, 20 s left"."""
    return f"{progress.title}: {progress.done} of {progress.total} {_left(progress)}"


def _left(progress: PoseProgress) -> str:
    """Return what is counted and how long it takes yet."""
    if progress.seconds_left is None or progress.done >= progress.total:
        return progress.what
    from splatstudio.gui.theme import duration  # here, as it needs torch

    return f"{progress.what}, {duration(progress.seconds_left)} left"
