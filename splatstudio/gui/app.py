"""The studio: a page in the browser that steers a training in the background and shows its model live."""

from __future__ import annotations

import logging
import os
import platform
import signal
import threading
import webbrowser
from collections.abc import Callable, Collection
from pathlib import Path
from shlex import quote

import viser

from splatstudio.checkpoints.checkpoint import newest_checkpoint
from splatstudio.gui.dock.status import StatusPanel
from splatstudio.gui.panel import Hotkeys, Page, Panel, Refresher
from splatstudio.gui.server.gate import open_server
from splatstudio.gui.server.network import THIS_MACHINE, Listen, advice
from splatstudio.gui.server.viser_private import after_callbacks
from splatstudio.gui.state.controller import Controller
from splatstudio.gui.state.news import Milestones, News
from splatstudio.gui.state.project import Project, on_devices, open_project
from splatstudio.gui.state.status import Notice, Status
from splatstudio.gui.state.stream import Viewport
from splatstudio.gui.state.tasks import TaskBoard
from splatstudio.gui.state.viewpoint import FirstView
from splatstudio.gui.tabs.devices import DevicesPanel, RanksPanel
from splatstudio.gui.tabs.evaluate import EvaluatePanel
from splatstudio.gui.tabs.export import ExportPanel
from splatstudio.gui.tabs.log import LogPanel
from splatstudio.gui.tabs.render import RenderPanel
from splatstudio.gui.tabs.train import TrainPanel
from splatstudio.gui.tabs.view import ViewPanel
from splatstudio.gui.theme import ACCENT
from splatstudio.runtime.messages import Close, Event, ModelLoaded, Saved
from splatstudio.runtime.sentences import saved_sentence
from splatstudio.settings.config import TrainConfig
from splatstudio.training.device_options import AS_FOUND, DeviceOptions

RIGHT_WIDTH = 390  # pixels
LEFT_WIDTH = 300
LIGHT = 2.0  # of what is lit in the scene: cameras and keyframes

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
        self._gated = open_server(network)
        self._server, self.port, self.url = self._gated.server, self._gated.port, self._gated.url
        self._failures: dict[str, bool] = {}  # panels that could not be refreshed; whether that was told
        self._refresher = Refresher(self._tell_of)
        changed = self._refresher.changed
        self._news = News(self._server, changed)
        after_callbacks(self._server, changed, self._news.tell_failure)
        self.controller = new_controller(project, self._news.tell)
        self._tasks = TaskBoard(self.controller, self._news.tell, changed)
        # Where no cameras say which way is up, COLMAP's frame is the likely one for a file.
        self._first_view = FirstView(self._server, "-y" if project.path.is_file() else "+z")
        self._viewport = Viewport(self._server, self.controller, project.scene)
        self.controller.preview.on_change = self._another_model
        self._build_page(project)
        self.controller.listen(Milestones(self.controller, self._news.note).follow)
        self.controller.listen(self._follow)
        self.controller.open()
        self._refresher.start()

    def start_training(self) -> None:
        """Start or resume at once; a run with all steps done is started over.

        Raises ValueError when what is open cannot be trained.
        """
        self.controller.train_at_once()

    def run_forever(self) -> None:
        """Serve until Ctrl-C or SIGTERM, then save and end; a second Ctrl-C ends at once."""
        ended = threading.Event()
        before = {s: signal.signal(s, lambda *_: ended.set()) for s in (signal.SIGINT, signal.SIGTERM)}
        controller = self.controller
        run_dir, unsaved = controller.project.run_dir, False
        try:
            ended.wait()
            run_dir, unsaved = controller.project.run_dir, controller.unsaved
            for number, handler in before.items():
                signal.signal(number, handler)
            # A shell's background job inherits that Ctrl-C is ignored; here it has a meaning.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            print("Saving ..." if unsaved else "Closing ...", "(Ctrl-C again ends at once)", flush=True)
            if unsaved:
                controller.save_and_stop()
            self.close()
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            controller.kill()
            if unsaved and run_dir is not None:
                # Whatever the save in progress had come to: the disk tells.
                print(saved_sentence(run_dir, controller.status.step), flush=True)
            raise
        if unsaved and run_dir is not None:
            print(last_words(controller.status, controller.last_saved, run_dir))

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
        gui.configure_theme(dark_mode=True, show_logo=False, show_share_button=False, brand_color=ACCENT)
        gui.set_panel_label("splatstudio")
        gui.main_panel.dock_right()
        gui.main_panel.set_width(RIGHT_WIDTH)
        _light(server.scene)
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
        )
        add = self._refresher.add
        add(StatusPanel(page))
        tabs = gui.add_tab_group()
        if project.can_train:
            with tabs.add_tab("Train") as tab:
                add(train := TrainPanel(page, tab))
                add(train.plots)
        with tabs.add_tab("View"):
            add(view := ViewPanel(page))
        with tabs.add_tab("Evaluate"):
            add(EvaluatePanel(page, view.compare))
        with tabs.add_tab("Render"):
            add(RenderPanel(page))
        with tabs.add_tab("Export"):
            add(ExportPanel(page))
        left = gui.add_panel()
        with left.add_tab("Devices") as tab:
            add(RanksPanel(page) if self.controller.elsewhere else DevicesPanel(page, tab))
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
    say_where(studio, network)
    if train:
        try:
            studio.start_training()
        except ValueError:
            studio.close()
            raise
    if browser:
        show_in_browser(studio)
    return studio


def say_where(studio: Studio, network: Listen) -> None:
    """Print a studio's address, and what its user should know."""
    print(f"The studio is open at {studio.url}", flush=True)
    told = advice(network.host, studio.url, studio.port, os.environ)
    for note in (*told, *studio.controller.project.notes):
        print(note, flush=True)


def show_in_browser(studio: Studio) -> None:
    """Open the default browser, where there is a display."""
    if platform.system() != "Linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(studio.url)


def _light(scene: viser.SceneApi) -> None:
    """Light what stands in the scene evenly.

    Without a GPU the browser needs seconds to build the shaders of viser's own light, which comes from a
    picture of surroundings, and nothing is on the screen before they are done.
    """
    scene.configure_environment_map(None)
    scene.configure_default_lights(enabled=False)
    scene.add_light_ambient("/light", intensity=LIGHT)


def last_words(status: Status, saved: Saved | None, run_dir: Path) -> str:
    """Return what became of a training that was closed before its end: `saved` is its last good save."""
    go_on = f"Go on with: splatstudio open {quote(str(run_dir))}"
    if status.state != "failed" and saved is not None and saved.step == status.step:
        return f"Saved {saved.path}. {go_on}"
    if status.state != "failed" and status.step == 0:
        return "No step was done yet, so nothing had to be saved."
    words = f"{status.message} {saved_sentence(run_dir, status.step)}".lstrip()
    return words if newest_checkpoint(run_dir) is None else f"{words} {go_on}"
