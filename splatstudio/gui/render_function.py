"""A page that shows what a function renders, without a training."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from splatstudio.cameras.camera import Camera
from splatstudio.gui.server.access import InNotebook
from splatstudio.gui.server.gate import GatedServer, open_server
from splatstudio.gui.server.notebook_frame import FramedPage
from splatstudio.gui.state.stream import FrameSource, ModelState, Viewport
from splatstudio.gui.theme import apply_theme
from splatstudio.runtime.messages import Frame, ViewOptions
from splatstudio.runtime.supervisor import ReceivedFrame

if TYPE_CHECKING:
    from nerfview import CameraState, RenderTabState

log = logging.getLogger(__name__)

RenderFunction = Callable[["CameraState", "RenderTabState"], "np.ndarray | tuple[np.ndarray, object]"]


class RenderFunctionSource(FrameSource):
    """Pictures made by a function in this process; `revision` is raised to have them drawn again."""

    def __init__(self, render_fn: RenderFunction):
        # nerfview takes four seconds to import, which only those pay who bring a function of its kind.
        from nerfview import CameraState, RenderTabState

        self._render_fn = render_fn
        self._camera_state = CameraState
        self._tab_state = RenderTabState
        self.revision = 0
        self._failure: str | None = None  # of the function, the last; each is told once

    def model_state(self) -> ModelState:
        """Return that there is always something to see."""
        return ModelState(self.revision, training=False)

    def render(self, view: int, camera: Camera, options: ViewOptions) -> ReceivedFrame | None:
        """Call the function; its image is uint8, or float in 0..1, [H, W, 3]. The options are not for it."""
        start = time.monotonic()
        state = self._camera_state(
            fov=camera.fov_y,
            aspect=camera.K[1, 1] / camera.K[0, 0] * camera.width / camera.height,
            c2w=camera.camera_to_world,
        )
        tab = self._tab_state(viewer_width=camera.width, viewer_height=camera.height)
        try:
            image = self._image(state, tab)
        except Exception as error:  # of a function that somebody is just writing: it is tried again
            if str(error) != self._failure:
                log.exception("the render function failed")
                self._failure = str(error)
            return None
        self._failure = None
        if image.dtype != np.uint8:
            image = (np.clip(image, 0.0, 1.0) * 255.0).round().astype(np.uint8)
        height, width = image.shape[:2]
        frame = Frame(view, 0, 0, width, height, self.revision, time.monotonic() - start)
        return ReceivedFrame(frame, np.ascontiguousarray(image))

    def _image(self, state: CameraState, tab: RenderTabState) -> np.ndarray:
        result = self._render_fn(state, tab)
        image = np.asarray(result[0] if isinstance(result, tuple) else result)
        if image.ndim != 3 or image.shape[2] != 3:
            raise ValueError(f"the render function returned an image of shape {image.shape}, not [H, W, 3]")
        return image

    def forget(self, view: int) -> None:
        """Do nothing: nothing is kept for a view."""


class RenderFunctionViewer(FramedPage):
    """A page that shows a render function; `refresh` after what it draws has changed, `close` at the end."""

    def __init__(self, gated: GatedServer, source: RenderFunctionSource, height: int):
        self._gated = gated
        self._source = source
        self._viewport = Viewport(gated.server, source)
        super().__init__(gated.url, height)

    def refresh(self) -> None:
        """Draw everybody's picture again."""
        self._source.revision += 1
        self._viewport.model_changed()

    def end(self) -> None:
        """Stop serving."""
        self._viewport.close()
        self._gated.stop()


def show_function(render_fn: RenderFunction, network: InNotebook, height: int) -> RenderFunctionViewer:
    """Show `render_fn(nerfview.CameraState, nerfview.RenderTabState) -> image` in a browser page.

    The function is called in threads of this process, for each browser on its own, with the size wanted in
    the tab state's viewer_width and viewer_height. A pair (image, depth) is taken too; the depth is not used.
    Raises ValueError when the address cannot be used.
    """
    source = RenderFunctionSource(render_fn)
    gated = open_server(network)
    apply_theme(gated.server.gui)
    return RenderFunctionViewer(gated, source, height)
