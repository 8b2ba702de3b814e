"""The Devices tab: what each GPU does, or, where there is none, each process of a training on the CPU."""

from __future__ import annotations

import html
import threading
from dataclasses import dataclass

import numpy as np
import viser

from splatstudio.devices.monitor import DeviceMonitor, DeviceReading, Field
from splatstudio.gui.panel import Page, Panel
from splatstudio.gui.state.status import Status
from splatstudio.gui.tabs.plots import Plot, PlotLine, round_end
from splatstudio.gui.theme import ACCENT, css, note_html
from splatstudio.runtime.messages import Event, RankFigures, figures_after

SAMPLE_SECONDS = 1.0
HISTORY_SECONDS = 300
AXIS_SECONDS = 30
NOT_AVAILABLE = "not available"
UNEVEN = 1.2  # from this imbalance on it is worth a look
# A line a device: the accent first, then colors that eight can be told apart by.
COLORS = (css(ACCENT), "#3ecf7a", "#ffb040", "#ff6b8a", "#b28cff", "#4dd7d7", "#d8d35a", "#c78a5a")


@dataclass(frozen=True)
class Quantity:
    """Something of a device that is plotted; `scale` turns it into `title`'s unit."""

    title: str
    field: Field
    scale: float = 1.0


QUANTITIES = {
    "Utilization": Quantity("Utilization, %", "utilization"),
    "Memory of this app": Quantity("Memory of this app, GB", "memory_used_by_us", 1e-9),
    "Temperature": Quantity("Temperature, °C", "temperature_c"),
    "Power": Quantity("Power, W", "power_w"),
}


@dataclass(frozen=True)
class RankRow:
    """What one process of the training has to show; None: not known."""

    num_gaussians: int | None
    step_seconds: float | None
    wait_seconds: float | None = None  # of `step_seconds`, spent waiting for other ranks


