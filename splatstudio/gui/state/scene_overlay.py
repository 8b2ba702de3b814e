"""What stands in the space of the viewer: points, cameras of photos, and the path that is edited."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import viser
import viser.transforms

from splatstudio.cameras.camera_path import CameraPath, FrameFormat, Keyframe
from splatstudio.cameras.path_file import read_camera_path, write_camera_path
from splatstudio.files.outputs import make_folder
from splatstudio.files.run import PATHS_FOLDER
from splatstudio.gui.state.project import Project, transform_of
from splatstudio.gui.state.viewpoint import frustum_size, positions_of
from splatstudio.gui.theme import ACCENT, TEST_COLOR
from splatstudio.scene.scene import Scene

MAX_UNDO = 200
MERGE_SECONDS = 1.5  # changes of one control within this time are one step back

QUICK_FRAMES = 3000  # beyond, the frames' cameras are omitted from what is saved after every change
SAVE_SECONDS = 1.0  # without another change, after which a change is written
RETRY_SECONDS = 10.0  # after a change that could not be written
FLUSH_SECONDS = 20.0  # for the disk to take what is unsaved

MAX_POINTS = 300_000  # more would take seconds to send and show no more
POINT_SIZE = 0.0025  # times the scene's extent
# A camera is drawn as a pyramid of half width, half height and depth 1, times a scale: its apex, the corners
# of the picture, and the tip of a roof over the upper edge, which says which side is up.
CORNERS = np.array([[0, 0, 0], [-1, -1, 1], [1, -1, 1], [1, 1, 1], [-1, 1, 1], [0, -1.4, 1]], np.float32)
EDGES = np.array([(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (2, 3), (3, 4), (4, 1), (1, 5), (2, 5)])
# Open in front: who stands in the camera looks through, and whoever clicks meets the inside of a face.
FACES = np.array([[0, 1, 2], [0, 2, 3], [0, 3, 4], [0, 4, 1]], np.uint32)
# viser hears clicks also where the mesh is without its places and scales: nobody meets so small a one.
UNPLACED = 1e-4
CAMERA_PIXELS, PATH_PIXELS, HANDLE_PIXELS = 1.5, 2.0, 90.0  # of lines, and of the handles

ROOT = "/camera_path"  # what a preview hides in one browser
DRAWN = f"{ROOT}/drawn"  # what the switch hides in all
PATH_COLOR, SELECTED_COLOR = (214, 120, 255), (255, 255, 255)
CURVE_POINTS = 400


@dataclass(frozen=True, eq=False)
class Draft:
    """A state of the path on the page. `selected` is a keyframe's index, None where there is none."""

    path: CameraPath = field(default_factory=lambda: CameraPath(()))
    selected: int | None = None
    name: str = "path"


