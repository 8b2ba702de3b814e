"""What a browser may say: messages, values, files, how much of them, and how fast."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import math
import random
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import viser
import viser._messages
from gate_client import CAMERA, TOKEN, client, refused_for, send, stamps, wait, websocket
from websockets.exceptions import ConnectionClosed
from websockets.sync.connection import Connection

from splatstudio.gui.server.access import Listen
from splatstudio.gui.server.allowed_browser_messages import GateLimits, MessageFilter, Unacceptable
from splatstudio.gui.server.gate import GatedServer, open_server

BAD_VALUES: list[tuple[str, object]] = [
    *(("slider", value) for value in (1e9, -0.2, math.nan, math.inf, "abc", "0.5", None, True, [0.5], {})),
    *(("int slider", value) for value in (11, -1, 2.5, False)),
    *(("multi", value) for value in ([2], [2, 8, 9], [8, 2], [2, 11], [2, math.nan], 5, "28")),
    *(("number", value) for value in (math.nan, -math.inf, "1", None, 1e300)),
    *(("bounded", value) for value in (0, 101, 3.5)),
    *(("text", value) for value in (5, None, "x" * 20_000, b"bytes")),
    *(("check", value) for value in (1, "true", None)),
    *(("choice", value) for value in ("normals", "", None, ["rgb"], 0)),
    *(("group", value) for value in ("blend", True)),
    *(("button", value) for value in (False, 1, "x")),
    *(("upload", value) for value in (True, b"", {"name": "x", "content": b""})),
    *(("rgb", value) for value in ([256, 0, 0], [-1, 0, 0], [0.5, 0, 0], [0, 0])),
    *(("vector", value) for value in ([-2, 0, 0], [math.nan, 0, 0], [0, 0], ["a", 0, 0])),
]


@pytest.fixture(scope="module")
def gated() -> Iterator[GatedServer]:
    server = open_server(Listen(port=0), token=TOKEN)
    yield server
    server.stop()


@pytest.fixture
def browser(gated: GatedServer) -> Iterator[Connection]:
    gated.server.gui.reset()
    gated.server.scene.reset()
    with client(gated) as connection:
        yield connection


def update(handle: Any, value: object, attribute: str = "value") -> dict[str, Any]:
    return {"type": "GuiUpdateMessage", "uuid": handle._impl.uuid, "updates": {attribute: value}}


def test_the_public_tunnel_cannot_be_opened(gated: GatedServer, browser: Connection) -> None:
    for kind in ("ShareUrlRequest", "ShareUrlDisconnect"):
        assert refused_for(gated, browser, {"type": kind}) == "message type"
        # Nor would it do anything if it came through.
        message = getattr(viser._messages, kind)
        assert message not in gated.server._websock_server._incoming_handlers
    with pytest.raises(RuntimeError, match="never shared"):
        gated.server.request_share_url()


def test_messages_the_studio_does_not_need_are_dropped(gated: GatedServer, browser: Connection) -> None:
    button = gated.server.gui.add_button("Go")
    for message in (
        {"type": "GuiButtonHoldMessage", "uuid": button._impl.uuid, "frequency": 10.0},
        {"type": "GuiFormDirtyMessage", "uuid": "x"},
        {"type": "RunJavascriptMessage", "source": "alert(1)"},
        {"type": "ResetGuiMessage"},
        {"type": "Message"},
        {"type": "no such message"},
    ):
        assert refused_for(gated, browser, message) == "message type", message


def test_damaged_messages_are_dropped_and_the_browser_stays(gated: GatedServer, browser: Connection) -> None:
    deep = b"\x91" * 50_000 + b"\xc0"
    for message in (
        b"",
        b"\xc1",
        b"\xff" * 100,
        deep,
        "text",
        b"\x81\xa4type",  # cut off
        b"\xdf\xff\xff\xff\xff",  # four billion entries announced
        [],
        {},
        {"type": 7},
        {"type": ["ViewerCameraMessage"]},
        {"type": "CommandTriggerMessage"},
        {"type": "CommandTriggerMessage", "uuid": 5},
        {"type": "CommandTriggerMessage", "uuid": "x" * 1000},
        {"type": "CommandTriggerMessage", "uuid": "x", "excluded_self_client": 1},
        {"type": "GuiUpdateMessage", "uuid": "x", "updates": [1]},
        {"type": "FileTransferPart", "source_component_uuid": None, "transfer_uuid": 1},
    ):
        assert refused_for(gated, browser, message) == "damaged", message
    assert gated.gate.num_clients == 1


def test_bytes_at_random_never_harm(gated: GatedServer) -> None:
    """Messages with bytes changed, cut off, or made up: passed on by name or dropped, never another error."""
    chance = random.Random(5)
    messages = [msgspec.msgpack.encode(CAMERA), msgspec.msgpack.encode({"type": "CommandTriggerMessage"})]
    message_filter = MessageFilter(GateLimits())
    passed = dropped = 0
    for _ in range(5000):
        raw = bytearray(chance.choice(messages))
        for _ in range(chance.randrange(1, 4)):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        raw = raw[: chance.randrange(len(raw))] if chance.random() < 0.2 else raw
        try:
            message = viser._messages.Message.deserialize(
                message_filter.passed(bytes(raw), gated.server, None)
            )
            assert isinstance(message, viser._messages.ViewerCameraMessage)
            numbers = [message.fov, message.near, message.far, *message.wxyz, *message.position]
            assert all(map(math.isfinite, numbers))
            passed += 1
        except Unacceptable:
            dropped += 1
    assert passed > 100 and dropped > 1000


@pytest.mark.parametrize(
    "change",
    [
        {"image_width": 10**9, "image_height": 10**9},
        {"image_width": 16385},
        {"image_height": 0},
        {"image_height": -5},
        {"image_height": 720.5},
        {"image_width": True},
        {"fov": math.nan},
        {"fov": 0},
        {"fov": 4.0},
        {"near": 5.0, "far": 1.0},
        {"far": math.inf},
        {"position": [0, 0, math.nan]},
        {"position": [0, 0, 1e300]},
        {"position": [0, 0]},
        {"position": [0, 0, "1"]},
        {"position": None},
        {"wxyz": [0, 0, 0, 0]},
        {"look_at": [math.inf, 0, 0]},
        {"up_direction": [0, 0, 0]},
    ],
    ids=str,
)
def test_impossible_cameras_are_dropped(
    gated: GatedServer, browser: Connection, change: dict[str, Any]
) -> None:
    assert refused_for(gated, browser, {**CAMERA, **change}) == "camera"


def test_the_largest_camera_passes(gated: GatedServer, browser: Connection) -> None:
    assert refused_for(gated, browser, {**CAMERA, "image_width": 16384}) is None


def test_attributes_of_the_server_cannot_be_set(gated: GatedServer, browser: Connection) -> None:
    number = gated.server.gui.add_number("n", 1.0)
    number.on_update(lambda _: None)
    for attribute, value in (
        ("removed", True),
        ("update_cb", []),
        ("props", {}),
        ("uuid", "x"),
        ("label", "x"),
    ):
        assert refused_for(gated, browser, update(number, value, attribute)) == "attribute"
    both = {**update(number, 2.0), "updates": {"value": 2.0, "removed": True}}
    assert refused_for(gated, browser, both) == "attribute"
    assert refused_for(gated, browser, {**update(number, 1), "updates": {}}) == "attribute"
    assert number.value == 1.0 and not number._impl.removed and len(number._impl.update_cb) == 1


def inputs(gui: viser.GuiApi) -> dict[str, Any]:
    """One input of each kind that the studio's page has."""
    return {
        "slider": gui.add_slider("s", min=0.0, max=1.0, step=0.1, initial_value=0.5),
        "int slider": gui.add_slider("i", min=0, max=10, step=1, initial_value=5),
        "coarse slider": gui.add_slider("c", min=1 / 3, max=1.5, step=0.1, initial_value=0.5),
        "multi": gui.add_multi_slider("m", min=0, max=10, step=1, initial_value=(2, 8)),
        "number": gui.add_number("n", 1.0),
        "bounded": gui.add_number("b", 10, min=1, max=100, step=1),
        "text": gui.add_text("t", "hello"),
        "check": gui.add_checkbox("c", False),
        "choice": gui.add_dropdown("d", ("rgb", "depth")),
        "group": gui.add_button_group("g", ("off", "split")),
        "button": gui.add_button("B"),
        "upload": gui.add_upload_button("U"),
        "rgb": gui.add_rgb("rgb", (1, 2, 3)),
        "vector": gui.add_vector3("v", (0.0, 0.0, 0.0), min=(-1.0, -1.0, -1.0)),
    }


