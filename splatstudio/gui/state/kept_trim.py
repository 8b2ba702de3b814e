"""What of a model the page leaves out, kept in a file of the run for when it is opened again."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from splatstudio.files.durable import write_json_durably
from splatstudio.files.inputs import read_input
from splatstudio.files.outputs import make_folder
from splatstudio.files.run import CROP_FILE
from splatstudio.gui.state.project import Project, transform_of

SAVE_SECONDS = 1.0  # without another change, after which a change is written

Corner = tuple[float, float, float]


@dataclass(frozen=True)
class KeptTrim:
    """The choices of the filter: `box` are two corners in the page's frame, used where it `crops`."""

    min_opacity: float = 0.0
    crops: bool = False
    box: tuple[Corner, Corner] | None = None  # None: nobody has laid it
    hides: bool = True  # in the view, too


def trim_file(project: Project) -> Path:
    """Return where the choices for what is open are kept: in its run, or beside a model without one."""
    return project.folder_of(CROP_FILE)


def read_trim(project: Project) -> KeptTrim | None:
    """Return what is kept, None where nothing is, it is damaged, or the scene lies in another frame now."""
    try:
        values = json.loads(read_input(trim_file(project)))
        if not isinstance(values, dict) or not _same_frame(values.get("transform"), _frame(project)):
            return None
        box = values["box"]
        kept = KeptTrim(
            float(values["min_opacity"]),
            bool(values["crops"]),
            None if box is None else (_corner(box[0]), _corner(box[1])),
            bool(values["hides"]),
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None
    return kept if 0.0 <= kept.min_opacity < 1.0 else None


class TrimKeeper:
    """Writes the choices of the filter when nothing has changed for SAVE_SECONDS. Any thread may call."""

    def __init__(self, tell: Callable[[str], None]):
        """Call `tell` with a sentence when they cannot be written."""
        self._tell = tell
        self._lock = threading.Lock()
        self._waiting: tuple[Project, KeptTrim] | None = None
        self._timer: threading.Timer | None = None

    def save_soon(self, project: Project, kept: KeptTrim) -> None:
        """Write the choices soon; returns at once."""
        with self._lock:
            self._waiting = project, kept
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(SAVE_SECONDS, self.flush)
            self._timer.daemon = True
            self._timer.start()

    def flush(self) -> None:
        """Write now what has not been written yet."""
        with self._lock:
            waiting, self._waiting = self._waiting, None
            if waiting is None:
                return
            try:
                _write(*waiting)
            except OSError as error:
                self._tell(f"The crop is not saved: {error.strerror or error}.")


def _write(project: Project, kept: KeptTrim) -> None:
    file = trim_file(project)
    make_folder(file.parent)
    values: dict[str, Any] = {
        "min_opacity": kept.min_opacity,
        "crops": kept.crops,
        "box": kept.box,
        "hides": kept.hides,
        "transform": _frame(project),
    }
    write_json_durably(file, values)


def _corner(values: Any) -> Corner:
    x, y, z = (float(value) for value in values)
    if not all(math.isfinite(value) for value in (x, y, z)):
        raise ValueError("a corner is no finite number")
    return x, y, z


def _frame(project: Project) -> list[float] | None:
    """Return the transform from the coordinates of the files to the page's, [16]; None: the same."""
    transform = transform_of(project)
    return None if transform is None else transform.reshape(-1).tolist()


def _same_frame(kept: Any, now: list[float] | None) -> bool:
    if kept is None or now is None:
        return kept is now
    pairs = zip(kept, now, strict=True)
    return all(math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-6) for one, other in pairs)
