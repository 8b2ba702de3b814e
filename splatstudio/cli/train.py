"""`splatstudio train`: a training in a background process, followed from the terminal."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Collection
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from splatstudio.checkpoints.checkpoint import (
    config_of_checkpoint,
    known_photos,
    newest_checkpoint,
    newest_or_why,
)
from splatstudio.checkpoints.manifest import read_manifest, step_of
from splatstudio.cli.console import print_error
from splatstudio.cli.eval import scores_by_name
from splatstudio.cli.json_output import CommandResult, failed
from splatstudio.cli.standard_output import going_on_unheard
from splatstudio.cli.terminal import (
    LINE_SECONDS,
    ProgressReport,
    console,
    event_line,
    print_evaluation,
    print_scene,
)
from splatstudio.devices import accelerator
from splatstudio.distributed.rank_devices import RankDevices
from splatstudio.error_text import for_terminal
from splatstudio.evaluation.evaluate import evaluation_from_json
from splatstudio.files.inputs import read_input
from splatstudio.files.outputs import refuse_unwritable
from splatstudio.files.path_words import as_argument
from splatstudio.files.run import Run, RunLock, is_taken, new_run_path, newest_step, refuse_gone_on
from splatstudio.models.model import remember_images, with_images_found
from splatstudio.runtime import messages
from splatstudio.runtime.channel.tls import NO_TLS, TlsFiles
from splatstudio.runtime.fork_server import process_context
from splatstudio.runtime.launched import LaunchedRank, launched_rank, train_launched
from splatstudio.runtime.sentences import joined_sentence, plateau_sentence, saved_sentence, stopped_sentence
from splatstudio.runtime.stop_signals import StopRequest, stop_requests
from splatstudio.runtime.supervisor import SaveRetries, WorkerClient, plan_for, retry_sentence
from splatstudio.scene.load import load_training_scene
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import FREE_ON_RESUME, LIMIT, TrainConfig, changed, resumed, value_of
from splatstudio.settings.presets import notes_on_settings
from splatstudio.training.device_options import AS_FOUND, DeviceOptions
from splatstudio.training.time_plan import (
    BUDGET_MINUTES,
    StepTimes,
    duration_words,
    measured_times,
    plan_within,
    proposal,
)

CTRL_C = 130  # the shell's exit code for a command that it ended
DELAYED = 1.4  # times the planned minutes: that a training takes so long is told
EARLIEST_DELAY = 0.1  # of the steps, before which nobody can tell
POLL_SECONDS = 0.1  # at most this long passes between Ctrl-C and the order to stop


def launched_job(
    scene_path: Path,
    config: TrainConfig,
    run_dir: Path | None,
    *,
    resume: bool,
    given: Collection[str],
    devices: DeviceOptions,
) -> tuple[messages.TrainJob, tuple[str, ...]]:
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
        return messages.TrainJob(scene_path, run_dir, config), notes_on_settings(config, given)
    run, (checkpoint, why) = Run.open(run_dir), newest_or_why(run_dir)
    if resume and checkpoint is None:
        raise ValueError(_why_not_resumed(run_dir, why, "omit --resume to start a new training"))
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
        latest = with_images_found(run.replanned(config_of_checkpoint(checkpoint)), run, scene_path)
    free = {name: getattr(config, name) for name in FREE_ON_RESUME if name in wished}
    limit = ((LIMIT, value_of(config, LIMIT)),) if LIMIT in wished else ()
    job = messages.TrainJob(scene_path, run_dir, replace(latest, **free), checkpoint, limit, attempt=1)
    return job, _notes_on_changed(given, wished, run.config, latest)


def _refuse_what_the_launcher_says(devices: DeviceOptions) -> None:
    if devices.gpus is not None or devices.ranks is not None:
        raise ValueError(
            "torchrun or Slurm says how many ranks there are: omit --gpus and --ranks, and choose among"
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
    launched: LaunchedRank,
    job: messages.TrainJob,
    notes: tuple[str, ...],
    devices: DeviceOptions,
    tls: TlsFiles,
) -> int:
    """Train as that rank, print what happens, and return the exit code; see `train_launched`."""
    tls.context()  # what is wrong with it is told before anything is loaded
    if launched.rank == 0:
        for note in notes:
            print(for_terminal(note))
        if job.checkpoint is not None:
            print(for_terminal(f"Goes on from {job.checkpoint}"), flush=True)
    return train_launched(launched, job, _LogLines(), devices.attach_at, devices.store_at, tls)


class _LogLines:
    """Prints what a training without a terminal of its own tells, of its progress a line now and then."""

    def __init__(self) -> None:
        self._due = 0.0

    def __call__(self, event: messages.Event) -> None:
        if isinstance(event, messages.RanksReport):
            return  # one a second
        if isinstance(event, messages.Progress):
            if time.monotonic() < self._due:
                return
            self._due = time.monotonic() + LINE_SECONDS
        how = "You can stop it with splatstudio attach; with --stop-when-flat it stops by itself."
        if (line := event_line(event, how)) is not None:
            print(for_terminal(line), flush=True)


def scene_and_run(path: Path, run_dir: Path | None, *, resume: bool) -> tuple[Path, Path | None]:
    """Return the scene and the folder of the run: a run that goes on may stand where the scene does.

    Raises ValueError for a run that is not to go on, and for one whose scene is not where it was.
    """
    if not (path / "run.json").exists():
        if resume and run_dir is None:
            raise ValueError(_why_no_run(path))
        return path, run_dir
    if not resume:
        raise ValueError(f"{path} is a run, not a scene: add --resume to go on with it")
    if run_dir is not None and run_dir.resolve() != path.resolve():
        raise ValueError(f"{path} is a run, not a scene: omit --run to go on with it, or name a scene")
    scene = Run.open(path).scene_path
    if not scene.exists():
        raise ValueError(
            f"the scene of the run is no longer at {scene}: say where it is now, as in"
            f" splatstudio train SCENE --run {as_argument(path)} --resume"
        )
    return scene, path


def _why_no_run(path: Path) -> str:
    """Return the sentence on what is no run, but is to go on."""
    run = next((folder for folder in path.parents if (folder / "run.json").exists()), None)
    if not path.exists():
        return f"{path} does not exist; name the folder of the run to go on with"
    if run is not None:
        return f"{path} lies in a run: splatstudio train {as_argument(run)} --resume goes on with it"
    return f"{path} is no run: name the run to go on with, as in splatstudio train RUN --resume"


@going_on_unheard()
def train_scene(
    scene_path: Path,
    config: TrainConfig,
    run_dir: Path | None,
    *,
    resume: bool,
    given: Collection[str],
    minutes: float | None = None,
    devices: DeviceOptions = AS_FOUND,
    tls: TlsFiles = NO_TLS,
) -> CommandResult:
    """Train to the last step or to Ctrl-C, SIGTERM or SIGHUP, which save, and return what it came to.

    `given` are the dotted names of the settings that the user asked for: a run that is resumed keeps its
    others. With `minutes` preset, size and steps are those of a plan for this machine. Raises ValueError with
    one sentence for what cannot be trained or resumed, and for what ended the training.
    """
    launched = launched_rank(os.environ)
    if minutes is not None:
        _refuse_beside_minutes(minutes, given, devices, launched=launched is not None)
    if launched is not None:
        job, notes = launched_job(scene_path, config, run_dir, resume=resume, given=given, devices=devices)
        return CommandResult(train_as_rank(launched, job, notes, devices, tls), {})
    checkpoint, known = None, None if run_dir is None else newest_step(run_dir)
    if resume:
        assert run_dir is not None, "`scene_and_run` names it"
        if devices.fit_batch:
            raise ValueError("a run goes on with its own batches: omit --batch-size auto")
        config, checkpoint = _to_resume(config, scene_path, run_dir, given)
    _refuse_what_is_for_several(devices, tls)
    scene = load_training_scene(scene_path, config, known_photos(checkpoint))
    print_scene(scene)
    run_dir = run_dir or new_run_path(scene.path)
    first = 0
    if checkpoint is not None:
        first = step_of(checkpoint) or 0
        if not _goes_on(run_dir, config, checkpoint, scene, known):
            return CommandResult(0, _values(run_dir, checkpoint, first, config.steps))
    elif is_taken(run_dir):
        raise ValueError(f"the run folder {run_dir} is not empty: resume it (--resume), or name another one")
    else:
        refuse_unwritable(run_dir, "name another run folder with --run")
    chosen = devices.chosen()
    use = devices.use_of(chosen)
    console.print(use.text, style="yellow" if use.idle_gpu else None)
    if checkpoint is None:
        config = _planned(config, scene, minutes, given, chosen)
        scene = scene.resized(config.downscale)
    fitting, sentence = devices.fitted(config, scene, chosen)
    console.print(sentence)
    for note in notes_on_settings(config, given):
        console.print(note, style="yellow")
    settings: tuple[tuple[str, int], ...] = ()
    if checkpoint is None:
        config = fitting
    elif fitting.densify != config.densify:  # a run goes on with its settings, but for what can be set live
        settings = ((LIMIT, fitting.densify.max_gaussians),)
    job = messages.TrainJob(scene.path.resolve(), run_dir, config, checkpoint, settings)
    del scene  # the background process has its own
    return _Attendance(job, first, chosen, minutes).run()


def _goes_on(run_dir: Path, config: TrainConfig, checkpoint: Path, scene: Scene, known: int | None) -> bool:
    """Take a run over and say where it goes on; return whether there is anything to do.

    `known` is the newest step that there was when `checkpoint` was chosen.
    """
    first = step_of(checkpoint) or 0
    joined = joined_sentence(checkpoint, scene)
    console.print("\n".join(filter(None, [f"Resuming at step {first} from {checkpoint}", joined])))
    if first >= config.steps:
        asked = f"the run is at step {first:,}, and it is to have {config.steps:,}"
        console.print(f"Nothing to do: {asked}; a larger --steps continues.")
        return False
    refuse_unwritable(run_dir, "copy the run elsewhere and resume it there")
    _take_over(run_dir)
    refuse_gone_on(run_dir, known)
    if (run := Run.open(run_dir)).config.images != config.images:
        remember_images(run, config.images)
    return True


def refuse_launched() -> None:
    """Raise ValueError where this process is one of the ranks of a launcher, which print to one output."""
    if launched_rank(os.environ) is not None:
        raise ValueError(
            "--json is for a training that splatstudio starts itself: under torchrun or Slurm the figures"
            " are in metrics.jsonl and eval/ of the run"
        )


def _values(run_dir: Path, checkpoint: Path | None, steps: int, planned: int) -> dict[str, Any]:
    """Return what `--json` prints of a training that did not fail, by documented names."""
    return {
        "run": run_dir.resolve(),
        "checkpoint": None if checkpoint is None else checkpoint.resolve(),
        "steps": steps,
        "planned_steps": planned,
        "stopped": False,
        "splats": None if checkpoint is None else _num_gaussians_in(checkpoint),
        "scores": _last_scores(run_dir, steps),
        "seconds": 0.0,
    }


def _num_gaussians_in(checkpoint: Path) -> int | None:
    with suppress(ValueError):  # a training that is done does not fail for what is told of it
        return read_manifest(checkpoint)["num_gaussians"]
    return None


def _last_scores(run_dir: Path, step: int) -> dict[str, Any] | None:
    """Return the means of the newest evaluation of a run up to a step, None where none can be read."""
    with suppress(ValueError, OSError):
        files = {int(file.stem.removeprefix("step_")): file for file in run_dir.glob("eval/step_*.json")}
        if scored := [at for at in files if at <= step]:
            newest = max(scored)
            evaluation = evaluation_from_json(json.loads(read_input(files[newest])))
            return {"step": newest, **scores_by_name(evaluation)}
    return None


def _refuse_what_is_for_several(devices: DeviceOptions, tls: TlsFiles) -> None:
    if devices.nodes > 1:
        raise ValueError("--nodes is for `splatstudio open`, which says what to start on each machine")
    devices.check_alone()
    if tls != NO_TLS:
        raise ValueError("--tls-cert is for --attach, under torchrun or Slurm: nothing is listened for here")


def _refuse_beside_minutes(
    minutes: float, given: Collection[str], devices: DeviceOptions, *, launched: bool
) -> None:
    if not 0 < minutes < math.inf:
        raise ValueError(f"--minutes is {minutes:g}, but must be more than 0")
    if launched or devices.may_be_several:
        raise ValueError("--minutes plans for one rank: omit it, and say how many --steps to train")
    if not {"steps", "strategy"}.isdisjoint(given):
        raise ValueError("--minutes chooses steps and strategy: omit --steps and --strategy, or --minutes")


def times_on(gpu: int | None) -> StepTimes:
    """Return what a step takes on a GPU, None: on the processor.

    A GPU is asked by a process of its own, which leaves nothing on it.
    """
    if gpu is None:
        return measured_times("cpu")
    with ProcessPoolExecutor(1, mp_context=process_context()) as pool:
        return pool.submit(measured_times, f"{accelerator.kind()}:{gpu}").result()


def _planned(
    config: TrainConfig, scene: Scene, minutes: float | None, given: Collection[str], devices: RankDevices
) -> TrainConfig:
    """Return the settings of a plan for so many minutes; without, name one where it takes long."""
    if minutes is not None:
        plan = plan_within(minutes, scene, config, times_on(devices.gpus[0]), given)
        console.print(f"Takes {plan.sentence}.")
        return plan.applied(config, given)
    if not given and devices.gpus == (None,):
        plan = proposal(scene, config, measured_times("cpu"))
        if plan is not None:
            took = duration_words(plan.instead_of)
            sentence = f"This takes {took} here; --minutes {BUDGET_MINUTES:g} is {plan.sentence}."
            console.print(sentence, style="yellow")
    return config


def _to_resume(
    config: TrainConfig, scene_path: Path, run_dir: Path, given: Collection[str]
) -> tuple[TrainConfig, Path]:
    """Return the settings and the checkpoint with which a run goes on."""
    run = Run.open(run_dir)  # what is no run is told as that
    checkpoint, why = newest_or_why(run_dir)
    if checkpoint is None:
        with suppress(OSError):
            RunLock(run_dir).release()  # ValueError where it is being trained: it will have one soon
        raise ValueError(_why_not_resumed(run_dir, why, "delete it to start over there, or name another"))
    # What was changed while it trained is in the checkpoint alone.
    config = resumed(run.replanned(config_of_checkpoint(checkpoint)), config, given)
    return config if "images" in given else with_images_found(config, run, scene_path), checkpoint


def _why_not_resumed(run_dir: Path, why: str, else_do: str) -> str:
    """Return the sentence on a run without a good checkpoint: what is there and unusable may yet be saved."""
    if not why:
        return f"{run_dir} has no checkpoint to resume from: {else_do}"
    return f"no checkpoint of {run_dir} can be used, and nothing was changed: {why}. Mend that, or begin anew"


def _take_over(run_dir: Path) -> None:
    """Say who left the run without ending properly; ValueError, naming who trains it now, if anybody."""
    lock = RunLock(run_dir)
    if lock.left_by is not None:
        console.print(f"{lock.left_by} left this run without ending properly; its lock is taken over.")
    lock.release()  # the background process takes it for good


class _Attendance:
    """Follows one training: prints what its process tells, and has it save and stop at a signal."""

    def __init__(
        self, job: messages.TrainJob, first: int, devices: RankDevices, minutes: float | None = None
    ):
        """`minutes` are those that were planned for, None: nothing was."""
        self._job = job
        self._planned_seconds = None if minutes is None else 60.0 * minutes  # until its delay is told
        self._first = first
        self._client = WorkerClient(job, plan_for(job, devices))
        self._started: float | None = None
        self._num_gaussians = 0
        self._checkpoint = job.checkpoint  # the newest one that is known of
        # Why the training ends, where it does before its last step.
        self._flat: messages.PlateauReached | None = None
        self._offer: messages.PlateauReached | None = None  # the one before: after a restart it is told again
        self._warned = ""  # the sentence before: a disk that stays full says the same again and again

    def run(self) -> CommandResult:
        with stop_requests() as request:
            try:
                self._client.start()
                self._client.send(messages.Start())
                with ProgressReport(self._job.config.steps, self._first) as report:
                    end = self._follow(report, request)
                self._client.close()
            except KeyboardInterrupt:
                self._client.kill()
                # Whatever the save in progress had come to: the disk tells.
                console.print(self._on_disk())
                self._checkpoint = newest_checkpoint(self._job.run_dir)
                return replace(self._result(CTRL_C, self._client.step, stopped=True), at_once=True)
            except BaseException:
                self._client.close()
                raise
        return self._conclude(end, request)

    def _follow(self, report: ProgressReport, request: StopRequest) -> messages.Event | None:
        """Print what happens; return the training's last word, None when it cannot be saved."""
        told, retries = False, SaveRetries()
        while True:
            if (request and not told) or retries.take_due():
                self._stop(request if not told else None, waits=retries.num_failed > 0)
                told = bool(request)
            alive, events = self._client.alive, self._client.poll(POLL_SECONDS)
            if not alive and not events:
                return None  # nobody is left to say how it ended
            for event in events:
                if isinstance(event, (messages.Finished, messages.Failed)):
                    return event
                if isinstance(event, messages.StateChanged):
                    if event.state == "restarting" and told:
                        # It died while it saved. Another one in its place would have nothing more to save.
                        self._client.kill()
                        return None
                    if event.state == "ended":
                        return None
                    if event.unsaved:
                        if not retries.fail():
                            return None
                        if retries.num_failed == 1:
                            console.print(retry_sentence(told=told))
                self._tell(event, report, quiet=told)

    def _stop(self, request: StopRequest | None, *, waits: bool) -> None:
        if request:
            # It does not end without what it waits for: room may be made before it is killed.
            doing = "Saving is tried at once, and again" if waits else "Saving after this step"
            console.print(request.words(doing))
        self._client.send(messages.Stop())

    def _tell(self, event: messages.Event, report: ProgressReport, *, quiet: bool) -> None:
        if isinstance(event, messages.Started):
            self._started = self._started or time.monotonic()
            self._num_gaussians = event.num_gaussians
        elif isinstance(event, messages.Progress):
            self._num_gaussians = event.num_gaussians
            report.show(event)
            self._tell_delay(event)
        elif isinstance(event, messages.Evaluated) and event.path is not None:
            file = event.path / f"step_{event.step:08d}.json"
            print_evaluation(evaluation_from_json(json.loads(read_input(file))), f"step {event.step}: ")
        elif isinstance(event, messages.Evaluated):  # and could not be written
            console.print(event_line(event, ""))
        elif isinstance(event, messages.PlateauReached) and event.stops:
            self._flat = event
        elif isinstance(event, messages.PlateauReached) and event != self._offer:
            self._offer = event
            console.print(plateau_sentence(event, "Ctrl-C saves and stops here."))
        elif isinstance(event, messages.Saved):
            self._checkpoint = event.path
            if not quiet:
                console.print(f"Saved {event.path}")
        elif isinstance(event, messages.EvaluationStopped):
            console.print(event.sentence)
        elif isinstance(event, messages.Warned) and event.sentence != self._warned:
            self._warned = event.sentence
            console.print(event.sentence, style="yellow")

    def _tell_delay(self, progress: messages.Progress) -> None:
        """Say once that a training which was planned for some minutes takes clearly longer."""
        planned, left = self._planned_seconds, progress.eta_seconds
        if planned is None or left is None or progress.step < EARLIEST_DELAY * progress.total_steps:
            return
        if self._seconds() + left > DELAYED * planned:
            self._planned_seconds = None
            console.print(
                f"Slower than planned, as beside other programs: {duration_words(left)} left."
                " Ctrl-C saves and stops here.",
                style="yellow",
                markup=False,
            )

    def _conclude(self, end: messages.Event | None, request: StopRequest) -> CommandResult:
        if isinstance(end, messages.Failed):
            if end.expected:
                raise ValueError(f"{end.cause} {self._on_disk()}" if self._went_on else end.cause)
            kept = "What the run had saved before is as it was."
            kept = self._on_disk() if self._went_on or not self._first else kept
            sentence = f"{end.cause} {kept} The log is {end.log_path}."
            print_error(sentence)
            return failed(sentence, 1)
        if not isinstance(end, messages.Finished):
            console.print(on_disk := self._on_disk())
            if not request:
                return failed(on_disk)
            return self._result(request.exit_code, self._client.step, stopped=True)
        elapsed = self._seconds()
        steps, num = end.step - self._first, self._num_gaussians
        console.print(f"{steps} steps in {elapsed:.0f} s ({steps / elapsed:.1f} it/s), {num:,} splats")
        if end.completed or end.step >= self._job.config.steps:
            console.print(f"See it: splatstudio open {as_argument(self._job.run_dir)}", soft_wrap=True)
            return self._result(0, end.step)
        stops = self._flat is not None and self._flat.step == end.step
        if self._flat is not None and stops:
            console.print(stopped_sentence(self._flat))
        console.print(f"{self._on_disk()} {self._go_on()}" if end.step else self._on_disk())
        return self._result(0 if stops else request.exit_code, end.step, stopped=not stops)

    @property
    def _went_on(self) -> bool:
        return self._client.step > self._first

    def _seconds(self) -> float:
        return max(time.monotonic() - (self._started or time.monotonic()), 1e-9)

    def _result(self, exit_code: int, step: int, *, stopped: bool = False) -> CommandResult:
        values = _values(self._job.run_dir, self._checkpoint, step, self._job.config.steps)
        return CommandResult(exit_code, {**values, "stopped": stopped, "seconds": self._seconds()})

    def _on_disk(self) -> str:
        return saved_sentence(self._job.run_dir, self._client.step)

    def _go_on(self) -> str:
        return f"Go on with: splatstudio train {as_argument(self._job.run_dir)} --resume"
