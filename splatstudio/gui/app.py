"""The studio: a page in the browser that steers a training, here or elsewhere, and shows its model live."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

from splatstudio.checkpoints.checkpoint import newest_checkpoint
from splatstudio.error_text import for_terminal, in_words
from splatstudio.files.path_words import as_argument
from splatstudio.gui.dock import StatusPanel
from splatstudio.gui.leaving_bars import CloseBar, HomeBar
from splatstudio.gui.panel import Hotkeys, Page, Panel, Refresher
from splatstudio.gui.server.access import THIS_MACHINE, Listen, TakenOver, advice, open_browser
from splatstudio.gui.server.gate import open_server
from splatstudio.gui.server.viser_private import after_callbacks
from splatstudio.gui.state.controller import Controller
from splatstudio.gui.state.leaving import Leaving
from splatstudio.gui.state.project import Project, on_devices, open_project
from splatstudio.gui.state.status import Notice, Status
from splatstudio.gui.state.stream import Viewport
from splatstudio.gui.state.tasks import Milestones, News, TaskBoard
from splatstudio.gui.state.viewpoint import FirstView, likely_up
from splatstudio.gui.tabs.compare_runs import RunComparison
from splatstudio.gui.tabs.devices import DevicesPanel, RanksPanel
from splatstudio.gui.tabs.evaluate import EvaluatePanel
from splatstudio.gui.tabs.export import ExportPanel
from splatstudio.gui.tabs.log import LogPanel
from splatstudio.gui.tabs.navigation import Navigation, add_view_keys
from splatstudio.gui.tabs.photos import PhotosPanel
from splatstudio.gui.tabs.render import RenderPanel
from splatstudio.gui.tabs.train import TrainPanel
from splatstudio.gui.tabs.view import ViewPanel
from splatstudio.gui.theme import apply_theme, light_evenly
from splatstudio.poses.background import BackgroundEstimation
from splatstudio.poses.store import PoseStore
from splatstudio.runtime.messages import Close, Event, ModelLoaded, Saved
from splatstudio.runtime.sentences import saved_sentence
from splatstudio.runtime.stop_signals import StopRequest, stop_requests
from splatstudio.settings.config import TrainConfig
from splatstudio.training.device_options import AS_FOUND, DeviceOptions
from splatstudio.training.time_plan import duration_words, measured_times, proposal

_AT_WORK = ("starting", "loading", "training", "restarting")
# Pixels: below 40 % of a window of 1440 together, and eight GPUs still fit into one of 720 in height.
RIGHT_WIDTH = 328
LEFT_WIDTH = 236

log = logging.getLogger(__name__)


class Studio:
    """A running studio. `close` saves what is unsaved and ends it."""

    def __init__(
        self,
        path: Path,
        *,
        network: Listen = THIS_MACHINE,
        config: TrainConfig = TrainConfig(),
        given: Collection[str] | None = None,
        run_dir: Path | None = None,
        devices: DeviceOptions = AS_FOUND,
    ):
        self._serve(on_devices(open_project(path, config, run_dir, given), devices), network, Controller)

    def _serve(
        self,
        project: Project,
        network: Listen,
        new_controller: Callable[[Project, Callable[[Notice], None]], Controller],
    ) -> None:
        """Open the page of a project."""
        self._network, self._token = network, network.new_token()
        self._gated = open_server(network, token=self._token)
        self._request: StopRequest | None = None  # to end, that is waited for
        self._left_by: Path | None = None  # the run that was saved for it before
        self._again = self.goes_on = self.has_home = self.goes_home = False
        self._photos: PhotosPanel | None = None
        self._comparison: RunComparison | None = None
        self._server, self.port, self.url = self._gated.server, self._gated.port, self._gated.url
        self._failures: dict[str, bool] = {}  # panels that could not be refreshed; whether that was told
        self._refresher = Refresher(self._tell_of)
        changed = self._refresher.changed
        self._news = News(self._server, changed)
        after_callbacks(self._server, changed, self._news.tell_failure)
        self.controller = new_controller(project, self._news.tell)
        self._leaving = Leaving(self.controller, self._not_left)
        self._tasks = TaskBoard(self.controller, self._news.tell, changed)
        self._first_view = FirstView(self._server, *likely_up(project.path))
        self._viewport = Viewport(self._server, self.controller, project.scene)
        viewport, first = self._viewport, self._first_view
        self._gated.gate.first_picture = lambda *size: viewport.first_picture(first.viewpoint(*size))
        self.controller.preview.on_change = self.controller.beside.on_change = self._another_model
        self._build_page(project)
        self.controller.listen(Milestones(self.controller, self._news.note).follow)
        self.controller.listen(self._follow)
        self.controller.open()
        self._refresher.start()

    def start_training(self) -> None:
        """Start or resume at once; where all steps are done a new run begins.

        Raises ValueError when what is open cannot be trained.
        """
        self.controller.train_at_once()

    def start_proposed_training(self) -> None:
        """Start at once, where a training takes long here by the plan that the page proposes.

        For who has pressed one button and seen no settings yet. Raises as `start_training` does.
        """
        project, plan = self.controller.project, None
        begun = project.resume_step is not None or self.controller.status.state not in ("starting", "ready")
        if project.scene is not None and project.devices.gpus == (None,) and not (begun or project.is_chosen):
            plan = proposal(project.scene, project.config, measured_times("cpu"))
        if plan is not None:
            self.controller.take_plan("fast", plan.settings)
            whole = f"The full training takes {duration_words(plan.instead_of)}"
            told = f"Preset {plan.choice}. {whole}: for that press Stop, then New training."
            self._news.tell(Notice(f"Training for {duration_words(plan.seconds)}", told))
        self.start_training()

    def follow_estimation(self, estimation: BackgroundEstimation) -> None:
        """Tell how an estimation of the scene's poses goes on, and end it with the studio."""
        assert self._photos is not None, "the scene has poses of this program"
        self._photos.estimation = estimation

    def compare_with_run(self, run_dir: Path) -> None:
        """Show the newest model of another run beside the one of this, as the Evaluate tab does."""
        assert self._comparison is not None, "every page has the tab"
        try:
            self._comparison.compare_with(run_dir)
        except (ValueError, OSError) as error:  # the studio is there, and so are other runs
            self._news.tell(Notice("The other run is not shown", in_words(error), bad=True))

    def open_again(self) -> None:
        """Let `run_forever` save and end, so that what lies on the disk now is opened at the same address.

        `goes_on` says from then on whether a training shall go on.
        """
        self._again, self.goes_on = True, self.controller.status.state in _AT_WORK
        self._leave()

    def offer_home(self) -> None:
        """Show a button to the start page: who calls this shows that page when the studio `goes_home`."""
        self.has_home = True
        self._refresher.changed()

    def go_home(self) -> None:
        """Let `run_forever` save and end, so that the start page comes in the place of this studio."""
        self.goes_home = True
        self._leave()

    def stay(self) -> None:
        """Take back that the studio is to be left, as long as it is there."""
        self._again = self.goes_home = False
        self._leaving.stay()

    def _not_left(self, notice: Notice) -> None:
        self._again = self.goes_home = False
        self._news.tell(notice)

    def _leave(self) -> None:
        if self._request is not None:
            self._left_by = self.controller.project.run_dir if self.controller.unsaved else None
            self._leaving.begin(self._request.let_go)

    @property
    def address(self) -> TakenOver:
        """Return where a studio listens that comes in the place of this one when this has ended."""
        here = self._network.at_port(self.port)
        return here.taken_over(self._token, here.take_port)

    def run_forever(self) -> bool:
        """Serve until Ctrl-C, SIGTERM or SIGHUP, then save and end; a second Ctrl-C ends at once.

        Returns whether it shall be opened again, for which it also ends; or else `goes_home` says whether the
        start page comes next.
        """
        controller = self.controller
        run_dir, unsaved = controller.project.run_dir, False
        with stop_requests() as request:
            try:
                self._request = request
                request.wait()
                run_dir, unsaved = controller.project.run_dir, controller.unsaved
                print(request.words(self._doing(request, unsaved=unsaved)), flush=True)
                if unsaved:
                    controller.save_and_stop()
                self.close()
            except KeyboardInterrupt:
                controller.kill()
                if unsaved and run_dir is not None:
                    # Whatever the save in progress had come to: the disk tells.
                    print(for_terminal(saved_sentence(run_dir, controller.status.step)), flush=True)
                raise
            if run_dir is not None and (unsaved or run_dir == self._left_by):
                print(for_terminal(last_words(controller.status, controller.last_saved, run_dir)))
        self.goes_home = self.goes_home and not request
        return self._again and not request

    def _doing(self, request: StopRequest, *, unsaved: bool) -> str:
        """Return what is told of the end of `run_forever`: by a signal, or by a button on the page."""
        if unsaved:
            return "Saving"
        if request or not (self.goes_home or self._again):
            return "Closing"
        return "Going to the start page" if self.goes_home else "Opening it again"

    def close(self) -> None:
        """Save an unfinished training, end the worker and the server."""
        self.controller.send(Close())  # it saves while the rest is closed
        self._refresher.close()
        self._tasks.close()
        for panel in self._refresher.panels:
            panel.close()
        self._viewport.close()
        self.controller.close()
        self._gated.stop()

    def _build_page(self, project: Project) -> None:
        server, gui = self._server, self._server.gui
        apply_theme(gui)
        gui.main_panel.dock_right()
        gui.main_panel.set_width(RIGHT_WIDTH)
        light_evenly(server.scene)
        if project.scene is not None:
            self._first_view.of_scene(project.scene)
        page = Page(
            server,
            self.controller,
            self._viewport,
            self._first_view,
            Hotkeys(server),
            self._tasks,
            self._news.tell,
            self._refresher.changed,
            self._news.withdraw,
        )
        add_view_keys(page.hotkeys, self._first_view)
        add = self._refresher.add
        add(StatusPanel(page))
        add(HomeBar(page, self.go_home, self.stay, lambda: self.has_home))
        if self.controller.elsewhere:
            add(CloseBar(page, self._leave))
        tabs = gui.add_tab_group()
        if project.can_train:
            with tabs.add_tab("Train") as tab:
                add(train := TrainPanel(page, tab))
                add(train.plots)
        with tabs.add_tab("View"):
            add(view := ViewPanel(page))
            add(Navigation(page))
        with tabs.add_tab("Evaluate"):
            add(evaluate := EvaluatePanel(page, view.compare))
            add(evaluate.runs)
            self._comparison = evaluate.runs
        with tabs.add_tab("Render"):
            add(RenderPanel(page))
        with tabs.add_tab("Export"):
            add(ExportPanel(page))
        left = gui.add_panel()
        with left.add_tab("Devices") as tab:
            add(RanksPanel(page) if self.controller.elsewhere else DevicesPanel(page, tab))
        if project.scene is not None and PoseStore.of_model(project.scene.model_folder) is not None:
            with left.add_tab("Photos") as tab:
                add(photos := PhotosPanel(page, tab, project.scene, self.open_again))
            self._photos = photos
        with left.add_tab("Log"):
            add(LogPanel(page, self._news))
        left.dock_left()
        left.set_width(LEFT_WIDTH)

    def _follow(self, event: Event) -> None:
        if isinstance(event, ModelLoaded) and self.controller.project.scene is None:
            self._first_view.of_model(event.center, event.radius)
        self._tasks.follow(event)
        for panel in self._refresher.panels:
            try:
                panel.follow(event)
            except Exception as error:  # the worker's other news, and the other panels, do not depend on it
                self._tell_of(panel, error)
        if isinstance(event, ModelLoaded):
            self._viewport.invalidate()  # another model may have the same step
        else:
            self._viewport.model_changed()
        self._refresher.changed()

    def _another_model(self) -> None:
        self._viewport.invalidate()
        self._refresher.changed()

    def _tell_of(self, panel: Panel, error: Exception) -> None:
        """Log a panel's first failure with its traceback, and tell it once there is somebody to tell."""
        name = type(panel).__name__.removesuffix("Panel")
        if name not in self._failures:
            self._failures[name] = False
            log.error("the panel %s was not refreshed", name, exc_info=error)
        if not self._failures[name] and self._server.get_clients():
            self._failures[name] = True
            sentence = f"{type(error).__name__}: {error}. The training and the other parts go on."
            self._news.tell(Notice(f"{name} may show old figures", sentence, bad=True))


