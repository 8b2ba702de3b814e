"""The Photos tab: what the estimation of the poses came to, and photos whose poses came later."""

from __future__ import annotations

from collections.abc import Callable

import viser

from splatstudio.gui.amounts import counted
from splatstudio.gui.panel import Page, Panel
from splatstudio.gui.state.status import Notice
from splatstudio.gui.theme import note_html
from splatstudio.poses.background import BackgroundEstimation
from splatstudio.poses.records import PoseReport
from splatstudio.poses.store import PoseStore
from splatstudio.poses.words import report_lines
from splatstudio.scene.photo import decode
from splatstudio.scene.scene import Scene


class PhotosPanel(Panel):
    """The report on the poses; a button takes in photos that have got a pose since."""

    look_seconds = 1.0

    def __init__(self, page: Page, tab: viser.GuiTabHandle, scene: Scene, open_again: Callable[[], None]):
        """Show the poses of `scene` in `tab`; `open_again` opens what is on the disk in its place."""
        super().__init__(page)
        store = PoseStore.of_model(scene.model_folder)
        assert store is not None, "only scenes with poses of our own have this tab"
        self._tab, self._store = tab, store
        self._names = frozenset(scene.photos)
        self.estimation: BackgroundEstimation | None = None  # that goes on with the poses
        self._told_end = False
        self._report: PoseReport | None = None
        self._working = self.gui.add_html("")
        take = self.button("", lambda _: open_again(), color=None)
        self.keep(take, label=self._take_label, visible=lambda: self._num_joined > 0)
        rest = self.button("Find the other poses", lambda _: self._find_others())
        self.keep(rest, visible=lambda: self._report is not None and self._report.so_far and not self._works)
        self._text = self.gui.add_html("")
        self._sheet: viser.GuiImageHandle | None = None
        self._drawn: int | None = None  # when the sheet was written that is shown

    @property
    def _works(self) -> bool:
        return self.estimation is not None and not self.estimation.is_over

    @property
    def _num_joined(self) -> int:
        """Return how many photos have a pose now that the scene of this page lacks."""
        if self._report is None:
            return 0
        return len({photo.name for photo in self._report.posed} - self._names)

    def _take_label(self) -> str:
        return f"Take in {counted(self._num_joined, 'more photo')}"

    def look(self) -> None:
        """Read the report again, and tell of the end of an estimation."""
        before, self._report = self._report, self._store.report() or self._report
        if self._report is not None and self._report.doubtful and before is None:
            sentence = "Places that look alike may have been confused: the Photos tab lists the photos."
            self.page.notify(Notice("The poses may be wrong", sentence, bad=True))
        if before is None and self._report is not None and self._report.left_out and not self._report.so_far:
            left = f"{len(self._report.left_out)} of {counted(self._report.num_photos, 'photo')} left out"
            self.page.notify(Notice(left, "The tab Photos, at the left, says which and why."))
        if self.estimation is None or not self.estimation.is_over or self._told_end:
            return
        self._told_end = True
        if self.estimation.error is not None:
            notice = Notice("The poses of the other photos", str(self.estimation.error), bad=True)
        elif self._num_joined:
            sentence = "Splats stay where they are; the training goes on from a save."
            notice = Notice(f"{self._take_label()} in the tab Photos", sentence)
        else:
            notice = Notice("All poses are found", "No more photos have one than are trained on already.")
        self.page.notify(notice)

    def refresh(self) -> None:
        """Show the report, and how far an estimation is."""
        super().refresh()
        progress = self.estimation.progress if self.estimation is not None and self._works else None
        if progress is None:
            self._working.content = ""
        else:
            words = f"{progress.title}: {progress.done} of {progress.total} {progress.what}"
            self._working.content = note_html(words, mark="estimation")
        if self._report is not None:
            lines = "".join(_line(line) for line in report_lines(self._report))
            self._text.content = f'<div data-splatstudio="report">{lines}</div>'
        self._show_sheet()

    def _show_sheet(self) -> None:
        """Show the contact sheet where there is another than before, or none any more."""
        file = self._store.contact_sheet
        written = file.stat().st_mtime_ns if file.exists() else None
        if written == self._drawn:
            return
        self._drawn = written
        if written is None:
            if self._sheet is not None:
                self._sheet.visible = False
            return
        pixels = decode(file)
        if self._sheet is None:
            with self._tab:
                self._sheet = self.gui.add_image(pixels, format="jpeg")
        else:
            self._sheet.image, self._sheet.visible = pixels, True

    def close(self) -> None:
        """End the estimation; what is finished is kept."""
        if self.estimation is not None:
            self.estimation.end()

    def _find_others(self) -> None:
        if not self._works:
            self.estimation = BackgroundEstimation(self._store.source)
            self._told_end = False


def _line(line: str) -> str:
    return note_html(line, "warning" if line.startswith(("Note: ", "Doubtful: ")) else "")
