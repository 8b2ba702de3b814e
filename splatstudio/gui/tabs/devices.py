"""The Devices tab: what each GPU does, or, where there is none, each process of a training on the CPU."""

from __future__ import annotations

import html
import threading
from dataclasses import dataclass

import numpy as np
import viser

from splatstudio.devices.monitor import DeviceMonitor, DeviceReading, Field
from splatstudio.gui.panel_context import Page, Panel
from splatstudio.gui.state.status import RankRow
from splatstudio.gui.tabs.plot import Line, Plot, round_end
from splatstudio.gui.theme import ACCENT, MUTED, css
from splatstudio.runtime.messages import Event, RankFigures, figures_after

SAMPLE_SECONDS = 1.0
HISTORY_SECONDS = 300
AXIS_SECONDS = 30
NOT_AVAILABLE = "not available"
OTHERS_COLOR = "#6b7584"
WAITS = "splats · step, waiting"
UNEVEN, UNEVEN_COLOR = 1.2, "#e0b040"  # from this imbalance on it is worth a look
# A line a device: the accent first, then colours that eight can be told apart by.
COLORS = (css(ACCENT), "#3ecf7a", "#ffb040", "#ff6b8a", "#b28cff", "#4dd7d7", "#d8d35a", "#c78a5a")


@dataclass(frozen=True)
class Quantity:
    """Something of a device that is plotted; `scale` turns it into `title`'s unit."""

    title: str
    field: Field
    scale: float = 1.0


QUANTITIES = {
    "Utilization": Quantity("Utilization, %", "utilization"),
    "Memory of ours": Quantity("Memory of this training, GB", "memory_used_by_us", 1e-9),
    "Temperature": Quantity("Temperature, °C", "temperature_c"),
    "Power": Quantity("Power, W", "power_w"),
}


