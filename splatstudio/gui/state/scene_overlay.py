"""The things that stand in the viewer's space: sparse points, cameras of photographs, and the camera path."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import viser
import viser.transforms

from splatstudio.cameras.camera_path import CameraPath
from splatstudio.gui.state.camera_paths import Draft, PathEditor
from splatstudio.gui.state.viewpoint import frustum_size, positions_of
from splatstudio.gui.theme import ACCENT, TEST_COLOR
from splatstudio.scene.scene import Scene

MAX_POINTS = 300_000  # more would take seconds to send and show no more
POINT_SIZE = 0.0025  # times the scene's extent
# A camera is drawn as a pyramid of half width, half height and depth 1, times a scale: its apex, the corners
# of the picture, and the tip of a roof over the upper edge, which says which side is up.
CORNERS = np.array([[0, 0, 0], [-1, -1, 1], [1, -1, 1], [1, 1, 1], [-1, 1, 1], [0, -1.4, 1]], np.float32)
EDGES = np.array([(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (2, 3), (3, 4), (4, 1), (1, 5), (2, 5)])
# Open in front: who stands in the camera looks through, and whoever clicks meets the inside of a face.
FACES = np.array([[0, 1, 2], [0, 2, 3], [0, 3, 4], [0, 4, 1]], np.uint32)
CAMERA_PIXELS, PATH_PIXELS, HANDLE_PIXELS = 1.5, 2.0, 90.0  # of lines, and of the handles

ROOT = "/camera_path"  # what a preview hides in one browser
DRAWN = f"{ROOT}/drawn"  # what the switch hides in all
PATH_COLOR, SELECTED_COLOR = (214, 120, 255), (255, 255, 255)
CURVE_POINTS = 400


@dataclass(frozen=True, eq=False)
class Frustums:
    """Cameras as pyramids."""

    rotations: np.ndarray  # [C, 3, 3] camera to world
    positions: np.ndarray  # [C, 3]
    scales: np.ndarray  # [C, 3] of the unit pyramid
    colors: np.ndarray  # [C, 3] uint8

    @classmethod
    def of_scene(cls, scene: Scene) -> Frustums:
        """Return the pyramids of a scene's cameras, coloured by which part of the split they belong to."""
        test, positions = set(scene.test_indices), positions_of(scene)
        shapes = [_shape(c.width / 2 / c.K[0, 0], c.height / 2 / c.K[1, 1]) for c in scene.cameras]
        return cls(
            rotations=np.stack([camera.viewmat[:3, :3].T for camera in scene.cameras]),
            positions=positions,
            scales=frustum_size(positions, scene.extent) * np.stack(shapes),
            colors=np.array(
                [TEST_COLOR if i in test else ACCENT for i in range(len(scene.cameras))], np.uint8
            ),
        )

    def lines(self, factor: float = 1.0) -> np.ndarray:
        """Return the edges of all pyramids, `factor` times as large, [C, lines, 2, 3] float32."""
        corners = CORNERS * (factor * self.scales)[:, None]
        world = np.einsum("cij,ckj->cki", self.rotations, corners) + self.positions[:, None]
        return world[:, EDGES].astype(np.float32)

    def hit(self, origin: np.ndarray, direction: np.ndarray, factor: float) -> int:
        """Return the camera whose pyramid's middle lies nearest to a ray's direction."""
        middles = self.positions + 0.5 * factor * self.scales[:, 2:] * self.rotations[:, :, 2]
        directions = middles - origin
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        return int(np.argmax(directions @ direction))

    def draw(
        self, scene: viser.SceneApi, edges: str, bodies: str, pixels: float, opacity: float
    ) -> tuple[viser.LineSegmentsHandle, viser.BatchedMeshHandle]:
        """Add all as one set of lines to see and one mesh of faint pyramids to click on, by these names."""
        drawn = scene.add_line_segments(
            edges,
            self.lines().reshape(-1, 2, 3),
            line_colors(self.colors),
            thickness=pixels,
            thickness_units="screen",
        )
        clicked = scene.add_batched_meshes_simple(
            bodies,
            CORNERS,
            FACES,
            viser.transforms.SO3.from_matrix(self.rotations).wxyz,
            self.positions,
            batched_scales=self.scales,
            batched_colors=self.colors,
            opacity=opacity,
            lod="off",
            side="double",
            cast_shadow=False,
            receive_shadow=False,
        )
        return drawn, clicked


