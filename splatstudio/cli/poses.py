"""`splatstudio poses`, and what `open` and `train` do with photos whose camera poses are not known."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from splatstudio.cli.terminal import LINE_SECONDS, console
from splatstudio.files.path_words import as_argument
from splatstudio.poses.estimate import (
    OnProgress,
    PoseProgress,
    estimate_poses,
    lacks_poses,
    note_on_changes,
    scene_of,
)
from splatstudio.poses.records import PoseReport
from splatstudio.poses.store import PoseStore
from splatstudio.poses.words import note_on_own_poses, note_on_unread_poses, report_lines
from splatstudio.scene.archives import is_archive, unpacked


def estimate_and_print(path: Path, frames: int | None = None) -> None:
    """Estimate the poses of photos or a video with a bar for each stage, and print the report.

    Raises ValueError with one sentence where there is too little to go by.
    """
    path = out_of_archive(path)
    for note in filter(None, (note_on_own_poses(path), note_on_unread_poses(path))):
        console.print(note, style="yellow")
    try:
        with stage_progress() as show:
            report = estimate_poses(path, frames=frames, on_progress=show)
    except KeyboardInterrupt:
        say_what_is_kept(path, frames)
        raise
    print_pose_report(report)


def say_what_is_kept(path: Path, frames: int | None = None) -> None:
    """Print how an estimation that is ended goes on."""
    command = f"splatstudio poses {as_argument(path)}" + ("" if frames is None else f" --frames {frames}")
    console.print(f"What is finished is kept: {command} goes on from there.")


def print_pose_report(report: PoseReport) -> None:
    """Print what an estimation came to, and where all of it is told."""
    first, *lines = report_lines(report)
    console.print(first)
    for line in lines:
        console.print(line, style="yellow" if line.startswith("Note: ") else None)
    console.print(f"The report is {Path(report.store) / 'report.txt'}", soft_wrap=True)
    sheet = PoseStore(Path(report.source)).contact_sheet
    if sheet.exists() and not report.so_far:
        console.print(f"Thumbnails of the photos left out: {sheet}", soft_wrap=True)


def with_poses(path: Path) -> Path:
    """Return what is opened of `path`, after estimating the poses of photos that have none.

    Raises ValueError with one sentence where they give no poses.
    """
    from splatstudio.runtime.launched import launched_rank  # here, as it needs torch

    path = out_of_archive(path)
    # The ranks of a launcher would all do it: there the reader's message says what to run before.
    if launched_rank(os.environ) is None and lacks_poses(path):
        console.print(poses_come_first(path), soft_wrap=True)
        estimate_and_print(path)
    elif (note := note_on_changes(path)) is not None:
        console.print(note, style="yellow")
    return scene_of(path)


def poses_come_first(path: Path) -> str:
    """Return the sentence that says so."""
    return f"{path} has no camera poses yet: they are estimated first"


def out_of_archive(path: Path) -> Path:
    """Return the folder in which an archive of a scene is unpacked, and say so; any other path as it is."""
    if not is_archive(path):
        return path
    folder = unpacked(path)
    console.print(f"{path} is unpacked: {folder} is opened", soft_wrap=True)
    return folder


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
