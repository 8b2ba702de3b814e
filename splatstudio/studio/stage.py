"""The things that stand in the viewer's space: sparse points and the cameras of the photographs."""

from __future__ import annotations

import numpy as np
import viser
import viser.transforms

from splatstudio.camera import Camera
from splatstudio.scene.scene import Scene
from splatstudio.studio.theme import ACCENT, TEST_COLOR
from splatstudio.studio.viewpoint import fly_to

MAX_POINTS = 300_000  # more would take seconds to send and show no more
LINE_PIXELS = 1.5
# Pairs of corners of a drawn camera: the edges of its pyramid, and a roof that says which side is up.
FRUSTUM_LINES = np.array([(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (2, 3), (3, 4), (4, 1), (1, 5), (2, 5)])
POINT_SIZE = 0.0025  # times the scene's extent


class Stage:
    """The points and cameras of a scene, each shown or hidden for all browsers."""

    def __init__(self, server: viser.ViserServer, scene: Scene):
        self._server = server
        self._scene = scene
        self._points = self._add_points()
        self._cameras = self._add_cameras()

    def show_points(self, visible: bool) -> None:
        """Show or hide the sparse points."""
        if self._points is not None:
            self._points.visible = visible

    def show_cameras(self, visible: bool) -> None:
        """Show or hide the cameras."""
        for handle in self._cameras:
            handle.visible = visible

    def _add_points(self) -> viser.PointCloudHandle | None:
        points, colors = self._scene.points, self._scene.colors
        if len(points) == 0:
            return None
        if len(points) > MAX_POINTS:
            chosen = np.random.default_rng(0).choice(len(points), MAX_POINTS, replace=False)
            points, colors = points[chosen], colors[chosen]
        return self._server.scene.add_point_cloud(
            "/points",
            points=points,
            colors=colors,
            point_size=POINT_SIZE * self._scene.extent,
            point_shape="circle",
        )

    def _add_cameras(self) -> tuple[viser.LineSegmentsHandle, viser.BatchedMeshHandle]:
        """Add all cameras as one set of lines to see and one mesh of faint pyramids to click on."""
        cameras, test = self._scene.cameras, set(self._scene.test_indices)
        rotations = np.stack([camera.viewmat[:3, :3].T for camera in cameras])
        wxyzs = viser.transforms.SO3.from_matrix(rotations).wxyz
        positions = np.stack([camera.position for camera in cameras])
        scales = frustum_size(positions, self._scene.extent) * np.stack(
            [_shape(camera) for camera in cameras]
        )
        colors = np.array([TEST_COLOR if i in test else ACCENT for i in range(len(cameras))], np.uint8)
        # [C, corners, 3] in the world, then [C, lines, 2, 3].
        corners = np.einsum("cij,ckj->cki", rotations, _frustum_corners() * scales[:, None])
        lines = (corners + positions[:, None])[:, FRUSTUM_LINES]
        edges = self._server.scene.add_line_segments(
            "/cameras/edges",
            lines.reshape(-1, 2, 3),
            np.broadcast_to(_linear(colors)[:, None, None], lines.shape).reshape(-1, 2, 3),
            thickness=LINE_PIXELS,
            thickness_units="screen",
        )
        bodies = self._server.scene.add_batched_meshes_simple(
            "/cameras/bodies",
            *_frustum_body(),
            wxyzs,
            positions,
            batched_scales=scales,
            batched_colors=colors,
            opacity=0.12,
            lod="off",
            side="double",
            cast_shadow=False,
            receive_shadow=False,
        )

        @bodies.on_click
        def _(event: viser.SceneNodePointerEvent) -> None:
            if event.client is not None:
                self.visit(event.client, self._clicked(event))

        return edges, bodies

    def _clicked(self, event: viser.SceneNodePointerEvent) -> int:
        """Return the index of the camera that was clicked on."""
        if event.instance_index is not None:
            return event.instance_index
        # viser does not say which one when the click meets the outline of the camera under the mouse.
        cameras = self._scene.cameras
        ahead = frustum_size(np.stack([camera.position for camera in cameras]), self._scene.extent) / 2.0
        middles = np.stack([camera.position + ahead * camera.viewmat[2, :3] for camera in cameras])
        directions = middles - np.asarray(event.ray_origin)
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        return int(np.argmax(directions @ np.asarray(event.ray_direction)))

    def visit(self, client: viser.ClientHandle, index: int) -> None:
        """Move a browser's camera to where photograph `index` was taken."""
        camera = self._scene.cameras[index]
        # The cameras' common point of attention is the origin of the scene's frame.
        fly_to(client, camera, max(float(np.linalg.norm(camera.position)), 0.1 * self._scene.extent))


def frustum_size(positions: np.ndarray, extent: float) -> float:
    """Return the depth of the drawn pyramids, world units: a fifth of the typical distance of neighbours."""
    if len(positions) < 2:
        return 0.06 * extent
    sample = positions[:: max(1, len(positions) // 500)]
    distances = np.linalg.norm(sample[:, None] - positions[None], axis=-1)
    nearest = np.partition(distances, 1, axis=1)[:, 1]
    return float(np.clip(np.median(nearest) / 5.0, 0.01 * extent, 0.06 * extent))


def _shape(camera: Camera) -> np.ndarray:
    """Return the scale that gives the unit pyramid this camera's field of view, [3]."""
    # Very wide cameras are drawn narrower: their pyramids would hide everything else.
    half = np.array([camera.width / 2 / camera.K[0, 0], camera.height / 2 / camera.K[1, 1]])
    return np.array([*(half / max(1.0, half.max())), 1.0])


def _linear(colors: np.ndarray) -> np.ndarray:
    """Return sRGB colours as the linear ones that viser takes a line's colours for, uint8."""
    return np.rint(255.0 * (colors / 255.0) ** 2.2).astype(np.uint8)


def _frustum_corners() -> np.ndarray:
    """Return the corners of a pyramid of half width, half height and depth 1, [6, 3].

    The apex, the four corners of the picture, and the tip of a roof over its upper edge.
    """
    return np.array([[0, 0, 0], [-1, -1, 1], [1, -1, 1], [1, 1, 1], [-1, 1, 1], [0, -1.4, 1]], np.float32)


def _frustum_body() -> tuple[np.ndarray, np.ndarray]:
    faces = [[0, 1, 2], [0, 2, 3], [0, 3, 4], [0, 4, 1], [1, 3, 2], [1, 4, 3]]
    return _frustum_corners(), np.array(faces, np.uint32)
