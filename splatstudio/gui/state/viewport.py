"""The pictures of all browsers: a stream for each, opened and closed as they come and go."""

from __future__ import annotations

import threading
from collections.abc import Callable

import viser

from splatstudio.gaussians.trimming import KEEP_ALL, Trim
from splatstudio.gui.state.camera_snap import CameraSnap
from splatstudio.gui.state.frame_source import FrameSource
from splatstudio.gui.state.photo_cache import PhotoCache
from splatstudio.gui.state.stream import Stream
from splatstudio.gui.state.view_settings import ViewSettings
from splatstudio.scene.scene import Scene


class Viewport:
    """The streams of all browsers. `scene` is None where there is only a model."""

    def __init__(self, server: viser.ViserServer, source: FrameSource, scene: Scene | None = None):
        self._source = source
        self._scene = scene
        self._streams: dict[int, Stream] = {}
        self._lock = threading.Lock()
        self._on_open: list[Callable[[Stream], None]] = []
        self._on_close: list[Callable[[Stream], None]] = []
        self.photos = PhotoCache(scene) if scene is not None else None
        self.trim = KEEP_ALL  # what all browsers hide
        server.on_client_connect(self._connect)
        server.on_client_disconnect(self._disconnect)

    @property
    def num_viewers(self) -> int:
        """Return the number of browsers that are connected."""
        return len(self._streams)

    def stream(self, client: viser.ClientHandle) -> Stream | None:
        """Return the stream of a browser, None when it has just left."""
        with self._lock:
            return self._streams.get(client.client_id)

    def listen(self, on_open: Callable[[Stream], None], on_close: Callable[[Stream], None]) -> None:
        """Call `on_open` with the stream of each browser, `on_close` with that of one that leaves.

        Both are called on viser's event loop, and for who is there already at once; they must return quickly.
        """
        self._on_open.append(on_open)
        self._on_close.append(on_close)
        # A page that was left open may have come back before all of this one was built.
        for stream in self._all():
            on_open(stream)

    def invalidate(self) -> None:
        """Draw everybody's picture again."""
        for stream in self._all():
            stream.invalidate()

    def show_trim(self, trim: Trim) -> None:
        """Hide what `trim` leaves out in all browsers, also in those that come later."""
        self.trim = trim
        for stream in self._all():
            stream.show_trim(trim)

    def model_changed(self) -> None:
        """Let the streams see whether the model's new state asks for a new picture."""
        for stream in self._all():
            stream.wake()

    def close(self) -> None:
        """End all streams."""
        for stream in self._all():
            stream.close()
        if self.photos is not None:
            self.photos.close()

    def _all(self) -> list[Stream]:
        with self._lock:
            return list(self._streams.values())

    async def _connect(self, client: viser.ClientHandle) -> None:
        standpoint = CameraSnap(client, self._scene) if self._scene is not None else None
        stream = Stream(client, self._source, ViewSettings(), standpoint, self.photos)
        with self._lock:
            self._streams[client.client_id] = stream
        for on_open in self._on_open:
            on_open(stream)

        # On the event loop, so that movements arrive in order; it only takes notes.
        @client.camera.on_update
        async def _(_: viser.CameraHandle) -> None:
            stream.camera_moved()

    async def _disconnect(self, client: viser.ClientHandle) -> None:
        with self._lock:
            stream = self._streams.pop(client.client_id, None)
        if stream is not None:
            stream.close()
            for on_close in self._on_close:
                on_close(stream)
