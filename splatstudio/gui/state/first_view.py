"""From where one sees a scene or a model at first."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import viser

from splatstudio.gui.state.scene_overlay import frustum_size
from splatstudio.scene.scene import Scene

Axis = Literal["+x", "+y", "+z", "-x", "-y", "-z"]
FOV = 0.9  # radians, vertical: about a 28 mm lens
NARROWEST_FOV = 0.5  # a tele lens's own field of view would show too little to find one's way

STEPS_BACK = (0.25, 0.5, 0.75, 1.0)  # times the distance to what the photographs show
MIN_IN_SIGHT = 2  # cameras, which tell at the first look how the photographs were taken


class FirstView:
    """A camera position, a target and an up direction, for new browsers and for the way back.

    A browser may choose another direction as up: its camera stands and turns by that one, nobody else's.
    """

    def __init__(self, server: viser.ViserServer, up: Axis = "+z"):
        """Look at a model whose upward axis is `up`, where no cameras tell a better one."""
        self._server = server
        self._position = np.array([0.0, -3.0, 1.0])
        self._target = np.zeros(3)
        self._up: Axis = up
        self._fov = FOV
        self._own_up: dict[int, Axis] = {}  # by the browsers that have chosen another one
        self._announced: Axis | None = None
        server.on_client_disconnect(self._left)

    @property
    def up(self) -> Axis:
        """Return the axis that is up for who has not chosen another one."""
        return self._up

    def of_scene(self, scene: Scene) -> None:
        """Stand where the first photograph was taken, a little ahead of its camera so as not to see it."""
        camera = scene.cameras[0]
        positions = np.stack([camera.position for camera in scene.cameras])
        forward = camera.viewmat[2, :3]
        # The cameras' common point of attention is the origin of the scene's frame.
        distance = max(float(np.linalg.norm(camera.position)), 0.1 * scene.extent)
        self._up = "+z"
        self._fov = max(camera.fov_y, NARROWEST_FOV)
        self._position = camera.position + 1.2 * frustum_size(positions, scene.extent) * forward
        # Where nobody else is to be seen from there, as when all stand in a row, step back behind the others.
        for back in STEPS_BACK:
            if num_in_sight(positions, self._position, camera.viewmat[:3, :3], self._fov) >= MIN_IN_SIGHT:
                break
            self._position = camera.position - back * distance * forward
        self._target = camera.position + distance * forward
        self._announce()

    def of_model(self, center: tuple[float, float, float], radius: float) -> None:
        """Stand in front of a model of this size, a little above it."""
        self._target = np.array(center)
        self._position = _in_front(self._target, radius, self._up)
        self._announce()
        self.show_all()

    def set_up(self, client: viser.ClientHandle, up: Axis) -> None:
        """Let the camera of one browser stand upright along another axis, in front of what is to be seen."""
        # The world itself is not turned: a page whose world turns goes back to everybody's first view.
        self._own_up[client.client_id] = up
        self.show(client)

    def show_all(self) -> None:
        """Move every browser's camera here."""
        for client in self._server.get_clients().values():
            self.show(client)

    def show(self, client: viser.ClientHandle) -> None:
        """Move a browser's camera here, upright as that browser wants it."""
        up, position = self._own_up.get(client.client_id, self._up), self._position
        if up != self._up:
            radius = float(np.linalg.norm(position - self._target)) / math.hypot(1.0, 2.8)
            position = _in_front(self._target, radius, up)
        with client.atomic():
            client.camera.fov = self._fov
            client.camera.up_direction = _vector(up)
            client.camera.position = position
            client.camera.look_at = self._target

    async def _left(self, client: viser.ClientHandle) -> None:
        self._own_up.pop(client.client_id, None)

    def _announce(self) -> None:
        # Not sent again when it is the same: it would bring the browsers back that have moved their camera.
        if self._announced != self._up:
            self._announced = self._up
            self._server.scene.set_up_direction(self._up)
        camera = self._server.initial_camera
        camera.position = self._position
        camera.look_at = self._target
        camera.up = _vector(self._up)
        camera.fov = self._fov


def num_in_sight(positions: np.ndarray, eye: np.ndarray, rotation: np.ndarray, fov: float) -> int:
    """Return how many of `positions` [N, 3] a square canvas shows; `rotation` is world to camera (OpenCV)."""
    x, y, z = rotation @ (positions - eye).T
    reach = math.tan(fov / 2.0) * z
    return int(((z > 1e-6) & (np.abs(x) < reach) & (np.abs(y) < reach)).sum())


def _in_front(target: np.ndarray, radius: float, up: Axis) -> np.ndarray:
    """Return a position in front of a model and a little above it."""
    # In the usual frames of files forward is z when y is up or down, and y when z is.
    forward = np.array([0.0, 0.0, 1.0]) if up[1] != "z" else np.array([0.0, 1.0, 0.0])
    return target + radius * (_vector(up) - 2.8 * forward)


def _vector(axis: Axis) -> np.ndarray:
    vector = np.zeros(3)
    vector["xyz".index(axis[1])] = -1.0 if axis[0] == "-" else 1.0
    return vector
