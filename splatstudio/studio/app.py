"""The studio: a page in the browser that steers a training in the background and shows its model live."""

from __future__ import annotations

import os
import platform
import signal
import threading
import webbrowser
from pathlib import Path

from splatstudio.checkpoint import newest_checkpoint
from splatstudio.config import TrainConfig
from splatstudio.studio.controller import Controller, Notice, Status
from splatstudio.studio.first_view import FirstView
from splatstudio.studio.gate import open_server
from splatstudio.studio.panels.export import ExportPanel
from splatstudio.studio.panels.status import StatusPanel
from splatstudio.studio.panels.train import TrainPanel
from splatstudio.studio.panels.view import ViewPanel
from splatstudio.studio.project import open_project
from splatstudio.studio.stage import Stage
from splatstudio.studio.theme import ACCENT
from splatstudio.studio.viewport import Viewport
from splatstudio.worker.messages import Event, ModelLoaded, Saved

DOCK_WIDTH = 390
REFRESH_SECONDS = 0.25
PLOT_SECONDS = 0.75


class Studio:
    """A running studio. `close` saves what is unsaved and ends it."""

    def __init__(
        self,
        path: Path,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        config: TrainConfig = TrainConfig(),
        run_dir: Path | None = None,
    ):
        self.project = open_project(path, config, run_dir)
        self._gated = open_server(host=host, port=port)
        self._server = self._gated.server
        self.url = self._gated.url
        self.controller = Controller(self.project, self._notify)
        self._first_view = FirstView(self._server)
        self._viewport = Viewport(self._server, self.controller)
        self._stopped = threading.Event()
        self._build_page()
        self.controller.listen(self._follow)
        self.controller.open()
        self._ticker = threading.Thread(target=self._tick, name="page", daemon=True)
        self._ticker.start()

    def start_training(self) -> None:
        """Start or resume at once; a run with all steps done is started over.

        Raises ValueError when what is open cannot be trained.
        """
        self.controller.train_at_once()

    def run_forever(self) -> None:
        """Serve until Ctrl-C or SIGTERM, then save and end; a second Ctrl-C ends at once."""
        ended = threading.Event()
        before = {s: signal.signal(s, lambda *_: ended.set()) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            ended.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        unsaved = self.controller.status.state in ("training", "paused")
        if unsaved:
            print("Saving ... (Ctrl-C again ends at once)", flush=True)
        try:
            self.close()
        except KeyboardInterrupt:
            self.controller.kill()
            raise
        run_dir = self.controller.project.run_dir
        if unsaved and run_dir is not None:
            print(last_words(self.controller.status, self.controller.last_saved, run_dir))

    def close(self) -> None:
        """Save an unfinished training, end the worker and the server."""
        self._stopped.set()
        self._viewport.close()
        self.controller.close()
        self._gated.stop()

    def _build_page(self) -> None:
        server, controller, scene = self._server, self.controller, self.project.scene
        server.gui.configure_theme(
            dark_mode=True, show_logo=False, show_share_button=False, brand_color=ACCENT
        )
        server.gui.set_panel_label("splatstudio")
        server.gui.main_panel.dock_right()
        server.gui.main_panel.set_width(DOCK_WIDTH)
        stage = None
        if scene is not None:
            self._first_view.of_scene(scene)
            stage = Stage(server, scene)
        self._status = StatusPanel(server, controller)
        tabs = server.gui.add_tab_group()
        self._train = None
        if self.project.can_train:
            with tabs.add_tab("Train") as tab:
                self._train = TrainPanel(server, tab, controller)
        with tabs.add_tab("View"):
            self._view = ViewPanel(server, controller, self._viewport, stage, self._first_view)
        with tabs.add_tab("Export"):
            self._export = ExportPanel(server, controller)
        self._refresh()

    def _follow(self, event: Event) -> None:
        if isinstance(event, ModelLoaded):
            self._view.model_appeared()
            if self.project.scene is None:
                # Where no cameras say which way is up, COLMAP's frame is the likely one.
                up = "-y" if self.project.model_path and self.project.model_path.is_file() else "+z"
                self._first_view.of_model(event.center, event.radius, up)
        self._viewport.model_changed()

    def _tick(self) -> None:
        plots_due = 0.0
        elapsed = 0.0
        while not self._stopped.wait(REFRESH_SECONDS):
            elapsed += REFRESH_SECONDS
            self._refresh()
            if self._train is not None and elapsed >= plots_due:
                self._train.refresh()
                plots_due = elapsed + PLOT_SECONDS

    def _refresh(self) -> None:
        self._status.refresh(self._viewport.num_viewers)
        self._export.refresh()

    def _notify(self, notice: Notice) -> None:
        for client in self._server.get_clients().values():
            client.add_notification(
                notice.title,
                notice.text,
                auto_close_seconds=None if notice.bad else 8.0,
                color="red" if notice.bad else ACCENT,
            )


def open_studio(
    path: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    train: bool = False,
    browser: bool = True,
    config: TrainConfig = TrainConfig(),
    run_dir: Path | None = None,
) -> Studio:
    """Open a scene folder, a .ply file or a run folder in the studio and print its address.

    `port` None takes the first free one from 8080 on. Only who has the printed address, which holds a secret,
    gets in. `train` starts at once, `browser` opens the default browser where there is a display. Raises
    ValueError with one sentence for a path or an address that cannot be used.
    """
    studio = Studio(Path(path), host=host, port=port, config=config, run_dir=run_dir)
    print(f"The studio is open at {studio.url}", flush=True)
    for note in studio.project.notes:
        print(note, flush=True)
    if train:
        try:
            studio.start_training()
        except ValueError:
            studio.close()
            raise
    if browser and _has_display():
        webbrowser.open(studio.url)
    return studio


def last_words(status: Status, saved: Saved | None, run_dir: Path) -> str:
    """Return what became of a training that was closed before its end: `saved` is its last good save."""
    go_on = f"Go on with: splatstudio open {run_dir}"
    if status.state != "failed" and saved is not None and saved.step == status.step:
        return f"Saved {saved.path}. {go_on}"
    if status.state != "failed" and status.step == 0:
        return "No step was done yet, so nothing had to be saved."
    newest = newest_checkpoint(run_dir)
    if newest is None:
        return f"The last save failed, and {run_dir} holds no good checkpoint. {status.message}".rstrip()
    return f"The last save failed. The newest good checkpoint is {newest}. {go_on}"


def _has_display() -> bool:
    if platform.system() != "Linux":
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
