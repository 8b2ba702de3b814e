"""What the command line prints: the progress of a training and tables of results.

What needs torch is imported by the functions that print it: a scene is described in a moment.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from splatstudio.cli.console import PlainConsole
from splatstudio.scene.describe import describe_scene
from splatstudio.scene.scene import Scene

if TYPE_CHECKING:
    from splatstudio.evaluation.evaluate import Evaluation
    from splatstudio.runtime import messages

# No markup: what is printed are paths and the words of errors, which may have brackets.
console = PlainConsole(highlight=False, markup=False)
# Where nobody reads along, a path stays in one piece, and a sentence on one line.
console.soft_wrap = not console.is_terminal

LINE_SECONDS = 10.0  # between two lines where the output is no terminal and a bar cannot be drawn

SCORE_TITLES = {
    "psnr": "PSNR dB",
    "ssim": "SSIM",
    "psnr_corrected": "color-corrected PSNR dB",
    "ms_ssim": "MS-SSIM",
    "flip": "FLIP",
    "lpips_alex": "LPIPS (AlexNet)",
    "lpips_vgg": "LPIPS (VGG16)",
}


class ProgressReport:
    """The state of a training: a bar in a terminal, lines elsewhere."""

    def __init__(self, num_steps: int, step: int):
        self._line_due = time.monotonic() + LINE_SECONDS
        self._printed = step
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            # Not rich's own time: it takes an evaluation for slow steps.
            TextColumn("{task.fields[state]}"),
        )
        self._bar = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=num_steps, completed=step, state="")

    def __enter__(self) -> ProgressReport:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def show(self, progress: messages.Progress) -> None:
        """Show where the training stands."""
        from splatstudio.gui.theme import duration  # here, as it needs torch: `info` does not

        psnr = "" if progress.psnr is None else f"  PSNR {progress.psnr:.1f}"
        rate, num = progress.steps_per_second, progress.num_gaussians
        state = f"{rate:.1f} it/s  loss {progress.loss:.4f}{psnr}  {num:,} splats"
        left = "" if progress.eta_seconds is None else f"  {duration(progress.eta_seconds)} left"
        self._bar.update(self._task, completed=progress.step, state=state + left)
        due = time.monotonic() >= self._line_due and progress.step != self._printed
        if not console.is_terminal and due:
            self._line_due, self._printed = time.monotonic() + LINE_SECONDS, progress.step
            console.print(f"{progress.step} / {progress.total_steps}  {state}{left}")


@contextmanager
def count_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar of things that are counted; the function it gives is told how many are done and in all."""
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn(what), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def frame_progress(num_frames: int) -> Iterator[Callable[[int, object], None]]:
    """Show a bar of the frames that are rendered; the function it gives is told each frame's number."""
    with count_progress("frames") as report:
        report(0, num_frames)
        yield lambda number, image: report(number, num_frames)


