"""The Export tab: the model as a file for other programs, on this machine's disk and as a download."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import viser

from splatstudio.formats import FORMATS, Format, format_of
from splatstudio.gaussians.trimming import KEEP_ALL, Trim
from splatstudio.gui.amounts import size
from splatstudio.gui.dock import TaskBar
from splatstudio.gui.panel import FILE_HINT, Page, Panel
from splatstudio.gui.tabs.mesh import MeshSection
from splatstudio.gui.theme import ACCENT, table_html
from splatstudio.runtime.messages import Event, Export, Exported, ModelLoaded
from splatstudio.settings.setting import typed_output

BOX_COLOR = (255, 214, 92)
CHOICES = {format_.name: format_ for format_ in FORMATS if format_.write is not None}


class ExportPanel(Panel):
    """Where to write, the Export button, and the download of what was written."""

    def __init__(self, page: Page):
        super().__init__(page)
        gui, has_scene = self.gui, self.controller.project.scene is not None
        self._suggested = str(self.controller.project.export_path(None))
        self._format = gui.add_dropdown("Format", tuple(CHOICES))
        self._facts = gui.add_html("")
        self._path = gui.add_text("File", self._suggested, hint=FILE_HINT)
        with gui.add_folder("Filter", expand_by_default=False):
            self._trim = self.add(TrimSection(page, page.viewport.show_trim))
        self._upright = gui.add_checkbox(
            "Align upright",
            False,
            hint="As other viewers show it, centered and scaled as here; else in the scene's coordinates.",
            visible=has_scene,
        )
        self._cameras = gui.add_checkbox(
            "Also export cameras",
            False,
            hint="The photographs' cameras as NAME.cameras.json, in the same coordinates; refined ones, "
            "where the training learned poses.",
            visible=has_scene,
        )
        self._normals = gui.add_checkbox(
            "Normals",
            False,
            hint="The shortest axis of each splat: on the side of the nearest photograph's camera, or "
            "without a scene away from the model's middle. Else 0.",
        )
        export = self.button("Export PLY", lambda _: self._write(), ACCENT, disabled=True)
        self.add(TaskBar(page, Export))
        self.add(MeshSection(page, lambda: self._trim.trim))
        self._sh_degree = self.controller.project.config.sh_degree  # until a model is loaded
        self._written: Exported | None = None
        self._format.on_update(lambda _: self._choose())
        self._upright.on_update(lambda _: None)  # the facts change
        self.keep(
            export,
            label=lambda: f"Export {self._chosen.name}",
            disabled=lambda: not self.controller.status.has_model,
        )
        self.keep(self._normals, visible=lambda: self._chosen.has_normals)
        self.keep(self._facts, content=lambda: table_html(self._rows()))

    @property
    def _chosen(self) -> Format:
        return CHOICES[self._format.value]

    def refresh(self) -> None:
        """Show what an export would hold now, and how far one is."""
        super().refresh()
        step = self.controller.status.step or None
        suggestion = with_ending(str(self.controller.project.export_path(step)), self._chosen)
        if self._path.value == self._suggested:
            # Only a path that the user did not touch follows the step.
            self._suggested = self._path.value = suggestion

    def _rows(self) -> list[tuple[str, str]]:
        chosen, num, upright = self._chosen, self.controller.status.num_gaussians, self._upright.value
        rows = [("For", chosen.purpose)]
        if chosen.loses:
            rows += [("Loses", chosen.loses)]
        if num is not None:
            most, about = ("", "about ") if self._trim.trim.keeps_all else ("at most ", "at most ")
            rows += [("Splats", f"{most}{num:,}")]
            rows += [("Size", f"{about}{size(chosen.estimated_bytes(num, self._sh_degree))}")]
        if not chosen.is_page:
            rows += [("Coordinates", "upright, as here" if upright else "those of the scene's own files")]
        elif self.controller.project.scene is not None:
            rows += [("Begins", "where the first photo was taken")]
        if self._written is not None:
            rows += [("Last file", f"{self._written.path.name}: {self._written.num_gaussians:,} splats")]
        return rows

    def follow(self, event: Event) -> None:
        """Lay the crop box around the middle of a new model, whose harmonics count for the size of a file.

        Of a file that was written it is told how many splats it got.
        """
        if isinstance(event, ModelLoaded):
            self._sh_degree = event.sh_degree
            self._trim.surround(np.array(event.center), event.radius)
        elif isinstance(event, Exported):
            self._written = event

    def _choose(self) -> None:
        untouched = self._path.value == self._suggested
        self._path.value = with_ending(self._path.value, self._chosen)
        if untouched:
            self._suggested = self._path.value

    def _write(self) -> None:
        self._path.value = with_ending(self._path.value.strip(), self._chosen)
        scene, cameras, wishes = self.controller.project.scene, (), {}
        if scene is not None and self._cameras.value:
            cameras = tuple((view.name, view.camera) for view in scene.views)
        path = self.page.free(typed_output(self._path.value))
        if scene is not None:
            eyes = tuple(tuple(camera.position.tolist()) for camera in scene.cameras)
            wishes = {"first": scene.cameras[0], "eyes": eyes}
        normals = self._normals.value and self._chosen.has_normals
        command = Export(path, self._trim.trim, self._upright.value, cameras, normals=normals, **wishes)
        self.page.tasks.submit(command)


class TrimSection(Panel):
    """What is left out of an export: faint splats, and what lies outside of a box drawn in the scene.

    `show` is told what the views hide, so that they show what the file will hold.
    """

    def __init__(self, page: Page, show: Callable[[Trim], None]):
        super().__init__(page)
        gui, self._show = self.gui, show
        self._run_dir = self.controller.project.run_dir
        self._told = KEEP_ALL
        # viser calls from several threads: what is newest is told last, and one box is drawn at a time.
        self._drawing = threading.Lock()
        self._opacity = gui.add_slider(
            "Minimum opacity", 0.0, 0.95, 0.01, 0.0, hint="Splats less opaque than this are left out."
        )
        self._crop = gui.add_checkbox(
            "Crop to a box", False, hint="Drawn in the scene; its axes are the view's."
        )
        self._from = gui.add_vector3("From", (-1.0, -1.0, -1.0), step=0.05, visible=False)
        self._to = gui.add_vector3("To", (1.0, 1.0, 1.0), step=0.05, visible=False)
        self._hide = gui.add_checkbox(
            "Hide in the view", True, visible=False, hint="All browsers show what the file will hold."
        )
        self._box: viser.LineSegmentsHandle | None = None
        self._touched = False
        for control in (self._opacity, self._crop, self._hide):
            control.on_update(lambda _: self._draw())
        for corner in (self._from, self._to):
            corner.on_update(self._move)

    @property
    def trim(self) -> Trim:
        """Return what is chosen; the box is in the frame of the page and of the model."""
        low, high = self._from.value, self._to.value
        return Trim(self._opacity.value, (*low, *high) if self._crop.value else None)

    def refresh(self) -> None:
        """Leave nothing out of a new run: what was cropped is of the one before."""
        super().refresh()
        if self.controller.project.run_dir != self._run_dir:
            self._run_dir = self.controller.project.run_dir
            self._crop.value, self._opacity.value, self._touched = False, 0.0, False
            self._draw()

    def surround(self, center: np.ndarray, radius: float) -> None:
        """Lay the box around a model, unless somebody has laid it already."""
        if not self._touched:
            for corner, sign in ((self._from, -1.0), (self._to, 1.0)):
                x, y, z = np.round(center + sign * 3.0 * radius, 2).tolist()
                corner.value = (x, y, z)

    def _move(self, event: viser.GuiEvent) -> None:
        self._touched = self._touched or event.client is not None
        self._draw()

    def _draw(self) -> None:
        with self._drawing:
            trim = self.trim
            self._hide.visible = not trim.keeps_all
            hidden = trim if self._hide.value else KEEP_ALL
            if hidden != self._told:
                self._told = hidden
                self._show(hidden)
            self._draw_box(self._crop.value)

    def _draw_box(self, shown: bool) -> None:
        self._from.visible = self._to.visible = shown
        if self._box is not None and not shown:
            self._box.remove()
            self._box = None
        if shown:
            low, high = np.array([self._from.value, self._to.value])
            corners = [np.array(corner) for corner in itertools.product(*zip(low, high, strict=True))]
            # An edge joins two corners that differ in one coordinate.
            edges = [(a, b) for a, b in itertools.combinations(corners, 2) if (a != b).sum() == 1]
            self._box = self.page.server.scene.add_line_segments(
                "/crop/box", np.array(edges, np.float32), BOX_COLOR, thickness=2.0, thickness_units="screen"
            )


def with_ending(path: str, chosen: Format) -> str:
    """Return `path` with the usual ending of a format, in place of another format's ending.

    A path without a name, such as that of an emptied field, stays as it is.
    """
    if Path(path.strip()).name in ("", ".."):
        return path
    path = path.rstrip("/")
    present = format_of(path)
    if present is chosen:
        return path
    if present is not None:
        ending = next(ending for ending in present.endings if path.lower().endswith(ending))
        path = path[: -len(ending)]
    return path + chosen.endings[0]
