"""The photographs that the page shows, read by threads of their own and kept within a bound of memory."""

from __future__ import annotations

import base64
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import simplejpeg

from splatstudio.scene.scaling import over_background, scaled, thumbnail
from splatstudio.scene.scene import Scene

MAX_BYTES = 256 << 20
MAX_WAITING = 64  # pictures; of those asked for beyond, the oldest are forgotten
NUM_THREADS = 2
THUMBNAIL_SIDE = 132  # px
THUMBNAIL_QUALITY = 72


@dataclass(frozen=True, eq=False)
class Pixels:
    """A photograph at a certain size."""

    rgb: np.ndarray  # [H, W, 3] uint8
    problem: str = ""  # why there is none; the pixels are black then

    @property
    def num_bytes(self) -> int:
        """Return the memory it takes."""
        return self.rgb.nbytes


@dataclass(frozen=True)
class Thumbnail:
    """A small JPEG picture as a data URI; empty where the photograph cannot be read."""

    uri: str

    @property
    def num_bytes(self) -> int:
        """Return the memory it takes."""
        return len(self.uri)


Item = Pixels | Thumbnail
Key = tuple[object, ...]


class PhotoCache:
    """Photographs of a scene in the sizes that are shown. Asking never waits.

    What is not there yet is made by a thread, what was asked for last first, and `on_ready` is called then,
    in that thread. What was used longest ago goes when MAX_BYTES are full.
    """

    def __init__(self, scene: Scene, max_bytes: int = MAX_BYTES):
        self._scene = scene
        self._max_bytes = max_bytes
        self._kept: OrderedDict[Key, Item] = OrderedDict()
        self._waiting: OrderedDict[Key, tuple[Callable[[], Item], list[Callable[[], None]]]] = OrderedDict()
        self._changed = threading.Condition()
        self._closed = False
        self.kept_bytes = 0
        for number in range(NUM_THREADS):
            threading.Thread(target=self._work, name=f"photos-{number}", daemon=True).start()

    def pixels(
        self,
        index: int,
        size: tuple[int, int],
        background: tuple[float, float, float],
        on_ready: Callable[[], None],
    ) -> Pixels | None:
        """Return photograph `index` at `size` (width, height) over `background`; None: not yet."""
        item = self._get(
            ("pixels", index, size, background), lambda: self._read(index, size, background), on_ready
        )
        assert item is None or isinstance(item, Pixels)
        return item

    def thumbnail(self, index: int, on_ready: Callable[[], None]) -> Thumbnail | None:
        """Return a small picture of photograph `index`; None: not yet."""
        item = self._get(("thumbnail", index), lambda: self._shrink(index), on_ready)
        assert item is None or isinstance(item, Thumbnail)
        return item

    def close(self) -> None:
        """End the threads after the picture that each is at; returns at once."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def _get(self, key: Key, make: Callable[[], Item], on_ready: Callable[[], None]) -> Item | None:
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

    def _keep(self, key: Key, item: Item) -> None:
        before = self._kept.pop(key, None)
        self.kept_bytes += item.num_bytes - (before.num_bytes if before else 0)
        self._kept[key] = item
        # The newest stays whatever its size: somebody is looking at it.
        while self.kept_bytes > self._max_bytes and len(self._kept) > 1:
            _, old = self._kept.popitem(last=False)
            self.kept_bytes -= old.num_bytes

    def _read(self, index: int, size: tuple[int, int], background: tuple[float, float, float]) -> Pixels:
        try:
            photo = self._scene.photo(index)
        except (ValueError, OSError) as error:
            return Pixels(np.zeros((size[1], size[0], 3), np.uint8), str(error))
        return Pixels(np.ascontiguousarray(scaled(over_background(photo, background), *size)))

    def _shrink(self, index: int) -> Thumbnail:
        try:
            small = thumbnail(self._scene.views[index], THUMBNAIL_SIDE)
        except (ValueError, OSError):
            return Thumbnail("")
        jpeg = simplejpeg.encode_jpeg(
            np.ascontiguousarray(small), quality=THUMBNAIL_QUALITY, colorspace="RGB"
        )
        return Thumbnail("data:image/jpeg;base64," + base64.b64encode(jpeg).decode())
