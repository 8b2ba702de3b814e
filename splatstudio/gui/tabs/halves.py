"""Which two pictures a browser sees beside each other: their names, and where the line between them lies."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from splatstudio.gui.panel import Page
from splatstudio.gui.server.viser_private import tell_halves
from splatstudio.gui.state.controller import Controller
from splatstudio.gui.state.photos import photo_span
from splatstudio.gui.state.stream import Stream
from splatstudio.models.model import run_folder_of
from splatstudio.scene.scene import Scene


@dataclass(frozen=True)
class Halves:
    """What the page is told.

    `span` is the left edge and the width of what is divided, as shares of the canvas, `slider` the id of what
    moves the line and `share` where it stands, 0..1 of the width; `left` and `right` are the names.
    """

    span: tuple[float, float]
    slider: str
    share: float
    left: str
    right: str


class ToldHalves:
    """Lets the page of one browser name the two pictures that it shows beside each other."""

    def __init__(self, page: Page, stream: Stream, scene: Scene | None):
        self._page, self._stream, self._scene = page, stream, scene
        self._told: Halves | None = None
        self.photo_slider = ""  # what moves the line between photo and model, by its id in the page

    def refresh(self) -> None:
        """Tell the page what has changed."""
        halves = halves_of(self._page, self._stream, self._scene, self.photo_slider)
        if halves != self._told:
            self._told = halves
            tell_halves(self._stream.client, None if halves is None else asdict(halves))


def halves_of(page: Page, stream: Stream, scene: Scene | None, photo_slider: str) -> Halves | None:
    """Return the halves that a browser sees now, None where its picture is one.

    `photo_slider` is the id of what moves the line between photo and model.
    """
    settings, snap, viewpoint = stream.settings, stream.camera_snap, stream.viewpoint
    here = None if snap is None else snap.here
    if here is not None and settings.wants_photo:
        alone = page.controller.model_state().step is None  # before there is a model the photo is whole
        if settings.comparison.kind != "split" or scene is None or viewpoint is None or alone:
            return None
        left, width = photo_span(scene.cameras[here], viewpoint)
        span = (round(left, 5), round(width, 5))
        return Halves(span, photo_slider, settings.comparison.split, "Photo", "Model")
    beside = page.controller.beside
    if beside.path is None or beside.worker is None:
        return None
    names = name_of(beside.path), name_in_view(page)
    return Halves((0.0, 1.0), page.viewport.beside_slider, settings.beside_split, *names)


def name_in_view(page: Page) -> str:
    """Return what the model in the view is called: its run, or its file."""
    controller = page.controller
    path, run_dir = controller.shown_path, controller.project.run_dir
    if path is not None:
        return name_of(path)
    return controller.project.name if run_dir is None else run_dir.resolve().name


def shows_another_run(controller: Controller) -> bool:
    """Return whether the model in the view is from the disk, and not of this page's run."""
    path, project = controller.shown_path, controller.project
    return path is not None and project.run_dir is not None and not project.holds(path)


def name_of(path: Path) -> str:
    """Return what a model on the disk is called: the run that it is of, with the step, or its file."""
    run_dir = run_folder_of(path)
    if run_dir is None:
        return path.name
    step = path.name.removeprefix("step_")
    told = f" · step {int(step):,}" if step.isdecimal() else f" · {path.name}"
    return run_dir.resolve().name + told
