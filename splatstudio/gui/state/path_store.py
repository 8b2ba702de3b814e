"""Where the page's camera paths lie: files beside the run, written after every change."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import numpy as np

from splatstudio.cameras.camera_path import CameraPath
from splatstudio.cameras.path_file import read_camera_path, write_camera_path
from splatstudio.checkpoints.checkpoint import read_manifest
from splatstudio.files.run import PATHS_FOLDER
from splatstudio.gui.state.project import Project

QUICK_FRAMES = 3000  # beyond, the frames' cameras are left out of what is saved after every change
SAVE_SECONDS = 1.0  # without another change, after which a change is written
RETRY_SECONDS = 10.0  # after a change that could not be written
FLUSH_SECONDS = 20.0  # for the disk to take what is unsaved


class PathStore:
    """The camera paths of what is open, in the coordinates of the scene's files."""

    def __init__(self, project: Project):
        self._project = project
        self._transform = _transform_of(project)
        self._unsaved: dict[str, CameraPath] = {}  # the newest of each name
        self._writing: dict[str, CameraPath] = {}  # on their way to the disk
        self._due = 0.0
        self._closed = False
        self._num_rounds = 0  # of writing
        self._changed = threading.Condition()
        self._file_lock = threading.Lock()
        self._thread: threading.Thread | None = None
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
        """Return the names of the paths, saved or about to be, the one changed last first."""
        files = [file for file in self.folder.glob("*.json") if not file.name.startswith(".")]
        saved = [file.stem for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)]
        return list(dict.fromkeys([*reversed(self._unwritten()), *saved]))

    def unused(self, name: str) -> str:
        """Return `name`, with -2, -3 ... when there is such a path."""
        taken, free, number = set(self.names()), name, 2
        while free in taken:
            free, number = f"{name}-{number}", number + 1
        return free

    def read(self, name: str) -> CameraPath:
        """Return a path as it was changed last; raises ValueError with one sentence for a damaged file."""
        unwritten = self._unwritten().get(name)
        if unwritten is not None:
            return unwritten
        return read_camera_path(self.folder / f"{name}.json", self.transform)

    def _unwritten(self) -> dict[str, CameraPath]:
        """Return what the disk has not got yet, the one changed last at the end."""
        with self._changed:
            paths = {**self._writing, **self._unsaved}
        return {name: path for name, path in paths.items() if path.keyframes}

    def save_soon(self, path: CameraPath, name: str) -> None:
        """Write a path when none has changed for SAVE_SECONDS; returns at once.

        A path without keyframes is not kept. One that cannot be written is tried again.
        """
        with self._changed:
            self._unsaved[name] = path
            self._due = time.monotonic() + SAVE_SECONDS
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_all, name="camera-paths", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, timeout: float = FLUSH_SECONDS) -> None:
        """Write now what has not been written yet; a disk that hangs is waited for `timeout` seconds."""
        with self._changed:
            self._due = 0.0
            wanted = self._num_rounds + bool(self._unsaved) + bool(self._writing)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._num_rounds >= wanted, timeout)

    def close(self) -> None:
        """Write what has not been written yet, and end the thread."""
        self.flush()
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _write_all(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (not self._unsaved or time.monotonic() < self._due):
                    wait = self._due - time.monotonic() if self._unsaved else None
                    self._changed.wait(wait)
                self._writing, self._unsaved = self._unsaved, {}
            # Nobody who moves a camera waits for the disk.
            failed, problem = self._written(self._writing)
            with self._changed:
                self._unsaved = {**failed, **self._unsaved}
                if failed:
                    self._due = time.monotonic() + RETRY_SECONDS
                self.problem = problem
                self._writing = {}
                self._num_rounds += 1
                self._changed.notify_all()
                if self._closed:
                    return

    def _written(self, paths: dict[str, CameraPath]) -> tuple[dict[str, CameraPath], str]:
        """Write paths; return those that could not be, and why."""
        failed: dict[str, CameraPath] = {}
        problem = ""
        for name, path in paths.items():
            if not path.keyframes:
                continue
            try:
                self.write(path, name, with_frames=len(path.frame_times) <= QUICK_FRAMES)
            except OSError as error:
                failed[name] = path
                problem = f"The camera path {name} is not saved: {error.strerror or error}."
        return failed, problem

    def write(self, path: CameraPath, name: str, *, with_frames: bool) -> Path:
        """Write a path now, with or without the camera of every frame, and return its file."""
        file = self.folder / f"{name}.json"
        with self._file_lock:
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