def _shape(half_width: float, half_height: float) -> np.ndarray:
    """Return the scale that gives the unit pyramid a picture of this size at depth 1, [3]."""
    # Very wide cameras are drawn narrower: their pyramids would hide everything else.
    half = np.array([half_width, half_height])
    return np.array([*(half / max(1.0, half.max())), 1.0])


def linear(colors: np.ndarray) -> np.ndarray:
    """Return sRGB colours as the linear ones that viser takes a line's colours for, uint8."""
    return np.rint(255.0 * (colors / 255.0) ** 2.2).astype(np.uint8)


def line_colors(colors: np.ndarray) -> np.ndarray:
    """Return the colours of the edges' ends, [C * lines, 2, 3] uint8, from the cameras' [C, 3]."""
    return np.repeat(linear(colors), 2 * len(EDGES), axis=0).reshape(-1, 2, 3)


class SceneOverlay:
    """The points and cameras of a scene in one browser."""

    def __init__(
        self, client: viser.ClientHandle, scene: Scene, frustums: Frustums, on_click: Callable[[int], None]
    ):
        """Show all of it; `on_click` is told which camera was clicked."""
        self._frustums = frustums
        self._factor = 1.0
        self._left_out: int | None = None
        self._colors = frustums.colors
        self._points = _points(client.scene, scene)
        self._edges, self._bodies = frustums.draw(
            client.scene, "/cameras/edges", "/cameras/bodies", CAMERA_PIXELS, 0.12
        )

        @self._bodies.on_click
        async def _(event: viser.SceneNodePointerEvent) -> None:
            on_click(self._clicked(event))

    def show_points(self, visible: bool) -> None:
        """Show or hide the sparse points."""
        if self._points is not None:
            self._points.visible = visible

    def show_cameras(self, visible: bool) -> None:
        """Show or hide the cameras."""
        self._edges.visible = self._bodies.visible = visible

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
            self._edges.colors = line_colors(colors)
            self._bodies.batched_colors = colors

    def _draw_edges(self) -> None:
        lines = self._frustums.lines(self._factor)
        if self._left_out is not None:
            lines[self._left_out] = self._frustums.positions[self._left_out]
        self._edges.points = lines.reshape(-1, 2, 3)

    def _clicked(self, event: viser.SceneNodePointerEvent) -> int:
        """Return the index of the camera that was clicked on."""
        if event.instance_index is not None and event.instance_index < len(self._frustums.positions):
            return event.instance_index
        # viser does not say which one when the click meets the outline of the camera under the mouse.
        return self._frustums.hit(np.asarray(event.ray_origin), np.asarray(event.ray_direction), self._factor)


def _points(api: viser.SceneApi, scene: Scene) -> viser.PointCloudHandle | None:
    points, colors = scene.points, scene.colors
    if len(points) == 0:
        return None
    if len(points) > MAX_POINTS:
        chosen = np.random.default_rng(0).choice(len(points), MAX_POINTS, replace=False)
        points, colors = points[chosen], colors[chosen]
    size = POINT_SIZE * scene.extent
    return api.add_point_cloud("/points", points=points, colors=colors, point_size=size, point_shape="circle")


