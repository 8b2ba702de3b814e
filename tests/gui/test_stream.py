"""The pictures of one browser: when one is asked for, how large it is, which stays, and what it waits for."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import simplejpeg
import viser
import viser.transforms
from blob_models import ring_of_cameras
from gui_parts import fake_camera, standing_in, wait_until

from splatstudio.cameras.camera import Camera
from splatstudio.gaussians.trimming import Trim
from splatstudio.gui.render_function import RenderFunctionSource
from splatstudio.gui.state.photos import Comparison, PhotoPixels
from splatstudio.gui.state.stream import (
    MIN_SCALE,
    RETRY_SECONDS,
    FrameSource,
    ModelState,
    PictureScale,
    Stream,
    Viewport,
    ViewSettings,
    frame_request,
)
from splatstudio.gui.state.viewpoint import read_viewpoint
from splatstudio.runtime.messages import Frame, ViewOptions
from splatstudio.runtime.supervisor import ReceivedFrame
from splatstudio.scene.scene import Scene

pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.fixture(autouse=True)
def _no_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    """Browsers that are made up have no page that could be uncovered."""
    monkeypatch.setattr("splatstudio.gui.state.stream.end_opening", lambda _: None)


class OneModel(FrameSource):
    """Shows one model until it is left, and counts its pictures."""

    state = ModelState(7, False)
    num_drawn = 0

    def model_state(self) -> ModelState:
        return self.state

    def render(self, view: int, camera: Camera, options: ViewOptions) -> ReceivedFrame | None:
        self.num_drawn += 1
        frame = Frame(view, 1, 0, camera.width, camera.height, 7, 0.001)
        return ReceivedFrame(frame, np.zeros((camera.height, camera.width, 3), np.uint8))

    def forget(self, view: int) -> None:
        pass


def browser(pictures: list[str]) -> viser.ClientHandle:
    scene = SimpleNamespace(set_background_image=lambda _: pictures.append("none"))
    storage = SimpleNamespace(get_item=lambda _: None)
    client = SimpleNamespace(camera=fake_camera(), client_id=7, scene=scene, local_storage=storage)
    return cast(viser.ClientHandle, client)


def test_a_picture_in_progress_when_a_browser_leaves_is_forgotten_too() -> None:
    order: list[str] = []
    asked, go_on = threading.Event(), threading.Event()

    class Slow(OneModel):
        def render(self, view: int, camera: Any, options: Any) -> None:
            asked.set()
            go_on.wait(60.0)
            order.append("rendered")

        def forget(self, view: int) -> None:
            order.append("forgotten")

    stream = Stream(browser([]), Slow(), ViewSettings())
    assert asked.wait(60.0)
    stream.close()
    go_on.set()
    stream._thread.join(60.0)
    assert order[-2:] == ["rendered", "forgotten"]


@pytest.mark.parametrize("known", [True, False])
def test_a_browser_that_leaves_while_its_frame_is_drawn_is_forgotten_without_a_word(
    known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[int] = []
    failed: list[Any] = []
    sending, told = threading.Event(), threading.Event()

    class Noting(OneModel):
        def render(self, view: int, camera: Any, options: Any) -> ReceivedFrame:
            frame = Frame(view, 0, 0, camera.width, camera.height, 7, 0.001)
            return ReceivedFrame(frame, np.zeros((camera.height, camera.width, 3), np.uint8))

        def forget(self, view: int) -> None:
            forgotten.append(view)

    def gone(*_: object) -> None:
        sending.set()
        assert not known or told.wait(60.0)
        raise RuntimeError("cannot schedule new futures after shutdown")

    monkeypatch.setattr("splatstudio.gui.state.stream.push_background_jpeg", gone)
    monkeypatch.setattr(threading, "excepthook", failed.append)
    stream = Stream(browser([]), Noting(), ViewSettings())
    assert sending.wait(60.0)
    if not known:
        time.sleep(0.3)  # the stream waits for the news
        assert stream._thread.is_alive()
    stream.close()
    told.set()
    stream._thread.join(60.0)
    assert forgotten == [7, 7] and not failed, "once more at the end of the thread"


def test_a_source_is_forgotten_whatever_ended_its_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[int] = []
    failed: list[Any] = []

    class Broken(OneModel):
        def render(self, view: int, camera: Any, options: Any) -> None:
            raise ValueError("broken")

        def forget(self, view: int) -> None:
            forgotten.append(view)

    monkeypatch.setattr(threading, "excepthook", failed.append)
    stream = Stream(browser([]), Broken(), ViewSettings())
    stream._thread.join(60.0)
    assert forgotten == [7] and len(failed) == 1


def test_the_pace_finds_the_scale_that_takes_the_wanted_time() -> None:
    pace = PictureScale(0.08, 0.5)
    for _ in range(40):
        pace.measured(pace.scale, 0.02 + 0.9 * pace.scale**2)  # a slow machine: 0.92 s at full size
    assert abs(0.02 + 0.9 * pace.scale**2 - 0.08) < 0.01
    for _ in range(40):
        pace.measured(pace.scale, 0.001)
    assert pace.scale == 1.0
    for _ in range(40):
        pace.measured(pace.scale, 100.0)
    assert pace.scale == MIN_SCALE


def test_a_stream_without_pictures_does_not_spin() -> None:
    asked: list[int] = []

    class Silent(OneModel):
        def render(self, view: int, camera: Any, options: Any) -> None:
            asked.append(view)

    stream = Stream(browser([]), Silent(), ViewSettings())
    start = time.monotonic()
    while not asked or time.monotonic() - start < 0.6:
        time.sleep(0.05)
    stream.close()
    stream._thread.join(60.0)
    assert len(asked) <= 2 + (time.monotonic() - start) / RETRY_SECONDS


def test_a_render_function_of_nerfviews_contract() -> None:
    seen: list[Any] = []

    def render_fn(camera_state: Any, tab_state: Any) -> np.ndarray:
        seen.append((camera_state, tab_state))
        K = camera_state.get_K((tab_state.viewer_width, tab_state.viewer_height))
        return np.full((tab_state.viewer_height, tab_state.viewer_width, 3), 0.5) * (K[2, 2] == 1)

    source = RenderFunctionSource(render_fn)
    viewpoint = read_viewpoint(fake_camera())
    assert viewpoint is not None and source.model_state() == ModelState(0, training=False)
    camera = viewpoint.camera(0.5)
    received = source.render(1, camera, ViewOptions())
    assert received is not None and received.image.shape == (300, 450, 3) and (received.image == 128).all()
    camera_state, tab_state = seen[0]
    assert np.allclose(camera_state.get_K((450, 300)), camera.K)
    assert np.allclose(camera_state.c2w[:3, 3], (0, 0, -2)) and (tab_state.viewer_width == 450)


def test_a_render_function_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Any] = [ZeroDivisionError("by zero"), ZeroDivisionError("by zero"), np.zeros((2, 2))]

    def render_fn(camera_state: Any, tab_state: Any) -> np.ndarray:
        answer = answers.pop(0) if answers else np.zeros((300, 450, 3), np.uint8)
        if isinstance(answer, Exception):
            raise answer
        return answer

    source, viewpoint = RenderFunctionSource(render_fn), read_viewpoint(fake_camera())
    assert viewpoint is not None
    for _ in range(3):
        assert source.render(1, viewpoint.camera(0.5), ViewOptions()) is None
    assert source.render(1, viewpoint.camera(0.5), ViewOptions()) is not None
    assert [record.exc_info is not None for record in caplog.records] == [True, True], "each is told once"


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a browser is sent."""
    sent: list[str] = []
    monkeypatch.setattr(
        "splatstudio.gui.state.stream.push_background_jpeg", lambda *_: sent.append("picture")
    )
    return sent


