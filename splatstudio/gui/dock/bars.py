"""Bars that come and go: a long task, a score that stands still, another model in the view, a rank's part."""

from __future__ import annotations

import io
import threading
import zipfile
from pathlib import Path

import viser

from splatstudio.checkpoints.rank_parts import RankPart, part_of
from splatstudio.gui.panel import Page
from splatstudio.gui.state.tasks import TaskStatus
from splatstudio.gui.theme import ACCENT, box_html, note_html, size
from splatstudio.models.merging import place_of_merged, whole_of
from splatstudio.runtime.file_tasks import FileTask, TaskEnd
from splatstudio.runtime.messages import PlateauReached, State
from splatstudio.runtime.sentences import plateau_advice, plateau_words
from splatstudio.runtime.tasks import num_bytes

MAX_DOWNLOAD_BYTES = 500_000_000  # viser holds the whole file in memory and so does the browser
MERGE = "merge parts"  # the kind of the task that merges a part with the others

# What becomes of the training while another model is in the view.
BEHIND: dict[State, str] = {
    "training": "The training goes on behind it",
    "paused": "The training behind it is paused",
    "finished": "The training behind it has stopped",
    "restarting": "The training behind it is being started again",
    "failed": "The training behind it has failed",
    "ended": "The training behind it has ended",
}


class TaskBar:
    """The newest task of a kind, below the button that starts it: how far it is, Cancel, and its file."""

    def __init__(self, page: Page, kind: object, *, end_stays: bool = True):
        """Show tasks of a `kind`; with `end_stays` the end stays to be read by who was not there then."""
        gui, self._board, self._kind, self._end_stays = page.server.gui, page.tasks, kind, end_stays
        self._bar = gui.add_progress_bar(0.0, color=ACCENT, visible=False)
        self._text = gui.add_html("", visible=False)
        self._cancel = gui.add_button(
            "Cancel", color="gray", visible=False, hint="What is half-written is removed."
        )
        self._download = gui.add_button(
            "Download", color="gray", visible=False, hint="Sends the file to this browser."
        )
        self._cancel.on_click(lambda _: self._press_cancel())
        self._download.on_click(self._send)

    @property
    def _task(self) -> TaskStatus | None:
        return self._board.newest(self._kind)

    def refresh(self) -> None:
        """Show the task as it is now."""
        task = self._task
        if task is None:
            return
        running = task.end is None
        self._bar.visible = self._cancel.visible = running
        self._text.visible = running or self._end_stays
        if running:
            self._bar.animated = task.total == 0 or (task.done >= task.total and not task.what)
            self._bar.value = task.percent if task.total else 100.0
        bad = task.end is not None and task.end.bad and task.file is None
        self._text.content = note_html(task.text, "bad" if bad else "", mark="job")
        # A file of a task before is offered no more: the text above is of this one.
        there = self._end_stays and task.file is not None and 0 < task.num_bytes < MAX_DOWNLOAD_BYTES
        self._download.visible = there
        if task.file is not None:
            self._download.label = f"Download {task.file.name} ({size(task.num_bytes)})"

    def _press_cancel(self) -> None:
        if self._task is not None:
            self._board.cancel(self._task.number)

    def _send(self, event: viser.GuiEvent) -> None:
        task = self._task
        if event.client is not None and task is not None and task.file is not None:
            download(event.client, task.file)


def download(client: viser.ClientHandle, path: Path) -> None:
    """Send a file, or a folder as a .zip, to a browser; say so where it is gone."""
    try:
        if num_bytes(path) >= MAX_DOWNLOAD_BYTES:
            raise OSError(0, "it has become too large to be sent")
        content = _zipped(path) if path.is_dir() else path.read_bytes()
    except OSError as error:
        client.add_notification("Not sent", f"{path}: {error.strerror}", color="red")
        return
    name = f"{path.name}.zip" if path.is_dir() else path.name
    client.send_file_download(name, content, save_immediately=True)


def _zipped(folder: Path) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        for file in sorted(folder.iterdir()):
            archive.write(file, f"{folder.name}/{file.name}")
    return content.getvalue()


