"""The Export tab: the model as a file for other programs, on this machine's disk and as a download."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from splatstudio.formats import FORMATS, Format, format_of
from splatstudio.gui.amounts import size
from splatstudio.gui.dock import TaskBar
from splatstudio.gui.panel import FILE_HINT, Page, Panel, SinglePress, output_path
from splatstudio.gui.state.controller import ModelInView
from splatstudio.gui.tabs.mesh import MeshSection
from splatstudio.gui.tabs.trim import TrimSection
from splatstudio.gui.theme import ACCENT, table_html
from splatstudio.runtime.messages import Event, Export, Exported, ModelLoaded

CHOICES = {format_.name: format_ for format_ in FORMATS if format_.write is not None}
MESH_ENDINGS = (".obj", ".stl")  # that no file of splats has


class ExportPanel(Panel):
    """Where to write, the Export button, and the download of what was written."""

    look_seconds = 3.0

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
            hint="Upright, centered and scaled as here, y down as viewers expect; else as the scene's files.",
            visible=has_scene,
        )
        self._cameras = gui.add_checkbox(
            "Also export cameras",
            False,
            hint="The photos' cameras as NAME.cameras.json, in the same coordinates; refined ones, "
            "where the training learned poses.",
            visible=has_scene,
        )
        self._normals = gui.add_checkbox(
            "Normals",
            False,
            hint="The shortest axis of each splat: on the side of the nearest photo's camera, or "
            "without a scene away from the model's middle. Else 0.",
        )
        export = self.button("Export PLY", lambda _: self._press(), ACCENT, disabled=True)
        self._single = SinglePress()
        self.add(TaskBar(page, Export))
        self._mesh = self.add(MeshSection(page, lambda: self._trim.trim))
        self._written: Exported | None = None
        self._written_in: Path | None = None  # the run that was open then
        self._format.on_update(lambda _: self._choose())
        self._upright.on_update(lambda _: None)  # the facts change
        self.keep(
            export,
            label=lambda: f"Export {self._chosen.name}",
            disabled=lambda: self.controller.in_view.num_gaussians is None,
        )
        self.keep(self._normals, visible=lambda: self._chosen.has_normals)
        self.keep(self._facts, content=lambda: table_html(self._rows()))

    @property
    def _chosen(self) -> Format:
        return CHOICES[self._format.value]

    def look(self) -> None:
        """Look for models that have come or gone: a mesh is made of one on the disk."""
        self._mesh.look()

    def refresh(self) -> None:
        """Show what an export would hold now, and how far one is."""
        super().refresh()
        self._follow(self.controller.in_view)

    def _follow(self, model: ModelInView) -> None:
        """Suggest a file for a model, unless the user has chosen one."""
        place = self.controller.project.export_path(model.step, model.path)
        suggestion = with_ending(str(place), self._chosen)
        if self._path.value == self._suggested:
            # Only a path that the user did not touch follows the step.
            self._suggested = self._path.value = suggestion

    def _rows(self) -> list[tuple[str, str]]:
        chosen, model, upright = self._chosen, self.controller.in_view, self._upright.value
        num = model.num_gaussians
        rows = [("For", chosen.purpose)]
        if chosen.loses:
            rows += [("Loses", chosen.loses)]
        if num is not None:
            kept = num if self._trim.trim.keeps_all else self._trim.num_kept
            most, about = ("", "about ") if kept is not None else ("at most ", "at most ")
            num = num if kept is None else kept
            rows += [("Splats", f"{most}{num:,}")]
            rows += [("Size", f"{about}{size(chosen.estimated_bytes(num, model.sh_degree))}")]
        if not chosen.is_page:
            own = (
                "those of this file"
                if self.controller.project.scene is None
                else "those of the scene's files"
            )
            axes = ", turned to glTF's axes" if ".glb" in chosen.endings else ", y down" if upright else ""
            rows += [("Coordinates", ("upright" if upright else own) + axes)]
        elif self.controller.project.scene is not None:
            rows += [("Begins", "where the first photo was taken")]
        if self._written is not None and self._written_in == self.controller.project.run_dir:
            rows += [("Last file", f"{self._written.path.name}: {self._written.num_gaussians:,} splats")]
        return rows

    def follow(self, event: Event) -> None:
        """Lay the crop box around the middle of a new model; tell how many splats a file got."""
        if isinstance(event, ModelLoaded):
            self._trim.surround(np.array(event.center), event.radius)
        elif isinstance(event, Exported):
            self._written, self._written_in = event, self.controller.project.run_dir

    def close(self) -> None:
        """Write what was filtered last."""
        self._trim.close()

    def _choose(self) -> None:
        untouched = self._path.value == self._suggested
        self._path.value = with_ending(self._path.value, self._chosen)
        if untouched:
            self._suggested = self._path.value

    def _press(self) -> None:
        if self._single.counts():  # a double click would write the same once more, by another name
            self._write()

    def _write(self) -> None:
        model = self.controller.in_view
        self._follow(model)
        typed = self._path.value.strip()
        if typed.lower().endswith(MESH_ENDINGS):
            raise ValueError(f"{Path(typed).name} would be a mesh, and this writes splats: see Mesh below.")
        asked = format_of(typed)
        if asked is not None and asked.name in CHOICES:
            self._format.value = asked.name  # the ending was typed after the format was chosen
        self._path.value = with_ending(typed, self._chosen)
        scene, cameras, wishes = self.controller.project.scene, (), {}
        if scene is not None and self._cameras.value:
            cameras = tuple((view.name, view.camera) for view in scene.views)
        path = self.page.free(output_path(self._path.value, self._suggested))
        if scene is not None:
            eyes = tuple(tuple(camera.position.tolist()) for camera in scene.cameras)
            wishes = {"first": scene.cameras[0], "eyes": eyes}
        normals = self._normals.value and self._chosen.has_normals
        command = Export(path, self._trim.trim, self._upright.value, cameras, normals=normals, **wishes)
        self.page.tasks.submit(command, worker=model.worker)


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
