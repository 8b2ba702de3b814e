"""The Train tab: how loss and PSNR develop, and the settings of this run."""

from __future__ import annotations

import time

import numpy as np
import viser

from splatstudio.studio.controller import Controller
from splatstudio.studio.history import Curve
from splatstudio.studio.page import Page, Panel
from splatstudio.studio.panels.plot import Line, Plot, axis_ranges
from splatstudio.studio.theme import ACCENT, MUTED, TEST_COLOR, css
from splatstudio.worker.messages import Evaluate

PLOT_SECONDS = 0.75


class TrainPanel(Panel):
    """Plots, the Evaluate button, and what this run is trained with."""

    def __init__(self, page: Page, tab: viser.GuiTabHandle):
        server, controller = page.server, page.controller
        self._plots_due = 0.0
        self._controller = controller
        self._history = controller.history
        self._hint = server.gui.add_html(_muted("The curves appear when the training has begun."))
        self._evaluate = server.gui.add_button(
            "Evaluate now",
            color="gray",
            hint="Compares the model with the photographs that are held out for the test.",
            visible=False,
        )
        self._evaluate.on_click(lambda _: controller.send(Evaluate()))
        self._loss = Plot(server.gui, tab, "Loss", order=-2.0)
        self._psnr = Plot(server.gui, tab, "PSNR, dB", order=-1.0, legend=True)
        with server.gui.add_folder("Settings of this run", expand_by_default=False):
            server.gui.add_html(settings_html(controller))

    def refresh(self) -> None:
        """Show new values, every PLOT_SECONDS at most."""
        if time.monotonic() < self._plots_due:
            return
        self._plots_due = time.monotonic() + PLOT_SECONDS
        controller = self._controller
        history = controller.history
        if history is not self._history:
            self._history = history
            self._loss.remove()
            self._psnr.remove()
        has_curves = len(history.loss) > 1
        self._hint.visible = not has_curves
        scene = controller.project.scene
        active = controller.status.state in ("training", "paused", "finished")
        self._evaluate.visible = active and scene is not None and len(scene.test_indices) > 0
        self._draw(self._loss, {"loss": history.loss}, 0.1)
        self._draw(self._psnr, {"training": history.train_psnr, "test": history.test_psnr}, 5.0)

    def _draw(self, plot: Plot, curves: dict[str, Curve], y_unit: float) -> None:
        data = joined(list(curves.values()))
        if len(data[0]) < 2:
            return
        lines = [
            Line(label, css(TEST_COLOR if label == "test" else ACCENT), dots=6.0 * (label == "test"))
            for label in curves
        ]
        plot.show(data, lines, axis_ranges(data, y_unit), "step")


def joined(curves: list[Curve]) -> tuple[np.ndarray, ...]:
    """Return one row of steps and one row of values a curve, NaN where a curve has no value at a step."""
    arrays = [curve.arrays() for curve in curves]
    steps = np.unique(np.concatenate([steps for steps, _ in arrays]))
    rows = [steps]
    for own_steps, values in arrays:
        row = np.full(len(steps), np.nan)
        row[np.searchsorted(steps, own_steps)] = values
        rows.append(row)
    return tuple(rows)


def settings_html(controller: Controller) -> str:
    """Return what a user may want to know of the run's settings."""
    project = controller.project
    config, scene = project.config, project.scene
    rows = [("Steps", f"{config.steps:,}")]
    if scene is not None:
        camera = scene.cameras[0]
        rows += [
            ("Photographs", f"{len(scene.train_indices)} to train, {len(scene.test_indices)} to test"),
            ("Size", f"{camera.width} × {camera.height} px (downscale {config.downscale})"),
            ("Sparse points", f"{len(scene.points):,}"),
            ("Format", scene.format),
        ]
    rows += [
        ("Spherical harmonics", f"degree {config.sh_degree}"),
        ("SSIM weight", f"{config.ssim_weight:g}"),
        ("Most splats", f"{config.densify.max_gaussians:,}"),
        ("Run folder", str(project.run_dir) if project.run_dir else "–"),
    ]
    return table_html(rows)


def table_html(rows: list[tuple[str, str]]) -> str:
    """Return label and value pairs as a table; values are escaped."""
    import html

    cells = "".join(
        f'<div style="color:{MUTED}">{html.escape(label)}</div>'
        f'<div style="overflow-wrap:anywhere">{html.escape(value)}</div>'
        for label, value in rows
    )
    return (
        '<div style="display:grid;grid-template-columns:auto 1fr;gap:3px 14px;padding:2px 10px;'
        f'font-size:12px">{cells}</div>'
    )


def _muted(text: str) -> str:
    return f'<div style="padding:6px 10px;font-size:12px;color:{MUTED}">{text}</div>'
