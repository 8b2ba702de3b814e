"""Colors, words and small pieces of HTML that all panels share; the page's style sheet is page/page.css."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import viser

from splatstudio.rendering.mode_pictures import color_table
from splatstudio.rendering.modes import ColorMapName, Legend
from splatstudio.runtime.messages import State

ACCENT = (64, 160, 255)
BUTTON = (23, 105, 194)  # white letters have a contrast of 5.5 on it, of 2.7 on the accent
LOOK: dict[str, Any] = {
    "dark_mode": True,
    "show_logo": False,
    "show_share_button": False,
    "brand_color": BUTTON,
}
LIGHT = 2.0  # of what is lit in the scene: cameras and keyframes
TEST_COLOR = (255, 176, 64)  # cameras of the photos held out for the test
MUTED = "#8b95a5"
GOOD = (62, 207, 122)

NUM_STOPS = 12  # of the gradient that shows a color map
# What the user reads, and the color of the dot beside it.
STATE_WORDS: dict[State, tuple[str, str]] = {
    "starting": ("Starting", "#8b95a5"),
    "ready": ("Ready", "#8b95a5"),
    "loading": ("Loading", "#e0b040"),
    "training": ("Training", "#3ecf7a"),
    "paused": ("Paused", "#e0b040"),
    "finished": ("Finished", "#40a0ff"),
    "viewing": ("Saved model", "#40a0ff"),
    "restarting": ("Restarting", "#e0b040"),
    "disconnected": ("Not connected", "#e0b040"),
    "failed": ("Failed", "#ff5c5c"),
    "ended": ("Ended", "#8b95a5"),
}


def apply_theme(gui: viser.GuiApi) -> None:
    """Give a page of viser's our look and name; a browser that wants the light one tells its own page so."""
    gui.configure_theme(**LOOK)
    gui.set_panel_label("splatstudio")


def css(color: Sequence[int]) -> str:
    """Return a color, three bytes, as CSS."""
    return f"rgb({','.join(str(int(channel)) for channel in color)})"


def rgb_bytes(color: Sequence[float]) -> tuple[int, int, int]:
    """Return a color of three parts from 0 to 1 as three bytes."""
    red, green, blue = (round(255.0 * part) for part in color)
    return red, green, blue


def note_html(text: str, kind: str = "", mark: str = "note") -> str:
    """Return a sentence in small gray letters; `kind` "warning" or "bad" gives it another color."""
    look = f"ss-note ss-{kind}" if kind else "ss-note"
    return f'<div class="{look}" data-splatstudio="{mark}">{html.escape(text)}</div>'


def box_html(text: str, kind: str, mark: str) -> str:
    """Return a sentence in a box, of the color of a "warning" or of something "bad"."""
    return f'<div class="ss-box ss-{kind}" data-splatstudio="{mark}">{html.escape(text)}</div>'


def table_html(rows: Sequence[tuple[str, str]], mark: str = "table") -> str:
    """Return label and value pairs as a table; values are escaped."""
    cells = "".join(f"<div>{html.escape(cell)}</div>" for row in rows for cell in row)
    return f'<div class="ss-table" data-splatstudio="{mark}">{cells}</div>'


def duration(seconds: float | None) -> str:
    """Return a time as people say it: 42 s, 3:05 min, 1:12 h."""
    if seconds is None or not 0 <= seconds < 1e7:
        return "–"
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60}:{total % 60:02d} min"
    return f"{total // 3600}:{total % 3600 // 60:02d} h"


def legend_html(legend: Legend | None, notice: str | None) -> str:
    """Return a bar of the colors with the values of its ends, and why the picture is not as asked for."""
    bar = ""
    if legend is not None:
        bar = (
            f'<div class="ss-legend" data-splatstudio="legend"><span>{_figure(legend.low)}</span>'
            f'<div class="bar" style="background:{_gradient(legend.color_map)}"></div>'
            f"<span>{_figure(legend.high)}</span>"
            f'<span class="ss-muted">{html.escape(legend.unit)}</span></div>'
        )
    return bar + (note_html(notice, "warning") if notice else "")


def _gradient(name: ColorMapName) -> str:
    """Return a color map as a CSS gradient from left to right."""
    table = color_table(name).numpy()
    stops = (table[round(i * 255 / (NUM_STOPS - 1))] for i in range(NUM_STOPS))
    return "linear-gradient(to right, " + ", ".join(f"rgb({r},{g},{b})" for r, g, b in stops) + ")"


def _figure(value: float) -> str:
    """Return a number with three digits that count."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def light_evenly(scene: viser.SceneApi) -> None:
    """Light what stands in the scene evenly.

    Without a GPU the browser needs seconds to build the shaders of viser's own light, which comes from a
    picture of surroundings, and nothing is on the screen before they are done.
    """
    scene.configure_environment_map(None)
    scene.configure_default_lights(enabled=False)
    scene.add_light_ambient("/light", intensity=LIGHT)
