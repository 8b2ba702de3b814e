"""The preview of a camera path: it is played in one browser, or a place on it is looked at."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import viser

from splatstudio.cameras.camera_path import CameraPath
from splatstudio.gui.panel import Page, Panel, when_user
from splatstudio.gui.server.viser_private import place_camera, show_node, show_value, tell_framing
from splatstudio.gui.state.scene_overlay import PathEditor
from splatstudio.gui.state.viewpoint import fly_to

PLAY, STOP = "Play", "Stop"
STEP_SECONDS = 0.05  # between two positions: browsers draw what comes faster no better
LOOK_SECONDS = 4.0  # for which a place on the path is shown as the video will show it
SETTLED_SECONDS = 1.0  # after which a browser has told where it was moved to
# What is put back after a preview, in this order: who looks at a point turns to it.
VIEW = ("fov", "up_direction", "position", "look_at")

Moved = Callable[[float | None], None]  # takes which share of a path has been played, None when it is over


class PathPreviews:
    """Paths played in browsers: their own cameras move, nobody else's.

    `hidden` are nodes that would stand before a camera on the path.
    """

    def __init__(self, server: viser.ViserServer, distance: float, hidden: tuple[str, ...]):
        self._distance = distance  # of what the mouse turns around, world units
        self._server = server
        self._hidden = hidden
        self._players: dict[int, tuple[threading.Event, threading.Thread]] = {}
        self._own: dict[int, dict[str, Any]] = {}  # where browsers stood before their previews
        self._sent: dict[int, tuple[np.ndarray, float]] = {}  # where they were moved to last, and when
        self._lock = threading.Lock()  # of the players
        self._turn = threading.Lock()  # presses are heard on several threads
        server.on_client_disconnect(self._left)

    def play(self, client: viser.ClientHandle, path: CameraPath, moved: Moved, *, begin: float = 0.0) -> None:
        """Move this browser along the path from second `begin` on, and at the end of an open one back.

        `moved` is told how far.
        """
        stopped = threading.Event()
        arguments = (client, path, moved, stopped, begin)
        player = threading.Thread(target=self._run, args=arguments, name="preview", daemon=True)
        with self._turn:
            self._halt(client)
            self._remember(client)
            with self._lock:
                self._players[client.client_id] = (stopped, player)
                player.start()  # who takes it out waits for its end

    def stop(self, client: viser.ClientHandle) -> None:
        """Let this browser stand where it stood before it was played or shown the path."""
        with self._turn:
            self._halt(client)
            self._bring_back(client)

    def is_playing(self, client: viser.ClientHandle) -> bool:
        """Return whether this browser moves along a path."""
        return client.client_id in self._players

    def show(self, client: viser.ClientHandle, path: CameraPath, seconds: float) -> None:
        """Move this browser to a second of the path, and leave it there until it is stopped."""
        with self._turn:
            self._halt(client)
            self._remember(client)
            tell_framing(client, path.width / path.height, LOOK_SECONDS)
            self._fly(client, path, seconds)

    def close(self) -> None:
        """End all previews."""
        for client_id in tuple(self._players):
            self._forget(client_id)

    def _left(self, client: viser.ClientHandle) -> None:
        self._forget(client.client_id)
        self._own.pop(client.client_id, None)
        self._sent.pop(client.client_id, None)

    def _fly(self, client: viser.ClientHandle, path: CameraPath, seconds: float) -> None:
        camera = path.camera_at(seconds)
        self._sent[client.client_id] = camera.position, time.monotonic()
        fly_to(client, camera, self._distance)

    def _halt(self, client: viser.ClientHandle) -> None:
        player = self._forget(client.client_id)
        if player is not None:
            player.join(2.0)

    def _remember(self, client: viser.ClientHandle) -> None:
        if client.client_id not in self._own or self._has_moved_itself(client):
            self._own[client.client_id] = {name: getattr(client.camera, name) for name in VIEW}

    def _has_moved_itself(self, client: viser.ClientHandle) -> bool:
        if client.client_id not in self._sent:  # nothing has moved it yet
            return False
        place, when = self._sent[client.client_id]
        off = float(np.linalg.norm(np.asarray(client.camera.position) - place))
        return time.monotonic() - when > SETTLED_SECONDS and off > 1e-3 * self._distance

    def _bring_back(self, client: viser.ClientHandle) -> None:
        own = self._own.pop(client.client_id, None)
        if own is not None and self._is_here(client):
            tell_framing(client, None)
            place_camera(client, own)

    def _forget(self, client_id: int) -> threading.Thread | None:
        with self._lock:
            stopped, player = self._players.pop(client_id, (None, None))
        if stopped is not None:
            stopped.set()
        return player

    def _run(
        self,
        client: viser.ClientHandle,
        path: CameraPath,
        moved: Moved,
        stopped: threading.Event,
        begin: float,
    ) -> None:
        for name in self._hidden:
            show_node(client, name, False)
        tell_framing(client, path.width / path.height)
        began, is_over = time.monotonic() - begin, False
        while not stopped.wait(STEP_SECONDS) and self._is_here(client):
            seconds = time.monotonic() - began
            if path.loop:
                seconds %= path.duration
            elif seconds > path.duration:
                is_over = True
                break
            self._fly(client, path, seconds)
            moved(seconds / path.duration)
        if self._is_here(client):
            for name in self._hidden:
                show_node(client, name, True)
            if is_over:
                self._bring_back(client)
            tell_framing(client, None)
            moved(None)
        if is_over:
            self._forget(client.client_id)  # last: who plays it again meanwhile waits for that

    def _is_here(self, client: viser.ClientHandle) -> bool:
        return client.client_id in self._server.get_clients()


class PreviewSection(Panel):
    """The path played in one browser, and a place on it."""

    def __init__(self, page: Page, editor: PathEditor, previews: PathPreviews):
        super().__init__(page)
        self._editor, self._previews = editor, previews
        play = self.gui.add_button_group(
            "Preview", (PLAY, STOP), hint="Moves the camera of your browser only; Stop brings it back."
        )
        self._place = place = self.gui.add_slider(
            "Position", 0.0, 100.0, 0.1, 0.0, hint="Per cent of the path: moves your browser's camera there."
        )
        self._of = self._shown_path()
        page.hotkeys.add("space", "Play or stop the preview", self._toggle, "In this browser only")
        when_user(play, self._press)
        when_user(place, self._scrub)
        for handle in (play, place):
            self.keep(handle, visible=lambda: len(editor.path.keyframes) > 1)

    def refresh(self) -> None:
        """Begin another path at its beginning."""
        super().refresh()
        of, before = self._shown_path(), self._of
        self._of = of
        if of != before:
            self._place.value = 0.0

    def _shown_path(self) -> tuple[Path, str, bool]:
        draft = self._editor.draft
        return self.controller.project.folder_of("camera_paths"), draft.name, bool(draft.path.keyframes)

    def _press(self, client: viser.ClientHandle, button: str) -> None:
        path, percent = self._editor.path, self._place.value
        if button == STOP:
            self._previews.stop(client)
        elif len(path.keyframes) > 1:
            begin = path.duration * percent / 100.0 if percent < 100.0 else 0.0
            self._previews.play(client, path, partial(self._follow, client), begin=begin)

    def _toggle(self, client: viser.ClientHandle) -> None:
        self._press(client, STOP if self._previews.is_playing(client) else PLAY)

    def _scrub(self, client: viser.ClientHandle, percent: float) -> None:
        path = self._editor.path
        if path.keyframes:
            self._previews.show(client, path, path.duration * percent / 100.0)

    def _follow(self, client: viser.ClientHandle, share: float | None) -> None:
        # Of this browser alone, as its camera is: afterward the slider is again where all browsers have it.
        show_value(client, self._place, self._place.value if share is None else round(100.0 * share, 1))
