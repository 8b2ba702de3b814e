"""What passes between a client (page, terminal, remote page) and the ranks: plain values, no tensors.

Jobs are given once, at the start. Commands go down, Events come up; Finished or Failed ends a training.
`channel.codec` turns them into bytes, the same for the pipe, the broadcast between ranks and the socket.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from msgspec import Struct

from splatstudio.cameras.camera import Camera
from splatstudio.cameras.camera_path import CameraPath, VideoQuality
from splatstudio.gaussians.change import Change
from splatstudio.gaussians.trimming import KEEP_ALL, Trim
from splatstudio.rendering.modes import Legend, RenderMode
from splatstudio.settings.config import TrainConfig

State = Literal[
    "starting",
    "ready",
    "loading",
    "training",
    "paused",
    "finished",
    "viewing",
    "restarting",  # the process died and another one takes its place
    "disconnected",  # it runs elsewhere, or has ended: the line to it broke, and is tried again
    "failed",
    "ended",
]

Scalar = bool | int | float | str | None
SettingValue = Scalar | tuple[Scalar, ...]


@dataclass(frozen=True)
class TrainJob:
    """Train a scene into a run folder; from `checkpoint` on when there is one.

    `settings` are live settings, dotted path and value, that are set again before the first step. A job of
    `attempt` above 0 takes the place of a process that died, in the run folder that it had made. `before` is
    the run beside which this one was begun.
    """

    scene_path: Path
    run_dir: Path
    config: TrainConfig = field(default_factory=TrainConfig)
    checkpoint: Path | None = None
    settings: tuple[tuple[str, SettingValue], ...] = ()
    attempt: int = 0
    before: Path | None = None


@dataclass(frozen=True)
class ViewJob:
    """Show and export a finished model: a PLY file, a checkpoint folder or a run folder."""

    model_path: Path
    frame: tuple[tuple[float, ...], ...] | None = None  # [4, 4] of the scene beside it; None: the model's own
    scene: Path | None = None  # beside it, in whose coordinates another program's model may not lie


Job = TrainJob | ViewJob


@dataclass(frozen=True)
class ViewOptions:
    """What a view shows, and how; None leaves what the model was trained with.

    `mode` "error" compares with the scene's view `photo`, from where it was taken; outside of it is dark.
    """

    background: tuple[float, float, float] = (0.0, 0.0, 0.0)  # linear RGB in 0..1
    sky: bool = True  # of a model that has learned one, in place of the background
    mode: RenderMode = "color"
    splat_scale: float = 1.0  # every splat's standard deviations times this
    near: float | None = None  # scene units
    far: float | None = None  # scene units
    photo: int | None = None
    antialiased: bool | None = None
    sh_degree: int | None = None  # the highest degree that is drawn
    trim: Trim = KEEP_ALL  # what is hidden; its box is in the model's frame


class Command(Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """An order to the ranks, which rank 0 receives."""


class Start(Command, frozen=True):
    """Begin the training of a TrainJob; stand still once `pause_at` steps are done, where that is given."""

    pause_at: int | None = None


class Pause(Command, frozen=True):
    """Hold the training after the step in progress."""


class Resume(Command, frozen=True):
    """Go on after Pause, or after a Stop with steps left."""


class Step(Command, frozen=True):
    """Train `count` steps, then pause."""

    count: int = 1


class Stop(Command, frozen=True):
    """Save and end the training; the model stays on view."""


class Close(Command, frozen=True):
    """Leave: an unfinished training saves first."""


class SetView(Command, frozen=True, eq=False):
    """Ask for one frame of `camera`; a newer one of the same `view` replaces it while it waits."""

    view: int
    seq: int
    camera: Camera
    options: ViewOptions = ViewOptions()


class DropView(Command, frozen=True):
    """Forget a view that nobody looks at any more."""

    view: int


class ReturnSlot(Command, frozen=True):
    """Give a frame slot back: the credit to write the next frame."""

    slot: int


class UpdateSettings(Command, frozen=True):
    """Change settings while training runs: dotted path and value of each, from the next step on."""

    values: tuple[tuple[str, SettingValue], ...]


class SetCap(Command, frozen=True):
    """Let no Gaussians be added above this number, from the next densification on."""

    max_gaussians: int


class Save(Command, frozen=True):
    """Write a checkpoint into the run folder."""


class Evaluate(Command, frozen=True):
    """Compare the model with the test photos."""


class JobCommand(Command, frozen=True, kw_only=True):
    """A long task on a copy of the model as it is now; the training goes on meanwhile.

    Of `job`, its sender's number, tell JobProgress, then exactly one of JobDone, JobCancelled and JobFailed.
    """

    job: int = 0


class Export(JobCommand, frozen=True):
    """Write the model in the format of the ending, in the frame of the scene's own files or `upright`.

    The box of `trim`, the named `cameras` (written beside the model), `first`, where a web page begins, and
    `eyes`, the positions that normals face, are in the model's frame.
    """

    path: Path
    trim: Trim = KEEP_ALL
    upright: bool = False
    cameras: tuple[tuple[str, Camera], ...] = ()
    first: Camera | None = None
    normals: bool = False
    eyes: tuple[tuple[float, float, float], ...] = ()


class RenderPath(JobCommand, frozen=True, eq=False):
    """Render a camera path, which is in the model's frame, to a .mp4, a .webm or a folder of PNG frames."""

    path: CameraPath
    output: Path
    quality: VideoQuality = "full"
    options: ViewOptions | None = None  # None: as the model was trained and is evaluated


