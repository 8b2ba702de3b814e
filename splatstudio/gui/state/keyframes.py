"""The camera path that the page edits: one for all browsers, with every step back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from splatstudio.cameras.camera_path import CameraPath, FrameFormat, Keyframe

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

    What cannot be raises ValueError with one sentence and changes nothing but which object `draft` is.
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
        """Say whether there is a step to take back."""
        return bool(self._past)

    def listen(self, listener: Callable[[Draft], None]) -> None:
        """Call `listener` after every change; it must return quickly."""
        self._listeners.append(listener)

    def add(self, keyframe: Keyframe) -> None:
        """Insert a keyframe after the selected one, at the end where none is, and select it."""
        with self._changing():
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
        with self._changing():
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
        with self._changing():
            draft = self._draft
            self._change(replace(draft, path=replace(draft.path, **values)), control)

    def change_duration(self, seconds: float) -> None:
        """Stretch all times so that the whole path takes `seconds`."""
        with self._changing():
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

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except ValueError:
                # Another one of the same: the page's fields show again what holds.
                self._draft = replace(self._draft)
                raise

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