class PlateauBar:
    """The offer to stop where the test score stands still, until it is taken, put away or out of date."""

    def __init__(self, page: Page):
        gui, self._controller = page.server.gui, page.controller
        self._declined: PlateauReached | None = None
        self._text = gui.add_html("", visible=False)
        self._stop = gui.add_button(
            "Stop here", color=ACCENT, visible=False, hint="Saves and ends the training; Resume goes on."
        )
        self._go_on = gui.add_button(
            "Go on", color="gray", visible=False, hint="Puts this away; the training goes on anyway."
        )
        self._stop.on_click(lambda _: self._controller.stop())
        self._go_on.on_click(lambda _: self._decline())

    def refresh(self) -> None:
        """Show the offer that holds now, if there is one."""
        offer = self._controller.status.flat
        offered = offer is not None and self._controller.can_order and offer != self._declined
        if offer is not None and offered:
            self._text.content = note_html(offer_text(offer))
        self._text.visible = self._stop.visible = self._go_on.visible = offered

    def _decline(self) -> None:
        self._declined = self._controller.status.flat


def offer_text(offer: PlateauReached) -> str:
    """Return what the dock says of a test score that stands still."""
    return " ".join(filter(None, (f"{plateau_words(offer)}: stop here, or go on?", plateau_advice(offer))))


class PreviewBar:
    """Which model is in the view in place of the training's, and the way back."""

    def __init__(self, page: Page):
        self._controller = page.controller
        self._text = page.server.gui.add_html("", visible=False)
        self._back = page.server.gui.add_button(
            "Back to the training", color="gray", visible=False, hint="Shows its own model again."
        )
        self._back.on_click(lambda _: self._controller.preview.leave())

    def refresh(self) -> None:
        """Show what is in the view now."""
        path, status = self._controller.preview.path, self._controller.status
        self._text.visible = self._back.visible = path is not None
        behind = BEHIND.get(status.state, "The training waits behind it")
        takes = "; videos and exports take the training's model." if status.has_model else "."
        if path is not None:
            self._text.content = note_html(f"In the view: {path}. {behind}{takes}")


class PartBar:
    """The offer to merge, where the model in the view is one rank's part: until the whole one is shown."""

    def __init__(self, page: Page):
        gui, self._page = page.server.gui, page
        self._lock = threading.RLock()
        self._path: Path | None = None  # of the model in the view
        self._part: RankPart | None = None
        self._text = gui.add_html("", visible=False)
        self._merge = gui.add_button(
            "Merge and open",
            color=ACCENT,
            visible=False,
            hint="Writes the whole model into exports/ beside the parts, and shows it.",
        )
        self._bar = TaskBar(page, MERGE, end_stays=False)
        self._merge.on_click(lambda _: self._start())

    def look(self) -> None:
        """Look again for the files beside a part: the missing one may be copied there."""
        if self._part is not None and not self._part.complete:
            self._path = None

    def refresh(self) -> None:
        """Show the offer that holds for what is in the view now."""
        with self._lock:
            path = self._page.controller.shown_path
            if path != self._path:
                self._path, self._part = path, None if path is None else part_of(path)
            part = self._part
            self._text.visible = part is not None
            if part is not None:
                self._text.content = part_html(part)
            can_merge = part is not None and part.complete and not self._page.tasks.is_busy(MERGE)
            self._merge.visible = can_merge
            self._bar.refresh()

    def _start(self) -> None:
        with self._lock:
            part = self._part
        if part is None or not part.complete:
            return
        whole = whole_of(part)
        if whole is not None:
            self._open(whole)
            return
        files = (part.path, *part.others)
        task = FileTask(f"Merging {len(files)} parts", files, place_of_merged(part.path))
        if not self._page.tasks.start(MERGE, task, lambda end: self._ended(task, end)):
            self._page.refuse("Not started", "It is being merged already.")

    def _ended(self, task: FileTask, end: TaskEnd) -> None:
        # Who has turned to another model meanwhile keeps it.
        if end.output is not None and self._page.controller.shown_path in task.paths:
            self._open(end.output)

    def _open(self, path: Path) -> None:
        try:
            self._page.controller.view(path)
        except ValueError as error:
            self._page.refuse("Not opened", error)


def part_html(part: RankPart) -> str:
    """Return the notice that the model in the view is a part, as HTML; file names are escaped."""
    advice = "" if part.complete else ". Copy it there to merge them."
    return box_html(f"{part}{advice}", "warning", mark="part")
