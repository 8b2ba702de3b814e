"""What a browser may say: the messages that the studio needs, each with its fields and their bounds.

viser believes what it is sent: any attribute of a control could be set, a disabled button pressed, a camera
of a billion pixels announced, a public tunnel opened. Nothing that is not described here reaches it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Annotated, Any, Literal

import msgspec
import viser
from msgspec import Meta


@dataclass(frozen=True)
class GateLimits:
    """Bounds on what browsers may do, far above what the page itself needs."""

    max_clients: int = 32
    max_strangers: int = 128  # connections that were not let in yet: the oldest goes when another comes
    max_message_bytes: int = 4 * 2**20
    messages_per_second: float = 500.0  # a browser that sends faster is read more slowly, nothing is lost
    silent_seconds: float = 10.0  # a browser that takes nothing for so long is dropped (Linux only)
    max_text: int = 10_000  # characters in a text field
    max_upload_bytes: int = 16 * 2**20
    max_uploads: int = 4  # at the same time, of one browser


class Unacceptable(Exception):
    """A message that is not passed on; `reason` is the counter it adds to."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


def find_control(server: viser.ViserServer, client: viser.ClientHandle | None, uuid: str) -> Any:
    """Return the input on the page (shared, or private to this browser) with a uuid.

    Raises Unacceptable: there is no such input, or nobody can use it now: it is disabled or hidden.
    """
    handle = _handle(server, client, "_gui_input_handle_from_uuid", uuid)
    props = handle._impl.props
    # viser counts what only shows something among its inputs: a progress bar is neither on nor off.
    off = getattr(props, "disabled", True) or not getattr(props, "visible", True)
    if off or not _containers_visible(server, handle):
        raise Unacceptable("control off")
    return handle


def _handle(server: viser.ViserServer, client: viser.ClientHandle | None, handles: str, uuid: str) -> Any:
    found = [getattr(gui, handles)[uuid] for gui in _guis(server, client) if uuid in getattr(gui, handles)]
    if not found:
        raise Unacceptable("control")
    return found[0]


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


_FAR_AWAY = 1e9  # scene units; beyond, float32 has nothing to tell apart

# NaN is within no bounds, and a bool is no number.
_Coordinate = Annotated[float, Meta(ge=-_FAR_AWAY, le=_FAR_AWAY)]
_Unit = Annotated[float, Meta(ge=-2.0, le=2.0)]
_Screen = Annotated[float, Meta(ge=-10.0, le=10.0)]
_Depth = Annotated[float, Meta(ge=1e-9, le=1e12)]
_Pixels = Annotated[int, Meta(ge=1, le=16384)]  # a collapsed window has 0: nothing can be rendered for it
_Index = Annotated[int, Meta(ge=0, le=2**31)]
_Part = Annotated[int, Meta(ge=0, le=100_000)]
_Id, _Name = Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=1024)]
_LongText = Annotated[str, Meta(max_length=65_536)]
_FileName = Annotated[str, Meta(max_length=255)]
_Quat, _Vector = tuple[_Unit, _Unit, _Unit, _Unit], tuple[_Coordinate, _Coordinate, _Coordinate]


def _or_none(kind: Any) -> Any:
    return kind | None


