"""The files of page/, which browsers get: pages with holes to fill, style sheets and scripts."""

from __future__ import annotations

from pathlib import Path
from string import Template

from splatstudio.files.inputs import read_input

_FOLDER = Path(__file__).parent.parent / "page"
THEME = "/theme.js"  # where pages without a script of their own get it: it says whether they are dark


def page_text(name: str) -> str:
    """Return the text of a file."""
    return read_input(_FOLDER / name).decode()


def page_of(name: str, **holes: object) -> str:
    """Return a page with the colors of all pages, and its holes filled."""
    return Template(page_text(name)).substitute(colors=page_text("colors.css"), **holes)
