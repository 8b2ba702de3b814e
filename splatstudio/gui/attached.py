"""The page of a training elsewhere: reached by its address, or started on several machines that meet here."""

from __future__ import annotations

import json
import re
import secrets
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from splatstudio.checkpoints.checkpoint import is_of_scene, known_photos, newest_known_checkpoint
from splatstudio.error_text import for_terminal
from splatstudio.files.run import CROP_FILE, PATHS_FOLDER, Run
from splatstudio.gui.app import Studio, told_and_shown
from splatstudio.gui.server.access import THIS_MACHINE, Listen
from splatstudio.gui.state.controller import Controller, ModelInView
from splatstudio.gui.state.project import Project
from splatstudio.gui.state.status import Choice, Notice
from splatstudio.runtime.channel.remote_server import RunCard
from splatstudio.runtime.messages import Job, TrainJob
from splatstudio.runtime.remote_run import REDIAL_SECONDS, RemoteLine, RemotePlan, Unreachable, dial
from splatstudio.runtime.store_host import EVERYWHERE, StoreHost
from splatstudio.runtime.supervisor import Plan
from splatstudio.scene.load import load_training_scene
from splatstudio.settings.config import TrainConfig, from_json
from splatstudio.training.device_options import DeviceOptions

# What is for the studio, of the words of a command line; all else is for the training.
OWN_WORDS = re.compile(
    "allow-host|allow-origin|attach|attach-via|browser|gpus|host|no-browser|no-train|nodes|nodes-at|port"
    "|ranks|run|tls-cert|tls-key|train"
)

MAX_RESTARTS = 100  # a machine that is replaced counts, too


@dataclass(frozen=True, eq=False)
class AttachedProject(Project):
    """A run on other machines. Paths are theirs; `seen`: the run's folder is on a disk of this one, too."""

    seen: bool = False

    @property
    def name(self) -> str:
        """Return what the user calls it."""
        return self.path.name

    # It is trained, and can be evaluated, whether or not its photos are here; who started it resumes it.
    can_train = can_evaluate = property(lambda _: True)
    resume_step = property(lambda _: None)

    def first_job(self) -> TrainJob:
        """Return the training."""
        return self.training_job()

    def training_job(self) -> TrainJob:
        """Return the training."""
        assert self.run_dir is not None
        scene_path = self.run_dir if self.scene is None else self.scene.path
        return TrainJob(scene_path, self.run_dir, self.config)

    def folder_of(self, kind: str) -> Path:
        """Return where files of a kind go: in the run, but what the page writes by itself is here."""
        if kind in (PATHS_FOLDER, CROP_FILE) and not self.seen:
            return Path.cwd() / f"{self.name}-{kind}"
        return super().folder_of(kind)


def project_of(card: RunCard) -> AttachedProject:
    """Return the project of a training that says so of itself.

    Raises ValueError with one sentence where this program does not know its settings.
    """
    values = json.loads(card.config)
    config = from_json(TrainConfig, values)
    project = AttachedProject(card.run_dir, None, None, card.run_dir, config)
    try:
        # A run that has just been started has written nothing of itself yet.
        made = (card.run_dir / "run.json").exists() or not card.run_dir.parent.is_dir()
        same = not made or Run.open(card.run_dir).scene_path == card.scene_path
        checkpoint = newest_known_checkpoint(card.run_dir)
        scene = load_training_scene(card.scene_path, config, known_photos(checkpoint))
        # It may have gone on with a copy of its scene.
        if not same and (checkpoint is None or not is_of_scene(checkpoint, scene)):
            scene = None
    except (ValueError, OSError):  # its folders may be somebody else's here
        scene = None
    if scene is None:
        note = (
            f"The photos and the run folder {card.run_dir} are not on this machine: the page shows the"
            " model without them, and what is exported or rendered stays on the training's machine."
        )
        return replace(project, notes=(note,))
    return replace(project, scene=scene, seen=True, notes=scene.notes)


class AttachedController(Controller):
    """Steers a training that is not this studio's: it is neither started here nor ended by closing."""

    elsewhere = True

    def __init__(self, project: Project, notify: Callable[[Notice], None], plan: RemotePlan):
        self._plan = plan
        super().__init__(project, notify)

    def choice(self) -> Choice:
        """Return what the primary button says and whether it can be pressed."""
        if self.status.state == "disconnected":
            return Choice("Not connected", enabled=False)
        if self.status.state in ("starting", "loading", "training", "paused"):
            return super().choice()
        return Choice("Ended", enabled=False)

    @property
    def in_view(self) -> ModelInView:
        """Return what pictures, videos and exports are of: nothing of a training that is not connected."""
        model = super().in_view
        away = self.status.state == "disconnected" and model.worker is None
        return replace(model, num_gaussians=None) if away else model

    # A new run is started where the machines are; this one has begun, and its processes leave at the end.
    can_begin_new_run = can_set_up = can_train_more = property(lambda _: False)

    def _plan_for(self, job: Job) -> Plan | RemotePlan:
        return self._plan if isinstance(job, TrainJob) else super()._plan_for(job)

    def _load_history(self) -> None:
        rows: list[dict[str, Any]] = json.loads(self._plan.line.card.rows)
        self.history.load(rows)
        self._show_last_figures()