def wait_for(pictures: list[str], picture: str) -> None:
    wait_until(lambda: pictures[-1:] == [picture], picture)


def test_the_picture_of_a_run_that_is_left_goes_from_the_view(pictures: list[str]) -> None:
    source = OneModel()
    stream = Stream(browser(pictures), source, ViewSettings())
    try:
        wait_for(pictures, "picture")
        source.state = ModelState(None, False)
        stream.wake()
        time.sleep(0.1)
        assert pictures[-1] == "picture", "it stays while the same model is read once more"
        source.state = ModelState(None, False, anew=True)
        stream.wake()
        wait_for(pictures, "none")
        source.state = ModelState(0, True)
        stream.wake()
        wait_for(pictures, "picture")
    finally:
        stream.close()


def test_a_photo_alone_stays_when_its_run_is_left(pictures: list[str], blob_scene: Scene) -> None:
    """One stands in its camera and compares: until there is a new model it is shown alone."""
    source, camera = OneModel(), blob_scene.cameras[0]
    source.state = ModelState(None, False, anew=True)
    shelf = SimpleNamespace(
        pixels=lambda _, size, *__: PhotoPixels(np.zeros((size[1], size[0], 3), np.uint8))
    )
    camera_snap = SimpleNamespace(here=0, camera=lambda _: camera)
    look = ViewSettings(comparison=Comparison("split"))
    stream = Stream(browser(pictures), source, look, cast(Any, camera_snap), cast(Any, shelf))
    try:
        wait_for(pictures, "picture")
        time.sleep(0.6)
        assert "none" not in pictures, "it would go and come for ever"
    finally:
        stream.close()


