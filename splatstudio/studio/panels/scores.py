"""The scores of an evaluation: means, and the photographs worst first; a click goes there and compares."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from pathlib import Path

import viser

from splatstudio.evaluate import SCORES, Evaluation, evaluation_from_json
from splatstudio.scoring import Scored
from splatstudio.studio.page import Page
from splatstudio.studio.panels.train import table_html
from splatstudio.studio.theme import MUTED

NUM_WORST = 8
TITLES = {
    "psnr": "PSNR",
    "ssim": "SSIM",
    "psnr_corrected": "PSNR, color-corrected",
    "lpips_alex": "LPIPS, AlexNet",
    "lpips_vgg": "LPIPS, VGG16",
}


class ScoresSection:
    """Means and the worst photographs of one evaluation."""

    def __init__(self, page: Page, compare: Callable[[viser.ClientHandle, int], None]):
        gui = page.server.gui
        scene = page.controller.project.scene
        self._indices = {} if scene is None else {view.name: i for i, view in enumerate(scene.views)}
        self._compare = compare
        self._names: list[str] = []
        with gui.add_folder("Scores"):
            self._means = gui.add_html("")
            self._rows = [
                gui.add_button(f"Photo {i + 1}", color="gray", visible=False) for i in range(NUM_WORST)
            ]
        for place, row in enumerate(self._rows):
            row.on_click(lambda event, place=place: self._visit(event, place))
        self._clear()

    def show(self, scored: Scored) -> None:
        """Show what an evaluation just gave."""
        self._draw(scored.evaluation, scored.step, scored.part)

    def show_file(self, file: Path) -> None:
        """Show the scores that lie in a run's file; none where there is no good one."""
        try:
            values = json.loads(file.read_bytes())
            self._draw(evaluation_from_json(values), values.get("step"), None)
        except (OSError, ValueError, AttributeError):
            self._clear()

    def _clear(self) -> None:
        self._names = []
        self._means.content = (
            f'<div style="padding:0 10px;font-size:12px;color:{MUTED}">Not evaluated yet.</div>'
        )
        for row in self._rows:
            row.visible = False

    def _draw(self, evaluation: Evaluation, step: int | None, part: str | None) -> None:
        rows = [] if step is None else [("Step", f"{step:,}")]
        rows += [(TITLES[name], _figure(name, getattr(evaluation, name))) for name in evaluation.measured]
        rows += [
            ("Photos", f"{len(evaluation.images)}"),
            ("Splats", f"{evaluation.num_gaussians:,}"),
            ("A frame", f"{evaluation.seconds_per_image * 1000:.1f} ms"),
        ]
        notes = "".join(
            f'<div style="padding:4px 10px;font-size:12px;color:#e0b040">{html.escape(note)}</div>'
            for note in (*([] if part is None else [part]), *evaluation.notes)
        )
        self._means.content = f'<div data-splatstudio="scores">{table_html(rows)}{notes}</div>'
        worst = evaluation.worst_first[:NUM_WORST]
        self._names = [score.name for score in worst]
        for place, row in enumerate(self._rows):
            row.visible = place < len(worst)
            if row.visible:
                row.label = f"{worst[place].name} · {worst[place].psnr:.2f} dB"
                row.disabled = worst[place].name not in self._indices

    def _visit(self, event: viser.GuiEvent, place: int) -> None:
        if event.client is not None and place < len(self._names):
            self._compare(event.client, self._indices[self._names[place]])


def _figure(name: str, value: float) -> str:
    assert name in SCORES
    return f"{value:.2f} dB" if name.startswith("psnr") else f"{value:.4f}"
