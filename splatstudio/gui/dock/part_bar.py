"""The offer to merge, where the model in the view is one rank's part: there until the whole one is shown."""

from __future__ import annotations

import html
import threading
import time
from pathlib import Path

from splatstudio.checkpoints.rank_parts import RankPart, part_of
from splatstudio.gui.dock.task_bar import TaskBar
from splatstudio.gui.panel_context import Page
from splatstudio.gui.state.status import Notice
from splatstudio.gui.tabs.file_work import notice_of_end
from splatstudio.gui.theme import ACCENT
from splatstudio.models.merging import place_of_merged, whole_of
from splatstudio.runtime.file_tasks import FileTask, FileWorker, TaskEnd

LOOK_SECONDS = 3.0  # until the files beside a part are looked for again: the missing one may be copied there


class PartBar:
    """What share of the scene is in the view, and the button that shows all of it.

    The work is done by a process of its own; a training goes on meanwhile.
    """

    def __init__(self, page: Page):
        gui, self._page = page.server.gui, page
        self._lock = threading.RLock()
        self._worker = FileWorker(self._ended)
        self._path: Path | None = None  # of the model in the view
        self._part: RankPart | None = None
        self._look_due = 0.0
        self._text = gui.add_html("", visible=False)
        self._merge = gui.add_button(
            "Merge and open",
            color=ACCENT,
            visible=False,
            hint="Writes the whole model into exports/ beside the parts, and shows it.",
        )
        self._bar = TaskBar(gui, self._worker)
        self._merge.on_click(lambda _: self._start())

    def refresh(self) -> None:
        """Show the offer that holds for what is in the view now."""
        with self._lock:
            path, now = self._page.controller.shown_path, time.monotonic()
            incomplete = self._part is not None and not self._part.complete
            if path != self._path or (incomplete and now >= self._look_due):
                self._path, self._look_due = path, now + LOOK_SECONDS
                self._show(None if path is None else part_of(path))
            part = self._part
            self._merge.visible = part is not None and part.complete and self._worker.task is None
            self._bar.refresh()

    def close(self) -> None:
        """End the work in progress."""
        self._worker.close()

    def _show(self, part: RankPart | None) -> None:
        if part == self._part:
            return
        self._part = part
        self._text.visible = part is not None
        if part is not None:
            self._text.content = part_html(part)

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
            if not self._worker.start(task):
                self._page.notify(Notice("Not started", "It is being merged already.", bad=True))
            self.refresh()

    def _ended(self, task: FileTask, end: TaskEnd) -> None:
        notice = notice_of_end(task, end)
        if notice is not None:
            self._page.notify(notice)
        # Who has turned to another model meanwhile keeps it.
        if end.output is not None and self._page.controller.shown_path in task.paths:
            self._open(end.output)

    def _open(self, path: Path) -> None:
        try:
            self._page.controller.view(path)
        except ValueError as error:
            self._page.notify(Notice("Not opened", str(error), bad=True))


def part_html(part: RankPart) -> str:
    """Return the notice that the model in the view is a part, as HTML; file names are escaped."""
    advice = "" if part.complete else ". Copy it there to merge them."
    return (
        '<div data-splatstudio="part" style="margin:2px 10px 4px;padding:8px 10px;border-radius:6px;'
        "font-size:12px;line-height:1.45;overflow-wrap:anywhere;background:rgba(224,176,64,.15);"
        f'color:#f0d79a">{html.escape(f"{part}{advice}")}</div>'
    )
