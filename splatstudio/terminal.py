"""What the command line prints: the progress of a training and tables of results."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from splatstudio.api import Model
from splatstudio.evaluate import Evaluation
from splatstudio.scene.describe import describe_scene
from splatstudio.scene.scene import Scene
from splatstudio.session import Advance, EvaluationAbandoned, Session
from splatstudio.trainer import TrainingDiverged
from splatstudio.worker.reports import saved_sentence

console = Console(highlight=False)

INTERRUPTED = 130  # the shell's exit code for a command ended by Ctrl-C
LINE_SECONDS = 10.0  # between two lines where the output is no terminal and a bar cannot be drawn


@dataclass
class Interrupt:
    """Whether Ctrl-C was pressed; the second time it ends the command at once."""

    pressed: bool = False

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self.pressed:
            # There is no third time: what follows takes a moment at most.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            raise KeyboardInterrupt
        self.pressed = True
        console.print("Saving after this step ... (Ctrl-C again ends at once)")

    def breathe(self) -> None:
        """Break an evaluation off when Ctrl-C was pressed."""
        if self.pressed:
            raise EvaluationAbandoned


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Turn the first Ctrl-C into a flag, so that a step is never torn apart."""
    interrupt = Interrupt()
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)


class ProgressReport:
    """The state of a training: a bar in a terminal, lines elsewhere."""

    def __init__(self, session: Session):
        self._session = session
        self._rate = 0.0
        self._line_due = time.monotonic() + LINE_SECONDS
        self._psnr: float | None = None  # of the training photographs, a running mean
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=console, disable=not console.is_terminal)
        steps = session.trainer.config.steps
        self._task = self._bar.add_task("", total=steps, completed=session.trainer.step, state="")

    def __enter__(self) -> ProgressReport:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def show(self, advance: Advance) -> None:
        """Report one step and what was evaluated or saved after it."""
        stats = advance.stats
        if stats.seconds > 0:
            # An exponential mean over about 50 steps: steady, yet quick after densification.
            self._rate += (1.0 / stats.seconds - self._rate) * (0.02 if self._rate else 1.0)
        if stats.psnr is not None and math.isfinite(stats.psnr):
            # Photographs differ more than steps do.
            self._psnr = stats.psnr if self._psnr is None else self._psnr + (stats.psnr - self._psnr) * 0.1
        psnr = "" if self._psnr is None else f"  PSNR {self._psnr:.1f}"
        state = f"{self._rate:.1f} it/s  loss {stats.loss:.4f}{psnr}  {stats.num_gaussians:,} Gaussians"
        self._bar.update(self._task, completed=stats.step, state=state)
        if advance.evaluation is not None:
            print_evaluation(advance.evaluation, f"step {stats.step}: ")
        for folder in advance.saved:
            console.print(f"Saved {folder}")
        if advance.problem is not None:
            console.print(advance.problem, style="yellow", markup=False)
        if not console.is_terminal and time.monotonic() >= self._line_due:
            self._line_due = time.monotonic() + LINE_SECONDS
            left = (self._session.trainer.config.steps - stats.step) / max(self._rate, 1e-9)
            console.print(f"{stats.step} / {self._session.trainer.config.steps}  {state}  {left:.0f} s left")


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
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("frames"), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=num_frames)
        yield lambda number, image: bar.update(task, completed=number)


def run_to_end(session: Session) -> int:
    """Train to the last step or to Ctrl-C, save either way, and return the exit code."""
    started, first = time.monotonic(), session.trainer.step
    if session.finished:
        console.print(f"Nothing to do: the run is at step {first} of {session.trainer.config.steps} already.")
        return 0
    with interruptible() as interrupt:
        session.breathe = interrupt.breathe
        try:
            saved = _train(session, interrupt)
        except KeyboardInterrupt:
            # Whatever the save in progress had come to: the disk tells.
            console.print(saved_sentence(session.run.path, session.trainer.step))
            # At once: no waiting for the threads that decode photographs and write checkpoints.
            os._exit(INTERRUPTED)
    elapsed, steps = time.monotonic() - started, session.trainer.step - first
    num = len(session.trainer.live_gaussians)
    console.print(f"{steps} steps in {elapsed:.0f} s ({steps / elapsed:.1f} it/s), {num:,} Gaussians")
    if interrupt.pressed and not session.finished:
        where = f"Saved {saved}" if saved else f"Step {session.trainer.step} is saved already"
        console.print(f"{where}. Go on with: splatstudio train SCENE --run {session.run.path} --resume")
        return INTERRUPTED
    return 0


def _train(session: Session, interrupt: Interrupt) -> Path | None:
    """Train to the end or to Ctrl-C and save; return the checkpoint, None where the step had one."""
    with ProgressReport(session) as report:
        try:
            while not session.finished and not interrupt.pressed:
                report.show(session.advance())
        except TrainingDiverged:
            raise
        except ValueError:
            # A photograph that cannot be read must not cost the steps since the last checkpoint.
            rescued = session.save_if_needed()
            console.print(f"Saved {rescued}" if rescued else "Nothing new to save.")
            raise
        return session.save_if_needed()


SCORE_TITLES = {
    "psnr": "PSNR dB",
    "ssim": "SSIM",
    "psnr_corrected": "colour-corrected PSNR dB",
    "lpips_alex": "LPIPS (AlexNet)",
    "lpips_vgg": "LPIPS (VGG16)",
}


def print_evaluation(evaluation: Evaluation, prefix: str = "") -> None:
    """Print the mean scores of an evaluation on one line, and what could not be measured."""
    means = [f"PSNR {evaluation.psnr:.2f} dB", f"SSIM {evaluation.ssim:.4f}"]
    for name in evaluation.measured[2:]:
        title = SCORE_TITLES[name]
        value = getattr(evaluation, name)
        unit = title.endswith(" dB")
        means.append(f"{title.removesuffix(' dB')} {value:.2f} dB" if unit else f"{title} {value:.4f}")
    console.print(
        f"{prefix}{', '.join(means)}, {evaluation.num_gaussians:,} Gaussians,"
        f" {len(evaluation.images)} test photographs, {evaluation.seconds_per_image * 1000:.1f} ms a frame"
    )
    for note in evaluation.notes:
        console.print(note, style="yellow", markup=False)


def print_scores(evaluation: Evaluation) -> None:
    """Print the scores of each test photograph, worst first."""
    measured = evaluation.measured
    table = Table("photograph", *(SCORE_TITLES[name] for name in measured), box=None)
    for image in evaluation.worst_first:
        values = [(name, getattr(image, name)) for name in measured]
        table.add_row(image.name, *(f"{value:.{2 if 'psnr' in name else 4}f}" for name, value in values))
    console.print(table)


def print_model(path: Path, model: Model) -> None:
    """Print what a model holds: numbers, degrees, and how it lies in space."""
    gaussians = model.gaussians
    console.print(f"{path}: {len(model):,} Gaussians, spherical harmonics of degree {gaussians.sh_degree}")
    if len(model):
        low, high = np.percentile(gaussians.means.numpy(), [1, 99], axis=0)
        corners = [", ".join(f"{value:.2f}" for value in corner) for corner in (low, high)]
        opacity = float(gaussians.opacities.sigmoid().median())
        console.print(f"98 % of the centres lie between ({corners[0]}) and ({corners[1]})")
        console.print(f"median opacity {opacity:.2f}")


def print_scene(scene: Scene) -> None:
    """Print what a scene holds, and what was noticed while it was read."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for label, text in describe_scene(scene):
        table.add_row(label, Text(text))
    console.print(table)
