"""What a browser shows from its first paint until there is a picture: our page, around viser's.

viser's own page is one packed script in its head: a browser stays white while it unpacks, and then shows
viser's panel of a connection that is not there yet.
"""

from __future__ import annotations

import gzip
import re
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs

import viser
from websockets.http11 import Request, Response

from splatstudio.gui.server.page_files import page_of, page_text

# Where the page gets a picture of the first view, as JPEG, long before viser's page is unpacked and has told
# where its camera stands; without one the answer has no content.
FIRST_PICTURE = "/first-picture.jpg"
_SIDES = range(16, 8193)  # pixels of a window

_HEAD = re.compile(r"<head\b[^>]*>(.*?)</head>", re.DOTALL)
_SCRIPT = re.compile(r"<script\b([^>]*)>(.*?)</script>", re.DOTALL)


def viser_page() -> str:
    """Return viser's own page."""
    return (Path(viser.__file__).parent / "client" / "build" / "index.html").read_text("utf-8")


def is_page(request: Request) -> bool:
    """Whether a request asks for the studio's page itself."""
    return request.path.partition("?")[0] in {"/", "/index.html"}


def asked_size(request: Request) -> tuple[int, int] | None:
    """Return for what width and height, px, a request asks for the first picture; None: for no such thing."""
    path, _, query = request.path.partition("?")
    if path != FIRST_PICTURE:
        return None
    given = parse_qs(query)
    try:
        width, height = (int(given[name][-1]) for name in ("width", "height"))
    except (KeyError, ValueError):
        return None
    return (width, height) if width in _SIDES and height in _SIDES else None


def opened(response: Response) -> Response:
    """Return viser's page as ours, which unpacks it; any other answer as it is."""
    if response.status_code != HTTPStatus.OK:
        return response
    compressed = response.headers.get("Content-Encoding") == "gzip"
    body = _opening(bytes(response.body), compressed)
    headers = response.headers.copy()
    del headers["Content-Length"]
    headers["Content-Length"] = str(len(body))
    headers["Cache-Control"] = "no-cache"  # another version of the studio may be at this address tomorrow
    return Response(response.status_code, response.reason_phrase, headers, body)


@lru_cache(maxsize=4)
def _opening(body: bytes, compressed: bool) -> bytes:
    page = opening_page((gzip.decompress(body) if compressed else body).decode("utf-8")).encode("utf-8")
    return gzip.compress(page, 6) if compressed else page


def opening_page(viser_page: str) -> str:
    """Return the page that is drawn at once and then runs the scripts in the head of `viser_page`.

    Raises ValueError where viser's page has none.
    """
    head = _HEAD.search(viser_page)
    scripts = _SCRIPT.findall("" if head is None else head[1])
    if not scripts:
        raise ValueError("viser's page has no script in its head")
    later = (
        f'<script class="splatstudio-later" type="text/plain"{attributes}>{text}</script>'
        for attributes, text in scripts
    )
    return page_of(
        "opening.html", later="\n".join(later), theme=page_text("theme.js"), first_picture=FIRST_PICTURE
    )
