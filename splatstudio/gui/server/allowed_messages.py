"""What a browser may say: the messages that the studio needs, each with its fields and their bounds.

viser believes what it is sent: any attribute of a control could be set, a disabled button pressed, a camera
of a billion pixels announced, a public tunnel opened. Nothing that is not described here reaches it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import msgspec
import viser


@dataclass(frozen=True)
class GateLimits:
    """Bounds on what browsers may do, far above what the page itself needs."""

    max_clients: int = 32
    max_message_bytes: int = 4 * 2**20
    messages_per_second: float = 500.0  # a browser that sends faster is read more slowly, nothing is lost
    silent_seconds: float = 10.0  # a browser that takes nothing for so long is dropped (Linux only)
    max_pixels: int = 16384  # width and height of a browser's view
    max_text: int = 10_000  # characters in a text field
    max_upload_bytes: int = 16 * 2**20
    max_uploads: int = 4  # at the same time, of one browser


class Unacceptable(Exception):
    """A message that is not passed on; `reason` is the counter it adds to."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


def find_control(server: viser.ViserServer, client: viser.ClientHandle | None, uuid: object) -> Any:
    """Return the input on the page (shared, or private to this browser) with a uuid.

    Raises Unacceptable: there is no such input, or nobody can use it now: it is disabled or hidden.
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

    Raises Unacceptable: there is no such command, or it is disabled.
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

    Raises Unacceptable: it is not of the kind of the present value, not finite, out of bounds, not an option.
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
        return _bounded(present, value, props.min, props.max, props)
    elif isinstance(present, tuple):
        return _bounded_each(handle, present, value)
    else:
        fine = False  # the content of an upload button comes by an upload
    if not fine:
        raise Unacceptable("value")
    return value


def _bounded_each(handle: Any, present: tuple[Any, ...], value: object) -> list[int | float]:
    if not isinstance(value, (list, tuple)) or len(value) != len(present):
        raise Unacceptable("value")
    props = handle._impl.props
    if isinstance(handle, (viser.GuiRgbHandle, viser.GuiRgbaHandle)):
        low, high = 0, 255
    else:
        low, high = props.min, props.max
    lows = low if isinstance(low, tuple) else (low,) * len(present)
    highs = high if isinstance(high, tuple) else (high,) * len(present)
    numbers = [_bounded(*each, props) for each in zip(present, value, lows, highs, strict=True)]
    if isinstance(handle, viser.GuiMultiSliderHandle) and numbers != sorted(numbers):
        raise Unacceptable("value")
    return numbers


def _bounded(present: Real, value: object, low: float | None, high: float | None, props: Any) -> int | float:
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


Check = Callable[[Any], bool]

_FAR_AWAY = 1e9  # scene units; beyond, float32 has nothing to tell apart


def _number(low: float, high: float) -> Check:
    # NaN fails both comparisons.
    return lambda value: (
        isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high
    )


def _integer(low: int, high: int) -> Check:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _text(max_length: int) -> Check:
    return lambda value: isinstance(value, str) and len(value) <= max_length


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _vector(length: int, limit: float = _FAR_AWAY, *, nonzero: bool = False) -> Check:
    component = _number(-limit, limit)
    return lambda value: (
        isinstance(value, list)
        and len(value) == length
        and all(component(x) for x in value)
        and (not nonzero or sum(x * x for x in value) > 1e-12)
    )


_NAME, _UUID, _OWNER = _text(1024), _text(64), _text(64)
_QUAT = _vector(4, 2.0, nonzero=True)

# The messages that the page of viser sends for what the studio uses, with all their fields. Left out, because
# the studio has no use for them: forms, buttons that are held down, dragging and rectangles in the scene,
# renders made by the browser, and the public tunnel.
_FIELDS: dict[str, dict[str, Check]] = {
    "ViewerCameraMessage": {
        "wxyz": _QUAT,
        "position": _vector(3),
        "fov": _number(1e-3, 3.1415),
        "near": _number(1e-9, 1e12),
        "far": _number(1e-9, 1e12),
        "image_height": _integer(1, 2**31),  # a collapsed window has 0: nothing can be rendered for it
        "image_width": _integer(1, 2**31),
        "look_at": _vector(3),
        "up_direction": _vector(3, nonzero=True),
    },
    "GuiUpdateMessage": {"uuid": _UUID, "updates": lambda value: isinstance(value, dict)},
    "CommandTriggerMessage": {"uuid": _UUID},
    "SceneNodeClickMessage": {
        "name": _NAME,
        "instance_index": _or_none(_integer(0, 2**31)),
        "ray_origin": _vector(3),
        "ray_direction": _vector(3),
        "screen_pos": _vector(2, 10.0),
        "modifier": _or_none(_text(32)),
        "owner": _OWNER,
    },
    "TransformControlsUpdateMessage": {"name": _NAME, "wxyz": _QUAT, "position": _vector(3), "owner": _OWNER},
    "TransformControlsDragStartMessage": {"name": _NAME, "owner": _OWNER},
    "TransformControlsDragEndMessage": {"name": _NAME, "owner": _OWNER},
    "FileTransferStartUpload": {
        "source_component_uuid": _UUID,
        "transfer_uuid": _UUID,
        "filename": _text(255),
        "mime_type": _text(255),
        "part_count": _integer(0, 100_000),
        "size_bytes": _integer(0, 2**40),
    },
    "FileTransferPart": {
        "source_component_uuid": _UUID,
        "transfer_uuid": _UUID,
        "part_index": _integer(0, 100_000),
        "content": lambda value: isinstance(value, bytes),
    },
    "LocalStorageGetItemResponseMessage": {
        "value": _or_none(_text(65_536)),
        "error": _or_none(_text(1024)),
        "request_uuid": _UUID,
    },
}


@dataclass
class _Upload:
    """A file of which a browser is sending the parts."""

    source: str
    num_parts: int
    size: int
    received: int = 0
    parts: set[int] = field(default_factory=set)


class MessageFilter:
    """Passes on the good messages of one browser; remembers only its unfinished uploads."""

    def __init__(self, limits: GateLimits):
        self._limits = limits
        self._uploads: dict[str, _Upload] = {}

    def passed(self, raw: bytes | str, server: viser.ViserServer, client: viser.ClientHandle | None) -> bytes:
        """Return a message, which is msgpack, as viser may have it; `client` is None before its first camera.

        Raises Unacceptable: it is damaged, of a kind that the studio does not need, or asks for too much.
        """
        message = _decoded(raw)
        kind = message["type"]
        if kind == "ViewerCameraMessage":
            if max(message["image_height"], message["image_width"]) > self._limits.max_pixels:
                raise Unacceptable("camera")
            if not message["near"] < message["far"]:
                raise Unacceptable("camera")
        elif kind == "GuiUpdateMessage":
            handle = find_control(server, client, message["uuid"])
            if message["updates"].keys() != {"value"}:
                raise Unacceptable("attribute")
            message["updates"]["value"] = acceptable_value(handle, message["updates"]["value"], self._limits)
        elif kind == "CommandTriggerMessage":
            find_command(server, client, message["uuid"])
        elif kind == "FileTransferStartUpload":
            self._start_upload(message, server, client)
        elif kind == "FileTransferPart":
            self._continue_upload(message)
        # Encoded anew: viser reads what has been checked, not what a second reading of the bytes might give.
        return msgspec.msgpack.encode(message)

    def _start_upload(
        self, message: dict[str, Any], server: viser.ViserServer, client: viser.ClientHandle | None
    ) -> None:
        handle = find_control(server, client, message["source_component_uuid"])
        size, num_parts, uuid = message["size_bytes"], message["part_count"], message["transfer_uuid"]
        guis = [server.gui] if client is None else [server.gui, client.gui]
        fine = (
            isinstance(handle, viser.GuiUploadButtonHandle)
            and _is_plain_file_name(message["filename"])
            and size <= self._limits.max_upload_bytes
            and len(self._uploads) < self._limits.max_uploads
            # At least a byte in each part, and no part in a file without bytes.
            and (num_parts > 0) == (size > 0)
            and num_parts <= size
            # A transfer of another browser must not be taken over.
            and all(uuid not in gui._current_file_upload_states for gui in guis)
        )
        if not fine:
            raise Unacceptable("upload")
        if num_parts > 0:
            self._uploads[uuid] = _Upload(message["source_component_uuid"], num_parts, size)

    def _continue_upload(self, message: dict[str, Any]) -> None:
        upload = self._uploads.get(message["transfer_uuid"])
        index, length = message["part_index"], len(message["content"])
        if (
            upload is None
            or upload.source != message["source_component_uuid"]
            or not index < upload.num_parts
            or index in upload.parts
            or upload.received + length > upload.size
        ):
            raise Unacceptable("upload")
        upload.received += length
        upload.parts.add(index)
        if len(upload.parts) == upload.num_parts:
            del self._uploads[message["transfer_uuid"]]


def _decoded(raw: bytes | str) -> dict[str, Any]:
    """Decode a message and check its kind and the form of its fields."""
    if not isinstance(raw, bytes):
        raise Unacceptable("damaged")
    try:
        message = msgspec.msgpack.decode(raw)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise Unacceptable("damaged") from error
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise Unacceptable("damaged")
    fields = _FIELDS.get(message["type"])
    if fields is None:
        raise Unacceptable("message type")
    if message.keys() != fields.keys() | {"type"}:
        raise Unacceptable("damaged")
    if not all(check(message[name]) for name, check in fields.items()):
        raise Unacceptable("camera" if message["type"] == "ViewerCameraMessage" else "damaged")
    return message


def _is_plain_file_name(name: str) -> bool:
    return name not in {"", ".", ".."} and name.isprintable() and not set(name) & {"/", "\\", ":"}