def test_values_that_do_not_fit_are_dropped(gated: GatedServer, browser: Connection) -> None:
    handles = inputs(gated.server.gui)
    calls: list[Any] = []
    for handle in handles.values():
        handle._impl.update_cb.append(calls.append)
    before = {name: handle.value for name, handle in handles.items()}
    for name, value in BAD_VALUES:
        assert refused_for(gated, browser, update(handles[name], value)) == "value", (name, value)
    assert {name: handle.value for name, handle in handles.items()} == before
    assert not calls


@pytest.mark.parametrize(
    ("name", "sent", "arrives"),
    [
        ("slider", 1, 1.0),
        ("slider", 0.7, 0.7),
        ("int slider", 10, 10),
        ("coarse slider", 0.3333333, 1 / 3),  # the page rounds to 7 digits
        ("coarse slider", 1, 1.0),
        ("multi", [3, 7], (3, 7)),
        ("number", -7, -7.0),
        ("bounded", 100, 100),
        ("text", "ß\n", "ß\n"),
        ("check", True, True),
        ("choice", "depth", "depth"),
        ("rgb", [255, 0, 9], (255, 0, 9)),
        ("vector", [1, 2.5, -1], (1.0, 2.5, -1.0)),
    ],
)
def test_good_values_arrive(
    gated: GatedServer, browser: Connection, name: str, sent: object, arrives: object
) -> None:
    handle = inputs(gated.server.gui)[name]
    assert refused_for(gated, browser, update(handle, sent)) is None
    assert handle.value == arrives and type(handle.value) is type(arrives)


