"""The Mesh section of the Export tab: the surface of a model on the disk, and how good it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import viser

from splatstudio.checkpoints.manifest import step_of
from splatstudio.files.path_words import path_words
from splatstudio.gaussians.trimming import Trim
from splatstudio.gui.dock import TaskBar
from splatstudio.gui.panel import FILE_HINT, Page, Panel, output_path, when_user
from splatstudio.gui.state.project import frame_of
from splatstudio.gui.theme import ACCENT, note_html, table_html
from splatstudio.runtime.file_tasks import FileTask, TaskEnd
from splatstudio.surfaces.make_mesh import WrittenMesh
from splatstudio.surfaces.mesh import can_simplify
from splatstudio.surfaces.mesh_files import WRITERS, check_mesh_output
from splatstudio.surfaces.mesh_options import RESOLUTION, MeshColors, MeshOptions, MeshPreset, MeshTask
from splatstudio.surfaces.shown_mesh import Look
from splatstudio.surfaces.texture import can_unwrap

MESH = "mesh"  # the kind of this section's tasks
NO_MODEL = "A mesh is made of a model on the disk, and none is there yet: press Save first."
KINDS: dict[str, MeshPreset | None] = {"Surface": None, "Collision mesh": "collision", "Ground": "ground"}
NO_LOOK, MESH_LOOK = "Nothing", "The mesh"
LOOKS: dict[str, Look | None] = {NO_LOOK: None, MESH_LOOK: "photos", "What is reliable": "reliability"}
NO_TEXTURE = "None"
TEXTURE_PARTS = {".mtl": "material", ".png": "texture"}
FEWEST, MOST = 32, 2048  # voxels along the longest side that can be chosen here
COLORS: dict[str, MeshColors] = {"Photos": "photos", "How many photos saw it": "reliability", "None": "none"}


class MeshSection(Panel):
    """What the mesh shall be like, the button, how far it is, and the report on the one that was made."""

    def __init__(self, page: Page, trim: Callable[[], Trim]):
        """Leave out of the mesh what `trim` says, as the rest of the tab does."""
        super().__init__(page)
        self._trim = trim
        gui = self.gui
        with gui.add_folder("Mesh", expand_by_default=False):
            self._format = gui.add_dropdown("Mesh format", tuple(WRITERS))
            self._on_disk: tuple[object, Path | None] | None = None
            self._suggested = self._suggestion()
            self._path = gui.add_text("Mesh file", self._suggested, hint=FILE_HINT)
            self._add_choices()
            make = self.button("Make mesh", lambda _: self._start(), ACCENT)
            self.keep(
                make,
                disabled=lambda: self._source() is None,
                hint=lambda: NO_MODEL if self._source() is None else None,
            )
            self.add(TaskBar(page, MESH))
            self._report = gui.add_html("", visible=False)
            self._look = gui.add_dropdown(
                "Show in the view",
                tuple(LOOKS),
                hint="The mesh over the splats: as it is colored, or green where three photos or more"
                " saw it, yellow where two did, red where it is guessed.",
                visible=False,
            )
            legend = "Green: three photos or more saw it. Yellow: two. Red: one, or it is guessed."
            self.keep(
                gui.add_html(note_html(legend), visible=False),
                visible=lambda: self._look.visible and LOOKS[self._look.value] == "reliability",
            )
        self._made: WrittenMesh | None = None
        self._step = 0  # of the training, when it was made
        self._model: Path | None = None  # of which it was made, see `_shown_model`
        self._drawn: viser.GlbHandle | None = None
        when_user(self._look, lambda client, look: self._show())
        self._format.on_update(lambda _: self._choose())

    def _add_choices(self) -> None:
        """Add what can be chosen of the mesh; what its kind or this installation leaves out is hidden."""
        gui = self.gui
        self._kind = gui.add_dropdown(
            "Kind",
            tuple(KINDS),
            hint="Collision: coarse and closed. Ground: a rectangle named shadow_catcher.",
        )
        self._resolution = gui.add_number(
            "Resolution",
            RESOLUTION,
            min=FEWEST,
            max=MOST,
            step=32,
            hint="Most voxels along the longest side; fewer if the photos or the memory limit it.",
        )
        self._triangles = gui.add_number(
            "Triangles", 0, min=0, step=1000, hint="Approximate maximum; 0: no limit."
        )
        self._colors = gui.add_dropdown(
            "Mesh colors", tuple(COLORS), hint="Green: three photos or more saw it, yellow: two, red: one."
        )
        self._texture = gui.add_dropdown(
            "Texture",
            (NO_TEXTURE, "1024", "2048", "4096"),
            hint="Painted from the full-size photos, this many texels wide; for .glb and .obj.",
        )
        self._closed = gui.add_checkbox(
            "Close holes", False, hint="Fills holes that no photo saw; otherwise they stay open."
        )
        for control, there in (
            (self._resolution, True),
            (self._triangles, can_simplify()),
            (self._colors, True),
            (self._texture, can_unwrap()),
            (self._closed, True),
        ):
            self.keep(control, visible=lambda there=there: there and KINDS[self._kind.value] != "ground")

    def look(self) -> None:
        """Look for the run's newest model on the disk again."""
        self._on_disk = None

    def refresh(self) -> None:
        """Let the suggested name follow the step."""
        super().refresh()
        self._follow_step()
        earlier = self.controller.status.step < self._step  # a new run was begun, or an older step is shown
        if self._made is not None and (earlier or self._shown_model() != self._model):
            self._forget()

    def _shown_model(self) -> Path | None:
        """Return the run in the view, or the model where that is of no run of this page."""
        shown, project = self.controller.shown_path, self.controller.project
        return project.run_dir if shown is None or project.holds(shown) else shown

    def _source(self) -> Path | None:
        """Return the model on the disk that becomes a mesh: that in the view, else the run's newest."""
        controller = self.controller
        if (shown := controller.shown_path) is not None:
            return shown
        saved = controller.project.run_dir, controller.last_saved, controller.status.has_model
        if self._on_disk is None or self._on_disk[0] != saved:  # the page asks many times a second
            self._on_disk = saved, controller.project.checkpoint()
        return self._on_disk[1]

    def _suggestion(self) -> str:
        source = self._source()
        step = None if source is None else step_of(source)
        path = self.controller.project.export_path(step, self.controller.shown_path)
        return str(path.with_suffix(self._format.value))

    def _follow_step(self) -> None:
        suggestion = self._suggestion()
        if self._path.value == self._suggested != suggestion:
            # Only a path that the user did not touch follows.
            self._suggested = self._path.value = suggestion

    def _choose(self) -> None:
        path = Path(self._path.value.strip())
        if self._path.value == self._suggested:
            self._follow_step()
        elif path.suffix.lower() in WRITERS:
            self._path.value = str(path.with_suffix(self._format.value))

    def _options(self) -> MeshOptions:
        kind = KINDS[self._kind.value]
        if kind == "ground":
            return MeshOptions(mesh_preset=kind)
        return MeshOptions(
            resolution=int(self._resolution.value),
            triangles=max(4, int(self._triangles.value)) if self._triangles.value else None,
            watertight=self._closed.value,
            colors=COLORS[self._colors.value],
            texture=None if self._texture.value == NO_TEXTURE else int(self._texture.value),
            mesh_preset=kind,
        )

    def _start(self) -> None:
        self._on_disk = None
        model = self._source()
        if model is None:
            raise ValueError(NO_MODEL)
        self._follow_step()
        typed = output_path(self._path.value, self._suggested)
        if typed.suffix.lower() not in WRITERS:
            typed = typed.with_name(typed.name + self._format.value)
        options = self._options()
        options.check()
        check_mesh_output(typed, textured=options.texture is not None)
        frame = frame_of(self.controller.project)
        mesh = MeshTask(model, self.page.free(typed), options, trim=self._trim(), box_frame=frame)
        for file in mesh.files[2:]:  # of a texture: they follow the name of the mesh
            if file.exists():
                part = TEXTURE_PARTS[file.suffix]
                raise ValueError(
                    f"{path_words(file)} is there already and would be the mesh's {part}: choose"
                    " another name for the mesh"
                )
        self._forget()
        self._step, self._model = self.controller.status.step, self._shown_model()
        self.page.tasks.start(MESH, FileTask(f"Meshing {mesh.output.name}", mesh=mesh), self._ended)

    def _ended(self, end: TaskEnd) -> None:
        if end.mesh is None:
            return
        self._made = end.mesh
        notes = "".join(note_html(note) for note in end.mesh.report.notes)
        self._report.content = table_html(end.mesh.report.rows, mark="mesh") + notes
        self._report.visible = True
        self._look.visible = end.mesh.shown is not None
        if end.mesh.shown is not None:  # who made it wants to see it
            self._look.value = MESH_LOOK
            self._show()

    def _show(self) -> None:
        """Draw the mesh that was made last as it is chosen, or nothing."""
        if self._drawn is not None:
            self._drawn.remove()
            self._drawn = None
        look = LOOKS[self._look.value]
        if look is not None and self._made is not None and self._made.shown is not None:
            self._drawn = self.page.server.scene.add_glb("/mesh", self._made.shown.glb(look))

    def _forget(self) -> None:
        """Take the mesh that was made last, and what was said of it, off the page."""
        self._made = None
        self._report.visible = self._look.visible = False
        self._look.value = NO_LOOK
        self._show()
