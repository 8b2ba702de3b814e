"""The things that stand in the viewer's space: sparse points and the cameras of the photographs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import viser
import viser.transforms

from splatstudio.cameras.camera import Camera
from splatstudio.gui.theme import ACCENT, TEST_COLOR
from splatstudio.scene.scene import Scene

MAX_POINTS = 300_000  # more would take seconds to send and show no more
LINE_PIXELS = 1.5
# Pairs of corners of a drawn camera: the edges of its pyramid, and a roof that says which side is up.
FRUSTUM_LINES = np.array([(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (2, 3), (3, 4), (4, 1), (1, 5), (2, 5)])
POINT_SIZE = 0.0025  # times the scene's extent


@dataclass(frozen=True, eq=False)
class Frustums:
    """The drawn pyramids of all cameras of a scene, at their usual size."""

    rotations: np.ndarray  # [C, 3, 3] camera to world
    positions: np.ndarray  # [C, 3]
    scales: np.ndarray  # [C, 3] of the unit pyramid
    size: float  # their depth, world units
    split_colors: np.ndarray  # [C, 3] uint8, by which part of the split a camera belongs to

    @classmethod
    def of_scene(cls, scene: Scene) -> Frustums:
        """Return the pyramids of a scene's cameras."""
        positions = np.stack([camera.position for camera in scene.cameras])
        size, test = frustum_size(positions, scene.extent), set(scene.test_indices)
        return cls(
            rotations=np.stack([camera.viewmat[:3, :3].T for camera in scene.cameras]),
            positions=positions,
            scales=size * np.stack([_shape(camera) for camera in scene.cameras]),
            size=size,
            split_colors=np.array(
                [TEST_COLOR if i in test else ACCENT for i in range(len(positions))], np.uint8
            ),
        )

    def lines(self, factor: float) -> np.ndarray:
        """Return the edges of all pyramids, `factor` times as large, [C, lines, 2, 3] float32."""
        corners = _frustum_corners() * (factor * self.scales)[:, None]
        world = np.einsum("cij,ckj->cki", self.rotations, corners) + self.positions[:, None]
        return world[:, FRUSTUM_LINES].astype(np.float32)

    def hit(self, origin: np.ndarray, direction: np.ndarray, factor: float) -> int:
        """Return the camera whose pyramid's middle lies nearest to a ray's direction."""
        middles = self.positions + 0.5 * factor * self.size * self.rotations[:, :, 2]
        directions = middles - origin
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        return int(np.argmax(directions @ direction))


class SceneOverlay:
    """The points and cameras of a scene in one browser."""

    def __init__(
        self,
        client: viser.ClientHandle,
        scene: Scene,
        frustums: Frustums,
        on_click: Callable[[int], None],
    ):
        """Show all of it; `on_click` is told which camera was clicked."""
        self._scene_api = client.scene
        self._scene = scene
        self._frustums = frustums
        self._factor = 1.0
        self._left_out: int | None = None
        self._colors = frustums.split_colors
        self._points = self._add_points()
        self._edges, self._bodies = self._add_cameras()

        @self._bodies.on_click
        async def _(event: viser.SceneNodePointerEvent) -> None:
            on_click(self._clicked(event))

    def show_points(self, visible: bool) -> None:
        """Show or hide the sparse points."""
        if self._points is not None:
            self._points.visible = visible

    def show_cameras(self, visible: bool) -> None:
        """Show or hide the cameras."""
        self._edges.visible = visible
        self._bodies.visible = visible

    def size_cameras(self, factor: float) -> None:
        """Draw the cameras `factor` times as large as usual."""
        self._factor = factor
        self._draw_edges()
        self._bodies.batched_scales = (factor * self._frustums.scales).astype(np.float32)

    def leave_out(self, index: int | None) -> None:
        """Draw no edges of this camera, whose picture they would cover for who stands in it; None: all."""
        if index != self._left_out:
            self._left_out = index
            self._draw_edges()

    def paint(self, colors: np.ndarray) -> None:
        """Give the cameras other colours, [C, 3] uint8."""
        if not np.array_equal(colors, self._colors):
            self._colors = colors
            self._edges.colors = _line_colors(colors)
            self._bodies.batched_colors = colors

    def _draw_edges(self) -> None:
        lines = self._frustums.lines(self._factor)
        if self._left_out is not None:
            lines[self._left_out] = self._frustums.positions[self._left_out]
        self._edges.points = lines.reshape(-1, 2, 3)

    def _add_points(self) -> viser.PointCloudHandle | None:
        points, colors = self._scene.points, self._scene.colors
        if len(points) == 0:
            return None
        if len(points) > MAX_POINTS:
            chosen = np.random.default_rng(0).choice(len(points), MAX_POINTS, replace=False)
            points, colors = points[chosen], colors[chosen]
        return self._scene_api.add_point_cloud(
            "/points",
            points=points,
            colors=colors,
            point_size=POINT_SIZE * self._scene.extent,
            point_shape="circle",
        )

    def _add_cameras(self) -> tuple[viser.LineSegmentsHandle, viser.BatchedMeshHandle]:
        """Add all cameras as one set of lines to see and one mesh of faint pyramids to click on."""
        frustums = self._frustums
        edges = self._scene_api.add_line_segments(
            "/cameras/edges",
            frustums.lines(1.0).reshape(-1, 2, 3),
            _line_colors(self._colors),
            thickness=LINE_PIXELS,
            thickness_units="screen",
        )
        bodies = self._scene_api.add_batched_meshes_simple(
            "/cameras/bodies",
            *_frustum_body(),
            viser.transforms.SO3.from_matrix(frustums.rotations).wxyz,
            frustums.positions,
            batched_scales=frustums.scales,
            batched_colors=self._colors,
            opacity=0.12,
            lod="off",
            side="double",
            cast_shadow=False,
            receive_shadow=False,
        )
        return edges, bodies

    def _clicked(self, event: viser.SceneNodePointerEvent) -> int:
        """Return the index of the camera that was clicked on."""
        if event.instance_index is not None and event.instance_index < len(self._frustums.positions):
            return event.instance_index
        # viser does not say which one when the click meets the outline of the camera under the mouse.
        return self._frustums.hit(np.asarray(event.ray_origin), np.asarray(event.ray_direction), self._factor)


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


def _line_colors(colors: np.ndarray) -> np.ndarray:
    """Return the colours of the edges' ends, [C * lines, 2, 3] uint8, from the cameras' [C, 3]."""
    return np.repeat(_linear(colors), 2 * len(FRUSTUM_LINES), axis=0).reshape(-1, 2, 3)


def _linear(colors: np.ndarray) -> np.ndarray:
    """Return sRGB colours as the linear ones that viser takes a line's colours for, uint8."""
    return np.rint(255.0 * (colors / 255.0) ** 2.2).astype(np.uint8)


def _frustum_corners() -> np.ndarray:
    """Return the corners of a pyramid of half width, half height and depth 1, [6, 3].

    The apex, the four corners of the picture, and the tip of a roof over its upper edge.
    """
    return np.array([[0, 0, 0], [-1, -1, 1], [1, -1, 1], [1, 1, 1], [-1, 1, 1], [0, -1.4, 1]], np.float32)


def _frustum_body() -> tuple[np.ndarray, np.ndarray]:
    # Open in front: who stands in the camera looks through, and whoever clicks meets the inside of a face.
    faces = [[0, 1, 2], [0, 2, 3], [0, 3, 4], [0, 4, 1]]
    return _frustum_corners(), np.array(faces, np.uint32)
