"""The photos that the page shows, alone or together with the model, and how well each is shown by it."""

from __future__ import annotations

import base64
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import simplejpeg

from splatstudio.cameras.camera import Camera
from splatstudio.error_text import first_line
from splatstudio.files.inputs import read_input
from splatstudio.files.run import Run, newest_scores
from splatstudio.gui.state.viewpoint import Viewpoint
from splatstudio.rendering.mode_pictures import MIN_ERROR_RANGE, color_table
from splatstudio.rendering.modes import Legend
from splatstudio.scene.scaling import over_background, scaled, thumbnail
from splatstudio.scene.scene import Scene

log = logging.getLogger(__name__)

MAX_BYTES = 256 << 20
MAX_WAITING = 64  # pictures; of those asked for beyond, the oldest are forgotten
NUM_THREADS = 2
LONGEST_PICTURE = 5.0  # seconds in which a photo is read and made smaller, or its disk hangs
THUMBNAIL_SIDE = 132  # px
THUMBNAIL_QUALITY = 72

PhotoKey = tuple[object, ...]
T = TypeVar("T")

BAD_DEVIATIONS = 2.0  # below the typical photo by this many (robust) standard deviations, and
BAD_DECIBELS = 2.0  # at least this much
MIN_TYPICAL = 4  # photos, and half of them: before that many are measured nobody knows what is typical
UNKNOWN_COLOR = (120, 130, 146)
# From the worst photos to the best; told apart also by those who see red and green alike.
SCALE = np.array([(235, 64, 70), (246, 150, 62), (238, 214, 92), (120, 190, 200), (64, 130, 235)], float)

Comparing = Literal["off", "split", "blend", "difference"]

DIVIDER = (255, 255, 255)


@dataclass(frozen=True, eq=False)
class PhotoPixels:
    """A photo at a certain size."""

    rgb: np.ndarray  # [H, W, 3] uint8
    problem: str = ""  # why there is none; the pixels are black then


PhotoItem = PhotoPixels | str  # a photo, or a small picture as a data URI