def rank_rows(status: Status, num_ranks: int, told: tuple[RankFigures, ...] = ()) -> tuple[RankRow, ...]:
    """Return the figures of each rank as they were told; else all step together, with nearly even shares."""
    if told:
        return tuple(RankRow(rank.num_gaussians, rank.step_seconds, rank.wait_seconds) for rank in told)
    if status.num_gaussians is None:
        return ()
    rate = status.steps_per_second
    return (RankRow(status.num_gaussians // max(num_ranks, 1), 1.0 / rate if rate else None),) * num_ranks


class RanksPanel(Panel):
    """The tab of a training elsewhere: what each rank has to do, and where it runs."""

    def __init__(self, page: Page):
        super().__init__(page)
        self._told: tuple[RankFigures, ...] = ()
        self._rows = self.gui.add_html("", order=0.0)

    def follow(self, event: Event) -> None:
        """Take in what each rank has to do."""
        self._told = figures_after(event, self._told)

    def refresh(self) -> None:
        """Show the figures that were told last."""
        if self.controller.status.state == "disconnected":
            self._rows.content = note_html("Not connected to the ranks: what they do is not known.")
            return
        self._rows.content = ranks_html(self._told) + balance_html(self._told)


class DevicesPanel(RanksPanel):
    """A row a device, and one of its quantities over the last minutes, a line a device."""

    def __init__(self, page: Page, tab: viser.GuiTabHandle):
        super().__init__(page)
        gui, self._rows.content = self.gui, note_html("Asking the driver …")
        self._monitor = DeviceMonitor(
            lambda: self.controller.pids, history_length=int(HISTORY_SECONDS / SAMPLE_SECONDS)
        )
        self._choice = gui.add_dropdown(
            "Plot",
            tuple(QUANTITIES),
            hint="Over the last five minutes; minutes since the studio was opened.",
            order=1.0,
        )
        self._choice.on_update(lambda _: None)  # the plot follows
        self._plot = Plot(page.server, tab, "", order=2.0)
        # A GPU that goes unused is told in the dock; of a file that is only looked at nothing is trained.
        use, trains = self.controller.project.device_use, self.controller.project.can_train
        self._use = gui.add_html("", visible=trains and bool(use.text) and not use.idle_gpu, order=3.0)
        self._use.content = note_html(f"Trains on {use.text}", mark="device-use")
        self._measured = frozenset[Field](("utilization",))
        self._stopped = threading.Event()
        # A thread of its own: a driver in trouble answers slowly, and the page must not wait for it.
        self._sampler = threading.Thread(target=self._sample, name="devices", daemon=True)
        self._sampler.start()

    def refresh(self) -> None:
        """Show the last sample."""
        readings, told = self._monitor.latest, self._told
        if not readings:
            return
        self._offer(readings)
        ranks = rank_rows(self.controller.status, len(self.controller.pids), told)
        self._rows.content = devices_html(readings, ranks) + balance_html(told)
        quantity = QUANTITIES[self._choice.value]
        history = self._monitor.history(quantity.field)
        if len(history.seconds) < 2:
            return
        values = history.values.T * quantity.scale
        minutes = history.seconds / 60.0
        # The axis moves on now and then, not with every sample: each time the page makes a new chart.
        end = AXIS_SECONDS * float(np.ceil(history.seconds[-1] / AXIS_SECONDS)) / 60.0
        lines = [
            PlotLine(f"GPU {i}" if is_gpu(reading) else reading.name, COLORS[i % len(COLORS)])
            for i, reading in enumerate(readings)
        ]
        ranges = ((max(0.0, end - HISTORY_SECONDS / 60.0), end), (0.0, _top(quantity, values)))
        self._plot.show((minutes, *values), lines, ranges, "minutes")

    def _offer(self, readings: tuple[DeviceReading, ...]) -> None:
        """Let those quantities be plotted that some device has told."""
        fields: set[Field] = {quantity.field for quantity in QUANTITIES.values()}
        told = {field for field in fields for each in readings if getattr(each, field) is not None}
        self._measured |= told
        names = tuple(name for name, quantity in QUANTITIES.items() if quantity.field in self._measured)
        if names != self._choice.options:
            self._choice.options = names

    def close(self) -> None:
        """End the sampling; a driver that does not answer is not waited for."""
        self._stopped.set()
        self._sampler.join(2.0)

    def _sample(self) -> None:
        while not self._stopped.is_set():
            self._monitor.sample()
            self.page.changed(self)
            self._stopped.wait(SAMPLE_SECONDS)
        self._monitor.close()


def ranks_html(told: tuple[RankFigures, ...]) -> str:
    """Return a row a rank."""
    if not told:
        return note_html("No data from the ranks yet; they report while they train.")
    return "".join(
        f'<div class="ss-rank" data-splatstudio="rank"><b>Rank {rank.rank}</b> '
        f'<span class="ss-muted">{html.escape(rank.host)}</span><br>'
        f"{rank.num_gaussians:,} splats · {milliseconds(rank.step_seconds, 3)} ms a step, "
        f"{milliseconds(rank.wait_seconds, 2)} ms of it waiting</div>"
        for rank in told
    )


def _top(quantity: Quantity, values: np.ndarray) -> float:
    """Return the upper end of the y axis."""
    known = values[np.isfinite(values)]
    if quantity.field == "utilization":
        return 100.0
    return round_end(1.05 * float(known.max())) if len(known) and known.max() > 0 else 1.0


def is_gpu(reading: DeviceReading) -> bool:
    """Return whether a row is a GPU's, not one of the processes on the CPU."""
    return not reading.name.startswith("CPU")


def balance_html(told: tuple[RankFigures, ...]) -> str:
    """Return how evenly the work is dealt among the ranks; "" where there is only one."""
    if len(told) < 2:
        return ""
    splats = imbalance(tuple(float(rank.num_gaussians) for rank in told))
    work = imbalance(tuple(max(rank.step_seconds - rank.wait_seconds, 0.0) for rank in told))
    waiting = sum(rank.wait_seconds for rank in told) / max(sum(rank.step_seconds for rank in told), 1e-9)
    return (
        '<div class="ss-devices ss-small" data-splatstudio="balance"'
        ' title="The largest share of a rank over the mean one">'
        f"Imbalance: splats {_factor(splats)}, work {_factor(work)};"
        f" waiting {100.0 * waiting:.0f} % of a step</div>"
    )


def imbalance(values: tuple[float, ...]) -> float | None:
    """Return how far the largest of `values` is above their mean, as a factor; 1: all are the same.

    None where their mean is not above zero.
    """
    mean = sum(values) / len(values) if values else 0.0
    return max(values) / mean if mean > 0.0 else None


def _factor(value: float | None) -> str:
    if value is None:
        return NOT_AVAILABLE
    return f'<span class="ss-warning">{value:.2f}</span>' if value >= UNEVEN else f"{value:.2f}"


def devices_html(readings: tuple[DeviceReading, ...], ranks: tuple[RankRow, ...]) -> str:
    """Return the rows of all devices, with the training's processes beside those that they run on."""
    names, several = {reading.name for reading in readings}, len(readings) > 1
    totals = {reading.memory_total for reading in readings}
    total = next(iter(totals)) if several and len(totals) == 1 else None
    head = ""
    if len(names) == 1 and all(is_gpu(reading) for reading in readings):
        text = (f"{len(readings)} × " if several else "") + html.escape(readings[0].name)
        text += "" if total is None else f", {_gb(total)} GB"
        head = f'<div class="ss-muted">{text}</div>'
    if several:
        waits = "splats · step, waiting" if any(rank.wait_seconds is not None for rank in ranks) else ""
        unit = "" if total is None else ", GB"
        head += f'<div class="ss-small ss-spread"><span>App + others{unit}</span><span>{waits}</span></div>'
    rows, placed = [], 0
    for reading in readings:
        ours = not is_gpu(reading) or (reading.memory_used_by_us or 0) > 0
        rank = ranks[placed] if ours and placed < len(ranks) else None
        placed += rank is not None
        memory = _memory_text(reading, terse=several, total_told=total is not None)
        rows.append(_row(reading, rank, memory, named=len(names) > 1))
    # Where the driver does not say which devices are ours, the figures stand for themselves.
    left = "".join(
        f'<div class="ss-small">Rank {rank}: {_rank_text(figures)}</div>'
        for rank, figures in enumerate(ranks[placed:], placed)
    )
    return f'<div class="ss-devices">{head}{"".join(rows)}{left}</div>'


def _row(reading: DeviceReading, rank: RankRow | None, memory: str, *, named: bool) -> str:
    color, name = COLORS[reading.index % len(COLORS)], html.escape(reading.name)
    title = f"GPU {reading.index}" if is_gpu(reading) else name
    model = f' <span class="ss-small">{name}</span>' if named and is_gpu(reading) else ""
    cells = _cell("utilization", reading.utilization, "{:.0f} %", "Utilization")
    if is_gpu(reading):
        cells += _cell("temperature", reading.temperature_c, "{:.0f} °C", "Temperature")
        cells += _cell("power", reading.power_w, "{:.0f} W", "Power")
    figures = "" if rank is None else f'<span data-splatstudio="rank">{_rank_text(rank)}</span>'
    return (
        '<div class="ss-device" data-splatstudio="device"><div class="title"><span class="name">'
        f'<span class="color" style="background:{color}"></span><b>{title}</b>{model}</span>{cells}</div>'
        f'{_memory_bar(reading, color)}<div class="ss-small ss-spread">'
        f'<span data-splatstudio="memory">{memory}</span>{figures}</div></div>'
    )


def _memory_bar(reading: DeviceReading, color: str) -> str:
    ours, others, total = reading.memory_used_by_us, reading.memory_used_by_others, reading.memory_total
    if total is None or others is None:
        return ""
    shares = [f"{100.0 * part / max(total, 1):.1f}%" for part in (ours or 0, others)]
    return (
        f'<div class="memory"><div style="width:{shares[0]};background:{color}"></div>'
        f'<div class="others" style="width:{shares[1]}"></div></div>'
    )


def _memory_text(reading: DeviceReading, *, terse: bool, total_told: bool) -> str:
    """Return a device's memory; `total_told`: its size and the unit stand above the rows."""
    ours, others, total = reading.memory_used_by_us, reading.memory_used_by_others, reading.memory_total
    if total is None or others is None:
        return f"Memory {NOT_AVAILABLE}"
    if ours is None:
        return f"{_gb(others)} of {_gb(total)} GB, this app {NOT_AVAILABLE}"
    if total_told:
        return f"{_gb(ours)} + {_gb(others)}"
    if terse:
        return f"{_gb(ours)} + {_gb(others)} of {_gb(total)} GB"
    return f"{_gb(ours)} GB this app, {_gb(others)} GB others, {_gb(total)} GB total"


def _cell(name: str, value: float | None, form: str, title: str) -> str:
    text, small = (NOT_AVAILABLE, ' class="ss-small"') if value is None else (form.format(value), "")
    return f'<span data-splatstudio="{name}" title="{title}"{small}>{text}</span>'


def _rank_text(rank: RankRow) -> str:
    splats = "–" if rank.num_gaussians is None else _short(rank.num_gaussians)
    if rank.step_seconds is None:
        return f"{splats} splats"
    step = milliseconds(rank.step_seconds, 3)
    if rank.wait_seconds is None:
        return f"{splats} splats, {step} ms a step"
    # Beside the memory there is no room for more; the head of the rows says what they are.
    return f"{splats} · {step} ms, {milliseconds(rank.wait_seconds, 2)} ms"


def milliseconds(seconds: float, digits: int) -> str:
    """Return a time with that many digits, and never as a power of ten."""
    value = 1000.0 * seconds
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.{digits}g}"


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f}"


def _short(count: int) -> str:
    """Return a count for a narrow line: millions with two decimals."""
    return f"{count / 1e6:.2f} M" if count >= 1_000_000 else f"{count:,}"