@contextmanager
def stage_progress() -> Iterator[Callable[[int, int, str], None]]:
    """Show a bar of the stage of a task that is under way; its function gets done, total (0: unknown), what.

    Where nobody watches the bar each stage is a line.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    told = ""
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("")

        def report(done: int, total: int, what: str) -> None:
            nonlocal told
            if what != told and not console.is_terminal:
                console.print(f"{what} ...")
            told = what
            bar.update(task, completed=done, total=total or None, description=what)

        yield report


def event_line(event: messages.Event, to_stop: str) -> str | None:
    """Return the line that tells an event, None for one that is not told.

    `to_stop` is the sentence on how a training whose score stands still is stopped.
    """
    from splatstudio.runtime import messages
    from splatstudio.runtime.sentences import plateau_sentence

    if isinstance(event, messages.Progress):
        where = f"step {event.step:,} of {event.total_steps:,}"
        rate, num = event.steps_per_second, event.num_gaussians
        return f"{where}, loss {event.loss:.4f}, {num:,} splats, {rate:.1f} it/s"
    if isinstance(event, messages.RanksReport):
        rows = (
            f"rank {row.rank}: {row.num_gaussians:,} splats, {1e3 * row.step_seconds:.0f} ms a step,"
            f" {1e3 * row.wait_seconds:.0f} ms of it waiting"
            for row in event.ranks
        )
        return "; ".join(rows)
    if isinstance(event, messages.Evaluated):
        return f"step {event.step}: PSNR {event.psnr:.2f} dB, SSIM {event.ssim:.4f}"
    if isinstance(event, messages.PlateauReached):
        return plateau_sentence(event, to_stop)
    if isinstance(event, messages.SettingChanged):
        return f"{event.path} is {event.value} from step {event.step + 1} on"
    if isinstance(event, messages.StateChanged):
        return f"State: {event.state}"
    if isinstance(event, messages.Saved):
        return f"Saved {event.path}"
    if isinstance(event, (messages.EvaluationStopped, messages.Warned, messages.Failed)):
        return event.sentence
    return None


def print_evaluation(evaluation: Evaluation, prefix: str = "") -> None:
    """Print the mean scores of an evaluation on one line, and what could not be measured."""
    from splatstudio.evaluation.lpips import short_notes

    means = [f"PSNR {evaluation.psnr:.2f} dB", f"SSIM {evaluation.ssim:.4f}"]
    for name in evaluation.measured[2:]:
        title = SCORE_TITLES[name]
        value = getattr(evaluation, name)
        unit = title.endswith(" dB")
        means.append(f"{title.removesuffix(' dB')} {value:.2f} dB" if unit else f"{title} {value:.4f}")
    console.print(
        f"{prefix}{', '.join(means)}, {evaluation.num_gaussians:,} splats,"
        f" {len(evaluation.images)} test photos, {evaluation.seconds_per_image * 1000:.1f} ms a frame"
    )
    for note in short_notes(evaluation.notes):
        console.print(note, style="yellow")


def print_scores(evaluation: Evaluation) -> None:
    """Print the scores of each test photo, worst first."""
    measured = evaluation.measured
    table = Table("photo", *(SCORE_TITLES[name] for name in measured), box=None)
    for image in evaluation.worst_first:
        values = [(name, getattr(image, name)) for name in measured]
        table.add_row(image.name, *(f"{value:.{2 if 'psnr' in name else 4}f}" for name, value in values))
    print_table(table)


def print_part(path: Path) -> None:
    """Tell when a file holds a part of a model alone, and what to do where the other parts are there."""
    from splatstudio.checkpoints.rank_parts import part_of

    part = part_of(path)
    if part is not None:
        console.print(f"{part}{' Use splatstudio merge.' if part.complete else ''}", style="yellow")


def print_scene(scene: Scene) -> None:
    """Print what a scene holds, and what was noticed while it was read."""
    print_rows(describe_scene(scene))


def print_rows(rows: Sequence[tuple[str, str]]) -> None:
    """Print labels and what belongs to each."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(overflow="fold")  # a path is needed whole
    for label, text in rows:
        table.add_row(label, Text(text))
    print_table(table)


def print_table(table: Table) -> None:
    """Print a table as wide as the terminal; elsewhere each row is one line that ends with its last word."""
    if console.is_terminal:
        console.print(table)
        return
    text = io.StringIO()
    PlainConsole(file=text, width=100_000, highlight=False, markup=False, color_system=None).print(table)
    for line in text.getvalue().splitlines():
        console.print(line.rstrip())


def print_findings() -> int:
    """Print what a look at the machine finds, one by one; return the exit code, 1 where all is not well."""
    from splatstudio.cli.doctor import ADVICE, findings

    bad = 0
    for finding in findings():
        mark = Text("ok", "green") if finding.good else Text("!!", "red")
        console.print(mark, f" {finding.subject:<14} {finding.text}")
        bad += not finding.good
    console.print("\nIf a training is slow or fails:")
    for line in ADVICE:
        console.print(f"-   {line}")
    return 1 if bad else 0


def print_report(run_dir: Path | None) -> int:
    """Print a report for an issue on `run_dir`, None: the newest run; return the exit code."""
    from splatstudio.cli.doctor import findings
    from splatstudio.cli.report import crash_report

    rows = [(finding.subject, finding.text, finding.good) for finding in findings()]
    print(crash_report(run_dir, rows), flush=True)
    return 0