class AttachedStudio(Studio):
    """A studio for a training elsewhere, which goes on when it is closed."""

    def __init__(self, plan: RemotePlan, network: Listen = THIS_MACHINE):
        self._serve(project_of(plan.line.card), network, partial(AttachedController, plan=plan))


def attached_studio(dialed: Callable[[], RemoteLine], network: Listen) -> AttachedStudio:
    """Return the studio of the training that `dialed` connects to, as often as it has to."""
    line = dialed()
    try:
        return AttachedStudio(RemotePlan(line, dialed), network)
    except BaseException:
        line.close()
        raise


def open_attached(
    address: str, token: str, *, network: Listen = THIS_MACHINE, browser: bool = True
) -> AttachedStudio:
    """Open the studio of the training at `address`, HOST:PORT, and print where.

    Raises ValueError with one sentence where nobody answers there, the token is wrong, or the page's address
    cannot be used.
    """
    studio = attached_studio(lambda: dial(address, token, frames=True), network)
    return told_and_shown(studio, network, browser, "Closing the studio leaves the training as it is.")


@dataclass(frozen=True)
class Gathering:
    """A training that several machines come together for; `host` is this one's address, as they see it."""

    scene_path: Path
    run_dir: Path
    num_nodes: int
    host: str
    per_node: str = "gpu"  # ranks on each: a number, or "gpu" for one on each GPU
    words: tuple[str, ...] = ()  # further ones for `splatstudio train`
    start: str = field(default_factory=lambda: secrets.token_hex(4))  # tells this one from others of the run

    def command(self, port: int) -> str:
        """Return what to start on each machine, where the store is at `port` of this one."""
        launch = ["torchrun", "--nnodes", str(self.num_nodes), "--nproc-per-node", self.per_node]
        launch += ["--max-restarts", str(MAX_RESTARTS), "--rdzv-backend", "c10d"]
        launch += ["--rdzv-endpoint", f"{self.host}:{port}"]
        launch += ["--rdzv-id", f"{self.run_dir.name}-{self.start}"]
        launch += ["--rdzv-conf", "is_host=0,keep_alive_interval=1,keep_alive_max_attempt=3"]
        train = ["splatstudio", "train", str(self.scene_path), "--run", str(self.run_dir), *self.words]
        train += ["--attach-via", f"{self.host}:{port}"]
        # Else the ranks of a restart read the addresses of those before (pytorch#135712).
        shared = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 "
        return shared + shlex.join([*launch, "--no-python", "--", *train])


def words_for_training(arguments: Sequence[str], path: Path) -> tuple[str, ...]:
    """Return those words of an `open` command that are settings of the training."""
    kept, words = False, []
    for word in arguments:
        if word.startswith("--"):
            kept = OWN_WORDS.fullmatch(word[2:].partition("=")[0].replace("_", "-")) is None
        if kept and Path(word) != path:
            words.append(word)
    return tuple(words)


def nodes_asked_for(
    words: Sequence[str], path: Path, run_dir: Path | None, devices: DeviceOptions, network: Listen
) -> AttachedStudio:
    """Open the page of what an `open` command with --nodes asks for; see `open_nodes`.

    Raises ValueError with one sentence for what is missing in it.
    """
    if run_dir is None:
        raise ValueError("--nodes needs --run: one folder that all machines see")
    devices.check_spread()
    if devices.gpus is not None:
        raise ValueError(
            "--gpus names those of this machine: with --nodes choose on each by CUDA_VISIBLE_DEVICES, or give"
            " --ranks"
        )
    host, port = devices.meeting_at
    kept = words_for_training(words, path)
    per_node = "gpu" if devices.ranks is None else str(devices.ranks)
    gathering = Gathering(path.resolve(), run_dir.resolve(), devices.nodes, host, per_node, kept)
    return open_nodes(gathering, port, network=network, browser="--no-browser" not in words)


def open_nodes(gathering: Gathering, port: int, *, network: Listen, browser: bool) -> AttachedStudio:
    """Say what to start on the machines, wait for them, and open the page of their training.

    Raises ValueError with one sentence for a port that is not available. The store lives as long as the
    studio, and the agents of torchrun end without: their ranks save, and leave.
    """
    host = StoreHost(port, gathering.host)
    where = for_terminal(str(gathering.run_dir))
    print(f"Start this on each of {gathering.num_nodes} machines, which all see {where}:\n")
    print(for_terminal(f"  {gathering.command(host.port)}\n"), flush=True)
    print(f"The machines meet {_where(host)}, without a password: in a network that you trust.", flush=True)
    while True:
        try:
            studio = attached_studio(host.dialed, network)
            break
        except Unreachable:
            time.sleep(REDIAL_SECONDS)
    last = "When this studio is closed the training saves and ends: its machines meet here."
    return told_and_shown(studio, network, browser, last)


def _where(host: StoreHost) -> str:
    if host.address == EVERYWHERE:
        return f"at port {host.port} of all networks of this machine"
    return f"at {host.address}:{host.port} alone"
