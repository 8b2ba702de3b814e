"""Viser's camera of a browser, checked, as a camera that the renderer understands."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import viser
import viser.transforms

from splatstudio.cameras.camera import Camera, look_at
from splatstudio.formats.ply import told_orientation
from splatstudio.runtime.channel.frame_slots import MAX_FRAME_PIXELS
from splatstudio.scene.ply_header import Direction
from splatstudio.scene.scene import Scene

MIN_SIDE, MAX_SIDE = 16, 8192  # px; below and above a window is closed or a lie
MIN_FOV, MAX_FOV = math.radians(1.0), math.radians(170.0)

NEAR = 2e-3  # times the scene's extent: how far from a camera's center one still stands in it
TURN = 4e-3  # radians: how far one may have turned
ARRIVAL_SECONDS = 2.0  # the browser tells that it is there after a round trip

Axis = Literal["+x", "+y", "+z", "-x", "-y", "-z"]
AXES: tuple[tuple[Axis, Axis], ...] = (("+x", "-x"), ("+y", "-y"), ("+z", "-z"))
Side = Literal["front", "back", "left", "right", "above", "below"]
FOV = 0.9  # radians, vertical: about a 28 mm lens
NARROWEST_FOV = 0.5  # a tele lens's own field of view would show too little to find one's way

ASIDE = 0.01  # radians: who stands upright looks not straight down, where no direction is upwards

STEPS_BACK = (0.25, 0.5, 0.75, 1.0)  # times the distance to what the photos show
MIN_IN_SIGHT = 2  # cameras, which tell at the first look how the photos were taken


@dataclass(frozen=True, eq=False)
class Viewpoint:
    """Where a browser looks from: camera to world, OpenCV axes; `fov` is vertical, radians."""

    wxyz: np.ndarray
    position: np.ndarray
    fov: float
    width: int  # px of the canvas
    height: int

    def scale_of(self, num_pixels: int) -> float:
        """Return the scale, at most 1, at which a picture of this canvas has so many pixels."""
        return min(1.0, math.sqrt(num_pixels / (self.width * self.height)))

    def camera(self, scale: float) -> Camera:
        """Return the camera that fills this canvas with `scale` times its pixels a side (at most 1)."""
        scale = min(scale, 1.0, math.sqrt(MAX_FRAME_PIXELS / (self.width * self.height)))
        width = max(MIN_SIDE, int(self.width * scale))
        height = max(MIN_SIDE, int(self.height * scale))
        # The picture is stretched over the whole canvas, so its field of view is the canvas's to the last
        # digit, also where rounding gave the picture another aspect.
        half_height = math.tan(self.fov / 2.0)
        half_width = half_height * self.width / self.height
        K = np.array(
            [
                [width / 2.0 / half_width, 0.0, width / 2.0],
                [0.0, height / 2.0 / half_height, height / 2.0],
                [0.0, 0.0, 1.0],
            ]
        )
        viewmat = np.eye(4)
        rotation = viser.transforms.SO3(self.wxyz).as_matrix()
        viewmat[:3, :3] = rotation.T
        viewmat[:3, 3] = -rotation.T @ self.position
        return Camera(viewmat, K, width, height)


def read_viewpoint(camera: viser.CameraHandle) -> Viewpoint | None:
    """Return what a browser says its camera is; None where it cannot be one (anyone may send anything)."""
    wxyz = np.asarray(camera.wxyz, np.float64)
    position = np.asarray(camera.position, np.float64)
    norm = float(np.linalg.norm(wxyz))
    width, height, fov = camera.image_width, camera.image_height, float(camera.fov)
    if wxyz.shape != (4,) or position.shape != (3,):
        return None
    if not (np.isfinite(position).all() and np.abs(position).max() < 1e8 and 1e-6 < norm < 1e6):
        return None
    if not (MIN_SIDE <= width <= MAX_SIDE and MIN_SIDE <= height <= MAX_SIDE and MIN_FOV <= fov <= MAX_FOV):
        return None
    return Viewpoint(wxyz / norm, position, fov, int(width), int(height))


def fly_to(client: viser.ClientHandle, camera: Camera, distance: float) -> None:
    """Move a browser's camera to where `camera` is, wide enough to see all that it sees.

    `distance` is how far ahead the point lies round which the mouse then turns, world units.
    """
    current = read_viewpoint(client.camera)
    canvas_aspect = current.width / current.height if current else 16.0 / 9.0
    rotation = viser.transforms.SO3.from_matrix(camera.viewmat[:3, :3].T)
    with client.atomic():
        client.camera.fov = fitting_fov(camera, canvas_aspect)
        client.camera.position = camera.position
        client.camera.look_at = camera.position + distance * camera.viewmat[2, :3]
        client.camera.wxyz = rotation.wxyz


def fitting_fov(camera: Camera, canvas_aspect: float) -> float:
    """Return the vertical field of view, radians, of a canvas (width / height) that holds `camera`'s."""
    K = camera.K
    # The principal point is the middle of the canvas, and may lie anywhere in the photo.
    half_width = max(K[0, 2], camera.width - K[0, 2]) / K[0, 0]
    half_height = max(K[1, 2], camera.height - K[1, 2]) / K[1, 1]
    return min(2.0 * math.atan(max(half_height, half_width / canvas_aspect)), MAX_FOV)