class Snapshot(JobCommand, frozen=True, eq=False):
    """Render one picture of any size to a .png file."""

    camera: Camera
    output: Path
    options: ViewOptions | None = None


class CancelJob(Command, frozen=True):
    """End a long task as soon as possible; nothing of what it was writing stays."""

    job: int


@dataclass(frozen=True, eq=False)
class ViewRequest:
    """A camera that a model is drawn from, and how it is drawn."""

    camera: Camera
    options: ViewOptions


class RankCommand(Command, frozen=True):
    """What rank 0 has all ranks do together; no client can send it."""


class Wait(RankCommand, frozen=True):
    """Nothing: rank 0 is waiting for orders and shows that it is there."""


class NextStep(RankCommand, frozen=True):
    """Train one step."""


class Leave(RankCommand, frozen=True):
    """End; `signal` is the one for which the training ends before its last step, 0: none."""

    signal: int = 0


class GatherModel(RankCommand, frozen=True):
    """Send all Gaussians to rank 0."""


class GatherViews(RankCommand, frozen=True, eq=False):
    """Send what some cameras see of the model to rank 0."""

    requests: tuple[ViewRequest, ...]


class WritePart(RankCommand, frozen=True):
    """Write this rank's part of a checkpoint into the folder that rank 0 has made for it."""

    staging: Path


class SendFigures(RankCommand, frozen=True):
    """Send this rank's figures to rank 0."""


class EvaluateShare(RankCommand, frozen=True):
    """Compare the model with this rank's share of the test photos."""


class KeepCopy(RankCommand, frozen=True):
    """Keep a copy of this rank's part of the model for a task."""

    job: int


class DrawCopy(RankCommand, frozen=True, eq=False):
    """Draw one picture a rank of the copy that is kept for a task."""

    job: int
    requests: tuple[ViewRequest, ...]


class DropCopy(RankCommand, frozen=True):
    """Let the copy that was kept for a task go."""

    job: int


class Event(Struct, frozen=True, tag=True):
    """News from the ranks, which rank 0 sends."""


class Started(Event, frozen=True):
    """A training begins, or goes on, at `step`."""

    step: int
    total_steps: int
    num_gaussians: int
    num_train: int
    num_test: int


class Progress(Event, frozen=True):
    """Where a training stands; sent at most ten times a second, the newest replaces one not yet sent."""

    step: int
    total_steps: int
    loss: float
    psnr: float | None  # dB, running mean over the photos that were trained on; None: not known yet
    num_gaussians: int
    steps_per_second: float
    eta_seconds: float | None


class Densified(Event, frozen=True):
    """Gaussians were added and removed after `step`, or their opacities were reset."""

    step: int
    num_gaussians: int  # afterward
    change: Change


class SettingChanged(Event, frozen=True):
    """A live setting has another value, which holds from the step after `step` on."""

    step: int
    path: str  # dotted, as "optim.means_lr"
    value: SettingValue


class PhotoErrors(Event, frozen=True):
    """PSNR in dB of views that were trained on since the last such event, before that step; one a second."""

    step: int
    psnr: tuple[tuple[str, float], ...]  # name and PSNR


class Frame(Event, frozen=True):
    """Slot `slot` holds the answer to SetView `seq`: [height, width, 3] uint8 of the model at `step`."""

    view: int
    seq: int
    slot: int
    width: int
    height: int
    step: int
    render_seconds: float
    legend: Legend | None = None  # what the colors mean; None: they are the model's own
    notice: str | None = None  # why this is not the picture asked for, one sentence
    kept: int | None = None  # splats that the view's filter keeps; None: not known here


