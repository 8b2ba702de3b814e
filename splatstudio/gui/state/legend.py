"""What the colours of a picture mean, for the dock."""

from __future__ import annotations

import html

from splatstudio.gui.theme import MUTED
from splatstudio.rendering.color_maps import ColorMapName, color_table
from splatstudio.rendering.modes import Legend

NUM_STOPS = 12


def gradient(name: ColorMapName) -> str:
    """Return a colour map as a CSS gradient from left to right."""
    table = color_table(name).numpy()
    stops = (table[round(i * 255 / (NUM_STOPS - 1))] for i in range(NUM_STOPS))
    return "linear-gradient(to right, " + ", ".join(f"rgb({r},{g},{b})" for r, g, b in stops) + ")"


def figure(value: float) -> str:
    """Return a number with three digits that count."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def legend_html(legend: Legend | None, notice: str | None) -> str:
    """Return a bar of the colours with the values of its ends, and why the picture is not as asked for."""
    bar = ""
    if legend is not None:
        bar = (
            '<div data-splatstudio="legend"'
            ' style="display:flex; align-items:center; gap:8px; font-size:12px">'
            f"<span>{figure(legend.low)}</span>"
            '<div style="flex:1; height:9px; border-radius:5px;'
            f' background:{gradient(legend.color_map)}"></div>'
            f"<span>{figure(legend.high)}</span>"
            f'<span style="color:{MUTED}">{html.escape(legend.unit)}</span></div>'
        )
    text = f'<div style="color:#e0b040; font-size:12px">{html.escape(notice)}</div>' if notice else ""
    return f'<div style="margin:0 0.8em 0.5em">{bar}{text}</div>' if bar or text else ""
