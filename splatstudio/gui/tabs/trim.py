"""What is left out of the view and of exports: faint splats, and those outside of a box in the scene."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import viser
import viser.transforms

from splatstudio.gaussians.trimming import KEEP_ALL, Trim
from splatstudio.gui.amounts import counted
from splatstudio.gui.panel import Page, Panel
from splatstudio.gui.state.kept_trim import Corner, KeptTrim, TrimKeeper, read_trim, trim_file
from splatstudio.gui.state.status import Notice
from splatstudio.gui.tabs.halves import shows_another_run
from splatstudio.gui.theme import note_html

BOX_COLOR = (255, 214, 92)
ROOT = "/crop"
HANDLE_PIXELS = 55.0  # of the arrow at each side
STEPS_ACROSS = 100.0  # of a field, about, from one side of the first box to the other
BOX_RADII = 2.0  # times the model's radius: half a side of the first box
SURROUND = "Box around the model"
CORNER_HINT = "In the coordinates of this view; --crop on the command line takes those of the scene's files."


class TrimSection(Panel):
    """What is left out of an export: faint splats, and what lies outside of a box drawn in the scene.

    `show` is told what the views hide, so that they show what the file will hold.
    """

    def __init__(self, page: Page, show: Callable[[Trim], None]):
        super().__init__(page)
        gui, self._show = self.gui, show
        self._told = KEEP_ALL
        self._keeper = TrimKeeper(self._refused)
        self._not_kept = ""  # why the last change is in no file
        # viser calls from several threads: what is newest is told last, and one box is drawn at a time.
        self._drawing = threading.Lock()
        self._opacity = gui.add_slider(
            "Minimum opacity", 0.0, 0.95, 0.01, 0.0, hint="Splats less opaque than this are left out."
        )
        self._crop = gui.add_checkbox(
            "Crop to a box",
            False,
            hint="Keeps what is inside. Drag the arrows in the view to move its sides.",
        )
        self._from = gui.add_vector3("From", (-1.0, -1.0, -1.0), step=0.05, visible=False, hint=CORNER_HINT)
        self._to = gui.add_vector3("To", (1.0, 1.0, 1.0), step=0.05, visible=False, hint=CORNER_HINT)
        first = "Resets it to where it was at first."
        self._again = self.button(SURROUND, lambda _: self._surround_again(), visible=False, hint=first)
        self._hide = gui.add_checkbox(
            "Hide the rest in the view",
            True,
            visible=False,
            hint="All browsers show what the file will contain.",
        )
        self._said = gui.add_html("", visible=False)
        self._counted = KEEP_ALL, 0  # what was shown last, and how many splats that keeps
        page.viewport.on_kept = self._count
        self._box = CropBox(page.server, self._drag)
        self._touched = False
        self._model = np.zeros(3), 1.0  # the middle and the radius of the newest one
        self._file = trim_file(self.controller.project)
        self._notice: Notice | None = None  # that something is left out as last time
        for control in (self._opacity, self._crop, self._hide):
            control.on_update(self._change)
        for corner in (self._from, self._to):
            corner.on_update(self._move)
        self._take_kept()

    @property
    def trim(self) -> Trim:
        """Return what is chosen; the box is in the frame of the page and of the model."""
        low, high = self._from.value, self._to.value
        return Trim(self._opacity.value, (*low, *high) if self._crop.value else None)

    @property
    def num_kept(self) -> int | None:
        """Return how many splats of the model in the view are kept, None where no picture has told."""
        trim, num = self._counted
        return num if trim == self.trim else None

    def refresh(self) -> None:
        """Turn to what is kept with another run: what was cropped is of the one before."""
        super().refresh()
        file = trim_file(self.controller.project)
        if file != self._file:
            self._keeper.flush()
            self._file = file
            self._take_kept()

    def close(self) -> None:
        """Write what was changed last."""
        self._keeper.flush()

    def surround(self, center: np.ndarray, radius: float) -> None:
        """Lay the box around a model, unless somebody has laid it already; the fields follow its size."""
        self._model = center, radius
        self._counted = KEEP_ALL, 0
        self._lay(center, radius)

    def _lay(self, center: np.ndarray, radius: float) -> None:
        half = BOX_RADII * radius
        step = field_step(2.0 * half)
        digits = max(0, -round(math.log10(step)))
        for corner, sign in ((self._from, -1.0), (self._to, 1.0)):
            corner.step, corner.precision = step, digits + 1
            if not self._touched:
                x, y, z = np.round(center + sign * half, digits).tolist()
                corner.value = (x, y, z)

    def _surround_again(self) -> None:
        self._touched = False
        other = self.controller.preview.loaded
        self._lay(*(self._model if other is None else (np.array(other.center), other.radius)))
        self._draw()
        self._keep()

    def _take_kept(self) -> None:
        """Show what is kept with what is open; where that leaves something out, it is said."""
        self._not_kept = ""  # which was of what was open before
        if self._notice is not None:
            self.page.withdraw(self._notice)
            self._notice = None
        kept = read_trim(self.controller.project) or KeptTrim()
        self._touched = kept.box is not None
        if kept.box is not None:
            self._from.value, self._to.value = sorted_corners(*kept.box)
        self._crop.value, self._opacity.value, self._hide.value = kept.crops, kept.min_opacity, kept.hides
        self._draw()
        if not self.trim.keeps_all:
            hidden = "What lies outside is hidden, too" if kept.hides else "What lies outside is still shown"
            sentence = f"{hidden}: Export, Filter turns it off or changes it."
            self._notice = Notice("Filtered like last time", sentence)
            self.page.notify(self._notice)

    def _move(self, event: viser.GuiEvent) -> None:
        self._touched = self._touched or event.client is not None
        self._change(event)

    def _change(self, event: viser.GuiEvent) -> None:
        if event.client is not None:
            self._keep()
        self._draw()

    def _drag(self, face: BoxSide, place: float) -> None:
        """Move one side of the box; what is typed and what is dragged is the same."""
        self._from.value, self._to.value = sorted_corners(self._from.value, self._to.value)
        corner, other = (self._to, self._from) if face.is_upper else (self._from, self._to)
        end = other.value[face.axis]
        values = list(corner.value)
        values[face.axis] = round(max(place, end) if face.is_upper else min(place, end), corner.precision)
        x, y, z = values
        self._touched = True
        corner.value = (x, y, z)
        self._keep()

    def _count(self, trim: Trim, num: int) -> None:
        if self._counted != (trim, num):
            self._counted = trim, num
            self._say()
            if trim == self.trim and not trim.keeps_all:
                self.page.changed(None)

    def _refused(self, sentence: str) -> None:
        self._not_kept = sentence
        self._draw()
        self.page.refuse("Not saved", sentence)

    def _keep(self) -> None:
        self._not_kept = ""
        if shows_another_run(self.controller):  # the file is of this page's run
            self._not_kept = "Not saved: another run is in the view."
            return
        box = (self._from.value, self._to.value) if self._touched else None
        kept = KeptTrim(self._opacity.value, self._crop.value, box, self._hide.value)
        self._keeper.save_soon(self.controller.project, kept)

    def _say(self) -> None:
        keeps = "" if (num := self.num_kept) is None else f"Keeps {counted(num, 'splat')}. "
        corners = self._from.value, self._to.value
        # Not put in order while somebody types: who types 12 has typed 1 before.
        beyond = (
            ". From is beyond To: the box lies between them." if corners != sorted_corners(*corners) else ""
        )
        told = self._not_kept or f"{keeps}Saved in {self._file.name}"
        self._said.content = note_html(told + (beyond if self._crop.value else ""), mark="kept-trim")

    def _draw(self) -> None:
        with self._drawing:
            trim = self.trim
            self._hide.visible = self._said.visible = not trim.keeps_all
            self._say()
            hidden = trim if self._hide.value else KEEP_ALL
            if hidden != self._told:
                self._told = hidden
                self._show(hidden)
            shown = self._crop.value
            self._from.visible = self._to.visible = self._again.visible = shown
            self._box.show(sorted_corners(self._from.value, self._to.value) if shown else None)


def sorted_corners(corner: Corner, opposite: Corner) -> tuple[Corner, Corner]:
    """Return the corner of a box with the smallest numbers, and that with the largest."""
    (x, right), (y, front), (z, top) = (sorted(pair) for pair in zip(corner, opposite, strict=True))
    return (x, y, z), (right, front, top)


def field_step(side: float) -> float:
    """Return by how much an arrow of a field moves the side of a box that is `side` long: a power of ten."""
    return 10.0 ** round(math.log10(max(side, 1e-6) / STEPS_ACROSS))


@dataclass(frozen=True)
class BoxSide:
    """A side of the box: across which axis it lies, and at which end."""

    axis: int
    is_upper: bool

    @property
    def name(self) -> str:
        """Return what it is called in the scene."""
        return f"{ROOT}/{'xyz'[self.axis]}{'+' if self.is_upper else '-'}"

    @property
    def wxyz(self) -> np.ndarray:
        """Return the rotation after which an arrow along the axis points out of the box."""
        about = np.eye(3)[(self.axis + 1) % 3]
        return viser.transforms.SO3.exp(about * (0.0 if self.is_upper else math.pi)).wxyz


BOX_SIDES = tuple(BoxSide(axis, is_upper) for axis in range(3) for is_upper in (False, True))


class CropBox:
    """The box in the scene of all browsers, with an arrow at each side that is dragged."""

    def __init__(self, server: viser.ViserServer, drag: Callable[[BoxSide, float], None]):
        """Call `drag` with a side and where it is dragged to, on viser's event loop."""
        self._scene, self._drag = server.scene, drag
        self._lines: viser.LineSegmentsHandle | None = None
        self._handles: dict[BoxSide, viser.TransformControlsHandle] = {}
        self._held: tuple[int | None, BoxSide] | None = None  # the browser that drags, and which side
        self._corners: tuple[Corner, Corner] | None = None
        server.on_client_disconnect(self._left)

    def show(self, corners: tuple[Corner, Corner] | None) -> None:
        """Draw the box between two corners, None: take it away."""
        self._corners = corners
        if corners is None:
            for node in (self._lines, *self._handles.values()):
                if node is not None:
                    node.remove()
            self._lines, self._handles, self._held = None, {}, None
            return
        self._lines = self._scene.add_line_segments(
            f"{ROOT}/box", edges_of(corners), BOX_COLOR, thickness=2.0, thickness_units="screen"
        )
        for face in BOX_SIDES:
            if face not in self._handles:
                self._handles[face] = self._add_handle(face)
        self._place_handles()

    def _add_handle(self, face: BoxSide) -> viser.TransformControlsHandle:
        x, y, z = (axis == face.axis for axis in range(3))
        handle = self._scene.add_transform_controls(
            face.name,
            scale=HANDLE_PIXELS,
            fixed=True,
            depth_test=False,
            active_axes=(x, y, z),
            disable_sliders=True,
            disable_rotations=True,
            wxyz=face.wxyz,
        )
        handle.on_update(partial(self._dragged, face))
        return handle

    # On the event loop: start, movements and end come in order.
    async def _dragged(self, face: BoxSide, event: viser.TransformControlsEvent) -> None:
        self._held = (event.client_id, face) if event.phase != "end" else None
        if event.phase != "start":
            self._drag(face, float(event.target.position[face.axis]))
        if event.phase == "end":
            self._place_handles()

    async def _left(self, client: viser.ClientHandle) -> None:
        # The end of its drag will never come.
        if self._held is not None and self._held[0] == client.client_id:
            self._held = None
            self._place_handles()

    def _place_handles(self) -> None:
        if self._corners is None:
            return
        low, high = np.array(self._corners)
        for face, handle in [*self._handles.items()]:
            if self._held is not None and self._held[1] == face:
                continue
            position = (low + high) / 2.0
            position[face.axis] = (high if face.is_upper else low)[face.axis]
            handle.position = position


def edges_of(corners: tuple[Corner, Corner]) -> np.ndarray:
    """Return the edges of the box between two opposite corners, [12, 2, 3] float32."""
    places = np.array([*itertools.product(*zip(*corners, strict=True))], np.float32)
    ends = np.array([*itertools.product((0, 1), repeat=3)])
    # An edge joins two corners that come from the same end of all axes but one.
    pairs = [(a, b) for a, b in itertools.combinations(range(8), 2) if (ends[a] != ends[b]).sum() == 1]
    return places[np.array(pairs)]