class PhotoCache:
    """Photos of a scene in the sizes that are shown. Asking never waits.

    What is not there yet is made by a thread, what was asked for last first, and `on_ready` is called then,
    in that thread. What was used longest ago goes when MAX_BYTES are full.
    """

    def __init__(self, scene: Scene, max_bytes: int = MAX_BYTES):
        self._scene = scene
        self._max_bytes = max_bytes
        self._kept: OrderedDict[PhotoKey, PhotoItem] = OrderedDict()
        self._waiting: OrderedDict[PhotoKey, tuple[Callable[[], PhotoItem], list[Callable[[], None]]]] = (
            OrderedDict()
        )
        self._changed = threading.Condition()
        self._closed = False
        self.kept_bytes = 0
        names = (f"photos-{number}" for number in range(NUM_THREADS))
        self._threads = [threading.Thread(target=self._work, name=name, daemon=True) for name in names]
        for thread in self._threads:
            thread.start()

    def pixels(
        self,
        index: int,
        size: tuple[int, int],
        background: tuple[float, float, float],
        on_ready: Callable[[], None],
    ) -> PhotoPixels | None:
        """Return photo `index` at `size` (width, height) over `background`; None: not yet."""
        item = self._get(
            ("pixels", index, size, background), lambda: self._read(index, size, background), on_ready
        )
        assert item is None or isinstance(item, PhotoPixels)
        return item

    def thumbnail(self, index: int, on_ready: Callable[[], None]) -> str | None:
        """Return a small JPEG of a photo as a data URI, "" where it cannot be read; None: not yet."""
        item = self._get(("thumbnail", index), lambda: self._shrink(index), on_ready)
        assert item is None or isinstance(item, str)
        return item

    def close(self) -> None:
        """End the threads after the picture that each is at: Python aborts where it ends amid native code."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(LONGEST_PICTURE)

    def _get(
        self, key: PhotoKey, make: Callable[[], PhotoItem], on_ready: Callable[[], None]
    ) -> PhotoItem | None:
        with self._changed:
            item = self._kept.get(key)
            if item is not None:
                self._kept.move_to_end(key)
                return item
            if self._closed:
                return None
            _, listeners = self._waiting.pop(key, (make, []))
            self._waiting[key] = (make, [*listeners, on_ready][-8:])
            while len(self._waiting) > MAX_WAITING:
                self._waiting.popitem(last=False)
            self._changed.notify()
        return None

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                key, (make, listeners) = self._waiting.popitem(last=True)
                item = self._kept.get(key)
            if item is None:
                item = make()
                with self._changed:
                    self._keep(key, item)
            for on_ready in listeners:
                on_ready()

    def _keep(self, key: PhotoKey, item: PhotoItem) -> None:
        before = self._kept.pop(key, None)
        self.kept_bytes += _num_bytes(item) - (0 if before is None else _num_bytes(before))
        self._kept[key] = item
        # The newest stays whatever its size: somebody is looking at it.
        while self.kept_bytes > self._max_bytes and len(self._kept) > 1:
            _, old = self._kept.popitem(last=False)
            self.kept_bytes -= _num_bytes(old)

    def _read(self, index: int, size: tuple[int, int], background: tuple[float, float, float]) -> PhotoPixels:
        def read() -> PhotoPixels:
            photo = self._scene.whole_photo(index)
            return PhotoPixels(np.ascontiguousarray(scaled(over_background(photo, background), *size)))

        nothing = np.zeros((size[1], size[0], 3), np.uint8)
        return _unless_it_fails(read, lambda problem: PhotoPixels(nothing, problem))

    def _shrink(self, index: int) -> str:
        def shrink() -> str:
            small = np.ascontiguousarray(thumbnail(self._scene.views[index], THUMBNAIL_SIDE))
            jpeg = simplejpeg.encode_jpeg(small, quality=THUMBNAIL_QUALITY, colorspace="RGB")
            return "data:image/jpeg;base64," + base64.b64encode(jpeg).decode()

        return _unless_it_fails(shrink, lambda _: "")


def _unless_it_fails(make: Callable[[], T], otherwise: Callable[[str], T]) -> T:
    """Return what `make` makes of a photo, else what `otherwise` does, of why that failed.

    Nothing may end the threads that all photos come from: neither a fault of a decoder nor too little memory
    for a moment, beside a training.
    """
    try:
        return make()
    except (ValueError, OSError) as error:
        return otherwise(str(error))
    except Exception as error:
        log.warning("a photo cannot be shown", exc_info=True)
        return otherwise(f"the photo cannot be shown: {first_line(error)}")


def _num_bytes(item: PhotoItem) -> int:
    return len(item) if isinstance(item, str) else item.rgb.nbytes


@dataclass(frozen=True, eq=False)
class Errors:
    """The PSNR of every photo in dB, NaN where it is unknown, [V]; replaced as a whole."""

    psnr: np.ndarray
    is_test: np.ndarray | None = None  # [V] bool; None: there are none

    @property
    def unknown(self) -> Errors:
        """Return the same of a model that nobody has measured."""
        return replace(self, psnr=np.full_like(self.psnr, np.nan))

    @property
    def known(self) -> np.ndarray:
        """Return which photos have been measured, [V] bool."""
        return np.isfinite(self.psnr)

    @property
    def range(self) -> tuple[float, float] | None:
        """Return the PSNR at the ends of the colors, dB; None while nothing was measured."""
        known = self.psnr[self.known]
        if len(known) == 0:
            return None
        low, high = np.percentile(known, (2, 98))
        # Photos that are equally good are not told apart by noise.
        middle, half = (low + high) / 2.0, max(1.0, (high - low) / 2.0)
        return float(middle - half), float(middle + half)

    @property
    def bad(self) -> np.ndarray:
        """Return which photos the model shows much worse than the others, [V] bool.

        Those that are held out are compared with one another: all are worse than what was trained on.
        """
        is_test = np.zeros(len(self.psnr), bool) if self.is_test is None else self.is_test
        return self._bad_of(is_test) | self._bad_of(~is_test)

    def _bad_of(self, group: np.ndarray) -> np.ndarray:
        known = self.psnr[self.known & group]
        if len(known) < max(MIN_TYPICAL, group.sum() / 2):
            return np.zeros(len(self.psnr), bool)
        middle = np.median(known)
        deviation = 1.4826 * np.median(np.abs(known - middle))
        return self.known & group & (self.psnr < middle - max(BAD_DECIBELS, BAD_DEVIATIONS * deviation))

    def colors(self) -> np.ndarray:
        """Return a color for each photo, red the worst and blue the best, [V, 3] uint8."""
        colors = np.tile(np.array(UNKNOWN_COLOR, np.uint8), (len(self.psnr), 1))
        if self.range is not None:
            low, high = self.range
            place = np.clip((self.psnr[self.known] - low) / (high - low), 0.0, 1.0) * (len(SCALE) - 1)
            stops = np.arange(len(SCALE))
            channels = [np.interp(place, stops, SCALE[:, c]) for c in range(3)]
            colors[self.known] = np.rint(np.stack(channels, axis=1)).astype(np.uint8)
        return colors

    def worst_first(self, indices: Sequence[int]) -> list[int]:
        """Return `indices` by rising PSNR, those that are unknown last, in their order."""
        values = np.where(self.known, self.psnr, np.inf)[list(indices)]
        return [indices[i] for i in np.argsort(values, kind="stable")]


class PhotoPsnr:
    """The errors of a scene's photos, gathered from a run's files and from the worker's events.

    Test photos have those of the last evaluation. Training photos are measured now and then while
    they are trained on; a measurement from the first half of the steps done so far says little by now about
    how a photo compares with the others, and no longer counts.
    """

    def __init__(self, scene: Scene):
        # A photo that is cut into views is scored as a whole.
        self._index: dict[str, list[int]] = {}
        for i, view in enumerate(scene.views):
            for name in dict.fromkeys((view.name, view.whole)):
                self._index.setdefault(name, []).append(i)
        self._num_views = len(scene.views)
        self._test = np.isin(np.arange(len(scene.views)), scene.test_indices)
        self._lock = threading.Lock()
        self.clear()

    def load(self, run_dir: Path, last_step: int | None = None) -> None:
        """Take what an earlier training noted in its folder until `last_step`: what came later is lost.

        What cannot be read is omitted.
        """
        try:
            rows = Run.open(run_dir).metrics().rows
        except (ValueError, OSError):
            return  # no training has begun there
        kept = [row for row in rows if last_step is None or row.get("step", 0) <= last_step]
        for row in kept:
            if "view" in row and row.get("psnr") is not None:
                self._take(row["step"], [(row["view"], row["psnr"])])
        self._note_scores(newest_scores(run_dir, last_step))

    def note(self, step: int, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Take pairs of view name and PSNR in dB at `step`; names that are not in the scene are ignored."""
        with self._lock:
            self._take(step, pairs)
            current = self._test | (self._steps >= self._step / 2)
            self.errors = Errors(np.where(current, self._psnr, np.nan), self._test)

    def _take(self, step: int, pairs: Iterable[tuple[Any, Any]]) -> None:
        self._step = step
        for name, value in pairs:
            if name in self._index and isinstance(value, (int, float)):
                self._psnr[self._index[name]] = value
                self._steps[self._index[name]] = step

    def note_evaluation(self, folder: Path, step: int) -> None:
        """Take the scores that an evaluation has written into `folder`."""
        self._note_scores(folder / f"step_{step:08d}.json")

    def _note_scores(self, path: Path | None) -> None:
        self.note(self._step, _scores(path) if path is not None else [])

    def clear(self) -> None:
        """Forget everything: another training begins."""
        with self._lock:
            self._step = 0
            self._steps = np.full(self._num_views, -1)
            self._psnr = np.full(self._num_views, np.nan)
            self.errors = Errors(self._psnr.copy(), self._test)


