"""What passes between the studio (or the command line) and the background process: plain values, no tensors.

Jobs are given once, at the start. Commands go down, Events come up; Finished or Failed ends a training.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from splatstudio.cameras.camera import Camera
from splatstudio.cameras.camera_path import CameraPath
from splatstudio.gaussians.trimming import KEEP_ALL, Trim
from splatstudio.models.video import Quality
from splatstudio.rendering.modes import Legend, RenderMode
from splatstudio.settings.config import TrainConfig
from splatstudio.strategy import Change

State = Literal[
    "starting",
    "ready",
    "loading",
    "training",
    "paused",
    "finished",
    "viewing",
    "restarting",  # the process died and another one takes its place
    "failed",
    "ended",
]


@dataclass(frozen=True)
class TrainJob:
    """Train a scene into a run folder; from `checkpoint` on when there is one.

    `settings` are live settings, dotted path and value, that are set again before the first step. A job of
    `attempt` above 0 takes the place of a process that died, in the run folder that it had made. `before` is
    the run that was started over.
    """

    scene_path: Path
    run_dir: Path
    config: TrainConfig = field(default_factory=TrainConfig)
    checkpoint: Path | None = None
    settings: tuple[tuple[str, Any], ...] = ()
    attempt: int = 0
    before: Path | None = None


@dataclass(frozen=True)
class ViewJob:
    """Show and export a finished model: a PLY file, a checkpoint folder or a run folder."""

    model_path: Path
    frame: tuple[tuple[float, ...], ...] | None = None  # [4, 4] of the scene beside it; None: the model's own


Job = TrainJob | ViewJob


@dataclass(frozen=True)
class ViewOptions:
    """What a view shows, and how; None leaves what the model was trained with.

    `mode` "error" compares with the scene's view `photo`, from where it was taken; outside of it is dark.
    """

    background: tuple[float, float, float] = (0.0, 0.0, 0.0)  # linear RGB in 0..1
    sky: bool = True  # of a model that has learnt one, in place of the background
    mode: RenderMode = "color"
    splat_scale: float = 1.0  # every splat's standard deviations times this
    near: float | None = None  # scene units
    far: float | None = None  # scene units
    photo: int | None = None
    antialiased: bool | None = None
    sh_degree: int | None = None  # the highest degree that is drawn
    trim: Trim = KEEP_ALL  # what is hidden; its box is in the model's frame


@dataclass(frozen=True)
class Command:
    """An order to the worker. The supervisor numbers them, and waits for a Receipt of each."""

    number: int = field(default=0, kw_only=True, compare=False, repr=False)


@dataclass(frozen=True)
class Start(Command):
    """Begin the training of a TrainJob; stand still once `pause_at` steps are done, where that is given."""

    pause_at: int | None = None


@dataclass(frozen=True)
class Pause(Command):
    """Hold the training after the step in progress."""


@dataclass(frozen=True)
class Resume(Command):
    """Go on after Pause, or after a Stop with steps left."""


@dataclass(frozen=True)
class Step(Command):
    """Train `count` steps, then pause."""

    count: int = 1


@dataclass(frozen=True)
class Stop(Command):
    """Save and end the training; the model stays on view."""


@dataclass(frozen=True)
class Close(Command):
    """Leave: an unfinished training saves first."""


@dataclass(frozen=True, eq=False)
class SetView(Command):
    """Ask for one frame of `camera`; a newer one of the same `view` replaces it while it waits."""

    view: int
    seq: int
    camera: Camera
    options: ViewOptions = field(default_factory=ViewOptions)


@dataclass(frozen=True)
class DropView(Command):
    """Forget a view that nobody looks at any more."""

    view: int


@dataclass(frozen=True)
class ReturnSlot(Command):
    """Give a frame slot back: the credit to write the next frame."""

    slot: int


@dataclass(frozen=True)
class UpdateSettings(Command):
    """Change settings while training runs: dotted path and value of each, from the next step on."""

    values: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class SetCap(Command):
    """Let no Gaussians be added above this number, from the next densification on."""

    max_gaussians: int


@dataclass(frozen=True)
class Save(Command):
    """Write a checkpoint into the run folder."""


@dataclass(frozen=True)
class Evaluate(Command):
    """Compare the model with the test photographs."""


@dataclass(frozen=True)
class JobCommand(Command):
    """A long task on a copy of the model as it is now; the training goes on meanwhile.

    Of `job`, its sender's number, tell JobProgress, then exactly one of JobDone, JobCancelled and JobFailed.
    """

    job: int = field(default=0, kw_only=True)


@dataclass(frozen=True)
class Export(JobCommand):
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


@dataclass(frozen=True, eq=False)
class RenderPath(JobCommand):
    """Render a camera path, which is in the model's frame, to a .mp4, a .webm or a folder of PNG frames."""

    path: CameraPath
    output: Path
    quality: Quality = "full"
    options: ViewOptions | None = None  # None: as the model was trained and is evaluated


