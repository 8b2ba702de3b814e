"""A camera path played in one browser: its own camera moves, nobody else's."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import numpy as np
import viser

from splatstudio.cameras.camera_path import CameraPath
from splatstudio.gui.server.viser_private import show_node
from splatstudio.gui.state.viewpoint import fly_to

STEP_SECONDS = 0.05  # between two positions: browsers draw what comes faster no better


@dataclass(frozen=True, eq=False)
class _Place:
    """Where a browser looked from before the preview."""

    wxyz: np.ndarray
    position: np.ndarray
    look_at: np.ndarray
    up: np.ndarray
    fov: float


class Previews:
    """The previews of all browsers. `hidden` are nodes that would stand before a camera on the path."""

    def __init__(self, server: viser.ViserServer, distance: float, hidden: tuple[str, ...]):
        self._distance = distance  # of what the mouse turns around, world units
        self._server = server
        self._hidden = hidden
        self._players: dict[int, _Player] = {}
        self._lock = threading.Lock()
        server.on_client_disconnect(self._left)

    def play(self, client: viser.ClientHandle, path: CameraPath, start: float = 0.0) -> None:
        """Move this browser along the path from second `start` on, and at the end of an open one back."""
        self.stop(client)
        with self._lock:
            player = self._players[client.client_id] = _Player(client, path, start, self)
        player.thread.start()

    def stop(self, client: viser.ClientHandle) -> bool:
        """Let this browser stand where it stood before; return whether it was moving."""
        player = self._forget(client.client_id)
        if player is not None:
            player.thread.join(2.0)
        return player is not None

    def show(self, client: viser.ClientHandle, path: CameraPath, seconds: float) -> None:
        """Move this browser to a second of the path, and leave it there."""
        self.stop(client)
        fly_to(client, path.camera_at(seconds), self._distance)

    def close(self) -> None:
        """End all previews."""
        with self._lock:
            players, self._players = list(self._players.values()), {}
        for player in players:
            player.stopped.set()

    def _left(self, client: viser.ClientHandle) -> None:
        self._forget(client.client_id)

    def _forget(self, client_id: int) -> _Player | None:
        with self._lock:
            player = self._players.pop(client_id, None)
        if player is not None:
            player.stopped.set()
        return player

    def run(self, player: _Player) -> None:
        """Move the player's browser; its thread."""
        client, path = player.client, player.path
        camera = client.camera
        before = _Place(camera.wxyz, camera.position, camera.look_at, camera.up_direction, camera.fov)
        for name in self._hidden:
            show_node(client, name, False)
        began = time.monotonic() - player.start
        while not player.stopped.wait(STEP_SECONDS) and self._is_here(client):
            seconds = time.monotonic() - began
            if path.loop:
                seconds %= path.duration
            elif seconds > path.duration:
                self._forget(client.client_id)
                break
            fly_to(client, path.camera_at(seconds), self._distance)
        if self._is_here(client):
            for name in self._hidden:
                show_node(client, name, True)
            _put_back(client, before)

    def _is_here(self, client: viser.ClientHandle) -> bool:
        return client.client_id in self._server.get_clients()


class _Player:
    """One browser under way."""

    def __init__(self, client: viser.ClientHandle, path: CameraPath, start: float, owner: Previews):
        self.client, self.path, self.start = client, path, start
        self.stopped = threading.Event()
        name = f"preview-{client.client_id}"
        self.thread = threading.Thread(target=owner.run, args=(self,), name=name, daemon=True)


def _put_back(client: viser.ClientHandle, place: _Place) -> None:
    with client.atomic():
        client.camera.fov = place.fov
        client.camera.up_direction = place.up
        client.camera.position = place.position
        client.camera.look_at = place.look_at
        client.camera.wxyz = place.wxyz
