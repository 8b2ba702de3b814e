"""The camera path in the viewer's space: its curve, its keyframes, and handles to move one of them."""

from __future__ import annotations

import math

import numpy as np
import viser
import viser.transforms

from splatstudio.cameras.camera_path import CameraPath
from splatstudio.gui.state.keyframes import Draft, PathEditor

ROOT = "/camera_path"  # what a preview hides in one browser
DRAWN = f"{ROOT}/drawn"  # what the switch hides in all
PATH_COLOR, SELECTED_COLOR = (214, 120, 255), (255, 255, 255)
CURVE_POINTS = 400
LINE_PIXELS = 2.0
HANDLE_PIXELS = 90.0
MAX_HALF_ANGLE = math.radians(40)  # of a drawn keyframe; wider ones would hide everything
# The apex, the corners of the picture, and the tip of a roof over its upper edge; pairs of them are edges.
CORNERS = np.array([[0, 0, 0], [-1, -1, 1], [1, -1, 1], [1, 1, 1], [-1, 1, 1], [0, -1.35, 1]], np.float32)
EDGES = np.array([(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (2, 3), (3, 4), (4, 1), (1, 5), (2, 5)])
FACES = np.array([[0, 1, 2], [0, 2, 3], [0, 3, 4], [0, 4, 1], [1, 3, 2], [1, 4, 3]], np.uint32)


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
        self._nodes = _curve(self._scene, draft.path) + self._keyframes(draft)
        names = {node.name for node in self._nodes}
        for node in old:
            if node.name not in names:
                node.remove()
        self._place_handles()

    def _keyframes(self, draft: Draft) -> list[viser.SceneNodeHandle]:
        keys = draft.path.keyframes
        if not keys:
            return []
        poses = np.stack([key.camera_to_world for key in keys])
        aspect = draft.path.width / draft.path.height
        scales = self._size * np.stack([_shape(key.fov_y, aspect) for key in keys])
        colors = np.array([SELECTED_COLOR if i == draft.selected else PATH_COLOR for i in range(len(keys))])
        corners = (
            np.einsum("kij,kcj->kci", poses[:, :3, :3], CORNERS * scales[:, None]) + poses[:, None, :3, 3]
        )
        lines = corners[:, EDGES]  # [keyframes, edges, 2, 3]
        # viser takes a line's colours for linear ones.
        linear = np.rint(255.0 * (colors / 255.0) ** 2.2).astype(np.uint8)
        edges = self._scene.add_line_segments(
            f"{DRAWN}/edges",
            lines.reshape(-1, 2, 3).astype(np.float32),
            np.broadcast_to(linear[:, None, None], lines.shape).reshape(-1, 2, 3),
            thickness=LINE_PIXELS,
            thickness_units="screen",
        )
        bodies = self._scene.add_batched_meshes_simple(
            f"{DRAWN}/keyframes",
            CORNERS,
            FACES,
            viser.transforms.SO3.from_matrix(poses[:, :3, :3]).wxyz,
            poses[:, :3, 3],
            batched_scales=scales,
            batched_colors=colors.astype(np.uint8),
            opacity=0.16,
            lod="off",
            side="double",
            cast_shadow=False,
            receive_shadow=False,
        )

        @bodies.on_click
        def _(event: viser.SceneNodePointerEvent) -> None:
            if event.instance_index is not None:
                self._editor.select(event.instance_index)

        return [edges, bodies]

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
    color = np.rint(255.0 * (np.array(PATH_COLOR) / 255.0) ** 2.2).astype(np.uint8)
    colors = np.broadcast_to(color, lines.shape)
    return [
        scene.add_line_segments(
            f"{DRAWN}/curve",
            lines.astype(np.float32),
            colors,
            thickness=LINE_PIXELS,
            thickness_units="screen",
        )
    ]


def _shape(fov_y: float, aspect: float) -> np.ndarray:
    """Return the scale that gives the unit pyramid this field of view, [3]."""
    half = np.tan(min(fov_y / 2.0, MAX_HALF_ANGLE)) * np.array([aspect, 1.0])
    return np.array([*(half / max(1.0, half.max())), 1.0])
