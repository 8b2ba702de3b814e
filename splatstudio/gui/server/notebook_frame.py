"""A page of the studio in a frame of a Jupyter notebook."""

from __future__ import annotations

import atexit
import html
import secrets
from urllib.parse import urlsplit

from splatstudio.error_text import shown
from splatstudio.gui.server.page_files import page_of

LEAST_HEIGHT, MOST_HEIGHT = 200, 4000  # pixels


class FramedPage:
    """A page that a notebook shows below the cell that returns it, until `close` or the end of Python.

    `url` is its address with the secret: who has it gets in.
    """

    def __init__(self, url: str, height: int):
        self.url = url
        self._height = height
        self._open = True
        atexit.register(self.close)

    def close(self) -> None:
        """End the page and what works for it; what is unsaved is saved before."""
        if not self._open:
            return
        self._open = False
        atexit.unregister(self.close)
        self.end()

    def end(self) -> None:
        """Stop serving."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        if not self._open:
            return "<p>This page of splatstudio is closed.</p>"
        return frame_html(self.url, self._height)

    def __repr__(self) -> str:
        if not self._open:
            return "<a page of splatstudio, closed>"
        place = urlsplit(self.url)
        return f"<a page of splatstudio at {place.scheme}://{place.netloc}; .url has its secret, too>"


def check_height(height: int) -> None:
    """Raise ValueError for a frame that is too low to see anything in, or endless."""
    if not isinstance(height, (int, float)) or not LEAST_HEIGHT <= height <= MOST_HEIGHT:
        raise ValueError(f"height is {shown(height)}: it must be from {LEAST_HEIGHT} to {MOST_HEIGHT} pixels")


def frame_html(url: str, height: int) -> str:
    """Return a frame with the page at `url`, whose name of this machine is that of the page around it.

    The secret is kept in a SameSite=Strict cookie, and localhost and 127.0.0.1 are different sites: the
    cookie comes along only where both pages are reached under the same name, which a script looks up. Where
    it does not run, or the notebook is of another machine, there is a link in place of the frame.
    """
    return page_of(
        "notebook.html",
        id=f"splatstudio-{secrets.token_hex(8)}",
        url=html.escape(url),
        port=urlsplit(url).port,
        height=height,
    )
