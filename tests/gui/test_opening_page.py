"""What a browser shows before the studio's first picture: our page, and no picture from another camera."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import simplejpeg
import viser
from gui_parts import fake_camera, wait_until
from studio_page import MANY, OPENED, PAGE_TEST, TIMEOUT
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from splatstudio.cameras.camera import Camera
from splatstudio.gui.app import Studio
from splatstudio.gui.server.access import Listen
from splatstudio.gui.server.opening_page import (
    FIRST_PICTURE,
    asked_size,
    is_page,
    opened,
    opening_page,
    viser_page,
)
from splatstudio.gui.state import stream as streams
from splatstudio.gui.state.controller import Controller
from splatstudio.gui.state.stream import FIRST_VIEW, FrameSource, ModelState, Stream, Viewport, ViewSettings
from splatstudio.gui.state.viewpoint import Viewpoint
from splatstudio.runtime.messages import Frame, ViewOptions
from splatstudio.runtime.supervisor import ReceivedFrame

pytestmark = pytest.mark.usefixtures("own_folder")
FIRST = np.array([0.0, -4.0, 1.0])


class Cameras(FrameSource):
    """Shows one model, and keeps the places from which it was drawn."""

    def __init__(self, step: int | None = 7) -> None:
        self.step = step
        self.places: list[np.ndarray] = []
        self.views: set[int] = set()  # that were rendered and are kept

    def model_state(self) -> ModelState:
        return ModelState(self.step, False)

    def render(self, view: int, camera: Camera, options: ViewOptions) -> ReceivedFrame | None:
        self.places.append(camera.position)
        self.views.add(view)
        frame = Frame(view, 1, 0, camera.width, camera.height, 7, 0.001)
        return ReceivedFrame(frame, np.zeros((camera.height, camera.width, 3), np.uint8))

    def forget(self, view: int) -> None:
        self.views.discard(view)


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What browsers were sent, in order."""
    sent: list[str] = []
    monkeypatch.setattr(streams, "push_background_jpeg", lambda *_: sent.append("picture"))
    monkeypatch.setattr(streams, "end_opening", lambda _: sent.append("opened"))
    yield sent


def comes(position: Any, client_id: int = 7) -> viser.ClientHandle:
    camera: Any = fake_camera()
    camera.position = np.asarray(position, float)
    camera.look_at = np.zeros(3)
    camera.on_update = lambda moved: moved
    storage = SimpleNamespace(get_item=lambda _: None)
    scene = SimpleNamespace(set_background_image=lambda _: None)
    return cast(Any, SimpleNamespace(camera=camera, client_id=client_id, scene=scene, local_storage=storage))


def at_first(viewpoint: Any) -> bool:
    return bool(np.linalg.norm(viewpoint.position - FIRST) < 1e-3)


def test_no_picture_is_rendered_before_the_browser_stands_at_its_first_view(opening: list[str]) -> None:
    source, client = Cameras(), comes((3.0, 3.0, 3.0))
    stream = Stream(client, source, ViewSettings(), is_expected=at_first)
    try:
        stream.camera_moved()
        client.camera.position = np.array([-5.0, 0.0, 0.0])
        stream.camera_moved()
        assert stream.viewpoint is None and opening == []
        client.camera.position = FIRST + 1e-6
        stream.camera_moved()
        wait_until(lambda: "opened" in opening)
        assert opening[0] == "picture" and opening.count("opened") == 1
        client.camera.position = np.array([1.0, 1.0, 1.0])  # from now on anywhere
        stream.camera_moved()
        wait_until(lambda: len(source.places) > 1)
        np.testing.assert_allclose(source.places[0], FIRST, atol=1e-5)
        wait_until(lambda: np.allclose(source.places[-1], 1.0))
    finally:
        stream.close()


def test_a_browser_that_never_comes_to_its_first_view_is_shown_what_it_sees(
    opening: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "ARRIVAL_SECONDS", 0.3)
    source = Cameras()
    stream = Stream(comes((3.0, 3.0, 3.0)), source, ViewSettings(), is_expected=at_first)
    try:
        wait_until(lambda: "opened" in opening)
        np.testing.assert_allclose(source.places[0], 3.0)
    finally:
        stream.close()


def test_where_there_is_no_model_yet_the_page_opens_without_a_picture(opening: list[str]) -> None:
    source = Cameras(None)
    stream = Stream(comes(FIRST), source, ViewSettings(), is_expected=at_first)
    try:
        wait_until(lambda: opening == ["opened"])
        assert source.places == []
    finally:
        stream.close()


def test_a_page_whose_line_was_cut_goes_on_where_it_stood(opening: list[str]) -> None:
    initial_camera = SimpleNamespace(position=FIRST, look_at=np.zeros(3))
    nothing = {"on_client_connect": lambda _: None, "on_client_disconnect": lambda _: None}
    viewport = Viewport(cast(Any, SimpleNamespace(initial_camera=initial_camera, **nothing)), Cameras())
    before, back, stranger = comes(FIRST), comes((1.0, 2.0, 3.0), 8), comes((2.0, 2.0, 3.0), 9)

    async def visits() -> list[bool]:
        await viewport._connect(before)
        before.camera.position = np.array([1.0, 2.0, 3.0])
        stream = viewport.stream(before)
        assert stream is not None
        stream.camera_moved()
        await viewport._disconnect(before)
        await viewport._connect(back)
        await viewport._connect(stranger)
        come = [viewport.stream(client) for client in (back, stranger)]
        return [stream is not None and stream.viewpoint is not None for stream in come]

    try:
        assert asyncio.run(visits()) == [True, False]
    finally:
        viewport.close()