class PathScene:
    """Draws the editor's path for all browsers; a click on a keyframe selects it."""

    def __init__(self, server: viser.ViserServer, editor: PathEditor, size: float):
        self._scene = server.scene
        self._editor = editor
        self._size = size  # depth of a drawn keyframe, world units
        server.scene.add_frame(ROOT, show_axes=False)
        self._root = server.scene.add_frame(DRAWN, show_axes=False)
        self._drawn: Draft | None = None
        self._nodes: list[viser.SceneNodeHandle] = []
        self._handles: viser.TransformControlsHandle | None = None
        self._held: int | None = None  # the browser that drags the handles just now
        server.on_client_disconnect(self._left)

    def show(self, visible: bool) -> None:
        """Show or hide the path for all."""
        self._root.visible = visible

    def show_handles(self, visible: bool) -> None:
        """Show or hide the handles that move the selected keyframe."""
        if visible and self._handles is None:
            self._handles = self._add_handles()
        if self._handles is not None:
            self._handles.visible = visible and self._editor.keyframe is not None

    def redraw(self) -> None:
        """Draw what has changed since the last call."""
        draft = self._editor.draft
        if draft is self._drawn:
            return
        self._drawn = draft
        old = self._nodes
        self._nodes = [*_curve(self._scene, draft.path), *self._keyframes(draft)]
        names = {node.name for node in self._nodes}
        for node in old:
            if node.name not in names:
                node.remove()
        self._place_handles()

    def _keyframes(self, draft: Draft) -> tuple[viser.SceneNodeHandle, ...]:
        keys = draft.path.keyframes
        if not keys:
            return ()
        poses = np.stack([key.camera_to_world for key in keys])
        aspect = draft.path.width / draft.path.height
        heights = [math.tan(key.fov_y / 2.0) for key in keys]
        colors = [SELECTED_COLOR if i == draft.selected else PATH_COLOR for i in range(len(keys))]
        frustums = Frustums(
            poses[:, :3, :3],
            poses[:, :3, 3],
            self._size * np.stack([_shape(aspect * height, height) for height in heights]),
            np.array(colors, np.uint8),
        )
        edges, bodies = frustums.draw(self._scene, f"{DRAWN}/edges", f"{DRAWN}/keyframes", PATH_PIXELS, 0.16)

        @bodies.on_click
        def _(event: viser.SceneNodePointerEvent) -> None:
            if event.instance_index is not None:
                self._editor.select(event.instance_index)

        return edges, bodies

    def _add_handles(self) -> viser.TransformControlsHandle:
        handles = self._scene.add_transform_controls(
            f"{DRAWN}/handles", scale=HANDLE_PIXELS, fixed=True, depth_test=False, disable_sliders=True
        )

        # On the event loop: start, movements and end come in order; taking notes is all that is done.
        @handles.on_update
        async def _(event: viser.TransformControlsEvent) -> None:
            self._held = event.client_id if event.phase != "end" else None
            pose = np.eye(4)
            pose[:3, :3] = viser.transforms.SO3(np.asarray(event.target.wxyz)).as_matrix()
            pose[:3, 3] = event.target.position
            if event.phase != "start":
                self._editor.change_keyframe(control="handles", camera_to_world=pose)

        self._handles = handles
        self._place_handles()
        return handles

    async def _left(self, client: viser.ClientHandle) -> None:
        # The end of its drag will never come.
        if self._held == client.client_id:
            self._held = None
            self._place_handles()

    def _place_handles(self) -> None:
        keyframe = self._editor.keyframe
        if self._handles is None or self._held is not None:
            return
        if keyframe is None:
            self._handles.visible = False
            return
        pose = keyframe.camera_to_world
        self._handles.position = pose[:3, 3]
        self._handles.wxyz = viser.transforms.SO3.from_matrix(pose[:3, :3]).wxyz


def _curve(scene: viser.SceneApi, path: CameraPath) -> list[viser.SceneNodeHandle]:
    if len(path.keyframes) < 2:
        return []
    times = np.linspace(0.0, path.duration, CURVE_POINTS)
    points = np.stack([path.camera_at(time).position for time in times])
    lines = np.stack([points[:-1], points[1:]], axis=1)
    colors = np.broadcast_to(linear(np.array(PATH_COLOR)), lines.shape)
    return [
        scene.add_line_segments(
            f"{DRAWN}/curve",
            lines.astype(np.float32),
            colors,
            thickness=PATH_PIXELS,
            thickness_units="screen",
        )
    ]
