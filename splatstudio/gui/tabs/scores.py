"""The scores of an evaluation: means, and the photographs worst first; a click goes there and compares."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable
from pathlib import Path

import viser

from splatstudio.evaluation.evaluate import SCORES, ComparedWith, Evaluation, evaluation_from_json
from splatstudio.evaluation.lpips import short_notes
from splatstudio.gui.panel_context import Page
from splatstudio.gui.tabs.train import table_html
from splatstudio.gui.theme import MUTED
from splatstudio.models.scoring import Scored

NUM_WORST = 8
TITLES = {
    "psnr": "PSNR",
    "ssim": "SSIM",
    "psnr_corrected": "PSNR, color-corrected",
    "lpips_alex": "LPIPS, AlexNet",
    "lpips_vgg": "LPIPS, VGG16",
}


class ScoresSection:
    """Means and the worst photographs of one evaluation.

    A click on a photograph compares it with the model in the view, which must be of the same run and scene.
    """

    def __init__(self, page: Page, compare: Callable[[viser.ClientHandle, int], None]):
        gui = page.server.gui
        self._scene = scene = page.controller.project.scene
        self._indices = {} if scene is None else {view.name: i for i, view in enumerate(scene.views)}
        self._compare = compare
        self._names: list[str] = []
        self._against: ComparedWith | None = None
        self._owner: Path | None = None  # the run or the folder of results whose model was evaluated
        self._in_view: Path | None = None  # that of the model in the view
        with gui.add_folder("Scores"):
            self._means = gui.add_html("")
            self._rows = [
                gui.add_button(f"Photo {i + 1}", color="gray", visible=False) for i in range(NUM_WORST)
            ]
            self._reason = gui.add_html("", visible=False)
        for place, row in enumerate(self._rows):
            row.on_click(lambda event, place=place: self._visit(event, place))
        self._clear()

    def show(self, scored: Scored, owner: Path) -> None:
        """Show what an evaluation of a model of `owner`, a run or a folder of results, just gave."""
        self._owner = owner
        self._draw(scored.evaluation, scored.step)

    def show_file(self, file: Path | None, owner: Path) -> None:
        """Show the scores that lie in a file of the run `owner`; none where there is no good one."""
        self._owner = owner
        if file is None:
            self._clear()
            return
        try:
            values = json.loads(file.read_bytes())
            self._draw(evaluation_from_json(values), values.get("step"))
        except (OSError, ValueError, AttributeError):
            self._clear()

    def refresh(self, in_view: Path | None) -> None:
        """Let the photographs be clicked while the model in the view, of the folder `in_view`, is theirs."""
        if in_view != self._in_view:
            self._in_view = in_view
            self._allow()

    def _allow(self) -> None:
        reason = self._why_not() if self._names else ""
        self._reason.visible = bool(reason)
        self._reason.content = (
            f'<div style="padding:0 10px;font-size:12px;color:{MUTED}">{html.escape(reason)}</div>'
        )
        for name, row in zip(self._names, self._rows, strict=False):
            row.disabled = bool(reason) or name not in self._indices

    def _why_not(self) -> str:
        """Return why no photograph of these can be compared with what is in the view, "" where they can."""
        if self._scene is None:
            return "Open the scene of these scores to see its photos."
        if self._against is None:
            return "These scores do not say of which scene they are: evaluate again to go to its photos."
        if self._against.scene != self._scene.path.resolve():
            return f"These scores are of another scene, {self._against.scene}."
        if self._owner is None or self._in_view is None or self._owner.resolve() != self._in_view.resolve():
            return "Another model is in the view: open this one to go to its photos."
        return ""

    def _clear(self) -> None:
        self._names, self._against = [], None
        self._reason.visible = False
        self._means.content = (
            f'<div style="padding:0 10px;font-size:12px;color:{MUTED}">Not evaluated yet.</div>'
        )
        for row in self._rows:
            row.visible = False

    def _draw(self, evaluation: Evaluation, step: int | None) -> None:
        rows = [] if step is None else [("Step", f"{step:,}")]
        rows += [(TITLES[name], _figure(name, getattr(evaluation, name))) for name in evaluation.measured]
        rows += [
            ("Photos", f"{len(evaluation.images)}"),
            ("Splats", f"{evaluation.num_gaussians:,}"),
            ("A frame", f"{evaluation.seconds_per_image * 1000:.1f} ms"),
        ]
        notes = "".join(
            f'<div style="padding:4px 10px;font-size:12px;color:#e0b040">{html.escape(note)}</div>'
            for note in short_notes(evaluation.notes)
        )
        self._means.content = f'<div data-splatstudio="scores">{table_html(rows)}{notes}</div>'
        worst = evaluation.worst_first[:NUM_WORST]
        self._names, self._against = [score.name for score in worst], evaluation.against
        for place, row in enumerate(self._rows):
            row.visible = place < len(worst)
            if row.visible:
                row.label = f"{worst[place].name} · {worst[place].psnr:.2f} dB"
        self._allow()

    def _visit(self, event: viser.GuiEvent, place: int) -> None:
        if event.client is None or place >= len(self._names) or self._why_not():
            return
        index = self._indices.get(self._names[place])
        if index is not None:
            self._compare(event.client, index)


def _figure(name: str, value: float) -> str:
    assert name in SCORES
    if not math.isfinite(value):
        return "–"
    return f"{value:.2f} dB" if name.startswith("psnr") else f"{value:.4f}"