class DevicesPanel(Panel):
    """A row a device, and one of its quantities over the last minutes, a line a device."""

    def __init__(self, page: Page, tab: viser.GuiTabHandle):
        gui = page.server.gui
        self._controller = page.controller
        self._monitor = DeviceMonitor(
            lambda: self._controller.pids, history_length=int(HISTORY_SECONDS / SAMPLE_SECONDS)
        )
        self._rows = gui.add_html(_note("Asking the driver …"), order=0.0)
        self._choice = gui.add_dropdown(
            "Plot",
            tuple(QUANTITIES),
            hint="Over the last five minutes; minutes since the studio was opened.",
            order=1.0,
        )
        self._plot = Plot(page.server, tab, "", order=2.0)
        self._readings: tuple[DeviceReading, ...] = ()
        self._told: tuple[RankFigures, ...] = ()
        self._chosen = ""
        self._measured = frozenset[Field](("utilization",))
        self._stopped = threading.Event()
        # A thread of its own: a driver in trouble answers slowly, and the page must not wait for it.
        self._sampler = threading.Thread(target=self._sample, name="devices", daemon=True)
        self._sampler.start()

    def follow(self, event: Event) -> None:
        """Take in what each rank has to do."""
        self._told = figures_after(event, self._told)

    def refresh(self) -> None:
        """Show a sample that is new."""
        readings, choice = self._monitor.latest, self._choice.value
        # Compared by identity: also a sample that repeats the one before moves the plot.
        if not readings or (readings is self._readings and choice == self._chosen):
            return
        self._readings, self._chosen = readings, choice
        self._offer(readings)
        told = self._told
        alike = self._controller.status.rank_rows(len(self._controller.pids))
        ranks = rank_rows(told) if told else alike
        self._rows.content = devices_html(readings, ranks) + balance_html(told)
        quantity = QUANTITIES[choice]
        history = self._monitor.history(quantity.field)
        if len(history.seconds) < 2:
            return
        values = history.values.T * quantity.scale
        minutes = history.seconds / 60.0
        # The axis moves on now and then, not with every sample: each time the page makes the chart anew.
        end = AXIS_SECONDS * float(np.ceil(history.seconds[-1] / AXIS_SECONDS)) / 60.0
        lines = [
            Line(f"GPU {i}" if is_gpu(reading) else reading.name, COLORS[i % len(COLORS)])
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
            self._stopped.wait(SAMPLE_SECONDS)
        self._monitor.close()


def _top(quantity: Quantity, values: np.ndarray) -> float:
    """Return the upper end of the y axis."""
    known = values[np.isfinite(values)]
    if quantity.field == "utilization":
        return 100.0
    return round_end(1.05 * float(known.max())) if len(known) and known.max() > 0 else 1.0


def is_gpu(reading: DeviceReading) -> bool:
    """Say whether a row is a GPU's, not one of the processes on the CPU."""
    return not reading.name.startswith("CPU")


def rank_rows(told: tuple[RankFigures, ...]) -> tuple[RankRow, ...]:
    """Return the figures of each rank, as the rows show them."""
    return tuple(RankRow(rank.num_gaussians, rank.step_seconds, rank.wait_seconds) for rank in told)


def balance_html(told: tuple[RankFigures, ...]) -> str:
    """Return how evenly the work is dealt among the ranks; "" where there is only one."""
    if len(told) < 2:
        return ""
    splats = imbalance(tuple(float(rank.num_gaussians) for rank in told))
    work = imbalance(tuple(max(rank.step_seconds - rank.wait_seconds, 0.0) for rank in told))
    waiting = sum(rank.wait_seconds for rank in told) / max(sum(rank.step_seconds for rank in told), 1e-9)
    return (
        f'<div data-splatstudio="balance" title="The largest share of a rank over the mean one"'
        f' style="{_SMALL};padding:0 10px 4px">Imbalance: splats {_factor(splats)}, work {_factor(work)};'
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
    text = f"{value:.2f}"
    return f'<span style="color:{UNEVEN_COLOR}">{text}</span>' if value >= UNEVEN else text


def devices_html(readings: tuple[DeviceReading, ...], ranks: tuple[RankRow, ...]) -> str:
    """Return the rows of all devices, with the training's processes beside those that they run on."""
    names = {reading.name for reading in readings}
    head = ""
    if len(names) == 1 and all(is_gpu(reading) for reading in readings):
        text = (f"{len(readings)} × " if len(readings) > 1 else "") + _text(*names)
        head = f'<div style="font-size:12px;color:{MUTED}">{text}</div>'
    if len(readings) > 1:
        waits = any(rank.wait_seconds is not None for rank in ranks)
        head += (
            f'<div style="{_SMALL};margin-bottom:6px;display:flex;justify-content:space-between">'
            f"<span>Memory: ours + others’ of all</span><span>{WAITS if waits else ''}</span></div>"
        )
    rows, placed = [], 0
    for reading in readings:
        ours = not is_gpu(reading) or (reading.memory_used_by_us or 0) > 0
        rank = ranks[placed] if ours and placed < len(ranks) else None
        placed += rank is not None
        rows.append(_row(reading, rank, named=len(names) > 1, terse=len(readings) > 1))
    # Where the driver does not say which devices are ours, the figures stand for themselves.
    left = "".join(
        f'<div style="{_SMALL}">Rank {rank}: {_rank_text(figures)}</div>'
        for rank, figures in enumerate(ranks[placed:], placed)
    )
    return (
        f'<div style="padding:4px 10px;font-variant-numeric:tabular-nums">{head}{"".join(rows)}{left}</div>'
    )


_SMALL = f"font-size:11px;line-height:1.35;color:{MUTED}"


def _row(reading: DeviceReading, rank: RankRow | None, *, named: bool, terse: bool) -> str:
    color = COLORS[reading.index % len(COLORS)]
    title = f"GPU {reading.index}" if is_gpu(reading) else reading.name
    model = f' <span style="{_SMALL}">{_text(reading.name)}</span>' if named and is_gpu(reading) else ""
    cells = [_cell("utilization", reading.utilization, "{:.0f} %", "Utilization")]
    if is_gpu(reading):
        cells.append(_cell("temperature", reading.temperature_c, "{:.0f} °C", "Temperature"))
        cells.append(_cell("power", reading.power_w, "{:.0f} W", "Power"))
    figures = "" if rank is None else f'<span data-splatstudio="rank">{_rank_text(rank)}</span>'
    return (
        f'<div data-splatstudio="device" style="margin-bottom:9px">'
        '<div style="display:flex;align-items:baseline;gap:10px;font-size:12px">'
        f'<span style="flex:1;min-width:0;white-space:nowrap;overflow:hidden;text-overflow:ellipsis">'
        f'<span style="display:inline-block;width:8px;height:8px;border-radius:2px;margin-right:6px;'
        f'background:{color}"></span><b style="font-weight:600">{_text(title)}</b>{model}</span>'
        f"{''.join(cells)}</div>"
        f"{_memory_bar(reading, color)}"
        f'<div style="{_SMALL};display:flex;flex-wrap:wrap;justify-content:space-between;column-gap:10px">'
        f'<span data-splatstudio="memory">{_memory_text(reading, terse)}</span>{figures}</div></div>'
    )


def _memory_bar(reading: DeviceReading, color: str) -> str:
    ours, others, total = reading.memory_used_by_us, reading.memory_used_by_others, reading.memory_total
    if total is None or others is None:
        return ""
    return (
        '<div style="display:flex;height:6px;margin:3px 0 2px 0;border-radius:3px;overflow:hidden;'
        'background:rgba(255,255,255,.09)">'
        f'<div style="width:{_percent(ours or 0, total)};background:{color}"></div>'
        f'<div style="width:{_percent(others, total)};background:{OTHERS_COLOR}"></div></div>'
    )


def _memory_text(reading: DeviceReading, terse: bool) -> str:
    ours, others, total = reading.memory_used_by_us, reading.memory_used_by_others, reading.memory_total
    if total is None or others is None:
        return f"Memory {NOT_AVAILABLE}"
    if ours is None:
        return f"{_gb(others)} of {_gb(total)} GB, ours {NOT_AVAILABLE}"
    if terse:
        return f"{_gb(ours)} + {_gb(others)} of {_gb(total)} GB"
    return f"{_gb(ours)} ours + {_gb(others)} others’ of {_gb(total)} GB"


def _cell(name: str, value: float | None, form: str, title: str) -> str:
    if value is None:
        return f'<span data-splatstudio="{name}" title="{title}" style="{_SMALL}">{NOT_AVAILABLE}</span>'
    return f'<span data-splatstudio="{name}" title="{title}">{form.format(value)}</span>'


def _rank_text(rank: RankRow) -> str:
    splats = "–" if rank.num_gaussians is None else f"{rank.num_gaussians:,}"
    if rank.step_seconds is None:
        return f"{splats} splats"
    step = milliseconds(rank.step_seconds, 3)
    if rank.wait_seconds is None:
        return f"{splats} splats, {step} ms/step"
    # Beside the memory there is no room for more; the head of the rows says what they are.
    return f"{splats} · {step} ms, {milliseconds(rank.wait_seconds, 2)} ms"


def milliseconds(seconds: float, digits: int) -> str:
    """Return a time with that many digits, and never as a power of ten."""
    value = 1000.0 * seconds
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.{digits}g}"


def _percent(part: float, whole: float) -> str:
    return f"{100.0 * part / max(whole, 1):.1f}%"


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f}"


def _text(text: str) -> str:
    return html.escape(text)


def _note(text: str) -> str:
    return f'<div style="padding:6px 10px;font-size:12px;color:{MUTED}">{text}</div>'