def test_what_two_change_at_once_both_holds() -> None:
    """A box of the View tab is ticked while the Export tab hides what is faint."""
    source = OneModel()
    source.state = ModelState(None, training=False)
    stream = Stream(browser([]), source, ViewSettings())
    faint = Trim(min_opacity=0.5)
    hide = Viewport(cast(Any, SimpleNamespace(on_client_connect=id, on_client_disconnect=id)), source)
    hide._streams[7] = stream
    other = threading.Thread(target=hide.show_trim, args=(faint,))

    def in_the_middle(look: ViewSettings) -> ViewSettings:
        other.start()
        other.join(0.2)  # it cannot end before this has
        return replace(look, options=replace(look.options, splat_scale=0.5))

    stream.change(in_the_middle)
    other.join()
    stream.close()
    assert stream.settings.options.trim == faint and stream.settings.options.splat_scale == 0.5


def test_only_in_its_camera_is_the_photo_compared_with() -> None:
    camera = ring_of_cameras()[0]
    viewpoint = standing_in(camera, 800, 400)
    options = ViewOptions(mode="depth", background=(0.1, 0.2, 0.3))
    split = ViewSettings(options, Comparison("split"))
    away = frame_request(split, viewpoint, 0.5, None)
    assert away.place is None and (away.camera.width, away.camera.height) == (400, 200)
    here = frame_request(split, viewpoint, 0.5, (3, camera))
    assert here.place is not None and here.photo == here.options.photo == 3
    assert here.options == replace(options, photo=3)
    # Exactly the photo's camera, at half of the pixels that it has on the canvas.
    assert here.camera.width == here.place.width // 2
    assert np.allclose(here.camera.K, camera.resized(here.camera.width, here.camera.height).K)
    assert np.array_equal(here.camera.viewmat, camera.viewmat)
    assert (
        frame_request(
            replace(split, comparison=Comparison("difference")), viewpoint, 1.0, (3, camera)
        ).options.mode
        == "color"
    )
    assert frame_request(ViewSettings(options), viewpoint, 1.0, (3, camera)).place is None
    error = ViewSettings(ViewOptions(mode="error"))
    assert frame_request(error, viewpoint, 1.0, (3, camera)).options == ViewOptions(mode="error", photo=3)
    assert frame_request(error, viewpoint, 1.0, None).options.mode == "color", (
        "there is nothing to compare with"
    )


def test_a_new_comparison_needs_no_new_picture_of_the_model() -> None:
    look = ViewSettings(comparison=Comparison("split"))
    assert replace(look, comparison=Comparison("split", split=0.1)).draws_like(look)
    assert not replace(look, comparison=Comparison("difference")).draws_like(look)
    assert not replace(look, options=ViewOptions(mode="depth")).draws_like(look)


def test_a_model_that_is_compared_with_is_seen_left_of_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[np.ndarray] = []
    monkeypatch.setattr(
        "splatstudio.gui.state.stream.push_background_jpeg",
        lambda _, jpeg: shown.append(simplejpeg.decode_jpeg(jpeg)),
    )

    class Two(OneModel):
        asked: ClassVar[list[tuple[int, int]]] = []

        def render_beside(self, view: int, camera: Camera, options: ViewOptions) -> ReceivedFrame | None:
            self.asked.append((camera.width, camera.height))
            frame = Frame(view, 1, 0, camera.width, camera.height, 7, 0.001)
            return ReceivedFrame(frame, np.full((camera.height, camera.width, 3), 200, np.uint8))

    def seam(picture: np.ndarray) -> float:
        bright = np.flatnonzero(picture[picture.shape[0] // 2, :, 0] > 100)
        assert len(bright) and bright[0] == 0, "the other model is at the left"
        return (bright[-1] + 1) / picture.shape[1]

    source = Two()
    stream = Stream(browser([]), source, ViewSettings(beside_split=0.25))
    try:
        wait_until(lambda: bool(shown) and abs(seam(shown[-1]) - 0.25) < 0.02)
        wait_until(lambda: stream._shown is not None and not stream._shown.moving)
        both_drawn = (source.num_drawn, len(source.asked))
        stream.change(lambda settings: replace(settings, beside_split=0.75))
        wait_until(lambda: abs(seam(shown[-1]) - 0.75) < 0.02)
        assert (source.num_drawn, len(source.asked)) == both_drawn, "only the line has moved"
    finally:
        stream.close()


def test_the_next_picture_waits_for_the_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    monkeypatch.setattr(
        "splatstudio.gui.state.stream.push_background_jpeg", lambda _, jpeg: sent.append(jpeg)
    )
    shown = threading.Event()
    storage = SimpleNamespace(get_item=lambda _: shown.wait(60.0))
    client = SimpleNamespace(camera=fake_camera(), client_id=7, local_storage=storage)
    source = OneModel()
    stream = Stream(cast(viser.ClientHandle, client), source, ViewSettings())
    try:
        wait_until(lambda: bool(sent))
        stream.invalidate()
        wait_until(lambda: source.num_drawn > 1)
        time.sleep(0.3)
        assert len(sent) == 1
        shown.set()
        wait_until(lambda: len(sent) > 1)
    finally:
        shown.set()
        stream.close()