@dataclass(frozen=True, eq=False)
class Snapshot(JobCommand):
    """Render one picture of any size to a .png file."""

    camera: Camera
    output: Path
    options: ViewOptions | None = None


@dataclass(frozen=True)
class CancelJob(Command):
    """End a long task as soon as possible; nothing of what it was writing stays."""

    job: int


class Event:
    """News from the worker."""


@dataclass(frozen=True)
class Started(Event):
    """A training begins, or goes on, at `step`."""

    step: int
    total_steps: int
    num_gaussians: int
    num_train: int
    num_test: int


@dataclass(frozen=True)
class Progress(Event):
    """Where a training stands; sent at most ten times a second, the newest replaces one not yet sent."""

    step: int
    total_steps: int
    loss: float
    psnr: float | None  # dB, running mean over the photographs that were trained on; None: not known yet
    num_gaussians: int
    steps_per_second: float
    eta_seconds: float | None
    elapsed_seconds: float


@dataclass(frozen=True)
class Densified(Event):
    """Gaussians were added and removed after `step`, or their opacities were reset."""

    step: int
    num_gaussians: int  # afterwards
    change: Change


@dataclass(frozen=True)
class SettingChanged(Event):
    """A live setting has another value, which holds from the step after `step` on."""

    step: int
    path: str  # dotted, as "optim.means_lr"
    value: Any


@dataclass(frozen=True)
class PhotoErrors(Event):
    """PSNR in dB of views that were trained on since the last such event, before that step; one a second."""

    step: int
    psnr: tuple[tuple[str, float], ...]  # name and PSNR


@dataclass(frozen=True)
class Frame(Event):
    """Slot `slot` holds the answer to SetView `seq`: [height, width, 3] uint8 of the model at `step`."""

    view: int
    seq: int
    slot: int
    width: int
    height: int
    step: int
    render_seconds: float
    legend: Legend | None = None  # what the colours mean; None: they are the model's own
    notice: str | None = None  # why this is not the picture asked for, one sentence


@dataclass(frozen=True)
class ModelLoaded(Event):
    """A model is ready to be looked at; bounds are of the half nearest its centre, in the viewer's frame."""

    step: int | None
    num_gaussians: int
    center: tuple[float, float, float]
    radius: float
    sh_degree: int = 3  # that its harmonics have room for


@dataclass(frozen=True)
class Evaluated(Event):
    """Means over the test photographs at `step`; the images' own figures are in `path`."""

    step: int
    psnr: float
    ssim: float
    num_images: int
    path: Path | None


@dataclass(frozen=True)
class Saved(Event):
    """A checkpoint is complete on disk."""

    step: int
    path: Path


@dataclass(frozen=True)
class Exported(Event):
    """A file of the model is complete on disk."""

    path: Path
    num_gaussians: int
    num_bytes: int


@dataclass(frozen=True)
class JobProgress(Event):
    """How far a long task is; the newest replaces one not yet sent. `total` 0: nobody can say."""

    job: int
    done: int
    total: int
    eta_seconds: float | None


@dataclass(frozen=True)
class JobDone(Event):
    """A long task is complete, and its file (or folder of frames) is on disk."""

    job: int
    path: Path
    num_bytes: int
    note: str = ""  # on what the file does not keep


@dataclass(frozen=True)
class JobCancelled(Event):
    """A long task was cancelled; nothing of its file is left."""

    job: int


@dataclass(frozen=True)
class JobFailed(Event):
    """A long task ended with an error, of which nothing else took harm."""

    job: int
    sentence: str


@dataclass(frozen=True)
class Warned(Event):
    """Something the user should know; the training goes on."""

    sentence: str


@dataclass(frozen=True)
class StateChanged(Event):
    """The worker is in another state; `unsaved`: it paused for there is no room for the model."""

    state: State
    unsaved: bool = False


@dataclass(frozen=True)
class Finished(Event):
    """The training ended as it should: all steps done, or stopped by the user with `completed` False."""

    step: int
    completed: bool
    checkpoint: Path | None


@dataclass(frozen=True)
class Failed(Event):
    """The worker ended; `sentence` says why, what is safe and what to do next. Details are in `log_path`."""

    sentence: str
    step: int
    log_path: Path | None
    cause: str = ""  # why alone
    expected: bool = False  # the cause is something that the user did or can change: the log tells no more