def viewport_on(source: FrameSource) -> Viewport:
    nothing = {"on_client_connect": lambda _: None, "on_client_disconnect": lambda _: None}
    return Viewport(cast(Any, SimpleNamespace(**nothing)), source)


def test_a_browser_that_is_still_unpacking_gets_a_picture_of_the_first_view() -> None:
    source = Cameras()
    viewport = viewport_on(source)
    picture = viewport.first_picture(Viewpoint(np.array([1.0, 0, 0, 0]), FIRST, 1.0, 640, 400))
    assert picture is not None and simplejpeg.decode_jpeg(picture).shape == (400, 640, 3)
    np.testing.assert_allclose(source.places, [FIRST])
    assert FIRST_VIEW not in source.views, "a view of no stream is not kept"
    viewport.close()


def test_there_is_no_first_picture_without_a_model_or_of_one_that_does_not_render() -> None:
    class Silent(Cameras):
        def render(self, view: int, camera: Camera, options: ViewOptions) -> ReceivedFrame | None:
            super().render(view, camera, options)

    viewpoint = Viewpoint(np.array([1.0, 0, 0, 0]), FIRST, 1.0, 640, 400)
    for source, drawn in ((Cameras(None), 0), (Silent(), 1)):
        assert viewport_on(source).first_picture(viewpoint) is None
        assert len(source.places) == drawn and not source.views


@pytest.mark.parametrize(
    ("path", "size"),
    [
        (f"{FIRST_PICTURE}?width=868&height=900", (868, 900)),
        ("/other.jpg?width=868&height=900", None),
        (FIRST_PICTURE, None),
        (f"{FIRST_PICTURE}?width=868", None),
        (f"{FIRST_PICTURE}?width=868&height=0", None),
        (f"{FIRST_PICTURE}?width=99999&height=900", None),
        (f"{FIRST_PICTURE}?width=many&height=900", None),
    ],
)
def test_a_picture_is_asked_for_with_the_size_of_a_window(path: str, size: tuple[int, int] | None) -> None:
    assert asked_size(Request(path, Headers())) == size


@pytest.mark.parametrize("compressed", [False, True])
def test_visers_page_is_served_inside_ours(compressed: bool) -> None:
    packed = viser_page().encode()
    headers = Headers({"Content-Encoding": "gzip" if compressed else "identity", "Content-Length": "1"})
    response = opened(Response(200, "OK", headers, gzip.compress(packed) if compressed else packed))
    body = bytes(response.body)
    assert response.headers["Content-Length"] == str(len(body))
    text = (gzip.decompress(body) if compressed else body).decode()
    assert "<title>splatstudio</title>" in text and "Viser</title>" not in text
    assert text.index('id="splatstudio-opening"') < text.index("splatstudio-later")
    assert opened(Response(404, "NOT FOUND", Headers())).body == b""


def test_a_page_without_scripts_is_not_visers() -> None:
    with pytest.raises(ValueError, match="no script"):
        opening_page("<html><head><title>x</title></head><body></body></html>")


@pytest.mark.parametrize(
    ("path", "page"), [("/", True), ("/?a=1", True), ("/index.html", True), ("/x", False)]
)
def test_only_the_page_itself_is_rewritten(path: str, page: bool) -> None:
    assert is_page(Request(path, Headers())) is page


# What the page has shown since it was asked for, looked at every 20 ms.
WATCH = """() => {
  window.seen = {ours: 0, panel: 0, titles: []};
  setInterval(() => {
    const opening = document.getElementById("splatstudio-opening");
    window.seen.ours += opening !== null;
    window.seen.panel += opening === null && document.body.innerText.includes("ws://");
    window.seen.titles.push(document.title);
  }, 20);
}"""


FIRST_PICTURE_SEEN = "performance.getEntriesByName('splatstudio-first-picture').length"


class TestInABrowser:
    pytestmark = PAGE_TEST

    def test_our_page_is_there_at_once_and_goes_with_the_first_right_picture(
        self, browser: Any, saved_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        places: list[np.ndarray] = []
        render = Controller.render

        def noted(controller: Controller, view: int, camera: Camera, options: ViewOptions) -> Any:
            places.append(camera.position)
            return render(controller, view, camera, options)

        monkeypatch.setattr(Controller, "render", noted)
        studio = Studio(saved_run, network=Listen(port=0), config=MANY)
        try:
            wait_until(lambda: studio.controller.status.has_model)
            first = studio._server.initial_camera.position
            for _ in range(3):
                page = browser.new_page(viewport={"width": 900, "height": 500})
                page.set_default_timeout(1000 * TIMEOUT)
                page.goto(studio.url, wait_until="commit")
                page.evaluate(WATCH)
                page.wait_for_function(OPENED)
                seen = page.evaluate("window.seen")
                assert page.evaluate(FIRST_PICTURE_SEEN) == 1
                assert seen["ours"] > 0 and seen["panel"] == 0
                assert all("splatstudio" in title for title in seen["titles"])
                assert page.locator("button:has(.tabler-icon-adjustments)").is_hidden()
                page.close()
            assert len(places) > 3
            np.testing.assert_allclose(places, np.broadcast_to(first, (len(places), 3)), atol=1e-4)
        finally:
            studio.close()