StudioType = TypeVar("StudioType", bound=Studio)


def open_studio(
    path: str | Path,
    *,
    network: Listen = THIS_MACHINE,
    train: bool = False,
    browser: bool = True,
    config: TrainConfig = TrainConfig(),
    given: Collection[str] | None = None,
    run_dir: Path | None = None,
    devices: DeviceOptions = AS_FOUND,
) -> Studio:
    """Open a scene folder, a .ply file or a run folder in the studio and print its address.

    Only who has the printed address, which holds a secret, gets in. `train` starts at once, `browser` opens
    the default browser where there is a display. `given` are the names of the settings in `config` that the
    user asked for, None: those that differ from the defaults. Raises ValueError with one sentence for a path
    or an address that cannot be used.
    """
    studio = Studio(Path(path), network=network, config=config, given=given, run_dir=run_dir, devices=devices)
    try:
        if train:
            studio.start_training()
        return told_and_shown(studio, network, browser)
    except BaseException:  # by a signal, too: what was begun by then is saved
        studio.close()
        raise


def told_and_shown(studio: StudioType, network: Listen, browser: bool, last: str = "") -> StudioType:
    """Print a studio's address, what its user should know and `last`; open the browser where one is to."""
    print(f"The studio is open at {studio.url}", flush=True)
    project = studio.controller.project
    if project.device_use.text:
        print(project.device_use.for_terminal(), flush=True)
    told = advice(network, studio.url, studio.port, os.environ)
    for note in (*told, *project.notes, *filter(None, [last])):
        print(for_terminal(note), flush=True)
    if browser:
        open_browser(studio.url)
    return studio


def last_words(status: Status, saved: Saved | None, run_dir: Path) -> str:
    """Return what became of a training that was closed before its end: `saved` is its last good save."""
    go_on = f"Go on with: splatstudio open {as_argument(run_dir)}"
    if status.state != "failed" and saved is not None and saved.step == status.step:
        return f"Saved {saved.path}. {go_on}"
    if status.state != "failed" and status.step == 0:
        return "No step was done yet, so nothing had to be saved."
    words = f"{status.message} {saved_sentence(run_dir, status.step)}".lstrip()
    return words if newest_checkpoint(run_dir) is None else f"{words} {go_on}"
