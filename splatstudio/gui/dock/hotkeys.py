"""The page's keys: each is a command of viser's palette (Ctrl+K), which lists them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import viser

# viser's camera moves with these, and with the arrow keys.
CAMERA_KEYS = frozenset("WASDQE")


@dataclass(frozen=True)
class Hotkey:
    """A command: the `key` that gives it, what it is called, and what it does.

    `action` gets the browser that gave it, and runs in a thread of viser's pool. `key` is a capital letter or
    one of viser's names ("space"), None for a command that is in the palette only; with `control` it is held
    together with Ctrl (Cmd on a Mac). What is typed into a text field gives no commands.
    """

    key: str | None
    label: str
    action: Callable[[viser.ClientHandle], None]
    description: str | None = None
    control: bool = False


class Hotkeys:
    """All commands of the page; the panel that owns an action adds its key."""

    def __init__(self, server: viser.ViserServer):
        self._server = server
        self._taken: dict[tuple[str, bool], str] = {}

    def add(self, hotkey: Hotkey) -> viser.CommandHandle:
        """Register a command for all browsers and return its handle: set `disabled` while it cannot be given.

        Two actions on one key, or one on a key that moves the camera, are mistakes of the program.
        """
        if hotkey.key is not None:
            place = (hotkey.key, hotkey.control)
            assert place not in self._taken, f"{hotkey.label}: {hotkey.key} is {self._taken[place]}"
            assert hotkey.control or hotkey.key not in CAMERA_KEYS, f"{hotkey.key} moves the camera"
            self._taken[place] = hotkey.label
        handle = self._server.gui.add_command(
            hotkey.label,
            description=hotkey.description,
            hotkey=hotkey.key,  # type: ignore[arg-type] - viser lists its keys one by one
            modifier="cmd/ctrl" if hotkey.control else None,
        )

        @handle.on_trigger
        def _(event: viser.CommandEvent) -> None:
            if event.client is not None:
                hotkey.action(event.client)

        return handle
