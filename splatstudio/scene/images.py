"""PhotoLoader: photos decoded ahead by a pool of threads and kept in memory within a budget."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING

from splatstudio.operating_system import memory_limit
from splatstudio.scene import photo_cache
from splatstudio.scene.photo import Photo

if TYPE_CHECKING:
    from splatstudio.scene.scene import Scene

__all__ = ["Photo", "PhotoLoader", "default_memory_budget"]


class PhotoLoader:
    """The photos of a scene, decoded by threads ahead of their use.

    Photos are kept until `memory_bytes` (default: a quarter of the machine's memory) are full; what
    comes later is decoded each time. Nothing is evicted: training visits every photo once an epoch,
    and there the oldest is the next one needed. May be used from several threads.
    """

    def __init__(self, scene: Scene, *, memory_bytes: int | None = None):
        self.scene = scene
        self._budget = default_memory_budget() if memory_bytes is None else memory_bytes
        self._num_threads = max(1, min(8, os.cpu_count() or 1))
        self._pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix="photo")
        self._lock = Lock()
        self._kept: dict[int, Photo] = {}
        self._pending: dict[int, Future[Photo]] = {}
        self._closed = False
        self.kept_bytes = 0
        if any(view.lens.distorted for view in scene.views):
            self._pool.submit(photo_cache.prune)

    def prefetch(self, index: int) -> None:
        """Start decoding view `index` in the background, unless it is there or too many are waiting."""
        with self._lock:
            known = index in self._kept or index in self._pending
            if not (known or self._closed or len(self._pending) >= 4 * self._num_threads):
                self._pending[index] = self._pool.submit(self.scene.photo, index)

    def get(self, index: int) -> Photo:
        """Return the photo of view `index`, waiting if need be; ValueError if it is unreadable."""
        with self._lock:
            photo = self._kept.get(index)
            if photo is not None:
                return photo
            if self._closed:
                raise RuntimeError("the PhotoLoader is closed")
            future = self._pending.get(index)
            if future is None:
                future = self._pending[index] = self._pool.submit(self.scene.photo, index)
        try:
            photo = future.result()
        finally:
            with self._lock:
                # Another caller of the same photo may have taken it out, and a third asked again.
                if self._pending.get(index) is future:
                    del self._pending[index]
        with self._lock:
            if index not in self._kept and self.kept_bytes + photo.num_bytes <= self._budget:
                self._kept[index] = photo
                self.kept_bytes += photo.num_bytes
        return photo

    def ready(self, index: int) -> Photo | None:
        """Return the photo of view `index` if it is decoded; nothing is waited for."""
        with self._lock:
            photo, future = self._kept.get(index), self._pending.get(index)
        if photo is not None or future is None or not future.done() or future.cancelled():
            return photo
        return None if future.exception() is not None else future.result()

    def close(self) -> None:
        """Stop the threads and drop the photos; no `get` may follow."""
        with self._lock:
            self._closed = True
            self._pending.clear()
            self._kept.clear()
            self.kept_bytes = 0
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> PhotoLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def default_memory_budget() -> int:
    """Return a quarter of the memory this process may use (the machine's, or its control group's), bytes."""
    return memory_limit() // 4
