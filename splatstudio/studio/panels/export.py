"""The Export tab: the model as a file for other programs, on this machine's disk and as a download."""

from __future__ import annotations

from pathlib import Path

from splatstudio.formats import FORMATS, Format, format_of
from splatstudio.studio.job_bar import JobBar
from splatstudio.studio.page import Page, Panel
from splatstudio.studio.panels.train import table_html
from splatstudio.studio.theme import ACCENT, size
from splatstudio.worker.messages import Export

CHOICES = {format_.name: format_ for format_ in FORMATS if format_.write is not None}


class ExportPanel(Panel):
    """Where to write, the Export button, and the download of what was written."""

    def __init__(self, page: Page):
        server, controller = page.server, page.controller
        self._controller = controller
        self._suggested = str(controller.project.export_path(None))
        self._format = server.gui.add_dropdown("Format", tuple(CHOICES))
        self._facts = server.gui.add_html("")
        self._path = server.gui.add_text(
            "File", self._suggested, hint="On the machine where the studio runs; folders are made as needed."
        )
        self._export = server.gui.add_button("Export PLY", color=ACCENT, disabled=True)
        self._jobs = page.jobs
        self._bar = JobBar(server.gui, page.jobs, Export)
        self._shown: object = None
        self._format.on_update(lambda _: self._choose())
        self._export.on_click(lambda _: self._write())

    @property
    def _chosen(self) -> Format:
        return CHOICES[self._format.value]

    def refresh(self) -> None:
        """Show what an export would hold now, and how far one is."""
        self._bar.refresh()
        controller, status, chosen = self._controller, self._controller.status, self._chosen
        shown = (status.step, status.num_gaussians, status.has_model, chosen)
        if shown == self._shown:
            return
        self._shown = shown
        self._export.disabled = not status.has_model
        num = status.num_gaussians
        rows = [("For", chosen.purpose)]
        if chosen.loses:
            rows += [("Loses", chosen.loses)]
        if num is not None:
            rows += [("Splats", f"{num:,}")]
            if controller.project.scene is not None:
                expected = chosen.estimated_bytes(num, controller.project.config.sh_degree)
                rows += [("Size", f"about {size(expected)}")]
        rows += [("Coordinates", "those of the scene's own files")]
        self._facts.content = table_html(rows)
        suggestion = with_ending(str(controller.project.export_path(status.step or None)), chosen)
        if self._path.value == self._suggested and suggestion != self._suggested:
            # Only a path that the user did not touch follows the step.
            self._path.value = suggestion
            self._suggested = suggestion

    def _choose(self) -> None:
        chosen = self._chosen
        self._export.label = f"Export {chosen.name}"
        untouched = self._path.value == self._suggested
        self._path.value = with_ending(self._path.value, chosen)
        if untouched:
            self._suggested = self._path.value
        self.refresh()

    def _write(self) -> None:
        self._path.value = with_ending(self._path.value.strip(), self._chosen)
        self._jobs.submit(Export(Path(self._path.value).expanduser()))
        self._bar.refresh()


def with_ending(path: str, chosen: Format) -> str:
    """Return `path` with the usual ending of a format, in place of another format's ending."""
    present = format_of(path)
    if present is chosen:
        return path
    if present is not None:
        ending = next(ending for ending in present.endings if path.lower().endswith(ending))
        path = path[: -len(ending)]
    return path + chosen.endings[0]