class PathEditor:
    """The path on the page and its past. Methods may be called from any thread.

    What cannot be raises ValueError with one sentence and changes nothing.
    """

    def __init__(self, draft: Draft = Draft()):
        self.draft = draft  # the present state; the next change replaces it
        self._past: list[Draft] = []
        self._merging: tuple[str, float] = ("", 0.0)
        self._lock = threading.RLock()
        self._listeners: list[Callable[[Draft], None]] = []

    @property
    def path(self) -> CameraPath:
        """Return the path as it is now."""
        return self.draft.path

    @property
    def keyframe(self) -> Keyframe | None:
        """Return the selected keyframe."""
        draft = self.draft
        return None if draft.selected is None else draft.path.keyframes[draft.selected]

    @property
    def can_undo(self) -> bool:
        """Return whether there is a step to take back."""
        return bool(self._past)

    def listen(self, listener: Callable[[Draft], None]) -> None:
        """Call `listener` after every change; it must return quickly."""
        self._listeners.append(listener)

    def add(self, keyframe: Keyframe) -> None:
        """Insert a keyframe after the selected one, at the end where none is, and select it."""
        with self._lock:
            keys, selected = list(self.path.keyframes), self.draft.selected
            place = len(keys) if selected is None else selected + 1
            keys.insert(place, keyframe)
            self._change_keys(keys, place)

    def select(self, index: int) -> None:
        """Select a keyframe; one that is not there (any more) leaves the selection as it is."""
        with self._lock:
            if 0 <= index < len(self.path.keyframes) and index != self.draft.selected:
                # Looking at another keyframe is nothing to take back.
                self._take(replace(self.draft, selected=index))

    def change_keyframe(self, *, control: str = "", **values: Any) -> None:
        """Give the selected keyframe other values; quick changes of one `control` are one step back."""
        with self._lock:
            keys, index = list(self.path.keyframes), self.draft.selected
            if index is not None:
                keys[index] = replace(keys[index], **values)
                self._change_keys(keys, index, control and f"{control}{index}")

    def move(self, steps: int) -> None:
        """Let the selected keyframe come `steps` later (negative: earlier), as far as there are others."""
        with self._lock:
            keys, index = list(self.path.keyframes), self.draft.selected
            if index is None:
                return
            place = min(max(index + steps, 0), len(keys) - 1)
            if place != index:
                keys.insert(place, keys.pop(index))
                self._change_keys(keys, place)

    def delete(self) -> None:
        """Remove the selected keyframe and select its neighbor."""
        with self._lock:
            keys, index = list(self.path.keyframes), self.draft.selected
            if index is not None:
                del keys[index]
                self._change_keys(keys, min(index, len(keys) - 1) if keys else None)

    def change_path(self, *, control: str = "", **values: Any) -> None:
        """Give the path other values, as `loop`, `tension`, `fps`, `width` and `height`."""
        with self._lock:
            self._change(replace(self.draft, path=replace(self.path, **values)), control)

    def change_duration(self, seconds: float) -> None:
        """Stretch all times so that the whole path takes `seconds`."""
        with self._lock:
            stretched = self.path.formatted(FrameFormat(seconds=seconds))
            self._change(replace(self.draft, path=stretched), "duration")

    def load(self, path: CameraPath, name: str) -> None:
        """Go on with another path."""
        with self._lock:
            self._change(Draft(path, 0 if path.keyframes else None, name))

    def begin_anew(self, draft: Draft | None = None) -> None:
        """Go on with a draft, or an empty path of the same size and rate; there is nothing to take back."""
        with self._lock:
            self._past, self._merging = [], ("", 0.0)
            old = self.path
            empty = CameraPath((), width=old.width, height=old.height, fps=old.fps)
            self._take(Draft(empty) if draft is None else draft)

    def undo(self) -> None:
        """Take the last change back."""
        with self._lock:
            if self._past:
                self._merging = ("", 0.0)
                self._take(self._past.pop())

    def _change_keys(self, keys: list[Keyframe], selected: int | None, control: str = "") -> None:
        path = replace(self.path, keyframes=tuple(keys))
        self._change(replace(self.draft, path=path, selected=selected), control)

    def _change(self, draft: Draft, control: str = "") -> None:
        now = time.monotonic()
        last, when = self._merging
        if not (control and control == last and now - when < MERGE_SECONDS):
            self._past = [*self._past[-MAX_UNDO + 1 :], self.draft]
        self._merging = (control, now)
        self._take(draft)

    def _take(self, draft: Draft) -> None:
        self.draft = draft
        for listener in self._listeners:
            listener(draft)