def test_buttons_commands_and_clicks_arrive(gated: GatedServer, browser: Connection) -> None:
    server, calls = gated.server, []
    handles = inputs(server.gui)
    handles["button"].on_click(lambda _: calls.append("button"))
    handles["group"].on_click(lambda _: calls.append("group"))
    command = server.gui.add_command("Pause")
    command.on_trigger(lambda _: calls.append("command"))
    gizmo = server.scene.add_transform_controls("/key")
    gizmo.on_update(lambda _: calls.append("gizmo"))
    ball = server.scene.add_icosphere("/ball", radius=1.0)
    ball.on_click(lambda event: calls.append(event.instance_index))
    click = {
        "type": "SceneNodeClickMessage",
        "name": "/ball",
        "instance_index": 17,
        "ray_origin": [0, 0, 1],
        "ray_direction": [0, 0, -1],
        "screen_pos": [0.5, 0.5],
        "modifier": None,
        "owner": "",
    }
    moved = {"name": "/key", "wxyz": [1, 0, 0, 0], "position": [1, 2, 3], "owner": ""}
    for message in (
        update(handles["button"], True),
        update(handles["group"], "split"),
        {"type": "CommandTriggerMessage", "uuid": command._impl.uuid},
        {"type": "TransformControlsDragStartMessage", "name": "/key", "owner": ""},
        {"type": "TransformControlsUpdateMessage", **moved},
        {"type": "TransformControlsDragEndMessage", "name": "/key", "owner": ""},
        click,
    ):
        assert refused_for(gated, browser, message) is None, message
    wait(lambda: {"button", "group", "command", "gizmo", 17} <= set(calls))
    assert tuple(gizmo.position) == (1, 2, 3)
    hostile = {"type": "TransformControlsUpdateMessage", **moved, "position": [math.nan, 0, 0]}
    assert refused_for(gated, browser, hostile) == "damaged"
    assert refused_for(gated, browser, {**click, "instance_index": -1}) == "damaged"