def _scores(path: Path) -> list[tuple[Any, Any]]:
    """Return name and PSNR of each image of an evaluation; nothing where the file is gone or damaged."""
    try:
        images = json.loads(read_input(path))["images"]
        return [(image["name"], image["psnr"]) for image in images]
    except (OSError, ValueError, KeyError, TypeError):
        return []


@dataclass(frozen=True)
class Comparison:
    """How the photo and the model are shown together.

    `split` is the share of the width, from the left, that shows the photo; `blend` the photo's
    share of each pixel; `gain` what the difference of each channel is multiplied with.
    """

    kind: Comparing = "off"
    split: float = 0.5
    blend: float = 0.5
    gain: float = 3.0


@dataclass(frozen=True)
class CanvasPlace:
    """Where the photo lies on a canvas: its upper left corner and the sizes of both, px."""

    left: int
    top: int
    width: int
    height: int
    canvas_width: int
    canvas_height: int


def place_of(photo_camera: Camera, viewpoint: Viewpoint, scale: float) -> CanvasPlace:
    """Return where a photo lies for a browser that stands in its camera, at `scale` times its canvas.

    Both cameras look the same way from the same place, so each pixel of one is a shift and a stretch of the
    other's, also where the photo's principal point is not its middle.
    """
    canvas = viewpoint.camera(scale)
    x_stretch = canvas.K[0, 0] / photo_camera.K[0, 0]
    y_stretch = canvas.K[1, 1] / photo_camera.K[1, 1]
    left = canvas.K[0, 2] - x_stretch * photo_camera.K[0, 2]
    top = canvas.K[1, 2] - y_stretch * photo_camera.K[1, 2]
    return CanvasPlace(
        left=round(left),
        top=round(top),
        width=max(1, round(left + x_stretch * photo_camera.width) - round(left)),
        height=max(1, round(top + y_stretch * photo_camera.height) - round(top)),
        canvas_width=canvas.width,
        canvas_height=canvas.height,
    )