class CameraSnap:
    """The camera that a browser was last sent to. Methods may be called from any thread."""

    def __init__(self, client: viser.ClientHandle, scene: Scene):
        self._client = client
        self._scene = scene
        self._lock = threading.Lock()
        self.last: int | None = None  # the photo whose camera the browser was last sent to
        self._sent = 0.0
        self._here = False

    @property
    def here(self) -> int | None:
        """Return the photo whose camera the browser stands in, None where it stands elsewhere."""
        return self.last if self._here else None

    @property
    def on_the_way(self) -> bool:
        """Return whether the browser was just sent and has not told yet that it is there."""
        return not self._here and self.last is not None and time.monotonic() - self._sent < ARRIVAL_SECONDS

    def camera(self, index: int) -> Camera:
        """Return the camera of photo `index`."""
        return self._scene.views[index].camera

    def enter(self, index: int) -> None:
        """Send the browser to where photo `index` was taken; returns at once."""
        camera = self.camera(index)
        with self._lock:
            # Who is there already may have nothing to tell.
            self._here = self._here and index == self.last
            self.last, self._sent = index, time.monotonic()
        # The cameras' common point of attention is the origin of the scene's frame.
        distance = max(float(np.linalg.norm(camera.position)), 0.1 * self._scene.extent)
        fly_to(self._client, camera, distance)

    def nearest(self, viewpoint: Viewpoint) -> int:
        """Return the photo whose camera is most like where the browser is."""
        positions = positions_of(self._scene)
        forwards = np.stack([camera.viewmat[2, :3] for camera in self._scene.cameras])
        forward = viser.transforms.SO3(viewpoint.wxyz).as_matrix()[:, 2]
        distance = np.linalg.norm(positions - viewpoint.position, axis=1) / self._scene.extent
        return int(np.argmin(distance + 1.0 - forwards @ forward))

    def moved(self, viewpoint: Viewpoint) -> bool:
        """Take in where the browser is now; return whether it has just entered or left the camera."""
        with self._lock:
            before = self._here
            self._here = self.last is not None and self._matches(self.camera(self.last), viewpoint)
            entered, here = self._here and not before, self._here
            wanted = self.last
        if here and wanted is not None and not entered:
            self._refit(self.camera(wanted), viewpoint)
        return here != before

    def _matches(self, camera: Camera, viewpoint: Viewpoint) -> bool:
        rotation = viser.transforms.SO3(viewpoint.wxyz).as_matrix()
        cosine = (np.trace(rotation @ camera.viewmat[:3, :3]) - 1.0) / 2.0
        near = np.linalg.norm(viewpoint.position - camera.position) <= NEAR * self._scene.extent
        return bool(near and cosine >= np.cos(TURN))

    def _refit(self, camera: Camera, viewpoint: Viewpoint) -> None:
        """Show the whole photo again after the window has got another shape."""
        fov = fitting_fov(camera, viewpoint.width / viewpoint.height)
        if abs(fov - viewpoint.fov) > 5e-3:
            self._client.camera.fov = fov


