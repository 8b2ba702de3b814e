"""What the page takes from viser beyond its public interface; a test fails when viser changes it.

The gate's own dealings with viser are in `gate` and `allowed_browser_messages`.
It tests itself at each start.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import viser
from viser import _messages

from splatstudio.gui.server.access import STILL_HERE
from splatstudio.gui.server.page_files import page_text
from splatstudio.gui.theme import LOOK


def after_callbacks(
    server: viser.ViserServer, ended: Callable[[], None], failed: Callable[[BaseException], None]
) -> None:
    """Call `ended` after each callback of the page, in its thread, and `failed` with what ended one.

    viser itself prints an error and no more; of what a user or a disk did it hears nothing, as a sentence on
    the page says all. Coroutines are not meant: they run on viser's event loop.
    """
    pool = server._thread_executor
    submit = pool.submit

    def submit_and_tell(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = submit(partial(unless_refused, function), *args, **kwargs)
        future.add_done_callback(tell_of)
        return future

    def unless_refused(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (ValueError, OSError) as error:
            failed(error)

    def tell_of(future: Future[Any]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            failed(error)
        ended()

    pool.submit = submit_and_tell


def push_background_jpeg(client: viser.ClientHandle, jpeg: bytes) -> None:
    """Show encoded JPEG bytes behind the scene in one browser.

    The public call encodes by itself, at 4-6 ms a frame instead of 1.
    """
    message = _messages.BackgroundImageMessage(format="jpeg", rgb_data=jpeg, depth_data=None)
    client.scene._websock_interface.queue_message(message)
    client.flush()


def element_id(handle: viser.GuiButtonHandle | viser.GuiSliderHandle[Any]) -> str:
    """Return the id that a control's element has in the page, by which a label or a message can name it."""
    return handle._impl.uuid


def show_node(client: viser.ClientHandle, name: str, visible: bool) -> None:
    """Show or hide a node of the shared scene in one browser only."""
    message = _messages.SetSceneNodeVisibilityMessage(name, visible)
    client.scene._websock_interface.queue_message(message)


def place_camera(client: viser.ClientHandle, view: Mapping[str, Any]) -> None:
    """Move a browser's camera to the `fov`, `up_direction`, `position` and `look_at` that it once had.

    The public setters send nothing where they believe the browser to be there already, and they believe what
    it said last, which may come between two of them.
    """

    def three(name: str) -> tuple[float, float, float]:
        x, y, z = (float(value) for value in view[name])
        return x, y, z

    send = client.scene._websock_interface.queue_message
    with client.atomic():
        send(_messages.SetCameraFovMessage(float(view["fov"])))
        send(_messages.SetCameraPositionMessage(three("position")))
        send(_messages.SetCameraLookAtMessage(three("look_at")))
        send(_messages.SetCameraUpDirectionMessage(three("up_direction")))


def show_value(client: viser.ClientHandle, handle: viser.GuiSliderHandle[Any], value: float) -> None:
    """Show another value of a shared control in one browser only; the control keeps its own."""
    message = _messages.GuiUpdateMessage(handle._impl.uuid, {"value": value})
    client.gui._websock_interface.queue_message(message)


def light_theme() -> dict[str, Any]:
    """Return the message by which a browser gives its own page of viser our look on light ground."""
    told: list[Any] = []
    nobody = SimpleNamespace(_websock_interface=SimpleNamespace(queue_message=told.append))
    viser.GuiApi.configure_theme(cast(Any, nobody), **{**LOOK, "dark_mode": False})
    (message,) = told
    values = message.as_serializable_dict()
    # Of the ten shades buttons are filled with the ninth on dark ground, and with the seventh on light.
    values["colors"] = [*values["colors"][:6], *values["colors"][8:9] * 2, *values["colors"][8:]]
    return values


PAGE_SCRIPTS = (
    *("page.js", "controls.js", "navigation.js", "accessibility.js"),
    *("commands.js", "comparison.js", "framing.js"),
)


def page_script() -> str:
    """Return the scripts of page/, with the style sheet and what else they are handed over."""
    handed_over = {
        "css": f"{page_text('colors.css')}\n{page_text('page.css')}",
        "stillHere": STILL_HERE,
        "lightTheme": light_theme(),
    }
    scripts = "\n".join(page_text(name) for name in PAGE_SCRIPTS)
    return f"window.splatstudio = {json.dumps(handed_over)};\n{scripts}"


def end_opening(client: viser.ClientHandle) -> None:
    """Take away what covers a browser's page until there is something to see: see opening_page."""
    source = "window.splatstudioOpened = true;"
    client.gui._websock_interface.queue_message(_messages.RunJavascriptMessage(source=source))
    client.flush()


def tell_halves(client: viser.ClientHandle, halves: dict[str, Any] | None) -> None:
    """Tell a browser's page which two pictures it shows beside each other, None: one alone."""
    source = f"window.splatstudioHalves = {json.dumps(halves)};"
    client.gui._websock_interface.queue_message(_messages.RunJavascriptMessage(source=source))


def tell_framing(client: viser.ClientHandle, aspect: float | None, seconds: float | None = None) -> None:
    """Tell a browser's page the width over the height of the video whose path it looks along, None: none.

    It shows that for some seconds, None: until it is told otherwise.
    """
    until = "null" if seconds is None else f"performance.now() + {1000.0 * seconds}"
    told = "null" if aspect is None else f"{{aspect: {json.dumps(aspect)}, until: {until}}}"
    source = f"window.splatstudioFraming = {told};"
    client.gui._websock_interface.queue_message(_messages.RunJavascriptMessage(source=source))


def dress_page(client: viser.ClientHandle) -> None:
    """Give a browser's page what viser's own lacks: the scripts and the style sheet of page/."""
    message = _messages.RunJavascriptMessage(source=page_script())
    client.gui._websock_interface.queue_message(message)
