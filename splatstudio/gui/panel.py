"""What the panels of the page share: what they are built from, keys, fields, and when they refresh."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import viser

from splatstudio.files.path_words import path_words
from splatstudio.formats import free_path
from splatstudio.gui.state.controller import Controller
from splatstudio.gui.state.status import PAUSE, Notice
from splatstudio.gui.state.stream import Viewport
from splatstudio.gui.state.tasks import TaskBoard
from splatstudio.gui.state.viewpoint import FirstView
from splatstudio.runtime.messages import Event
from splatstudio.settings.setting import typed_output

# viser's camera moves with these, and with the arrow keys.
CAMERA_KEYS = frozenset("WASDQE")
REST_SECONDS = 1.0
PRESS_SECONDS = 0.4  # within which a system takes two clicks for a double click
FILE_HINT = "On the machine where the studio runs; a name alone goes where the suggested file would."


def output_path(typed: str, suggested: str) -> Path:
    """Return the file or folder that somebody typed; a name alone goes beside the one that was suggested.

    Raises ValueError as `typed_output` does.
    """
    path = typed_output(typed)
    return Path(suggested).parent / path if len(path.parts) == 1 else path


class Hotkeys:
    """All commands of the page, in viser's palette (Ctrl+K); the panel that owns an action adds its key."""

    def __init__(self, server: viser.ViserServer):
        self._server = server
        self._taken: dict[tuple[str, bool], str] = {}

    @property
    def labels(self) -> list[tuple[str, str]]:
        """Return each key, as it is written on a keyboard, and what it does."""
        words = {"space": "Space"}
        return [
            (f"Ctrl+{key}" if control else words.get(key, key), label)
            for (key, control), label in self._taken.items()
        ]

    def add(
        self,
        key: str | None,
        label: str,
        action: Callable[[viser.ClientHandle], object],
        description: str | None = None,
        *,
        control: bool = False,
    ) -> viser.CommandHandle:
        """Register a command for all browsers and return its handle: set `disabled` while it cannot be given.

        `action` gets the browser that gave it, and runs in a thread of viser's pool. `key` is a capital
        letter or one of viser's names ("space"), None for a command that is in the palette only; with
        `control` it is held together with Ctrl (Cmd on a Mac). What is typed into a text field gives no
        commands. Two actions on one key, or one on a key that moves the camera, are mistakes of the program.
        """
        if key is not None:
            assert (key, control) not in self._taken, f"{label}: {key} is {self._taken[key, control]}"
            assert control or key not in CAMERA_KEYS, f"{key} moves the camera"
            self._taken[key, control] = label
        handle = self._server.gui.add_command(
            label,
            description=description,
            hotkey=key,  # type: ignore[arg-type] - viser lists its keys one by one
            modifier="cmd/ctrl" if control else None,
        )

        @handle.on_trigger
        def _(event: viser.CommandEvent) -> None:
            if event.client is not None:
                action(event.client)

        return handle


class Rest:
    """The time for which a button that has come by itself cannot be pressed yet: REST_SECONDS."""

    def __init__(self, ended: Callable[[], object]):
        """Call `ended` when the time is over, from another thread."""
        self._ended = ended
        self._until: float | None = None  # None: the button is not there

    def is_over(self, there: bool) -> bool:
        """Return whether the button, which is `there` or not now, has been there for so long."""
        now = time.monotonic()
        if there and self._until is None:
            self._until = now + REST_SECONDS
            timer = threading.Timer(REST_SECONDS, self._ended)
            timer.daemon = True
            timer.start()
        self._until = self._until if there else None
        return self._until is not None and now >= self._until


