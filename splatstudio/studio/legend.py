"""What the colours of a picture mean, for the dock."""

from __future__ import annotations

import html

from splatstudio.render_modes import ColorMapName, Legend
from splatstudio.studio.theme import MUTED

STOPS: dict[ColorMapName, tuple[str, ...]] = {
    "turbo": (
        "#30123b",
        "#4662d7",
        "#36aaf9",
        "#1ae4b6",
        "#72fe5e",
        "#c8ef34",
        "#faba39",
        "#f66b19",
        "#7a0403",
    ),
    "viridis": (
        "#440154",
        "#472d7b",
        "#3b528b",
        "#2c728e",
        "#21918c",
        "#28ae80",
        "#5ec962",
        "#addc30",
        "#fde725",
    ),
    "gray": ("#000000", "#ffffff"),
}


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
            f'<div style="flex:1; height:9px; border-radius:5px; background:linear-gradient(to right,'
            f' {", ".join(STOPS[legend.color_map])})"></div>'
            f"<span>{figure(legend.high)}</span>"
            f'<span style="color:{MUTED}">{html.escape(legend.unit)}</span></div>'
        )
    text = f'<div style="color:#e0b040; font-size:12px">{html.escape(notice)}</div>' if notice else ""
    return f'<div style="margin:0 0.8em 0.5em">{bar}{text}</div>' if bar or text else ""
