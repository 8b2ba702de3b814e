"""How far the work on files of models is, and a button to end it."""

from __future__ import annotations

import viser

from splatstudio.gui.tabs.model_rows import note_html
from splatstudio.gui.theme import ACCENT
from splatstudio.runtime.file_tasks import FileWorker


class TaskBar:
    """A bar, a sentence and Cancel, there while a FileWorker has a task."""

    def __init__(self, gui: viser.GuiApi, worker: FileWorker):
        self._worker = worker
        self._bar = gui.add_progress_bar(0.0, color=ACCENT, visible=False)
        self._doing = gui.add_html("", visible=False)
        self._cancel = gui.add_button("Cancel", color="gray", visible=False, hint="A half-written file goes.")
        self._cancel.on_click(lambda _: self._worker.cancel())

    def refresh(self) -> None:
        """Show how far the task is now."""
        task, progress = self._worker.task, self._worker.progress
        self._bar.visible = self._doing.visible = self._cancel.visible = task is not None
        if task is not None and progress is not None:
            self._bar.animated = progress.total == 0
            self._bar.value = 100.0 * progress.done / progress.total if progress.total else 100.0
            count = f", {progress.done:,} of {progress.total:,}" if progress.total else ""
            self._doing.content = note_html(f"{task.title}: {progress.what}{count}")
