"""From where one sees a scene or a model at first."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import viser

from splatstudio.scene.scene import Scene
from splatstudio.studio.stage import frustum_size

Axis = Literal["+x", "+y", "+z", "-x", "-y", "-z"]
FOV = 0.9  # radians, vertical: about a 28 mm lens
NARROWEST_FOV = 0.5  # a tele lens's own field of view would show too little to find one's way


class FirstView:
    """A camera position, a target and an up direction, for new browsers and for the way back."""

    def __init__(self, server: viser.ViserServer):
        self._server = server
        self._position = np.array([0.0, -3.0, 1.0])
        self._target = np.zeros(3)
        self._up: Axis = "+z"
        self._fov = FOV

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
        self._target = camera.position + distance * forward
        self._announce()

    def of_model(self, center: tuple[float, float, float], radius: float, up: Axis) -> None:
        """Stand in front of a model of this size, a little above it."""
        self._up = up
        self._target = np.array(center)
        upward = _vector(up)
        # In the usual frames of files forward is z when y is up or down, and y when z is.
        forward = np.array([0.0, 0.0, 1.0]) if up[1] != "z" else np.array([0.0, 1.0, 0.0])
        self._position = self._target + radius * (1.0 * upward - 2.8 * forward)
        self._announce()
        self.show_all()

    def set_up(self, up: Axis) -> None:
        """Turn the world so that another axis is up."""
        radius = float(np.linalg.norm(self._position - self._target)) / math.hypot(1.0, 2.8)
        x, y, z = (float(value) for value in self._target)
        self.of_model((x, y, z), radius, up)

    def show_all(self) -> None:
        """Move every browser's camera here."""
        for client in self._server.get_clients().values():
            self.show(client)

    def show(self, client: viser.ClientHandle) -> None:
        """Move a browser's camera here."""
        with client.atomic():
            client.camera.fov = self._fov
            client.camera.up_direction = _vector(self._up)
            client.camera.position = self._position
            client.camera.look_at = self._target

    def _announce(self) -> None:
        self._server.scene.set_up_direction(self._up)
        camera = self._server.initial_camera
        camera.position = self._position
        camera.look_at = self._target
        camera.up = _vector(self._up)
        camera.fov = self._fov


def _vector(axis: Axis) -> np.ndarray:
    vector = np.zeros(3)
    vector["xyz".index(axis[1])] = -1.0 if axis[0] == "-" else 1.0
    return vector