# The messages that the page of viser sends for what the studio uses, with all their fields. Left out, because
# the studio has no use for them: forms, buttons that are held down, dragging and rectangles in the scene,
# renders made by the browser, and the public tunnel.
_FIELDS: dict[str, dict[str, Any]] = {
    "ViewerCameraMessage": {
        "wxyz": _Quat,
        "position": _Vector,
        "fov": Annotated[float, Meta(ge=1e-3, le=3.1415)],
        "near": _Depth,
        "far": _Depth,
        "image_height": _Pixels,
        "image_width": _Pixels,
        "look_at": _Vector,
        "up_direction": _Vector,
    },
    "GuiUpdateMessage": {"uuid": _Id, "updates": dict[str, Any]},
    "CommandTriggerMessage": {"uuid": _Id},
    "SceneNodeClickMessage": {
        "name": _Name,
        "instance_index": _or_none(_Index),
        "ray_origin": _Vector,
        "ray_direction": _Vector,
        "screen_pos": tuple[_Screen, _Screen],
        "modifier": _or_none(_Id),
        "owner": _Id,
    },
    "ScenePointerMessage": {
        "event_type": Literal["click"],
        "ray_origin": _Vector,
        "ray_direction": _Vector,
        "screen_pos": tuple[tuple[_Screen, _Screen]],
        "modifier": _or_none(_Id),
    },
    "TransformControlsUpdateMessage": {"name": _Name, "wxyz": _Quat, "position": _Vector, "owner": _Id},
    "TransformControlsDragStartMessage": {"name": _Name, "owner": _Id},
    "TransformControlsDragEndMessage": {"name": _Name, "owner": _Id},
    "FileTransferStartUpload": {
        "source_component_uuid": _Id,
        "transfer_uuid": _Id,
        "filename": _FileName,
        "mime_type": _FileName,
        "part_count": _Part,
        "size_bytes": Annotated[int, Meta(ge=0, le=2**40)],
    },
    "FileTransferPart": {
        "source_component_uuid": _Id,
        "transfer_uuid": _Id,
        "part_index": _Part,
        "content": bytes,
    },
    "LocalStorageGetItemResponseMessage": {
        "value": _or_none(_LongText),
        "error": _or_none(_Name),
        "request_uuid": _Id,
    },
}
_KINDS = {
    name: msgspec.defstruct(name, [*fields.items()], tag=True, forbid_unknown_fields=True)
    for name, fields in _FIELDS.items()
}


class _Kind(msgspec.Struct):
    """What any message calls itself."""

    type: str


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
        if kind == "GuiUpdateMessage":
            handle = find_control(server, client, message["uuid"])
            if message["updates"].keys() != {"value"}:
                raise Unacceptable("attribute")
            message["updates"]["value"] = acceptable_value(handle, message["updates"]["value"], self._limits)
        elif kind == "CommandTriggerMessage":
            if _handle(server, client, "_command_handle_from_uuid", message["uuid"])._impl.props.disabled:
                raise Unacceptable("control off")
        elif kind == "FileTransferStartUpload":
            self._start_upload(message, server, client)
        elif kind == "FileTransferPart":
            self._continue_upload(message)
        # Encoded again: viser reads what has been checked, not what a second reading of the bytes might give.
        return msgspec.msgpack.encode(message)

    def _start_upload(
        self, message: dict[str, Any], server: viser.ViserServer, client: viser.ClientHandle | None
    ) -> None:
        handle = find_control(server, client, message["source_component_uuid"])
        size, num_parts, uuid = message["size_bytes"], message["part_count"], message["transfer_uuid"]
        fine = (
            isinstance(handle, viser.GuiUploadButtonHandle)
            and _is_plain_file_name(message["filename"])
            and size <= self._limits.max_upload_bytes
            and len(self._uploads) < self._limits.max_uploads
            # At least a byte in each part, and no part in a file without bytes.
            and (num_parts > 0) == (size > 0)
            and num_parts <= size
            # A transfer of another browser must not be taken over.
            and all(uuid not in gui._current_file_upload_states for gui in _guis(server, client))
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
    name = ""
    try:
        name = msgspec.msgpack.decode(raw, type=_Kind).type
        if name not in _KINDS:
            raise Unacceptable("message type")
        decoded = msgspec.msgpack.decode(raw, type=_KINDS[name])
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise Unacceptable("camera" if name == "ViewerCameraMessage" else "damaged") from error
    message = msgspec.to_builtins(decoded, builtin_types=(bytes,))
    directions = [message[field] for field in ("wxyz", "up_direction") if field in message]
    if not all(sum(x * x for x in direction) > 1e-12 for direction in directions):
        raise Unacceptable("camera" if name == "ViewerCameraMessage" else "damaged")
    if "near" in message and not message["near"] < message["far"]:
        raise Unacceptable("camera")
    return message


def _is_plain_file_name(name: str) -> bool:
    return name not in {"", ".", ".."} and name.isprintable() and not set(name) & {"/", "\\", ":"}