def test_what_is_disabled_or_hidden_cannot_be_used(gated: GatedServer, browser: Connection) -> None:
    gui, calls = gated.server.gui, []
    disabled = gui.add_button("a", disabled=True)
    hidden = gui.add_slider("b", min=0, max=9, step=1, initial_value=1, visible=False)
    with gui.add_tab_group().add_tab("t"), gui.add_folder("outer", visible=False), gui.add_folder("inner"):
        inside = gui.add_checkbox("c", False)
    gone = gui.add_button("d")
    command = gui.add_command("e", disabled=True)
    for handle in (disabled, hidden, inside, gone):
        handle._impl.update_cb.append(calls.append)
    gone.remove()
    assert refused_for(gated, browser, update(disabled, True)) == "control off"
    assert refused_for(gated, browser, update(hidden, 5)) == "control off"
    assert refused_for(gated, browser, update(inside, True)) == "control off"
    assert refused_for(gated, browser, update(gone, True)) == "control"
    trigger = {"type": "CommandTriggerMessage", "uuid": command._impl.uuid}
    assert refused_for(gated, browser, trigger) == "control off"
    assert refused_for(gated, browser, {**trigger, "uuid": "unknown"}) == "control"
    assert not calls and hidden.value == 1 and inside.value is False
    disabled.disabled = False
    assert refused_for(gated, browser, update(disabled, True)) is None
    wait(lambda: len(calls) == 1)


def test_private_controls_are_for_their_own_browser(gated: GatedServer, browser: Connection) -> None:
    (handle,) = gated.server.get_clients().values()
    private = handle.gui.add_slider("p", min=0, max=9, step=1, initial_value=1)
    assert refused_for(gated, browser, update(private, 4)) is None
    assert private.value == 4
    with websocket(gated.port) as other:
        before = gated.gate.refused["control"]
        send(other, CAMERA)
        send(other, update(private, 7))
        wait(lambda: gated.gate.refused["control"] == before + 1)
    assert private.value == 4


def upload_messages(handle: Any, name: str, parts: list[bytes], **changes: object) -> list[dict[str, Any]]:
    ids = {"source_component_uuid": handle._impl.uuid, "transfer_uuid": f"transfer-{next(stamps)}"}
    size = sum(map(len, parts))
    about = {"filename": name, "mime_type": "", "size_bytes": size, "part_count": len(parts)}
    start = {"type": "FileTransferStartUpload", **ids, **about, **changes}
    rest = [{"type": "FileTransferPart", **ids, "part_index": i, "content": p} for i, p in enumerate(parts)]
    return [start, *rest]


def test_uploads_arrive_whole(gated: GatedServer, browser: Connection) -> None:
    upload = gated.server.gui.add_upload_button("Load")
    for name, parts in (("path one.json", [b"abc" * 1000, b"de"]), ("empty.json", [])):
        for message in upload_messages(upload, name, parts):
            assert refused_for(gated, browser, message) is None
        assert (upload.value.name, upload.value.content) == (name, b"".join(parts))


@pytest.mark.parametrize(
    "changes",
    [
        {"filename": "../../../etc/cron.d/x"},
        {"filename": "..\\x"},
        {"filename": ".."},
        {"filename": "c:x"},
        {"filename": "a\x00b"},
        {"filename": ""},
        {"size_bytes": 17 * 2**20},
        {"size_bytes": 0},
        {"part_count": 0},
        {"part_count": 99_999},
    ],
    ids=str,
)
def test_hostile_uploads_are_refused(gated: GatedServer, browser: Connection, changes: dict) -> None:
    upload = gated.server.gui.add_upload_button("Load")
    start, part = upload_messages(upload, "a.json", [b"abcd"], **changes)
    assert refused_for(gated, browser, start) == "upload"
    assert refused_for(gated, browser, part) == "upload"
    assert upload.value.name == ""


def test_an_upload_sends_no_more_than_announced(gated: GatedServer, browser: Connection) -> None:
    upload = gated.server.gui.add_upload_button("Load")
    start, first, second = upload_messages(upload, "a.json", [b"abcd", b"efgh"])
    assert refused_for(gated, browser, start) is None
    assert refused_for(gated, browser, start) == "upload"  # twice
    assert refused_for(gated, browser, {**first, "content": b"x" * 1_000_000}) == "upload"
    assert refused_for(gated, browser, {**first, "part_index": 2}) == "upload"
    assert refused_for(gated, browser, {**first, "source_component_uuid": "other"}) == "upload"
    with websocket(gated.port) as other:  # nor can another browser add to it
        send(other, CAMERA)
        before = gated.gate.refused["upload"]
        send(other, second)
        wait(lambda: gated.gate.refused["upload"] == before + 1)
    wait(lambda: gated.gate.num_clients == 1)
    assert refused_for(gated, browser, first) is None
    assert refused_for(gated, browser, first) == "upload"  # the same part again
    assert refused_for(gated, browser, second) is None
    assert upload.value.content == b"abcdefgh"
    button = gated.server.gui.add_button("not for files")
    assert refused_for(gated, browser, upload_messages(button, "a", [b"x"])[0]) == "upload"
    for _ in range(GateLimits().max_uploads):
        assert refused_for(gated, browser, upload_messages(upload, "a", [b"x"])[0]) is None
    assert refused_for(gated, browser, upload_messages(upload, "a", [b"x"])[0]) == "upload"


