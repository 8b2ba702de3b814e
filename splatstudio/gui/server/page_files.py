"""The files of page/, which browsers get: pages with holes to fill, style sheets and scripts."""

from __future__ import annotations

from pathlib import Path
from string import Template
from urllib.parse import quote

from splatstudio.files.inputs import read_input

_FOLDER = Path(__file__).parent.parent / "page"
THEME = "/theme.js"  # where pages without a script of their own get it: it says whether they are dark


def page_text(name: str) -> str:
    """Return the text of a file."""
    return read_input(_FOLDER / name).decode()


def page_of(name: str, **holes: object) -> str:
    """Return a page with the colors and the icon of all pages, and its holes filled."""
    # In the page itself: a browser asks for the icon of a page without one, at a door that may be locked.
    icon = "data:image/svg+xml," + quote(page_text("icon.svg").strip())
    return Template(page_text(name)).substitute(colors=page_text("colors.css"), icon=icon, **holes)
