"""`splatstudio train` as one rank of several that torchrun or Slurm has started."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from splatstudio.checkpoints.checkpoint import config_of_checkpoint, newest_checkpoint
from splatstudio.files.run import Run, is_taken
from splatstudio.models.model import with_images_found
from splatstudio.runtime.launched import LaunchedRank, train_launched
from splatstudio.runtime.messages import Evaluated, Event, PlateauReached, Progress, Saved, TrainJob, Warned
from splatstudio.runtime.sentences import plateau_sentence
from splatstudio.settings.config import FREE_ON_RESUME, TrainConfig, changed, value_of
from splatstudio.settings.notes import notes_on_settings
from splatstudio.training.device_options import DeviceOptions

LINE_SECONDS = 10.0  # between two lines about the progress, where lines are kept
LIMIT = "densify.max_gaussians"  # what --max-splats sets


def launched_job(
    scene_path: Path,
    config: TrainConfig,
    run_dir: Path | None,
    *,
    resume: bool,
    given: Collection[str],
    devices: DeviceOptions,
) -> tuple[TrainJob, tuple[str, ...]]:
    """Return what all ranks train, and what the user should know of it; every rank comes to the same.

    A run that is there already goes on from its newest good checkpoint, with `resume` or without: a restart
    of the launcher needs that, and how often it has restarted differs between machines when one was replaced.
    So `given`, the dotted names of the settings that were asked for, counts where it differs from what the
    run was started with: what was changed while it trained stays. Raises ValueError with one sentence for
    what cannot be followed.
    """
    if run_dir is None:
        raise ValueError("the ranks of a launcher need --run: one folder that all machines see")
    _refuse_what_the_launcher_says(devices)
    if isinstance(devices.max_splats, int):
        config, given = changed(config, LIMIT, devices.max_splats), {*given, LIMIT}
    scene_path, run_dir = scene_path.resolve(), run_dir.resolve()
    if not resume and not (run_dir / "run.json").exists():
        if is_taken(run_dir):
            raise ValueError(f"the run folder {run_dir} is not empty: name another one")
        return TrainJob(scene_path, run_dir, config), notes_on_settings(config, given)
    run, checkpoint = Run.open(run_dir), newest_checkpoint(run_dir)
    if resume and checkpoint is None:
        raise ValueError(f"{run_dir} has no checkpoint to resume from; leave --resume away to start anew")
    if not resume and run.scene_path.name != scene_path.name:  # machines may have it in different places
        raise ValueError(f"the run folder {run_dir} belongs to {run.scene_path}; name another one with --run")
    wished = {name for name in given if value_of(config, name) != value_of(run.config, name)}
    fixed = sorted(wished - {*FREE_ON_RESUME, LIMIT})
    if fixed:
        raise ValueError(
            f"the run in {run_dir} goes on with its own settings, but {', '.join(fixed)} would change; leave"
            " that away, or name another folder with --run"
        )
    latest = run.config
    if checkpoint is not None:
        latest = with_images_found(config_of_checkpoint(checkpoint), run, scene_path)
    free = {name: getattr(config, name) for name in FREE_ON_RESUME if name in wished}
    limit = ((LIMIT, value_of(config, LIMIT)),) if LIMIT in wished else ()
    job = TrainJob(scene_path, run_dir, replace(latest, **free), checkpoint, limit, attempt=1)
    return job, _notes_on_changed(given, wished, run.config, latest)


def _refuse_what_the_launcher_says(devices: DeviceOptions) -> None:
    if devices.gpus is not None or devices.ranks is not None:
        raise ValueError(
            "torchrun or Slurm says how many ranks there are: leave --gpus and --ranks away, and choose among"
            " a machine's GPUs with CUDA_VISIBLE_DEVICES"
        )
    devices.check_spread()


def _notes_on_changed(
    given: Collection[str], wished: Collection[str], started: TrainConfig, latest: TrainConfig
) -> tuple[str, ...]:
    kept = sorted(
        name for name in given if name not in wished and value_of(latest, name) != value_of(started, name)
    )
    if not kept:
        return ()
    values = ", ".join(f"{name} {value_of(latest, name)}" for name in kept)
    return (f"As changed while it trained: {values}",)


def train_as_rank(
    launched: LaunchedRank, job: TrainJob, notes: tuple[str, ...], devices: DeviceOptions
) -> int:
    """Train as that rank, print what happens, and return the exit code; see `train_launched`."""
    if launched.rank == 0:
        for note in notes:
            print(note)
        if job.checkpoint is not None:
            print(f"Goes on from {job.checkpoint}", flush=True)
    teller = _Teller(job.config.steps)
    return train_launched(launched, job, teller, devices.attach_at, devices.store_at)


class _Teller:
    """Prints what a training without a terminal of its own tells, a line now and then for the log."""

    def __init__(self, steps: int):
        self._steps = steps
        self._due = 0.0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Progress):
            if time.monotonic() >= self._due:
                self._due = time.monotonic() + LINE_SECONDS
                rate, num = event.steps_per_second, event.num_gaussians
                print(
                    f"step {event.step} of {self._steps}, loss {event.loss:.4f}, {num:,} splats, {rate:.1f}/s"
                )
        elif isinstance(event, Evaluated):
            print(f"step {event.step}: PSNR {event.psnr:.2f} dB, SSIM {event.ssim:.4f}")
        elif isinstance(event, PlateauReached):
            how = "Who watches it can stop it; with --stop-when-flat it stops by itself."
            print(plateau_sentence(event, how))
        elif isinstance(event, Saved):
            print(f"Saved {event.path}")
        elif isinstance(event, Warned):
            print(event.sentence, flush=True)
