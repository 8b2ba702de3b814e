"""The camera paths of the page: the one that is edited, the files that keep them, and their preview."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import viser

from splatstudio.cameras.camera_path import CameraPath, FrameFormat, Keyframe
from splatstudio.cameras.path_file import read_camera_path, write_camera_path
from splatstudio.checkpoints.manifest import read_manifest
from splatstudio.files.run import PATHS_FOLDER
from splatstudio.gui.server.viser_private import show_node
from splatstudio.gui.state.project import Project
from splatstudio.gui.state.viewpoint import fly_to

MAX_UNDO = 200
MERGE_SECONDS = 1.5  # changes of one control within this time are one step back


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
        self._draft = draft
        self._past: list[Draft] = []
        self._merging: tuple[str, float] = ("", 0.0)
        self._lock = threading.RLock()
        self._listeners: list[Callable[[Draft], None]] = []

    @property
    def draft(self) -> Draft:
        """Return the present state; the next change replaces it."""
        return self._draft

    @property
    def path(self) -> CameraPath:
        """Return the path as it is now."""
        return self._draft.path

    @property
    def keyframe(self) -> Keyframe | None:
        """Return the selected keyframe."""
        draft = self._draft
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
            draft = self._draft
            place = len(draft.path.keyframes) if draft.selected is None else draft.selected + 1
            keys = draft.path.keyframes
            self._change(_with_keys(draft, (*keys[:place], keyframe, *keys[place:]), place))

    def select(self, index: int) -> None:
        """Select a keyframe; one that is not there (any more) leaves the selection as it is."""
        with self._lock:
            if 0 <= index < len(self._draft.path.keyframes) and index != self._draft.selected:
                # Looking at another keyframe is nothing to take back.
                self._draft = replace(self._draft, selected=index)
                self._tell()

    def change_keyframe(self, *, control: str = "", **values: Any) -> None:
        """Give the selected keyframe other values; quick changes of one `control` are one step back."""
        with self._lock:
            draft, keyframe = self._draft, self.keyframe
            if keyframe is None or draft.selected is None:
                return
            keys = list(draft.path.keyframes)
            keys[draft.selected] = replace(keyframe, **values)
            self._change(
                _with_keys(draft, tuple(keys), draft.selected), control and f"{control}{draft.selected}"
            )

    def move(self, steps: int) -> None:
        """Let the selected keyframe come `steps` later (negative: earlier), as far as there are others."""
        with self._lock:
            draft, index = self._draft, self._draft.selected
            if index is None:
                return
            keys = list(draft.path.keyframes)
            place = min(max(index + steps, 0), len(keys) - 1)
            if place != index:
                keys.insert(place, keys.pop(index))
                self._change(_with_keys(draft, tuple(keys), place))

    def delete(self) -> None:
        """Remove the selected keyframe and select its neighbour."""
        with self._lock:
            draft, index = self._draft, self._draft.selected
            if index is None:
                return
            keys = draft.path.keyframes[:index] + draft.path.keyframes[index + 1 :]
            self._change(_with_keys(draft, keys, min(index, len(keys) - 1) if keys else None))

    def change_path(self, *, control: str = "", **values: Any) -> None:
        """Give the path other values, as `loop`, `tension`, `fps`, `width` and `height`."""
        with self._lock:
            draft = self._draft
            self._change(replace(draft, path=replace(draft.path, **values)), control)

    def change_duration(self, seconds: float) -> None:
        """Stretch all times so that the whole path takes `seconds`."""
        with self._lock:
            draft = self._draft
            self._change(replace(draft, path=draft.path.formatted(FrameFormat(seconds=seconds))), "duration")

    def load(self, path: CameraPath, name: str) -> None:
        """Go on with another path."""
        with self._lock:
            self._change(Draft(path, 0 if path.keyframes else None, name))

    def undo(self) -> None:
        """Take the last change back."""
        with self._lock:
            if self._past:
                self._draft = self._past.pop()
                self._merging = ("", 0.0)
                self._tell()

    def _change(self, draft: Draft, control: str = "") -> None:
        now = time.monotonic()
        last, when = self._merging
        if not (control and control == last and now - when < MERGE_SECONDS):
            self._past = [*self._past[-MAX_UNDO + 1 :], self._draft]
        self._merging = (control, now)
        self._draft = draft
        self._tell()

    def _tell(self) -> None:
        for listener in self._listeners:
            listener(self._draft)


def _with_keys(draft: Draft, keyframes: tuple[Keyframe, ...], selected: int | None) -> Draft:
    return replace(draft, path=replace(draft.path, keyframes=keyframes), selected=selected)


QUICK_FRAMES = 3000  # beyond, the frames' cameras are omitted from what is saved after every change
SAVE_SECONDS = 1.0  # without another change, after which a change is written
RETRY_SECONDS = 10.0  # after a change that could not be written
FLUSH_SECONDS = 20.0  # for the disk to take what is unsaved


class PathStore:
    """The camera paths of what is open, files beside the run, in the coordinates of the scene's files."""

    def __init__(self, project: Project, tell: Callable[[str], None] = lambda _: None):
        """Call `tell` with a sentence when a path cannot be written, once until one can."""
        self._project, self._tell = project, tell
        self.transform = _transform_of(project)  # from the files' coordinates to the page's; None: the same
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

    def follow(self, project: Project) -> None:
        """Write into another run from now on."""
        self._project = project

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

    def flush(self, timeout: float = FLUSH_SECONDS) -> None:
        """Write now what has not been written yet; a disk that hangs is waited for `timeout` seconds."""
        with self._changed:
            self._due, failed = 0.0, self._num_failed
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._unsaved or self._num_failed > failed, timeout)

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
            file.parent.mkdir(parents=True, exist_ok=True)
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
            problem, written = "", {}
            for name, path in paths.items():
                try:
                    self.write(path, name, with_frames=len(path.frame_times) <= QUICK_FRAMES)
                    written[name] = path
                except OSError as error:
                    problem = f"The camera path {name} is not saved: {error.strerror or error}."
            with self._changed:
                for name, path in written.items():
                    if self._unsaved.get(name) is path:
                        del self._unsaved[name]
                if problem:
                    self._due = time.monotonic() + RETRY_SECONDS
                self._num_failed = self._num_failed + 1 if problem else 0
                newly_failed = self._num_failed == 1
                self._changed.notify_all()
            if newly_failed:
                self._tell(problem)