class SinglePress:
    """Takes what is pressed again at once for the press before: a double click, or two pages in one moment.

    By then the button does the opposite: who resumes would pause.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        """Ask `clock` for the time, in seconds."""
        self._clock = clock
        self._last: float | None = None
        self._lock = threading.Lock()

    def counts(self) -> bool:
        """Return whether a press of now is one of its own."""
        with self._lock:
            now = self._clock()
            alone = self._last is None or now - self._last >= PRESS_SECONDS
            self._last = now
            return alone


class ShownMeaning:
    """What a button says: it does nothing else, and rests where Pause became something else by itself.

    Who is about to press Pause as the training ends would train on, or resume what another page has stopped.
    """

    def __init__(self, ended: Callable[[], object]):
        """Call `ended`, from another thread, when a rest is over."""
        self._shown: str | None = None
        self._pressed = self._by_itself = False
        self._rest = Rest(ended)

    def show(self, meaning: str) -> bool:
        """Take note of what the button says from now on, and return whether it can be pressed yet."""
        if meaning != self._shown:
            changed = self._shown == PAUSE or not self._may_be_pressed
            self._by_itself = changed and meaning != PAUSE and not self._pressed
            self._rest.is_over(there=False)  # it begins anew
            self._shown, self._pressed = meaning, False
        return self._may_be_pressed

    def counts(self, meaning: str) -> bool:
        """Return whether a press is for what the button means now; to pause is always meant."""
        if meaning != PAUSE and (self._shown not in (None, meaning) or not self._may_be_pressed):
            return False
        self._pressed = True
        return True

    @property
    def _may_be_pressed(self) -> bool:
        return self._rest.is_over(self._by_itself) or not self._by_itself


class Panel:
    """A tab of the page or a part of one, built inside of the tab; it adds its keys to `Page.hotkeys`.

    What a callback of a control raises is told to the user: ValueError and OSError as what was not done.
    """

    refresh_seconds = 0.25  # at least, between two refreshes
    look_seconds: float | None = None  # how often `look` is called; None: never

    def __init__(self, page: Page):
        self.page, self.controller, self.gui = page, page.controller, page.server.gui
        self._parts: list[Panel | Field] = []
        self._kept: list[tuple[Any, str, Callable[[], Any]]] = []

    def add(self, part: PartType) -> PartType:
        """Refresh a part, or a field, together with this."""
        self._parts.append(part)
        return part

    def keep(self, handle: HandleType, **properties: Callable[[], Any]) -> HandleType:
        """Let the named properties of a control be what these functions return, at each refresh."""
        self._kept += [(handle, name, value) for name, value in properties.items()]
        return handle

    def button(
        self, label: str, press: Callable[[viser.ClientHandle], object], color: Any = "gray", **settings: Any
    ) -> viser.GuiButtonHandle:
        """Add a button; `press` gets the browser in which it was pressed."""
        handle = self.gui.add_button(label, color=color, **settings)
        when_user(handle, lambda client, _: press(client))
        return handle

    def refresh(self) -> None:
        """Show what has changed; called after something has, always from the same thread.

        viser sends a property only when its value has changed: all of them may be set each time.
        """
        for part in self._parts:
            part.refresh()
        for handle, name, value in self._kept:
            setattr(handle, name, value())

    def look(self) -> None:
        """Look at what tells of no change, as the disk; a refresh follows."""

    def follow(self, event: Event) -> None:
        """Take in an event of the worker, after the controller has; it must return quickly."""

    def close(self) -> None:
        """Let go of what outlives the page."""


class Refresher:
    """Refreshes panels soon after something has changed, and lets them look around now and then.

    While nothing happens it does nothing but that.
    """

    def __init__(self, failed: Callable[[Panel, Exception], None]):
        """Call `failed` with a panel that could not be refreshed; the others are refreshed all the same."""
        self.panels: list[Panel] = []
        self._failed = failed
        self._ready: dict[Panel, float] = {}  # from when on each may be refreshed again
        self._looks: dict[Panel, float] = {}  # when each looks around the next time
        self._dirty: set[Panel] = set()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="page", daemon=True)

    def add(self, panel: Panel) -> None:
        """Refresh a panel from `start` on."""
        self.panels.append(panel)
        self._dirty.add(panel)
        self._ready[panel] = 0.0
        if panel.look_seconds is not None:
            self._looks[panel] = 0.0

    def start(self) -> None:
        """Refresh all panels once, and from now on those for which something has changed."""
        self._refresh(time.monotonic())
        self._thread.start()

    def changed(self, panel: Panel | None = None) -> None:
        """Refresh a panel soon, None: all of them; returns at once."""
        with self._changed:
            self._dirty.update(self.panels if panel is None else (panel,))
            self._changed.notify_all()

    def close(self) -> None:
        """End the refreshing, after that in progress."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                due = [*(self._ready[panel] for panel in self._dirty), *self._looks.values()]
                seconds = min(due, default=float("inf")) - time.monotonic()
                if seconds > 0.0:
                    self._changed.wait(min(seconds, 3600.0))
                    continue
            self._refresh(time.monotonic())

    def _refresh(self, now: float) -> None:
        looking = {panel for panel, due in self._looks.items() if due <= now}
        with self._changed:
            chosen = looking | {panel for panel in self._dirty if self._ready[panel] <= now}
            self._dirty -= chosen
        for panel in self.panels:
            if panel not in chosen:
                continue
            self._ready[panel] = now + panel.refresh_seconds
            try:
                if panel in looking:
                    self._looks[panel] = now + (panel.look_seconds or 0.0)
                    panel.look()
                panel.refresh()
            except Exception as error:  # a mistake in one part of the page must not stop the others
                self._failed(panel, error)


