"""The page of a training that runs elsewhere: the same studio, with rank 0 at the other end of a socket."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import viser

from splatstudio.files.run import PATHS_FOLDER, Run
from splatstudio.gui.app import Studio, say_where, show_in_browser
from splatstudio.gui.panel_context import Page, Panel
from splatstudio.gui.server.network import LOOPBACK, Network
from splatstudio.gui.state.controller import Controller
from splatstudio.gui.state.news import News
from splatstudio.gui.state.project import Project
from splatstudio.gui.state.status import Choice
from splatstudio.gui.tabs.ranks import RanksPanel
from splatstudio.runtime.channel.handshake import RunCard
from splatstudio.runtime.client import WorkerClient
from splatstudio.runtime.messages import Job, TrainJob
from splatstudio.runtime.remote_run import RemoteLine, RemotePlan, dial
from splatstudio.scene import load_training_scene
from splatstudio.settings.config import TrainConfig, from_json


@dataclass(frozen=True, eq=False)
class AttachedProject(Project):
    """A run on other machines. Paths are theirs; `seen`: the run's folder is on a disk of this one, too."""

    seen: bool = False

    @property
    def name(self) -> str:
        """Return what the user calls it."""
        return self.path.name

    @property
    def can_train(self) -> bool:
        """Say that it is trained, whether or not its photographs are here."""
        return True

    @property
    def can_evaluate(self) -> bool:
        """Say that it can be evaluated, where its photographs are."""
        return True

    @property
    def resume_step(self) -> None:
        """Return None: who started it elsewhere resumes it there."""
        return None

    def first_job(self) -> TrainJob:
        """Return the training."""
        return self.training_job(resume=False)

    def training_job(self, *, resume: bool) -> TrainJob:
        """Return the training."""
        assert self.run_dir is not None
        scene_path = self.run_dir if self.scene is None else self.scene.path
        return TrainJob(scene_path, self.run_dir, self.config)

    def folder_of(self, kind: str) -> Path:
        """Return where files of a kind go: in the run, but camera paths, which the page writes, are here."""
        if kind == PATHS_FOLDER and not self.seen:
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
        seen = not made or Run.open(card.run_dir).scene_path == card.scene_path
        scene = load_training_scene(card.scene_path, config) if seen else None
    except (ValueError, OSError):  # its folders may be somebody else's here
        scene = None
    if scene is None:
        note = (
            f"The photographs and the run folder {card.run_dir} are not on this machine: the page shows the"
            " model without them, and what is exported or rendered stays on the training's machine."
        )
        return replace(project, notes=(note,))
    return replace(project, scene=scene, seen=True, notes=scene.notes)


class AttachedController(Controller):
    """Steers a training that is not this studio's: it is neither started here nor ended by closing."""

    def __init__(self, project: AttachedProject, news: News, plan: RemotePlan):
        self._plan = plan
        super().__init__(project, news.tell)

    def choice(self) -> Choice:
        """Return what the primary button says and whether it can be pressed."""
        if self.status.state in ("starting", "loading", "training", "paused", "restarting"):
            return super().choice()
        return Choice("Ended", enabled=False)

    @property
    def can_start_over(self) -> bool:
        """Say no: a new run is started where the machines are."""
        return False

    @property
    def can_set_up(self) -> bool:
        """Say no: it has begun."""
        return False

    @property
    def can_train_more(self) -> bool:
        """Say no: its processes leave at the end."""
        return False

    def _new_worker(self, job: Job) -> WorkerClient:
        if not isinstance(job, TrainJob):
            return super()._new_worker(job)
        worker = WorkerClient(job, self._plan)
        worker.subscribe(lambda event: self._take(worker, event))
        return worker

    def _load_history(self) -> None:
        rows: list[dict[str, Any]] = json.loads(self._plan.line.card.rows)
        self.history.load(rows)
        self._show_last_figures()


class AttachedStudio(Studio):
    """A studio for a training elsewhere, which goes on when it is closed."""

    def __init__(self, plan: RemotePlan, network: Network = LOOPBACK):
        self._plan = plan
        self._attached = project_of(plan.line.card)
        self._serve(self._attached, network)

    def _new_controller(self) -> Controller:
        return AttachedController(self._attached, self._news, self._plan)

    def _devices_panel(self, page: Page, tab: viser.GuiTabHandle) -> Panel:
        return RanksPanel(page)

    @property
    def _unsaved(self) -> bool:
        return False


def attached_studio(dialled: Callable[[], RemoteLine], network: Network) -> AttachedStudio:
    """Return the studio of the training that `dialled` connects to, as often as it has to."""
    line = dialled()
    try:
        return AttachedStudio(RemotePlan(line, dialled), network)
    except BaseException:
        line.close()
        raise


def open_attached(
    address: str, token: str, *, network: Network = LOOPBACK, browser: bool = True
) -> AttachedStudio:
    """Open the studio of the training at `address`, HOST:PORT, and print where.

    Raises ValueError with one sentence where nobody answers there, the token is wrong, or the page's address
    cannot be used.
    """
    studio = attached_studio(lambda: dial(address, token, frames=True), network)
    say_where(studio, network)
    print("Closing the studio leaves the training as it is.", flush=True)
    if browser:
        show_in_browser(studio)
    return studio
