"""The ways between processes: messages as bytes, the queue that never blocks its writer, the frame slots."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splatstudio.cameras.camera import Camera
from splatstudio.cameras.camera_path import CameraPath, Keyframe
from splatstudio.gaussians.change import Change
from splatstudio.runtime import messages
from splatstudio.runtime.channel.codec import concrete, decode, decode_order, encode, encode_order
from splatstudio.runtime.channel.frame_slots import FrameSlots
from splatstudio.runtime.channel.mailbox import Outbox

TIMEOUT = 120.0


CAMERA = Camera(np.eye(4), np.array([[50.0, 0, 32], [0, 50.0, 24], [0, 0, 1]]), 64, 48)
PATH = CameraPath((Keyframe(np.eye(4), 1.0, None, "a"), Keyframe(np.eye(4), 0.9, 2.0)), loop=True, fps=24.0)


def test_messages_load_without_torch_and_are_frozen() -> None:
    code = "import sys, splatstudio.runtime.channel.codec; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    for kind in (*concrete(messages.Command), *concrete(messages.Event)):
        assert kind.__struct_config__.frozen, kind


@pytest.mark.parametrize(
    "message",
    [
        messages.Densified(3, 9, Change(cloned=2, opacities_reset=True)),
        messages.PhotoErrors(3, (("a.png", 20.5), ("b.png", 30.0))),
        messages.SettingChanged(3, "optim.means_lr", 1e-5),
        messages.SettingChanged(3, "background", (0.0, 1.0, 0.5)),
        messages.Evaluated(3, 20.0, 0.9, 2, Path("/run/eval")),
        messages.Evaluated(3, 20.0, 0.9, 2, None),
        messages.RanksReport(
            3, (messages.RankFigures(0, 10, 0.1, 0.01), messages.RankFigures(1, 9, 0.1, 0.02))
        ),
        messages.Finished(3, False, Path("/run/ckpts/step_3")),
        messages.UpdateSettings(
            (("optim.means_lr", 1e-5), ("densify.absgrad", True), ("eval_steps", (7, 9)))
        ),
        messages.Step(3),
        messages.WritePart(Path("/run/ckpts/.staging")),
    ],
)
def test_messages_come_through_as_they_are(message: messages.Command | messages.Event) -> None:
    assert (
        decode(encode(message), messages.Command if isinstance(message, messages.Command) else messages.Event)
        == message
    )


@pytest.mark.parametrize(
    "command",
    [
        messages.SetView(
            3, 9, CAMERA, messages.ViewOptions((0.1, 0.2, 0.3), False, "depth", 0.5, 0.01, None, 2, True, 1)
        ),
        messages.Export(
            Path("exports/a.ply"),
            upright=True,
            cameras=(("a", CAMERA),),
            first=CAMERA,
            eyes=((1.0, 2.0, 3.0),),
        ),
        messages.RenderPath(PATH, Path("renders/a.mp4"), "small", messages.ViewOptions(), job=4),
        messages.Snapshot(CAMERA, Path("renders/a.png"), job=5),
        messages.DrawCopy(4, (messages.ViewRequest(CAMERA, messages.ViewOptions(splat_scale=0.1)),)),
    ],
)
def test_commands_with_cameras_come_through_to_the_last_digit(command: messages.Command) -> None:
    _ = PATH.arrivals  # what is derived does not travel
    number, again = decode_order(encode_order(command, 7))
    assert number == 7 and type(again) is type(command) and encode(again) == encode(command)


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"\x81", encode({"type": "Step", "count": True}), encode([1])]
)
def test_what_is_no_message_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="this is no Command"):
        decode(data, messages.Command)


def test_names_of_files_that_are_no_text_come_through() -> None:
    name = os.fsdecode(b"tabl\xe9.jpg")
    errors = decode(encode(messages.PhotoErrors(1, ((name, 20.0),))), messages.Event)
    assert errors == messages.PhotoErrors(1, (("tabl\\xe9.jpg", 20.0),))
    half_a_letter = messages.Warned("a \ud83d")
    assert decode(encode(half_a_letter), messages.Event) == messages.Warned("a \\ud83d")
    assert decode(encode(Path(name)), Path) == Path(name), "a path is still that of the file"


def test_an_outbox_never_blocks_and_keeps_the_newest_of_a_key() -> None:
    ours, theirs = Pipe()
    outbox: Outbox[Any] = Outbox(ours.send, "test")
    big = bytes(300_000)  # more than a pipe holds: the sender waits, the writer does not
    start = time.monotonic()
    outbox.put(("first", big))
    for number in range(100):
        outbox.put(("view", number, big), key="view")
        outbox.put(("order", number))
    assert time.monotonic() - start < TIMEOUT, "it waited for who does not read"
    received = []
    while not received or received[-1] != ("order", 99):
        assert theirs.poll(TIMEOUT)
        received.append(theirs.recv())
    orders = [message[1] for message in received if message[0] == "order"]
    views = [message[1] for message in received if message[0] == "view"]
    assert orders == list(range(100)), "orders are never dropped nor swapped"
    assert views[-1] == 99 and len(views) < 10
    theirs.close()
    outbox.put("nobody listens")
    outbox.put("any more")
    assert outbox.flush(5.0)


def test_an_outbox_that_nobody_empties_drops_the_oldest(caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = Pipe()
    outbox: Outbox[Any] = Outbox(ours.send, "events", limit=50)
    big = bytes(300_000)  # more than a pipe holds: the sender waits with the first
    for number in range(1000):
        outbox.put((number, big))
    assert caplog.text.count("nobody reads the events") == 1
    received = []
    while not received or received[-1] != 999:
        assert theirs.poll(TIMEOUT)
        received.append(theirs.recv()[0])
    assert received == sorted(received) and received[-50:] == list(range(950, 1000))
    assert len(received) < 70
    outbox.close()


def test_frame_slots_are_shared_and_leave_nothing_behind() -> None:
    slots = FrameSlots.create(num_slots=2, slot_bytes=300)
    assert os.fstat(slots.file.opened.fileno()).st_nlink == 0, "no name that could be left behind"
    attached = FrameSlots.attach(slots.file)
    attached.view(1, 5, 4)[:] = 7
    assert (slots.view(1, 5, 4) == 7).all() and (slots.view(0, 5, 4) == 0).all()
    slots.close()
    slots.close()
    attached.view(0, 2, 2)[:] = 9
    assert (slots.view(0, 2, 2) == 9).all(), "mapped memory outlives the open file"


def test_frame_slots_fall_back_to_a_temporary_file(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.posix_fallocate
    refused: list[int] = []

    def full(descriptor: int, offset: int, length: int) -> None:
        if not refused:
            refused.append(length)
            raise OSError(28, "No space left on device")
        real(descriptor, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", full)
    folders: list[Path] = []
    opened = tempfile.TemporaryFile

    def noted(**arguments: Any) -> Any:
        folders.append(arguments["dir"])
        return opened(**arguments)

    monkeypatch.setattr(tempfile, "TemporaryFile", noted)
    slots = FrameSlots.create(num_slots=1, slot_bytes=300)
    assert refused and folders == [Path("/dev/shm"), Path(tempfile.gettempdir())]
    slots.view(0, 2, 2)[:] = 3
    slots.close()


@pytest.mark.parametrize("text", [b"\xff\xfe", b"x" * 5000])
def test_what_is_wrong_with_a_message_is_told_in_short(text: bytes) -> None:
    head = b"\x82\xa4type\xa4Step\xa5count" + b"\xda" + len(text).to_bytes(2, "big")
    with pytest.raises(ValueError) as caught:
        decode(head + text, messages.Command)
    assert type(caught.value) is ValueError and str(caught.value).startswith("this is no Command: ")
    assert len(str(caught.value)) < 300