@dataclass(frozen=True, eq=False)
class Page:
    """What a panel is built from.

    `notify` tells everybody who watches, and `withdraw` takes what was told off the page; `changed` has a
    panel, or all of them, refreshed soon. That is done after each event of the worker, each change of a task,
    and each callback that is no coroutine, too.
    """

    server: viser.ViserServer
    controller: Controller
    viewport: Viewport
    first_view: FirstView
    hotkeys: Hotkeys
    tasks: TaskBoard
    notify: Callable[[Notice], None]
    changed: Callable[[Panel | None], None]
    withdraw: Callable[[Notice], None]

    def free(self, wanted: Path) -> Path:
        """Return where a new file goes: what is there already stays as it is, which is told."""
        path = free_path(wanted)
        if path != wanted:
            kept = f"{path_words(wanted)} stays as it is: this one is called {path.name}."
            self.notify(Notice(f"Writing {path.name}", kept))
        return path

    def keeps_the_view(self) -> bool:
        """Return whether a task works with the model in the view, which then stays there; that is told."""
        task = self.tasks.of_the_view
        if task is not None:
            goes_on = f"{task.doing} goes on with the model in the view"
            self.notify(Notice("Not now", f"{goes_on}: wait for its end, or cancel it there first."))
        return task is not None

    def refuse(self, title: str, why: ValueError | OSError | str) -> None:
        """Tell everybody what was not done, and why."""
        self.notify(Notice(title, str(why), bad=True))


def when_user(handle: Any, action: Callable[[viser.ClientHandle, Any], object]) -> None:
    """Call `action` with the browser and the value when a user, not the program, changes a control.

    Each value is taken as it arrives: until a thread of viser's pool gets to it, the program may have given
    the control another one. Values are handled in their order; a button may be pressed again while what it
    does is not done.
    """
    given: deque[tuple[viser.ClientHandle, Any]] = deque()
    is_button = hasattr(handle, "on_click")
    in_turn = nullcontext() if is_button else threading.Lock()

    async def note(event: viser.GuiEvent) -> None:
        if event.client is not None:
            given.append((event.client, event.target.value))

    def update(event: viser.GuiEvent) -> None:
        if event.client is not None:
            with in_turn:
                action(*given.popleft())

    listen = handle.on_click if is_button else handle.on_update
    listen(note)  # a coroutine: called by the loop that has just set the value
    listen(update)


class Field:
    """A control that shows a value of the program's, and hands over what a user gives it.

    What a user is about to give is not overwritten: the control is set only after the program's value has
    changed, or after it was refused.
    """

    def __init__(
        self, handle: viser.GuiInputHandle[Any], shown: Callable[[], Any], take: Callable[[Any], object]
    ):
        """Let the control show `shown()`, None: as it is; `take` raises ValueError for what cannot be."""
        self.handle = handle
        self._shown, self._take = shown, take
        self._last: Any = None
        when_user(handle, lambda _, value: self._update(value))

    def refresh(self) -> None:
        """Show the program's value where it has changed."""
        value = self._shown()
        if value != self._last:
            self._last = value
            if value is not None:
                self.handle.value = value

    def _update(self, value: Any) -> None:
        if value == self._shown():
            return
        try:
            self._take(value)
        except ValueError:
            self._last = None  # the control shows again what holds
            raise


PartType = TypeVar("PartType", bound="Panel | Field")
HandleType = TypeVar("HandleType")
