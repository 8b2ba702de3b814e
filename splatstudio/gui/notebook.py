"""The studio in a notebook: `ss.show`."""

from __future__ import annotations

from pathlib import Path
from typing import overload

from splatstudio.gui.app import Studio
from splatstudio.gui.render_function import RenderFunction, RenderFunctionViewer, show_function
from splatstudio.gui.server.access import InNotebook
from splatstudio.gui.server.notebook_frame import FramedPage, check_height
from splatstudio.settings.setting import typed_path

HEIGHT = 640  # pixels of the frame


class _NotebookStudio(Studio):
    """A studio that nobody waits for in a terminal."""

    def open_again(self) -> None:
        """Say what to do: in a notebook the page's object is the user's."""
        raise ValueError(
            "Close this page, and call ss.show again: it opens with all photos that have a pose."
        )


class ShownStudio(FramedPage):
    """A studio that works in the background: `close` saves what is unsaved and ends it."""

    def __init__(self, studio: Studio, height: int):
        self._studio = studio
        super().__init__(studio.url, height)

    def end(self) -> None:
        """Save and end."""
        self._studio.close()


@overload
def show(
    shown: RenderFunction, *, host: str = ..., port: int | None = ..., height: int = ...
) -> RenderFunctionViewer:
    """Show what a function renders."""


@overload
def show(shown: str | Path, *, host: str = ..., port: int | None = ..., height: int = ...) -> ShownStudio:
    """Show a run, a scene or a file of splats."""


def show(
    shown: RenderFunction | str | Path,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    height: int = HEIGHT,
) -> RenderFunctionViewer | ShownStudio:
    """Open the page of a run, a scene or a file of splats, or one that shows what a function renders.

    As the last expression of a notebook's cell it is a frame of `height` pixels below the cell. Elsewhere
    `url` is what to open in a browser. It ends with `close`, or with Python.

    A function is of nerfview's form, `render_fn(camera_state, tab_state) -> image`; see `show_function`.
    Raises ValueError with one sentence for a path or an address that cannot be used.
    """
    check_height(height)
    network = InNotebook(host, "auto" if port is None else port)
    if callable(shown):
        return show_function(shown, network, height)
    if not isinstance(shown, (str, Path)):
        kind = type(shown).__name__
        raise ValueError(
            "ss.show takes the path of a run, a scene or a file of splats, or a render function, not a"
            f" {kind}: save it first, as by model.save_ply"
        )
    return ShownStudio(_NotebookStudio(typed_path(shown), network=network), height)
