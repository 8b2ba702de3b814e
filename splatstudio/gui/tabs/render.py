"""The Render tab: a camera path made of keyframes, its preview, and its way to a video; pictures."""

from __future__ import annotations

import numpy as np

from splatstudio.gui.panel_context import Page, Panel
from splatstudio.gui.state.controller import Notice
from splatstudio.gui.state.keyframes import Draft, PathEditor
from splatstudio.gui.state.path_scene import ROOT, PathScene
from splatstudio.gui.state.path_store import PathStore
from splatstudio.gui.state.preview import Previews
from splatstudio.gui.state.scene_overlay import frustum_size
from splatstudio.gui.tabs.keyframe_section import KeyframeDetails, KeyframeSection
from splatstudio.gui.tabs.path_section import FileSection, MotionSection, PathChoice, PreviewSection
from splatstudio.gui.tabs.render_output import OutputSection, PictureSection

CAMERAS, CROP = "/cameras", "/crop"  # what other panels draw, and no video shows
KEYFRAME_SIZE = 1.5  # times a photograph's camera


class RenderPanel(Panel):
    """Keyframes, path, preview and output. The path is one for all browsers, and saved with the run."""

    def __init__(self, page: Page):
        gui, controller = page.server.gui, page.controller
        scene = controller.project.scene
        self._page = page
        self._store = PathStore(controller.project)
        self._editor = PathEditor(self._last_path())
        size, distance = 0.2, 3.0
        if scene is not None:
            positions = np.stack([camera.position for camera in scene.cameras])
            size = KEYFRAME_SIZE * frustum_size(positions, scene.extent)
            # The cameras' common point of attention is the origin of the scene's frame.
            distance = float(np.median(np.linalg.norm(positions, axis=1))) or scene.extent
        self._drawn = PathScene(page.server, self._editor, size)
        # Nodes of their own, so that all that lies below can be hidden at once.
        for name in (CAMERAS, CROP):
            page.server.scene.add_frame(name, show_axes=False)
        self._previews = Previews(page.server, distance, (ROOT, CAMERAS, CROP))
        choice = PathChoice(page, self._editor, self._store)
        keyframes = KeyframeSection(page, self._editor, self._drawn, distance)
        preview = PreviewSection(page, self._editor, self._previews)
        with gui.add_folder("Video"):
            output = OutputSection(page, self._editor, page.jobs)
        with gui.add_folder("Motion and lens", expand_by_default=False):
            details = KeyframeDetails(gui, self._editor)
            motion = MotionSection(page, self._editor, self._drawn)
        with gui.add_folder("Picture", expand_by_default=False):
            picture = PictureSection(page, page.jobs)
        with gui.add_folder("Path file", expand_by_default=False):
            FileSection(page, self._editor, self._store)
        self._sections = (choice, keyframes, preview, output, details, motion, picture)
        self._told = ""
        self._editor.listen(self._save)

    def refresh(self) -> None:
        """Show what has changed, in the tab and in the scene."""
        self._store.follow(self._page.controller.project)
        for section in self._sections:
            section.refresh()
        self._drawn.redraw()
        problem = self._store.problem
        if problem != self._told and problem:
            self._page.notify(Notice("Not saved", problem, bad=True))
        self._told = problem

    def close(self) -> None:
        """Save the path and end the previews."""
        self._previews.close()
        self._store.close()

    def _save(self, draft: Draft) -> None:
        self._store.save_soon(draft.path, draft.name)

    def _last_path(self) -> Draft:
        """Return the path that was changed last; a damaged one is left aside and named."""
        for name in self._store.names():
            try:
                path = self._store.read(name)
            except ValueError as error:
                self._page.notify(Notice("A camera path is left aside", str(error), bad=True))
                continue
            return Draft(path, 0 if path.keyframes else None, name)
        return Draft(name=self._store.unused("path"))