class JpegFrame(Event, frozen=True, eq=False):
    """A frame with its image as JPEG, on the line to another machine."""

    frame: Frame
    jpeg: bytes


class ModelLoaded(Event, frozen=True):
    """A model is ready to be looked at; bounds are of the half nearest its center, in the viewer's frame."""

    step: int | None
    num_gaussians: int
    center: tuple[float, float, float]
    radius: float
    sh_degree: int = 3  # that its harmonics have room for


class Evaluated(Event, frozen=True):
    """Means over the test photos at `step`; the images' own figures are in `path`."""

    step: int
    psnr: float
    ssim: float
    num_images: int
    path: Path | None


class Saved(Event, frozen=True):
    """A checkpoint is complete on disk."""

    step: int
    path: Path
    autosave: bool = False  # written because time had passed: the next one takes its place


class Exported(Event, frozen=True):
    """A file of the model is complete on disk."""

    path: Path
    num_gaussians: int
    num_bytes: int


class JobProgress(Event, frozen=True):
    """How far a long task is; the newest replaces one not yet sent. `total` 0: nobody can say."""

    job: int
    done: int
    total: int
    eta_seconds: float | None


class JobDone(Event, frozen=True):
    """A long task is complete, and its file (or folder of frames) is on disk."""

    job: int
    path: Path
    num_bytes: int
    note: str = ""  # on what the file does not keep


class JobCancelled(Event, frozen=True):
    """A long task was cancelled; nothing of its file is left."""

    job: int


class JobFailed(Event, frozen=True):
    """A long task ended with an error, of which nothing else took harm."""

    job: int
    sentence: str


class Warned(Event, frozen=True):
    """Something the user should know; the training goes on."""

    sentence: str


class OrderRefused(Warned, frozen=True):
    """Why an order was not obeyed: nobody who comes later needs to know it."""


class EvaluationStopped(Event, frozen=True):
    """An evaluation made way for what the user asked for meanwhile: nothing went wrong."""

    sentence: str


class StateChanged(Event, frozen=True):
    """The worker is in another state; `unsaved`: it paused for there is no room for the model.

    `reason`: sentences on why it is so, to be read as long as it is.
    """

    state: State
    unsaved: bool = False
    reason: str = ""


class Finished(Event, frozen=True):
    """The training ended as it should: all steps done, or stopped by the user with `completed` False."""

    step: int
    completed: bool
    checkpoint: Path | None


class Failed(Event, frozen=True):
    """The worker ended; `sentence` says why, what is safe and what to do next. Details are in `log_path`."""

    sentence: str
    step: int
    log_path: Path | None
    cause: str = ""  # why alone
    expected: bool = False  # the cause is something that the user did or can change: the log tells no more


class PlateauReached(Event, frozen=True):
    """The test score, evaluated after `step` of `total_steps`, has stood still since `since`, at `psnr` dB.

    `stops`: the training ends here for that; else nothing happens. `waits`: it will, once the learning rates
    are nearly at rest. `rates_left` are those of the last step over those of now.
    """

    step: int
    total_steps: int
    since: int
    psnr: float
    stops: bool
    waits: bool
    rates_left: float


class PlateauLeft(Event, frozen=True):
    """The last PlateauReached holds no longer after `step`: the score rose, or a setting was changed."""

    step: int


@dataclass(frozen=True)
class RankFigures:
    """What one rank of a training does: means over the last second of training."""

    rank: int
    num_gaussians: int
    step_seconds: float
    wait_seconds: float  # of that, waiting for other ranks and exchanging with them
    host: str = ""  # the name of its machine


class RanksReport(Event, frozen=True):
    """The figures of all ranks of a training on several, by rank; about once a second while it trains."""

    step: int
    ranks: tuple[RankFigures, ...]


class Receipt(Event, frozen=True):
    """Rank 0 has begun with the order of this number, and so with all before it, or is `done` with it.

    For the supervisor alone, as is PausesAt: it must know where each order stands when a process dies.
    """

    number: int
    done: bool


class PausesAt(Event, frozen=True):
    """The training will stand still after `step`; None: it goes on to its end."""

    step: int | None


def figures_after(event: Event, told: tuple[RankFigures, ...]) -> tuple[RankFigures, ...]:
    """Return the ranks' newest figures once `event` has come, where they were `told` before; empty: none."""
    if isinstance(event, RanksReport):
        return event.ranks
    if isinstance(event, StateChanged) and event.state in ("starting", "restarting", "disconnected", "ended"):
        return ()  # another group of ranks may be another number of them
    return told