def photo_span(photo_camera: Camera, viewpoint: Viewpoint) -> tuple[float, float]:
    """Return a photo's left edge and its width as shares of the canvas, as `place_of` has them."""
    place = place_of(photo_camera, viewpoint, 1.0)
    return place.left / place.canvas_width, place.width / place.canvas_width


def on_canvas(image: np.ndarray, place: CanvasPlace) -> np.ndarray:
    """Return `image` [H, W, 3], of the photo's size, on a black canvas; what lies beyond is cut off."""
    canvas = np.zeros((place.canvas_height, place.canvas_width, 3), np.uint8)
    left, top = max(0, place.left), max(0, place.top)
    right = min(place.canvas_width, place.left + place.width)
    bottom = min(place.canvas_height, place.top + place.height)
    if right > left and bottom > top:
        canvas[top:bottom, left:right] = image[
            top - place.top : bottom - place.top, left - place.left : right - place.left
        ]
    return canvas


def error_map(model: np.ndarray, photo: np.ndarray) -> tuple[np.ndarray, Legend]:
    """Return the mean absolute difference of the channels of two pictures [H, W, 3] uint8, as colors."""
    difference = np.abs(model.astype(np.int16) - photo.astype(np.int16)).mean(axis=2)
    high = max(float(np.percentile(difference[::4, ::4], 98)), MIN_ERROR_RANGE)
    places = np.minimum(difference * (255.0 / high), 255.0).round().astype(np.uint8)
    return color_table("turbo").numpy()[places], Legend(0.0, high, "error (0-255)", "turbo")


def compared(model: np.ndarray, photo: np.ndarray, comparison: Comparison) -> np.ndarray:
    """Return the two pictures, both [H, W, 3] uint8, as one of the same size."""
    if comparison.kind == "split":
        width = model.shape[1]
        column = min(width, max(0, round(comparison.split * width)))
        picture = model.copy()
        picture[:, :column] = photo[:, :column]
        if 0 < column < width:
            picture[:, column - 1 : column + 1] = DIVIDER
        return picture
    if comparison.kind == "blend":
        share = round(256.0 * comparison.blend)
        mixed = share * photo.astype(np.uint16) + (256 - share) * model.astype(np.uint16)
        return ((mixed + 128) >> 8).clip(0, 255).astype(np.uint8)
    if comparison.kind == "difference":
        difference = np.abs(model.astype(np.int16) - photo.astype(np.int16))
        return (comparison.gain * difference).clip(0, 255).astype(np.uint8)
    return model
