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
from splatstudio.gui.dock.hotkeys import Hotkeys
from splatstudio.gui.dock.status import StatusPanel
from splatstudio.gui.panel_context import Page, Panel
from splatstudio.gui.server import open_server
from splatstudio.gui.server.network import LOOPBACK, Network, advice
from splatstudio.gui.server.viser_private import on_failed_callback
from splatstudio.gui.state.controller import Controller, Notice, Status
from splatstudio.gui.state.first_view import FirstView
from splatstudio.gui.state.last_save import save_before_closing
from splatstudio.gui.state.milestones import Milestones
from splatstudio.gui.state.new_training import on_devices
from splatstudio.gui.state.news import News
from splatstudio.gui.state.project import Project, open_project
from splatstudio.gui.state.tasks import JobBoard
from splatstudio.gui.state.viewport import Viewport
from splatstudio.gui.tabs.devices import DevicesPanel
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
from splatstudio.train.device_options import AS_FOUND, DeviceOptions

RIGHT_WIDTH = 390  # pixels
LEFT_WIDTH = 300
REFRESH_SECONDS = 0.25
LIGHT = 2.0  # of what is lit in the scene: cameras and keyframes

log = logging.getLogger(__name__)


class Studio:
    """A running studio. `close` saves what is unsaved and ends it."""

    def __init__(
        self,
        path: Path,
        *,
        network: Network = LOOPBACK,
        config: TrainConfig = TrainConfig(),
        given: Collection[str] | None = None,
        run_dir: Path | None = None,
        devices: DeviceOptions = AS_FOUND,
    ):
        self._serve(on_devices(open_project(path, config, run_dir, given), devices), network)

    def _serve(self, project: Project, network: Network) -> None:
        """Open the page of a project."""
        self.project = project
        self._gated = open_server(
            host=network.host,
            port=network.port,
            allow_hosts=network.allow_hosts,
            allow_origins=network.allow_origins,
        )
        self.port = self._gated.port
        self._server = self._gated.server
        self.url = self._gated.url
        self._news = News(self._server)
        on_failed_callback(self._server, self._news.tell_failure)
        self.controller = self._new_controller()
        self._jobs = JobBoard(self.controller, self._news.tell)
        # Where no cameras say which way is up, COLMAP's frame is the likely one for a file.
        self._first_view = FirstView(self._server, "-y" if self.project.path.is_file() else "+z")
        self._viewport = Viewport(self._server, self.controller, self.project.scene)
        self.controller.beside.redraw = self._viewport.invalidate
        self._stopped = threading.Event()
        self._panels: list[Panel] = []
        self._failures: dict[str, bool] = {}  # panels that could not be refreshed; whether that was told
        self._build_page()
        self.controller.listen(Milestones(self.controller, self._news.note).follow)
        self.controller.listen(self._follow)
        self.controller.open()
        self._ticker = threading.Thread(target=self._tick, name="page", daemon=True)
        self._ticker.start()

    def _new_controller(self) -> Controller:
        return Controller(self.project, self._news.tell)

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
            run_dir, unsaved = controller.project.run_dir, self._unsaved
            for number, handler in before.items():
                signal.signal(number, handler)
            # A shell's background job inherits that Ctrl-C is ignored; here it has a meaning.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            print("Saving ..." if unsaved else "Closing ...", "(Ctrl-C again ends at once)", flush=True)
            if unsaved:
                save_before_closing(controller)
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

    @property
    def _unsaved(self) -> bool:
        """Say whether there is something that to close the studio must save."""
        return self.controller.status.state in ("training", "paused")

    def close(self) -> None:
        """Save an unfinished training, end the worker and the server."""
        self.controller.send(Close())  # it saves while the rest is closed
        self._stopped.set()
        self._ticker.join()
        for panel in self._panels:
            panel.close()
        self._viewport.close()
        self.controller.close()
        self._gated.stop()

    def _build_page(self) -> None:
        server, scene = self._server, self.project.scene
        gui = server.gui
        gui.configure_theme(dark_mode=True, show_logo=False, show_share_button=False, brand_color=ACCENT)
        gui.set_panel_label("splatstudio")
        gui.main_panel.dock_right()
        gui.main_panel.set_width(RIGHT_WIDTH)
        _light(server.scene)
        if scene is not None:
            self._first_view.of_scene(scene)
        page = Page(
            server,
            self.controller,
            self._viewport,
            self._first_view,
            Hotkeys(server),
            self._jobs,
            self._news.tell,
        )
        self._panels.append(StatusPanel(page))
        tabs = gui.add_tab_group()
        for title, build in self._tabs(page):
            with tabs.add_tab(title) as tab:
                self._panels.append(build(tab))
        left = gui.add_panel()
        with left.add_tab("Devices") as tab:
            self._panels.append(self._devices_panel(page, tab))
        with left.add_tab("Log"):
            self._panels.append(LogPanel(page, self._news))
        left.dock_left()
        left.set_width(LEFT_WIDTH)
        self._refresh()

    def _devices_panel(self, page: Page, tab: viser.GuiTabHandle) -> Panel:
        return DevicesPanel(page, tab)

    def _tabs(self, page: Page) -> list[tuple[str, Callable[[viser.GuiTabHandle], Panel]]]:
        """Return title and builder of each tab of the right dock, in their order."""
        tabs: list[tuple[str, Callable[[viser.GuiTabHandle], Panel]]] = []
        if self.project.can_train:
            tabs.append(("Train", lambda tab: TrainPanel(page, tab)))
        views: list[ViewPanel] = []

        def build_view(_: viser.GuiTabHandle) -> Panel:
            views.append(ViewPanel(page))
            return views[0]

        tabs.append(("View", build_view))
        tabs.append(("Evaluate", lambda _: EvaluatePanel(page, views[0].compare)))
        tabs.append(("Render", lambda _: RenderPanel(page)))
        tabs.append(("Export", lambda _: ExportPanel(page)))
        return tabs

    def _follow(self, event: Event) -> None:
        if isinstance(event, ModelLoaded) and self.project.scene is None:
            self._first_view.of_model(event.center, event.radius)
        self._jobs.follow(event)
        for panel in self._panels:
            try:
                panel.follow(event)
            except Exception as error:  # the worker's other news, and the other panels, do not depend on it
                self._tell_of(panel, error)
        if isinstance(event, ModelLoaded):
            self._viewport.invalidate()  # another model may have the same step
        else:
            self._viewport.model_changed()

    def _tick(self) -> None:
        while not self._stopped.wait(REFRESH_SECONDS):
            self._refresh()

    def _refresh(self) -> None:
        for panel in self._panels:
            try:
                panel.refresh()
            except Exception as error:  # a mistake in one part of the page must not stop the others
                self._tell_of(panel, error)

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
    network: Network = LOOPBACK,
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


def say_where(studio: Studio, network: Network) -> None:
    """Print a studio's address, and what its user should know."""
    print(f"The studio is open at {studio.url}", flush=True)
    told = advice(network.host, studio.url, studio.port, os.environ)
    for note in (*told, *studio.project.notes):
        print(note, flush=True)


def show_in_browser(studio: Studio) -> None:
    """Open the default browser, where there is a display."""
    if _has_display():
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


def _has_display() -> bool:
    if platform.system() != "Linux":
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
