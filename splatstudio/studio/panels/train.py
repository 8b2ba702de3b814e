"""The Train tab: how loss and PSNR develop, and the settings of this run."""

from __future__ import annotations

import time

import numpy as np
import viser
from viser import uplot

from splatstudio.studio.controller import Controller
from splatstudio.studio.history import Curve
from splatstudio.studio.page import Page, Panel
from splatstudio.studio.theme import ACCENT, MUTED, TEST_COLOR, css
from splatstudio.worker.messages import Evaluate

PLOT_HEIGHT = 160
PLOT_SECONDS = 0.75
GRID = "rgba(255,255,255,0.07)"


class Plot:
    """One chart that appears with its second value and is sent again only when there are new ones."""

    def __init__(
        self, server: viser.ViserServer, tab: viser.GuiTabHandle, title: str, order: float, y_unit: float
    ):
        self._server = server
        self._tab = tab
        self._title = title
        self._order = order  # charts appear after the rest of the tab, but above it
        self._handle: viser.GuiUplotHandle | None = None
        self._shown: tuple[int, ...] = ()
        self._y_unit = y_unit  # the y axis begins and ends at multiples of this
        self._ranges: Ranges | None = None

    def refresh(self, curves: dict[str, Curve], colors: list[str]) -> None:
        """Show curves over the steps of all of them."""
        lasts = tuple(int(curve.arrays()[0].max(initial=-1)) for curve in curves.values())
        data = joined(list(curves.values()))
        if lasts == self._shown or len(data[0]) < 2:
            return
        self._shown = lasts
        ranges = axis_ranges(data, self._y_unit)
        if self._handle is not None:
            self._handle.data = data
            if ranges != self._ranges:
                self._ranges = ranges
                self._handle.scales = _scales(ranges)
            return
        self._ranges = ranges
        series = [uplot.Series(label="step")]
        for label, color in zip(curves, colors, strict=True):
            series.append(
                uplot.Series(
                    label=label,
                    stroke=color,
                    width=1.6,
                    spanGaps=True,
                    points=uplot.Series_Points(show=label == "test", size=6, fill=color),
                )
            )
        with self._tab:
            self._handle = self._server.gui.add_uplot(
                data=data,
                series=tuple(series),
                title=self._title,
                scales=_scales(ranges),
                axes=(_axis(30), _axis(46)),
                legend=uplot.Legend(show=len(curves) > 1),
                height=PLOT_HEIGHT,
                padding=(10, 24, 0, 0),  # room for the topmost number
                order=self._order,
            )

    def remove(self) -> None:
        """Take the chart away, for the curves of another run."""
        if self._handle is not None:
            self._handle.remove()
        self._handle, self._shown, self._ranges = None, (), None


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
        self._loss = Plot(server, tab, "Loss", order=-2.0, y_unit=0.1)
        self._psnr = Plot(server, tab, "PSNR, dB", order=-1.0, y_unit=5.0)
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
        self._loss.refresh({"loss": history.loss}, [css(ACCENT)])
        curves = {"training": history.train_psnr, "test": history.test_psnr}
        self._psnr.refresh(curves, [css(ACCENT), css(TEST_COLOR)])


Ranges = tuple[tuple[float, float], tuple[float, float]]


def axis_ranges(data: tuple[np.ndarray, ...], y_unit: float) -> Ranges:
    """Return round ends of the x and the y axis that hold all of `data`; NaN values are left out.

    They change seldom while a curve grows: 0 to 100, 200, 500, 1000 ... steps, and multiples of `y_unit`.
    """
    steps, values = data[0], np.concatenate(data[1:])
    decade = 10.0 ** np.floor(np.log10(max(steps[-1], 100.0)))
    end = next(decade * factor for factor in (1.0, 2.0, 5.0, 10.0) if decade * factor >= steps[-1])
    values = values[np.isfinite(values)]
    low, high = (values.min(), values.max()) if len(values) else (0.0, 1.0)
    bottom = np.floor(low / y_unit) * y_unit
    top = max(np.ceil(high / y_unit) * y_unit, bottom + y_unit)
    return (0.0, float(end)), (float(bottom), float(top))


def _scales(ranges: Ranges) -> dict[str, uplot.Scale]:
    # Fixed ranges. Left to itself, the page keeps the x range relative to the data, and a chart that gets new
    # data before it was first drawn shows a range far from them for good; a NaN would empty the y range.
    x, y = ranges
    return {"x": uplot.Scale(time=False, range=x), "y": uplot.Scale(range=y)}


def _axis(size: int) -> uplot.Axis:
    return uplot.Axis(
        stroke=MUTED,
        size=size,
        grid=uplot.Axis_Grid(stroke=GRID, width=1),
        ticks=uplot.Axis_Ticks(stroke=GRID, width=1),
    )


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
