"""The Export tab: the model as a PLY file, on this machine's disk and as a download."""

from __future__ import annotations

from pathlib import Path

import viser

from splatstudio.studio.controller import Controller
from splatstudio.studio.panels.train import table_html
from splatstudio.studio.theme import ACCENT, size

MAX_DOWNLOAD_BYTES = 500_000_000  # viser holds the whole file in memory and so does the browser
PLY_BYTES = {0: 17 * 4, 1: 26 * 4, 2: 41 * 4, 3: 62 * 4}  # a splat, by degree of its spherical harmonics


class ExportPanel:
    """Where to write, the Export button, and the download of what was written."""

    def __init__(self, server: viser.ViserServer, controller: Controller):
        self._controller = controller
        self._suggested = str(controller.project.export_path(None))
        self._facts = server.gui.add_html("")
        self._path = server.gui.add_text(
            "File", self._suggested, hint="On the machine where the studio runs; folders are made as needed."
        )
        self._export = server.gui.add_button("Export PLY", color=ACCENT, disabled=True)
        self._download = server.gui.add_button(
            "Download", color="gray", visible=False, hint="Sends the exported file to this browser."
        )
        self._shown: object = None
        self._export.on_click(lambda _: self._write())
        self._download.on_click(self._send)

    def refresh(self) -> None:
        """Show what an export would hold now."""
        controller, status = self._controller, self._controller.status
        shown = (status.step, status.num_gaussians, status.has_model, controller.last_export)
        if shown == self._shown:
            return
        self._shown = shown
        self._export.disabled = not status.has_model
        num = status.num_gaussians
        rows = [("Format", "PLY, as Inria's and most other programs read it")]
        if num is not None:
            expected = num * PLY_BYTES[controller.project.config.sh_degree]
            rows += [("Splats", f"{num:,}")]
            if controller.project.scene is not None:
                rows += [("Size", f"about {size(expected)}")]
        rows += [("Coordinates", "those of the scene's own files")]
        self._facts.content = table_html(rows)
        suggestion = str(controller.project.export_path(status.step or None))
        if self._path.value == self._suggested and suggestion != self._suggested:
            # Only a path that the user did not touch follows the step.
            self._path.value = suggestion
            self._suggested = suggestion
        exported = controller.last_export
        if exported is not None:
            small = exported.num_bytes < MAX_DOWNLOAD_BYTES
            self._download.visible = small
            self._download.label = f"Download {exported.path.name} ({size(exported.num_bytes)})"

    def _write(self) -> None:
        path = Path(self._path.value.strip())
        if path.suffix.lower() != ".ply":
            path = path.with_name(path.name + ".ply")
            self._path.value = str(path)
        self._controller.export(path)

    def _send(self, event: viser.GuiEvent) -> None:
        exported = self._controller.last_export
        if event.client is not None and exported is not None:
            event.client.send_file_download(exported.path.name, exported.path.read_bytes())
