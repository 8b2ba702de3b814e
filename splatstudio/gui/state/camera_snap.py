"""Which photograph's camera a browser stands in, and whether it still does."""

from __future__ import annotations

import threading
import time

import numpy as np
import viser
import viser.transforms

from splatstudio.cameras.camera import Camera
from splatstudio.gui.state.viewpoint import Viewpoint, fitting_fov, fly_to
from splatstudio.scene.scene import Scene

NEAR = 2e-3  # times the scene's extent: how far from a camera's centre one still stands in it
TURN = 4e-3  # radians: how far one may have turned
ARRIVAL_SECONDS = 2.0  # the browser tells that it is there after a round trip


class CameraSnap:
    """The camera that a browser was last sent to. Methods may be called from any thread."""

    def __init__(self, client: viser.ClientHandle, scene: Scene):
        self._client = client
        self._scene = scene
        self._lock = threading.Lock()
        self._wanted: int | None = None
        self._sent = 0.0
        self._here = False

    @property
    def last(self) -> int | None:
        """Return the photograph whose camera the browser was last sent to, None before the first."""
        return self._wanted

    @property
    def here(self) -> int | None:
        """Return the photograph whose camera the browser stands in, None where it stands elsewhere."""
        return self._wanted if self._here else None

    @property
    def on_the_way(self) -> bool:
        """Say whether the browser was just sent and has not told yet that it is there."""
        return not self._here and self._wanted is not None and time.monotonic() - self._sent < ARRIVAL_SECONDS

    def camera(self, index: int) -> Camera:
        """Return the camera of photograph `index`."""
        return self._scene.views[index].camera

    def enter(self, index: int) -> None:
        """Send the browser to where photograph `index` was taken; returns at once."""
        camera = self.camera(index)
        with self._lock:
            # Who is there already may have nothing to tell.
            self._here = self._here and index == self._wanted
            self._wanted, self._sent = index, time.monotonic()
        # The cameras' common point of attention is the origin of the scene's frame.
        distance = max(float(np.linalg.norm(camera.position)), 0.1 * self._scene.extent)
        fly_to(self._client, camera, distance)

    def nearest(self, viewpoint: Viewpoint) -> int:
        """Return the photograph whose camera is most like where the browser is."""
        positions = np.stack([camera.position for camera in self._scene.cameras])
        forwards = np.stack([camera.viewmat[2, :3] for camera in self._scene.cameras])
        forward = viser.transforms.SO3(viewpoint.wxyz).as_matrix()[:, 2]
        distance = np.linalg.norm(positions - viewpoint.position, axis=1) / self._scene.extent
        return int(np.argmin(distance + 1.0 - forwards @ forward))

    def moved(self, viewpoint: Viewpoint) -> bool:
        """Take in where the browser is now; return whether it has just entered or left the camera."""
        with self._lock:
            before = self._here
            self._here = self._wanted is not None and self._matches(self.camera(self._wanted), viewpoint)
            entered, here = self._here and not before, self._here
            wanted = self._wanted
        if here and wanted is not None and not entered:
            self._refit(self.camera(wanted), viewpoint)
        return here != before

    def _matches(self, camera: Camera, viewpoint: Viewpoint) -> bool:
        rotation = viser.transforms.SO3(viewpoint.wxyz).as_matrix()
        cosine = (np.trace(rotation @ camera.viewmat[:3, :3]) - 1.0) / 2.0
        near = np.linalg.norm(viewpoint.position - camera.position) <= NEAR * self._scene.extent
        return bool(near and cosine >= np.cos(TURN))

    def _refit(self, camera: Camera, viewpoint: Viewpoint) -> None:
        """Show the whole photograph again after the window has got another shape."""
        fov = fitting_fov(camera, viewpoint.width / viewpoint.height)
        if abs(fov - viewpoint.fov) > 5e-3:
            self._client.camera.fov = fov
