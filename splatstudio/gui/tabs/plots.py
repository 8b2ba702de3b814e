"""Charts over the steps: how one training develops, and how its curves lie beside another's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import viser
from viser import uplot

from splatstudio.gui.panel import Page, Panel
from splatstudio.gui.state.history import Curve, History
from splatstudio.gui.theme import ACCENT, GOOD, MUTED, TEST_COLOR, css, note_html

PLOT_HEIGHT = 94
PADDING = (8, 24, 0, 0)  # room for the topmost number, and for the last one
GRID = "rgba(128,128,128,0.2)"  # on dark and light ground
Ranges = tuple[tuple[float, float], tuple[float, float]]


@dataclass(frozen=True)
class PlotLine:
    """How one row of values is drawn, px; with `width` 0 there are only dots."""

    label: str
    color: str
    width: float = 1.6
    dots: float = 0.0  # diameter


class Plot:
    """One chart that appears with its first data and is sent again only when that has changed."""

    def __init__(
        self,
        server: viser.ViserServer,
        tab: viser.GuiTabHandle | viser.GuiFolderHandle,
        title: str,
        order: float,
    ):
        self._gui = server.gui
        self._tab = tab
        self._title = title
        self._order = order  # charts appear after the rest of the tab, but above it
        self._handle: viser.GuiUplotHandle | None = None
        self._data: tuple[np.ndarray, ...] = ()
        self._lines: list[PlotLine] = []
        self._ranges: Ranges | None = None

    def show(self, data: tuple[np.ndarray, ...], lines: list[PlotLine], ranges: Ranges, x_label: str) -> None:
        """Show rows of values over the first row of `data` (NaN: none), with `ranges` of the two axes."""
        if self._handle is None or lines != self._lines:
            self.remove()
            self._add(data, lines, ranges, x_label)
        elif not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(data, self._data, strict=True)):
            self._handle.data = data
            if ranges != self._ranges:
                self._handle.scales = _scales(ranges)
        self._data, self._lines, self._ranges = data, lines, ranges

    def _add(self, data: tuple[np.ndarray, ...], lines: list[PlotLine], ranges: Ranges, x_label: str) -> None:
        series = [uplot.Series(label=x_label)]
        for line in lines:
            points = uplot.Series_Points(show=line.dots > 0, size=line.dots or 4, fill=line.color)
            look = {"stroke": line.color, "width": line.width, "spanGaps": line.width > 0, "points": points}
            series.append(uplot.Series(label=line.label, **look))
        with self._tab:
            self._handle = self._gui.add_uplot(
                data=data,
                series=tuple(series),
                title=self._title,
                scales=_scales(ranges),
                axes=(_axis(24, 50), _axis(42, 16)),
                legend=uplot.Legend(show=False),
                height=PLOT_HEIGHT,
                padding=PADDING,
                order=self._order,
            )

    def remove(self) -> None:
        """Take the chart away."""
        if self._handle is not None:
            self._handle.remove()
        self._handle = None


class TrainingPlots(Panel):
    """How loss, PSNR, the number of splats and the speed develop."""

    refresh_seconds = 0.75  # the curves are sent whole

    def __init__(self, page: Page, tab: viser.GuiTabHandle):
        super().__init__(page)
        self._history: History | None = None
        self._hint = self.gui.add_html(note_html("The curves appear when the training has begun."))
        blue, orange, green = css(ACCENT), css(TEST_COLOR), css(GOOD)
        loss = [PlotLine("loss", blue), PlotLine("opacities reset", orange, width=0.0, dots=5.0)]
        psnr = [PlotLine("training", blue), PlotLine("test", orange, dots=6.0)]
        splats = [PlotLine("splats", blue), PlotLine("densified", green, width=0.0, dots=4.0)]
        titles = ("Loss (orange: opacities reset)", "PSNR, dB (orange: test)")
        titles += ("Splats, thousands (green: densified)", "it/s")
        self._lines = (loss, psnr, splats, [PlotLine("it/s", blue)])
        self._plots = [Plot(page.server, tab, title, order=-4.0 + i) for i, title in enumerate(titles)]

    def refresh(self) -> None:
        """Show new values."""
        history = self.controller.history
        if history is not self._history:
            self._history = history
            for plot in self._plots:
                plot.remove()
        self._hint.visible = len(history.loss) < 2
        curves: list[tuple[list[Curve], float, Callable[[tuple[np.ndarray, ...]], Ranges]]] = [
            ([history.loss, history.resets], 1.0, lambda data: axis_ranges(data, 0.1)),
            ([history.train_psnr, history.test_psnr], 1.0, lambda data: axis_ranges(data, 5.0)),
            ([history.num_gaussians, history.densified], 1e-3, from_zero),
            ([history.rate], 1.0, from_zero),
        ]
        for plot, lines, (rows, scale, ranges) in zip(self._plots, self._lines, curves, strict=True):
            steps, *values = joined(rows)
            if len(steps) > 1:
                data = (steps, *(scale * row for row in values))
                plot.show(data, lines, ranges(data), "step")


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


def axis_ranges(data: tuple[np.ndarray, ...], y_unit: float) -> Ranges:
    """Return round ends of the x and the y axis that hold all of `data`; NaN values are omitted.

    They change seldom while a curve grows: 0 to 100, 200, 300, 500 ... steps, and multiples of `y_unit`.
    """
    steps, values = data[0], np.concatenate(data[1:])
    values = values[np.isfinite(values)]
    low, high = (values.min(), values.max()) if len(values) else (0.0, 1.0)
    bottom = np.floor(low / y_unit) * y_unit
    top = max(np.ceil(high / y_unit) * y_unit, bottom + y_unit)
    return (0.0, round_end(max(steps[-1], 100.0))), (float(bottom), float(top))


def from_zero(data: tuple[np.ndarray, ...]) -> Ranges:
    """Return round ends of the x and the y axis, both from 0, that hold all of `data`."""
    values = np.concatenate(data[1:])
    top = float(np.nanmax(values, initial=0.0))
    return (0.0, round_end(max(data[0][-1], 100.0))), (0.0, round_end(top) if top > 0 else 1.0)


def round_end(value: float) -> float:
    """Return the next of 1, 2, 3, 5, 10 times a power of ten, `value` at least."""
    decade = 10.0 ** np.floor(np.log10(max(value, 1e-9)))
    return float(next(decade * factor for factor in (1.0, 2.0, 3.0, 5.0, 10.0) if decade * factor >= value))


def _scales(ranges: Ranges) -> dict[str, uplot.Scale]:
    # Fixed ranges. Left to itself, the page keeps the x range relative to the data, and a chart that gets new
    # data before it was first drawn shows a range far from them for good; a NaN would empty the y range.
    x, y = ranges
    return {"x": uplot.Scale(time=False, range=x), "y": uplot.Scale(range=y)}


def _axis(size: int, space: int) -> uplot.Axis:
    return uplot.Axis(
        font="10px system-ui, sans-serif",
        space=space,
        stroke=MUTED,
        size=size,
        grid=uplot.Axis_Grid(stroke=GRID, width=1),
        ticks=uplot.Axis_Ticks(stroke=GRID, width=1),
    )
