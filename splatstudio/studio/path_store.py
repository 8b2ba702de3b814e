"""Where the page's camera paths lie: files beside the run, written after every change."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import numpy as np

from splatstudio.camera_path import CameraPath
from splatstudio.checkpoint import read_manifest
from splatstudio.path_file import read_camera_path, write_camera_path
from splatstudio.run import PATHS_FOLDER
from splatstudio.studio.project import Project

QUICK_FRAMES = 3000  # beyond, the frames' cameras are left out of what is saved after every change
SAVE_SECONDS = 1.0  # without another change, after which a change is written


class PathStore:
    """The camera paths of what is open, in the coordinates of the scene's files."""

    def __init__(self, project: Project):
        self._project = project
        self._transform = _transform_of(project)
        self._timer: threading.Timer | None = None
        self._unsaved: tuple[CameraPath, str] | None = None
        self._lock = threading.Lock()
        self.problem = ""  # why the last change could not be written; empty when it was

    @property
    def transform(self) -> np.ndarray | None:
        """Return the similarity from the files' coordinates to the page's, None where they are the same."""
        return self._transform

    @property
    def folder(self) -> Path:
        """Return the folder of the paths, which need not exist yet."""
        return self._project.folder_of(PATHS_FOLDER)

    def follow(self, project: Project) -> None:
        """Write into another run from now on."""
        self._project = project

    def names(self) -> list[str]:
        """Return the names of the saved paths, the one changed last first."""
        files = [file for file in self.folder.glob("*.json") if not file.name.startswith(".")]
        return [file.stem for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)]

    def unused(self, name: str) -> str:
        """Return `name`, with -2, -3 ... when there is such a path."""
        taken, free, number = set(self.names()), name, 2
        while free in taken:
            free, number = f"{name}-{number}", number + 1
        return free

    def read(self, name: str) -> CameraPath:
        """Return a saved path; raises ValueError with one sentence for a damaged one."""
        return read_camera_path(self.folder / f"{name}.json", self.transform)

    def save_soon(self, path: CameraPath, name: str) -> None:
        """Write a path when it has not changed for SAVE_SECONDS; a path without keyframes is not kept."""
        with self._lock:
            other = self._unsaved is not None and self._unsaved[1] != name
        if other:
            self.flush()
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._unsaved = (path, name)
            self._timer = threading.Timer(SAVE_SECONDS, self.flush)
            self._timer.daemon = True
            self._timer.start()

    def flush(self) -> None:
        """Write what has not been written yet."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            unsaved, self._unsaved = self._unsaved, None
            if unsaved is None or not unsaved[0].keyframes:
                return
            path, name = unsaved
            try:
                self.write(path, name, with_frames=len(path.frame_times) <= QUICK_FRAMES)
                self.problem = ""
            except OSError as error:
                self.problem = f"The camera path {name} is not saved: {error.strerror or error}."

    def write(self, path: CameraPath, name: str, *, with_frames: bool) -> Path:
        """Write a path now, with or without the camera of every frame, and return its file."""
        file = self.folder / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_camera_path(file, path, self.transform, with_frames=with_frames)
        return file


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