def test_a_large_message_closes_only_its_own_connection(gated: GatedServer, browser: Connection) -> None:
    with websocket(gated.port) as hostile:
        before = gated.gate.refused["large"]
        with pytest.raises(ConnectionClosed) as closed, contextlib.redirect_stderr(io.StringIO()):
            hostile.send(b"x" * (4 * 2**20 + 1))
            while True:
                hostile.recv(timeout=60)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009
    wait(lambda: gated.gate.refused["large"] == before + 1)
    assert refused_for(gated, browser, CAMERA) is None


class Clock:
    """The module asyncio, noting how long the gate lets messages wait."""

    def __init__(self) -> None:
        self.waited = 0.0

    async def sleep(self, seconds: float) -> None:
        self.waited += seconds
        await asyncio.sleep(seconds)


def test_a_flood_is_slowed_to_the_limit_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("splatstudio.gui.server.gate.asyncio", clock)
    gated = open_server(Listen(port=0), token=TOKEN, limits=GateLimits(messages_per_second=50.0))
    try:
        cameras: list[float] = []
        with client(gated) as connection:
            (handle,) = gated.server.get_clients().values()

            @handle.camera.on_update
            async def _(camera: viser.CameraHandle) -> None:
                cameras.append(camera.position[0])

            start = time.monotonic()
            for step in range(120):
                send(connection, {**CAMERA, "position": [step, 0, 0]})
            wait(lambda: len(cameras) == 120)
            seconds = time.monotonic() - start
        assert cameras == list(range(120))
        # 50 at once, then 50 a second; what a busy machine takes beyond that is not the gate's doing. After
        # a sleep that it draws out the next messages need not wait: how many do is left open.
        assert seconds > 1.3 and clock.waited < 2.0
        assert gated.gate.refused["fast"] > 0
    finally:
        gated.stop()


def test_no_kind_of_control_makes_the_gate_stumble(gated: GatedServer) -> None:
    """Whatever viser counts among its inputs, a message is passed on or dropped by name."""
    gui = gated.server.gui
    before = set(gui._gui_input_handle_from_uuid)
    adding: list[Any] = [
        lambda: gui.add_progress_bar(50.0),
        lambda: gui.add_button("a"),
        lambda: gui.add_button_group("b", ("x", "y")),
        lambda: gui.add_upload_button("c"),
        lambda: gui.add_checkbox("d", True),
        lambda: gui.add_text("e", "text"),
        lambda: gui.add_number("f", 1.0),
        lambda: gui.add_vector2("g", (0.0, 1.0)),
        lambda: gui.add_vector3("h", (0.0, 1.0, 2.0)),
        lambda: gui.add_dropdown("i", ("x", "y")),
        lambda: gui.add_slider("j", 0.0, 1.0, 0.1, 0.5),
        lambda: gui.add_multi_slider("k", 0, 10, 1, (2, 5)),
        lambda: gui.add_rgb("l", (1, 2, 3)),
        lambda: gui.add_rgba("m", (1, 2, 3, 4)),
    ]
    for add in adding:
        add()
    made = {uuid: handle for uuid, handle in gui._gui_input_handle_from_uuid.items() if uuid not in before}
    assert len(made) == len(adding)
    message_filter, passed = MessageFilter(GateLimits()), set()
    for (uuid, handle), value in itertools.product(
        made.items(), (True, 1, 0.5, "x", [1, 2], [1, 2, 3], None, {})
    ):
        update = {"type": "GuiUpdateMessage", "uuid": uuid, "updates": {"value": value}}
        try:
            message_filter.passed(msgspec.msgpack.encode(update), gated.server, None)
            passed.add(type(handle).__name__)
        except Unacceptable:
            pass
    assert "GuiProgressBarHandle" not in passed and "GuiSliderHandle" in passed