def _transform_of(project: Project) -> np.ndarray | None:
    if project.scene is not None:
        return project.scene.transform
    folder = project.model_path
    if folder is None or not (folder / "manifest.json").exists():
        return None
    try:
        # A checkpoint whose scene is gone still lies in that scene's frame.
        return np.array(read_manifest(folder)["scene"]["transform"], dtype=np.float64)
    except ValueError:
        # The worker, which needs all of the checkpoint, says what is wrong with it.
        return None


def plain_name(text: str) -> str:
    """Return what of a text can be a file's name: letters, digits, dashes; "path" where nothing is left."""
    return re.sub(r"[^\w-]+", "-", text, flags=re.ASCII).strip("-_")[:60] or "path"


STEP_SECONDS = 0.05  # between two positions: browsers draw what comes faster no better
# What is put back after a preview, in this order: who looks at a point turns to it.
VIEW = ("fov", "up_direction", "position", "look_at", "wxyz")


class PathPreviews:
    """Paths played in browsers: their own cameras move, nobody else's.

    `hidden` are nodes that would stand before a camera on the path.
    """

    def __init__(self, server: viser.ViserServer, distance: float, hidden: tuple[str, ...]):
        self._distance = distance  # of what the mouse turns around, world units
        self._server = server
        self._hidden = hidden
        self._players: dict[int, tuple[threading.Event, threading.Thread]] = {}
        self._lock = threading.Lock()
        server.on_client_disconnect(self._left)

    def play(self, client: viser.ClientHandle, path: CameraPath) -> None:
        """Move this browser along the path, and at the end of an open one back."""
        self.stop(client)
        stopped = threading.Event()
        player = threading.Thread(target=self._run, args=(client, path, stopped), name="preview", daemon=True)
        with self._lock:
            self._players[client.client_id] = (stopped, player)
        player.start()

    def stop(self, client: viser.ClientHandle) -> bool:
        """Let this browser stand where it stood before; return whether it was moving."""
        player = self._forget(client.client_id)
        if player is not None:
            player.join(2.0)
        return player is not None

    def show(self, client: viser.ClientHandle, path: CameraPath, seconds: float) -> None:
        """Move this browser to a second of the path, and leave it there."""
        self.stop(client)
        fly_to(client, path.camera_at(seconds), self._distance)

    def close(self) -> None:
        """End all previews."""
        for client_id in tuple(self._players):
            self._forget(client_id)

    def _left(self, client: viser.ClientHandle) -> None:
        self._forget(client.client_id)

    def _forget(self, client_id: int) -> threading.Thread | None:
        with self._lock:
            stopped, player = self._players.pop(client_id, (None, None))
        if stopped is not None:
            stopped.set()
        return player

    def _run(self, client: viser.ClientHandle, path: CameraPath, stopped: threading.Event) -> None:
        before = {name: getattr(client.camera, name) for name in VIEW}
        for name in self._hidden:
            show_node(client, name, False)
        began = time.monotonic()
        while not stopped.wait(STEP_SECONDS) and self._is_here(client):
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
            with client.atomic():
                for name, value in before.items():
                    setattr(client.camera, name, value)

    def _is_here(self, client: viser.ClientHandle) -> bool:
        return client.client_id in self._server.get_clients()