def positions_of(scene: Scene) -> np.ndarray:
    """Return where a scene's photos were taken, [C, 3]."""
    return np.stack([camera.position for camera in scene.cameras])


def frustum_size(positions: np.ndarray, extent: float) -> float:
    """Return the depth of drawn cameras, world units: a fifth of the typical distance of neighbors."""
    if len(positions) < 2:
        return 0.06 * extent
    sample = positions[:: max(1, len(positions) // 500)]
    distances = np.linalg.norm(sample[:, None] - positions[None], axis=-1)
    nearest = np.partition(distances, 1, axis=1)[:, 1]
    return float(np.clip(np.median(nearest) / 5.0, 0.01 * extent, 0.06 * extent))


def likely_up(path: Path) -> tuple[Axis, Direction | None]:
    """Return the axis that is most likely up without cameras, and where up is exactly if a file says it.

    It is z in a scene's frame. Most files that do not say it are in COLMAP's frame, whose y points down.
    """
    if not path.is_file():
        return "+z", None
    told = told_orientation(path).up
    up = told or (0.0, -1.0, 0.0)
    most = max(range(3), key=lambda axis: abs(up[axis]))
    return AXES[most][up[most] < 0], told


class FirstView:
    """A camera position, a target and an up direction, for new browsers and for the way back.

    A browser may choose another direction as up: its camera stands and turns by that one, nobody else's.
    """

    def __init__(self, server: viser.ViserServer, up: Axis = "+z", told: Direction | None = None):
        """Look at a model whose upward axis is `up`, where no cameras tell a better one.

        `told` is where up is exactly, near that axis; None: there.
        """
        self._server = server
        self._position = np.array([0.0, -3.0, 1.0])
        self._target = np.zeros(3)
        self.up: Axis = up  # for who has not chosen another one
        self._told = None if told is None else np.array(told)
        self._fov = FOV
        self._middle = np.zeros(3)  # of what is to be seen
        self.distance = 3.0  # from there at which one sees all of it, world units
        self._own_up: dict[int, Axis] = {}  # by the browsers that have chosen another one
        self._announced: list[float] | None = None
        server.on_client_disconnect(self._left)

    def of_scene(self, scene: Scene) -> None:
        """Stand where the first photo was taken, a little ahead of its camera so as not to see it."""
        camera, positions = scene.cameras[0], positions_of(scene)
        forward = camera.viewmat[2, :3]
        # The cameras' common point of attention is the origin of the scene's frame.
        distance = max(float(np.linalg.norm(camera.position)), 0.1 * scene.extent)
        self.up, self._told = "+z", None
        self._fov = max(camera.fov_y, NARROWEST_FOV)
        self._position = camera.position + 1.2 * frustum_size(positions, scene.extent) * forward
        # Where nobody else is to be seen from there, as when all stand in a row, step back behind the others.
        for back in STEPS_BACK:
            if num_in_sight(positions, self._position, camera.viewmat[:3, :3], self._fov) >= MIN_IN_SIGHT:
                break
            self._position = camera.position - back * distance * forward
        self._target = camera.position + distance * forward
        self._middle = np.zeros(3)
        self.distance = max(float(np.median(np.linalg.norm(positions, axis=1))), 0.1 * scene.extent)
        self._announce()

    def of_model(self, center: tuple[float, float, float], radius: float) -> None:
        """Stand in front of a model of this size, a little above it."""
        self._target = np.array(center)
        self._position = _in_front(self._target, radius, self.up, self._upward())
        self._middle, self.distance = self._target, math.hypot(1.0, 2.8) * radius
        self._announce()
        self.show_all()

    def set_up(self, client: viser.ClientHandle, up: Axis) -> None:
        """Let the camera of one browser stand upright along another axis, in front of what is to be seen."""
        # The world itself is not turned: a page whose world turns goes back to everybody's first view.
        self._own_up[client.client_id] = up
        self.show(client)

    def viewpoint(self, width: int, height: int) -> Viewpoint:
        """Return where a browser that opens the page looks from, with a canvas of so many pixels."""
        viewmat = look_at(self._position, self._target, self._upward())
        wxyz = viser.transforms.SO3.from_matrix(viewmat[:3, :3].T).wxyz
        return Viewpoint(wxyz, self._position, self._fov, width, height)

    def show_all(self) -> None:
        """Move every browser's camera here."""
        for client in self._server.get_clients().values():
            self.show(client)

    def show(self, client: viser.ClientHandle) -> None:
        """Move a browser's camera here, upright as that browser wants it."""
        up, position = self._own_up.get(client.client_id, self.up), self._position
        if up != self.up:
            radius = float(np.linalg.norm(position - self._target)) / math.hypot(1.0, 2.8)
            position = _in_front(self._target, radius, up, _vector(up))
        with client.atomic():
            client.camera.fov = self._fov
            client.camera.up_direction = self._upward(client)
            client.camera.position = position
            client.camera.look_at = self._target

    def frame(self, client: viser.ClientHandle) -> None:
        """Let a browser see all there is from the direction from which it looks now."""
        viewpoint = read_viewpoint(client.camera)
        if viewpoint is not None:
            self._look_along(client, viser.transforms.SO3(viewpoint.wxyz).as_matrix()[:, 2])

    def look_from(self, client: viser.ClientHandle, side: Side) -> None:
        """Let a browser see all there is from one side, upright as that browser wants it."""
        upwards = self._upward(client)
        forward = _forward(self._own_up.get(client.client_id, self.up))
        rightwards = np.cross(forward, upwards)
        rightwards = rightwards / np.linalg.norm(rightwards)
        forward = np.cross(upwards, rightwards)  # level, where up leans
        aside = math.tan(ASIDE) * forward
        along = {
            "front": forward,
            "back": -forward,
            "left": rightwards,
            "right": -rightwards,
            "above": aside - upwards,
            "below": aside + upwards,
        }
        self._look_along(client, along[side])

    def _look_along(self, client: viser.ClientHandle, direction: np.ndarray) -> None:
        with client.atomic():
            client.camera.fov = self._fov
            client.camera.up_direction = self._upward(client)
            client.camera.position = self._middle - self.distance * direction / np.linalg.norm(direction)
            client.camera.look_at = self._middle

    def _upward(self, client: viser.ClientHandle | None = None) -> np.ndarray:
        """Return where up is, a unit vector [3]: for everybody, or as one browser wants it."""
        own = None if client is None else self._own_up.get(client.client_id)
        if own is not None and own != self.up:
            return _vector(own)
        return _vector(self.up) if self._told is None else self._told

    async def _left(self, client: viser.ClientHandle) -> None:
        self._own_up.pop(client.client_id, None)

    def _announce(self) -> None:
        # Not sent again when it is the same: it would bring the browsers back that have moved their camera.
        up = self._upward()
        if self._announced != up.tolist():
            self._announced = up.tolist()
            self._server.scene.set_up_direction(up)
        camera = self._server.initial_camera
        camera.position = self._position
        camera.look_at = self._target
        camera.up = up
        camera.fov = self._fov


def num_in_sight(positions: np.ndarray, eye: np.ndarray, rotation: np.ndarray, fov: float) -> int:
    """Return how many of `positions` [N, 3] a square canvas shows; `rotation` is world to camera (OpenCV)."""
    x, y, z = rotation @ (positions - eye).T
    reach = math.tan(fov / 2.0) * z
    return int(((z > 1e-6) & (np.abs(x) < reach) & (np.abs(y) < reach)).sum())


def _in_front(target: np.ndarray, radius: float, axis: Axis, up: np.ndarray) -> np.ndarray:
    """Return a position in front of a model and a little above it; `up` [3] is near `axis`."""
    forward = _forward(axis) - (_forward(axis) @ up) * up
    return target + radius * (up - 2.8 * forward / np.linalg.norm(forward))


def _forward(up: Axis) -> np.ndarray:
    """Return where who stands in front of a model looks, as a unit vector."""
    # In the usual frames of files forward is z when y is up or down, and y when z is.
    return np.array([0.0, 0.0, 1.0]) if up[1] != "z" else np.array([0.0, 1.0, 0.0])


def _vector(axis: Axis) -> np.ndarray:
    vector = np.zeros(3)
    vector["xyz".index(axis[1])] = -1.0 if axis[0] == "-" else 1.0
    return vector