class PathStore:
    """The camera paths of what is open, files beside the run, in the coordinates of the scene's files."""

    def __init__(self, project: Project, tell: Callable[[str], None] = lambda _: None):
        """Call `tell` with a sentence when a path cannot be written, once until one can."""
        self._project, self._tell = project, tell
        self.transform = transform_of(project)  # from the files' coordinates to the page's; None: the same
        self._unsaved: dict[str, CameraPath] = {}  # the newest of each name, until it is on the disk
        self._due = 0.0
        self._closed = False
        self._num_failed = 0  # rounds of writing in a row
        self._changed = threading.Condition()
        self._file_lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def folder(self) -> Path:
        """Return the folder of the paths, which need not exist yet."""
        return self._project.folder_of(PATHS_FOLDER)

    def follow(self, project: Project) -> bool:
        """Write beside a project's run or model from now on; return whether it is another.

        What was unsaved is written with the one before.
        """
        another = project.folder_of(PATHS_FOLDER) != self.folder
        if another:
            self.flush()
        self._project = project
        if another:
            self.transform = transform_of(project)
        return another

    def names(self) -> list[str]:
        """Return the names of the paths, saved or about to be, the one changed last first."""
        files = [file for file in self.folder.glob("*.json") if not file.name.startswith(".")]
        saved = [file.stem for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)]
        with self._changed:
            unsaved = list(self._unsaved)
        return list(dict.fromkeys([*reversed(unsaved), *saved]))

    def unused(self, name: str) -> str:
        """Return `name`, with -2, -3 ... when there is such a path."""
        taken, free, number = set(self.names()), name, 2
        while free in taken:
            free, number = f"{name}-{number}", number + 1
        return free

    def read(self, name: str) -> CameraPath:
        """Return a path as it was changed last; raises ValueError with one sentence for a damaged file."""
        with self._changed:
            unsaved = self._unsaved.get(name)
        return unsaved or read_camera_path(self.folder / f"{name}.json", self.transform)

    def save_soon(self, path: CameraPath, name: str) -> None:
        """Write a path when none has changed for SAVE_SECONDS; returns at once.

        A path without keyframes is not kept. One that cannot be written is tried again.
        """
        with self._changed:
            self._unsaved.pop(name, None)
            if path.keyframes:
                self._unsaved[name] = path
            self._due = time.monotonic() + SAVE_SECONDS
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_all, name="camera-paths", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self) -> None:
        """Write now what has not been written yet; a disk that hangs is waited for FLUSH_SECONDS."""
        with self._changed:
            self._due, failed = 0.0, self._num_failed
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._unsaved or self._num_failed > failed, FLUSH_SECONDS)

    def close(self) -> None:
        """Write what has not been written yet, and end the thread."""
        self.flush()
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def write(self, path: CameraPath, name: str, *, with_frames: bool) -> Path:
        """Write a path now, with or without the camera of every frame, and return its file."""
        file = self.folder / f"{name}.json"
        with self._file_lock:
            make_folder(file.parent)
            write_camera_path(file, path, self.transform, with_frames=with_frames)
        return file

    def _write_all(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (not self._unsaved or time.monotonic() < self._due):
                    self._changed.wait(self._due - time.monotonic() if self._unsaved else None)
                if self._closed:
                    return
                paths = dict(self._unsaved)
            # Nobody who moves a camera waits for the disk.
            problem = ""
            for name, path in paths.items():
                try:
                    self.write(path, name, with_frames=len(path.frame_times) <= QUICK_FRAMES)
                except OSError as error:
                    problem = f"The camera path {name} is not saved: {error.strerror or error}."
                    continue
                with self._changed:
                    if self._unsaved.get(name) is path:
                        del self._unsaved[name]
            with self._changed:
                if problem:
                    self._due = time.monotonic() + RETRY_SECONDS
                self._num_failed = self._num_failed + 1 if problem else 0
                newly_failed = self._num_failed == 1
                self._changed.notify_all()
            if newly_failed:
                self._tell(problem)


def plain_name(text: str) -> str:
    """Return what of a text can be a file's name: letters, digits, dashes; "path" where nothing is left."""
    return re.sub(r"[^\w-]+", "-", text, flags=re.ASCII).strip("-_")[:60] or "path"


@dataclass(frozen=True, eq=False)
class Frustums:
    """Cameras as pyramids."""

    rotations: np.ndarray  # [C, 3, 3] camera to world
    positions: np.ndarray  # [C, 3]
    scales: np.ndarray  # [C, 3] of the unit pyramid
    colors: np.ndarray  # [C, 3] uint8

    @classmethod
    def of_scene(cls, scene: Scene) -> Frustums:
        """Return the pyramids of a scene's cameras, colored by which part of the split they belong to."""
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

    @classmethod
    def of_poses(cls, viewmats: np.ndarray, half_sizes: np.ndarray, extent: float) -> Frustums:
        """Return the pyramids of cameras [C, 4, 4], world to camera, that show so much at depth 1 [C, 2]."""
        rotations = viewmats[:, :3, :3].transpose(0, 2, 1)
        positions = -np.einsum("cij,cj->ci", rotations, viewmats[:, :3, 3])
        shapes = np.stack([_shape(*half_size) for half_size in half_sizes])
        colors = np.full((len(viewmats), 3), ACCENT, np.uint8)
        return cls(rotations, positions, frustum_size(positions, extent) * shapes, colors)

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
            UNPLACED * CORNERS,
            FACES,
            viser.transforms.SO3.from_matrix(self.rotations).wxyz,
            self.positions,
            batched_scales=self.scales / UNPLACED,
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
    """Return sRGB colors as the linear ones that viser takes a line's colors for, uint8."""
    return np.rint(255.0 * (colors / 255.0) ** 2.2).astype(np.uint8)


def line_colors(colors: np.ndarray) -> np.ndarray:
    """Return the colors of the edges' ends, [C * lines, 2, 3] uint8, from the cameras' [C, 3]."""
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
        self._bodies.batched_scales = (factor / UNPLACED * self._frustums.scales).astype(np.float32)

    def leave_out(self, index: int | None) -> None:
        """Draw no edges of this camera, whose picture they would cover for who stands in it; None: all."""
        if index != self._left_out:
            self._left_out = index
            self._draw_edges()

    def paint(self, colors: np.ndarray) -> None:
        """Give the cameras other colors, [C, 3] uint8."""
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
