"""The scores of one evaluation and the way to its worst photos; the networks of LPIPS and their weights."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import viser

from splatstudio.evaluation.evaluate import SCORES, ComparedWith, Evaluation, evaluation_from_json
from splatstudio.evaluation.lpips import fetch_lpips, lacks_weights, short_notes
from splatstudio.files.inputs import read_input
from splatstudio.files.path_words import path_words
from splatstudio.gui.panel import Page, Panel
from splatstudio.gui.state.status import Notice
from splatstudio.gui.theme import note_html, table_html

NETWORKS: dict[str, tuple[str, ...]] = {
    "AlexNet": ("alex",),
    "VGG": ("vgg",),
    "Both": ("alex", "vgg"),
    "None": (),
}
DOWNLOAD = "Download LPIPS weights"
REMEDY = f"{DOWNLOAD}, under Measures and files, gets them."
NUM_WORST = 8
NO_MODEL = note_html("No scores yet.")
NO_SCORES = note_html("This model is not evaluated yet.")
TITLES = {
    "psnr": "PSNR",
    "ssim": "SSIM",
    "psnr_corrected": "PSNR, color-corrected",
    "ms_ssim": "MS-SSIM",
    "flip": "FLIP (lower is better)",
    "lpips_alex": "LPIPS, AlexNet",
    "lpips_vgg": "LPIPS, VGG16",
}


class ScoresSection(Panel):
    """Means and the worst photos of one evaluation.

    A click on a photo compares it with the model in the view, which must be of the same run and scene.
    """

    def __init__(self, page: Page, compare: Callable[[viser.ClientHandle, int], None]):
        super().__init__(page)
        self._scene = scene = self.controller.project.scene
        self._indices = {} if scene is None else {name: views[0] for name, views in scene.photos.items()}
        self._compare = compare
        self._names: list[str] = []
        self._against: ComparedWith | None = None
        self._owner: Path | None = None  # the run or the folder of results whose model was evaluated
        self._in_view: Path | None = None  # that of the model in the view
        with self.gui.add_folder("Scores"):
            self._means = self.gui.add_html(NO_MODEL)
            self._rows = [
                self.button(f"Photo {i + 1}", partial(self._visit, i), visible=False)
                for i in range(NUM_WORST)
            ]
            self._reason = self.gui.add_html("", visible=False)

    def show_file(self, file: Path | None, owner: Path, note: str = "") -> None:
        """Show the scores that lie in a file of the run `owner`, below a `note`; none without a good one."""
        try:
            values = json.loads(read_input(file)) if file is not None else {}
            self.show(evaluation_from_json(values), values.get("step"), owner, note)
        except (OSError, ValueError, AttributeError):
            self._names, self._against = [], None
            self._means.content = NO_SCORES
            for row in self._rows:
                row.visible = False

    def allow(self, in_view: Path | None) -> None:
        """Let the photos be clicked while the model in the view, of the folder `in_view`, is theirs."""
        self._in_view = in_view
        reason = self._why_not() if self._names else ""
        self._reason.visible = bool(reason)
        self._reason.content = note_html(reason)
        for name, row in zip(self._names, self._rows, strict=False):
            row.disabled = bool(reason) or name not in self._indices

    def _why_not(self) -> str:
        """Return why no photo of these can be compared with what is in the view, "" where they can."""
        if self._scene is None:
            return "Open the scene of these scores to see its photos."
        if self._against is None:
            return "These scores do not say of which scene they are: evaluate again to go to its photos."
        if self._against.scene != self._scene.path.resolve():
            return f"These scores are of another scene, {path_words(self._against.scene)}."
        if self._owner is None or self._in_view is None or self._owner.resolve() != self._in_view.resolve():
            return "Another model is in the view: open this one to go to its photos."
        return ""

    def show(self, evaluation: Evaluation, step: int | None, owner: Path, note: str = "") -> None:
        """Show the scores of a model of `owner`, a run or a folder of results, below a `note`."""
        rows = [] if step is None else [("Step", f"{step:,}")]
        rows += [(TITLES[name], _figure(name, getattr(evaluation, name))) for name in evaluation.measured]
        rows += [
            ("Photos", f"{len(evaluation.images)}"),
            ("Splats", f"{evaluation.num_gaussians:,}"),
            ("Render time per frame", f"{evaluation.seconds_per_image * 1000:.1f} ms"),
        ]
        notes = "".join(note_html(note, "warning") for note in short_notes(evaluation.notes, REMEDY))
        above = note_html(note) if note else ""
        self._means.content = f'<div data-splatstudio="scores">{above}{table_html(rows)}{notes}</div>'
        worst = evaluation.worst_first[:NUM_WORST]
        self._owner, self._against = owner, evaluation.against
        self._names = [score.name for score in worst]
        for place, row in enumerate(self._rows):
            row.visible = place < len(worst)
            if row.visible:
                row.label = f"{worst[place].name} · {worst[place].psnr:.2f} dB"

    def _visit(self, place: int, client: viser.ClientHandle) -> None:
        if place < len(self._names) and not self._why_not():
            index = self._indices.get(self._names[place])
            if index is not None:
                self._compare(client, index)


def _figure(name: str, value: float) -> str:
    assert name in SCORES
    if not math.isfinite(value):
        return "–"
    return f"{value:.2f} dB" if name.startswith("psnr") else f"{value:.4f}"


class LpipsWeights(Panel):
    """The button that downloads the weights of LPIPS, where those of a chosen network are missing."""

    def __init__(self, page: Page, chosen: Callable[[], tuple[str, ...]]):
        """Offer the weights of the networks that are `chosen`."""
        super().__init__(page)
        self._chosen = chosen
        self._missing: tuple[str, ...] = ()
        self._busy = threading.Lock()
        hint = "230 MB for AlexNet, 530 MB for VGG16, from pytorch.org; kept for all runs of this user."
        button = self.button("Download weights", lambda _: self._download(), hint=hint)
        self.keep(
            button,
            visible=lambda: bool(self._missing),
            disabled=self._busy.locked,
            label=lambda: "Downloading weights …" if self._busy.locked() else DOWNLOAD,
        )

    def look(self) -> None:
        """Look for the weights of the networks that are chosen."""
        self._missing = tuple(name for name in self._chosen() if lacks_weights(name))

    def _download(self) -> None:
        if not self._busy.acquire(blocking=False):
            return  # another browser has pressed it
        try:
            self.page.changed(None)
            for name in self._missing:
                fetch_lpips(name)
            self.page.notify(Notice("Weights downloaded", "The next evaluation measures LPIPS."))
        finally:
            self._busy.release()
            self.look()
