"""A browser at the start page, as the tests of that page need it."""

from __future__ import annotations

import http.client
import json
import re
from pathlib import Path
from urllib.parse import urlencode

from gate_client import get

from splatstudio.gui.server.access import Listen
from splatstudio.gui.server.start_page import StartPage

ANY_PORT = Listen(port=0)


def write_step(run: Path, step: int) -> Path:
    """Write what looks like a whole checkpoint of a run, and return its folder."""
    folder = run / "ckpts" / f"step_{step:08d}"
    folder.mkdir(parents=True)
    (folder / "rank00000-of-00001.safetensors").write_bytes(b"12345")
    ranks = [{"file": "rank00000-of-00001.safetensors", "bytes": 5}]
    (folder / "manifest.json").write_text(json.dumps({"ranks": ranks}))
    return folder


class Visitor:
    """A browser with the cookie that the address with the secret gave it."""

    def __init__(self, page: StartPage):
        self._page = page
        status, headers, _ = get(page.port, f"/?token={page.token}")
        assert status == 303
        self.cookie = headers["set-cookie"].split(";")[0]

    def get(self, path: str = "/", **headers: str) -> tuple[int, str]:
        status, _, body = get(self._page.port, path, Cookie=self.cookie, **headers)
        return status, body

    def ask(self, path: str, **fields: str) -> tuple[int, str]:
        """Ask for a page with fields behind its name."""
        return self.get(f"{path}?{urlencode(fields)}")

    def data(self, path: str) -> http.client.HTTPResponse:
        """Ask for what is no text; the answer's body is read by who needs it."""
        connection = http.client.HTTPConnection("localhost", self._page.port, timeout=60)
        connection.request("GET", path, headers={"Cookie": self.cookie})
        return connection.getresponse()

    @property
    def key(self) -> str:
        (key,) = set(re.findall(r'name="key" value="([^"]+)"', self.get()[1]))
        return key

    def choose(self, **fields: str) -> int:
        return self.ask("/", key=self.key, **fields)[0]
