"""What a browser may set on a control of the page: the value only, of its kind and within its bounds."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import viser

from splatstudio.gui.server.limits import GateLimits


class Unacceptable(Exception):
    """A message that is not passed on; `reason` is the counter it adds to."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


def find_control(server: viser.ViserServer, client: viser.ClientHandle | None, uuid: object) -> Any:
    """Return the input on the page (shared, or private to this browser) with a uuid.

    Raises:
        Unacceptable: there is no such input, or nobody can use it now: it is disabled or hidden.
    """
    for gui in _guis(server, client):
        handle = gui._gui_input_handle_from_uuid.get(uuid)
        if handle is not None:
            props = handle._impl.props
            if props.disabled or not props.visible or not _containers_visible(server, handle):
                raise Unacceptable("control off")
            return handle
    raise Unacceptable("control")


def find_command(server: viser.ViserServer, client: viser.ClientHandle | None, uuid: object) -> None:
    """Check that a uuid is that of a command of the palette which is enabled.

    Raises:
        Unacceptable: there is no such command, or it is disabled.
    """
    for gui in _guis(server, client):
        handle = gui._command_handle_from_uuid.get(uuid)
        if handle is not None:
            if handle._impl.props.disabled:
                raise Unacceptable("control off")
            return
    raise Unacceptable("control")


def _guis(server: viser.ViserServer, client: viser.ClientHandle | None) -> list[Any]:
    return [server.gui] if client is None else [server.gui, client.gui]


def _containers_visible(server: viser.ViserServer, handle: Any) -> bool:
    """Whether all folders around an input are shown."""
    state = handle._impl
    while True:
        container_id = state.parent_container_id
        container = state.gui_api._container_handle_from_uuid.get(container_id)
        if container is None:
            container = server.gui._container_handle_from_uuid.get(container_id)
        # Tabs, dialogs and the root have no visibility, and a folder inside of them has been looked at.
        state = getattr(container, "_impl", None)
        if state is None:
            parent = getattr(container, "_parent", None)  # of a tab: its group
            state = getattr(parent, "_impl", None)
        if state is None or not hasattr(state, "parent_container_id"):
            return True
        if not getattr(state.props, "visible", True):
            return False


def acceptable_value(handle: Any, value: object, limits: GateLimits) -> object:
    """Return the value for an input: itself, or the nearest bound where the page has rounded beyond it.

    Raises:
        Unacceptable: it is not of the kind of the present value, not finite, out of bounds, not an option.
    """
    present, props = handle._impl.value, handle._impl.props
    if isinstance(present, bool):
        # A button can only be pressed.
        fine = isinstance(value, bool) and (value or not handle._impl.is_button)
    elif isinstance(present, str):
        options = getattr(props, "options", None)
        fine = isinstance(value, str) and len(value) <= limits.max_text
        fine = fine and (options is None or value in options)
    elif isinstance(present, Real):
        return _number(present, value, props.min, props.max, props)
    elif isinstance(present, tuple):
        return _numbers(handle, present, value)
    else:
        fine = False  # the content of an upload button comes by an upload
    if not fine:
        raise Unacceptable("value")
    return value


def _numbers(handle: Any, present: tuple[Any, ...], value: object) -> list[int | float]:
    if not isinstance(value, (list, tuple)) or len(value) != len(present):
        raise Unacceptable("value")
    props = handle._impl.props
    if isinstance(handle, (viser.GuiRgbHandle, viser.GuiRgbaHandle)):
        low, high = 0, 255
    else:
        low, high = props.min, props.max
    lows = low if isinstance(low, tuple) else (low,) * len(present)
    highs = high if isinstance(high, tuple) else (high,) * len(present)
    numbers = [_number(*each, props) for each in zip(present, value, lows, highs, strict=True)]
    if isinstance(handle, viser.GuiMultiSliderHandle) and numbers != sorted(numbers):
        raise Unacceptable("value")
    return numbers


def _number(present: Real, value: object, low: float | None, high: float | None, props: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Unacceptable("value")
    if isinstance(present, Integral) and not isinstance(value, int):
        raise Unacceptable("value")
    low = -1e15 if low is None else low
    high = 1e15 if high is None else high
    # The page rounds to `precision` digits, which may end beyond a bound that has more digits.
    rounding = 0.5 * 10.0 ** -getattr(props, "precision", 15)
    if not low - rounding <= value <= high + rounding:
        raise Unacceptable("value")
    bounded = min(max(value, low), high)
    return int(bounded) if isinstance(present, Integral) else float(bounded)
