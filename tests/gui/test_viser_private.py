"""What is taken from viser's inside is still there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import viser

from splatstudio.gui.server import viser_private


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
