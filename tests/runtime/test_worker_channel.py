"""The wires between the studio and the worker: messages, the queue that never blocks, the frame slots."""

from __future__ import annotations

import os
import pickle
import tempfile
import time
from dataclasses import fields, is_dataclass
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splatstudio.cameras.camera import Camera
from splatstudio.runtime import messages
from splatstudio.runtime.channel.frame_slots import FrameSlots
from splatstudio.runtime.channel.mailbox import Outbox
from splatstudio.runtime.messages import SetView

TIMEOUT = 120.0


def test_messages_are_frozen_and_pickle() -> None:
    kinds = [
        kind
        for kind in vars(messages).values()
        if isinstance(kind, type) and issubclass(kind, (messages.Command, messages.Event))
    ]
    assert len(kinds) > 20
    for kind in kinds:
        if kind in (messages.Command, messages.Event):
            continue
        assert is_dataclass(kind) and kind.__dataclass_params__.frozen, kind  # type: ignore[attr-defined]
        assert not any("Tensor" in str(f.type) for f in fields(kind)), kind
    camera = Camera(np.eye(4), np.eye(3), 4, 3)
    again = pickle.loads(pickle.dumps(SetView(1, 2, camera)))
    assert again.seq == 2 and np.array_equal(again.camera.K, camera.K)


def test_an_outbox_never_blocks_and_keeps_the_newest_of_a_key() -> None:
    ours, theirs = Pipe()
    outbox = Outbox(ours, "test")
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
    outbox = Outbox(ours, "events", limit=50)
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
