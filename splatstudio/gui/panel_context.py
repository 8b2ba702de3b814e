"""What all panels of the page share: what they are built from, and how they are kept up to date."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import viser

from splatstudio.gui.dock.hotkeys import Hotkeys
from splatstudio.gui.state.controller import Controller, Notice
from splatstudio.gui.state.first_view import FirstView
from splatstudio.gui.state.tasks import JobBoard
from splatstudio.gui.state.viewport import Viewport
from splatstudio.runtime.messages import Event


@dataclass(frozen=True, eq=False)
class Page:
    """What a panel is built from. `notify` tells everybody who watches."""

    server: viser.ViserServer
    controller: Controller
    viewport: Viewport
    first_view: FirstView
    hotkeys: Hotkeys
    jobs: JobBoard
    notify: Callable[[Notice], None]


class Panel:
    """A tab of the page. It is built inside of the tab, and adds its keys to `Page.hotkeys`."""

    def refresh(self) -> None:
        """Show what has changed; called about four times a second, always from the same thread."""

    def follow(self, event: Event) -> None:
        """Take in an event of the worker, after the controller has; it must return quickly."""

    def close(self) -> None:
        """Let go of what outlives the page."""
