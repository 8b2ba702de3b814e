"""What is taken from viser's inside is still there."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import viser

from splatstudio.gui.server import viser_private
from splatstudio.gui.server.access import Listen
from splatstudio.gui.server.gate import SharedEvent, open_server


def test_viser_still_has_what_the_viewport_takes_from_its_inside() -> None:
    server = viser.ViserServer(host="127.0.0.1", port=0, verbose=False)
    try:
        queued: list[Any] = []
        client = cast(
            viser.ClientHandle, type("Client", (), {"scene": server.scene, "flush": lambda self: None})()
        )
        original = server.scene._websock_interface.queue_message
        server.scene._websock_interface.queue_message = queued.append  # type: ignore[method-assign]
        viser_private.push_background_jpeg(client, b"jpeg")
        server.scene._websock_interface.queue_message = original  # type: ignore[method-assign]
        queued_ours = replace(queued[0])
        # The public call must still send the same kind of message, with the same fields.
        server.scene._websock_interface.queue_message = queued.append  # type: ignore[method-assign]
        server.scene.set_background_image(np.zeros((4, 4, 3), np.uint8), format="jpeg")
        assert type(queued[-1]) is type(queued_ours) and queued[-1].format == "jpeg"
        assert isinstance(queued[-1].rgb_data, bytes) and queued_ours.rgb_data == b"jpeg"
        server.scene._websock_interface.queue_message = original  # type: ignore[method-assign]
    finally:
        server.stop()


def test_a_camera_is_sent_where_it_was_whatever_the_browser_said_last() -> None:
    queued: list[Any] = []
    scene = SimpleNamespace(_websock_interface=SimpleNamespace(queue_message=queued.append))
    client = cast(viser.ClientHandle, SimpleNamespace(scene=scene, atomic=contextlib.nullcontext))
    view = {"fov": 1.0, "position": (1, 2, 3), "look_at": np.ones(3), "up_direction": (0.0, 0.0, 1.0)}
    viser_private.place_camera(client, view)
    assert [vars(message) for message in queued] == [
        {"fov": 1.0, "initial": False},
        {"position": (1.0, 2.0, 3.0), "initial": False},
        {"look_at": (1.0, 1.0, 1.0), "initial": False},
        {"position": (0.0, 0.0, 1.0), "initial": False},
    ]


def test_a_message_from_any_thread_wakes_who_waits_in_the_event_loop_alone() -> None:
    """A thread that sends must not touch the waiters, which the event loop may be changing."""
    event, waiting, woken = SharedEvent(), threading.Event(), threading.Event()
    touched: list[int] = []

    class Waiters(collections.deque):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[Any]:
            touched.append(threading.get_ident())
            return super().__iter__()

    async def wait() -> None:
        event._waiters = Waiters()  # type: ignore[attr-defined]
        asyncio.get_running_loop().call_soon(waiting.set)
        await event.wait()
        woken.set()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(wait(),))
    thread.start()
    assert waiting.wait(10)
    event.set()
    assert touched == [] and event.is_set() and not woken.wait(0.2)
    loop.call_soon_threadsafe(event.set)  # as viser does right after
    assert woken.wait(10)
    thread.join()
    loop.close()


def test_viser_sends_by_such_an_event() -> None:
    gated = open_server(Listen(port=0), token="a-token-of-16-characters")
    try:
        assert isinstance(gated.server._websock_server._broadcast_buffer.message_event, SharedEvent)
    finally:
        gated.stop()
