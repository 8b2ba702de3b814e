"""How a model on the disk is shown: its row in the list, and what is known of it."""

from __future__ import annotations

import html
from pathlib import Path

from splatstudio.checkpoints.catalog import CatalogEntry, bytes_of
from splatstudio.gui.tabs.train import table_html
from splatstudio.gui.theme import ACCENT, MUTED, size

PLAIN, FAIR, BAD = (74, 82, 94), (160, 115, 30), (170, 60, 60)


def row_label(entry: CatalogEntry) -> str:
    """Return a model as a row of the list says it."""
    ranks = f" · {entry.num_ranks} ranks" if entry.num_ranks > 1 else ""
    psnr = f" · {entry.psnr:.2f} dB" if entry.psnr is not None else ""
    return f"Step {entry.step:,}{ranks} · {size(entry.num_bytes)} · {entry.state}{psnr}"


def row_color(entry: CatalogEntry, selected: bool) -> tuple[int, int, int]:
    """Return the color of a row: what is not complete stands out."""
    if selected:
        return ACCENT
    return {"complete": PLAIN, "part": FAIR, "damaged": BAD}[entry.state]


def facts_html(entry: CatalogEntry | None, file: Path | None = None) -> str:
    """Return what is known of the chosen model as HTML; everything from outside is escaped.

    `file` is the model that is open where it is one alone, of which no scene is known.
    """
    if entry is None and file is not None:
        note = f"No runs here. To compare {file.name} with photographs, name the folder of its scene below."
        return f'<div style="margin-bottom:8px">{note_html(note)}</div>'
    if entry is None:
        return note_html("No models here yet: a checkpoint appears when it is saved.")
    rows = [
        ("Step", f"{entry.step:,}"),
        ("State", f"{entry.state}: {entry.reason}" if entry.reason else entry.state),
    ]
    if entry.num_gaussians is not None:
        rows += [("Splats", f"{entry.num_gaussians:,}")]
    sizes = [(file.name, bytes_of(file)) for file in entry.files]
    files = [f"{name}  {'not readable' if num is None else size(num)}" for name, num in sizes]
    rows += [
        ("Files", "\n".join(files) or "none"),
        ("Folder", str(entry.path if not entry.is_gsplat else entry.owner)),
    ]
    style = "white-space:pre-wrap;margin-bottom:8px"
    return f'<div data-splatstudio="entry" style="{style}">{table_html(rows)}</div>'


def note_html(text: str) -> str:
    """Return a sentence in small grey letters."""
    style = f"padding:0 10px;font-size:12px;overflow-wrap:anywhere;color:{MUTED}"
    return f'<div style="{style}">{html.escape(text)}</div>'
