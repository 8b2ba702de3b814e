"""The contact sheet: small pictures of photos that were left out and of groups apart, in one JPEG.

Here Pillow works and COLMAP does not, see `input`.
"""

from __future__ import annotations

import io
import warnings
from collections import defaultdict
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageOps

from splatstudio.files.durable import write_durably
from splatstudio.poses.records import PoseReport
from splatstudio.poses.store import PoseStore
from splatstudio.scene.photo import picture_header

COLUMNS, SIDE, GAP = 3, 200, 8  # pictures side by side, and pixels
LINE = 22  # pixels of a line of text
MOST_OF_A_KIND = 9  # pictures of one group, or left out for one reason
MOST = 60  # pictures
PAPER, INK, BLANK = (24, 26, 30), (225, 228, 232), (70, 74, 80)


def write_contact_sheet(store: PoseStore, report: PoseReport) -> None:
    """Write the sheet of a report beside it; where there is nothing to show, that of before is removed.

    A file that cannot be decoded gets a blank. Raises OSError where the sheet cannot be written.
    """
    sections = _sections(report)
    if not sections:
        store.contact_sheet.unlink(missing_ok=True)
        return
    written = io.BytesIO()
    _drawn(store, sections).save(written, "JPEG", quality=85)
    write_durably(store.contact_sheet, written.getvalue())


def _sections(report: PoseReport) -> list[tuple[str, list[str]]]:
    """Return titles and the names of what is below them: groups, then reasons to be left out."""
    sections = [(f"Another group of {len(group.names)} photos", list(group.names)) for group in report.groups]
    grouped = {name for group in report.groups for name in group.names}
    by_reason = defaultdict[str, list[str]](list)
    for photo in report.left_out:
        if photo.name not in grouped:
            by_reason[photo.reason].append(photo.name)
    sections += [(f"Left out: {reason}", names) for reason, names in by_reason.items()]
    shown: list[tuple[str, list[str]]] = []
    room = MOST
    for title, names in sections:
        if room == 0:
            break
        chosen = names[: min(MOST_OF_A_KIND, room)]
        room -= len(chosen)
        more = len(names) - len(chosen)
        shown.append((f"{title} (and {more} more)" if more else title, chosen))
    return shown


def _drawn(store: PoseStore, sections: list[tuple[str, list[str]]]) -> Image.Image:
    cell = SIDE + LINE + GAP
    rows = [-(-len(names) // COLUMNS) for _, names in sections]
    width = GAP + COLUMNS * (SIDE + GAP)
    height = GAP + sum(LINE + GAP + num * cell for num in rows)
    sheet = Image.new("RGB", (width, height), PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(16)
    top = GAP
    for (title, names), num_rows in zip(sections, rows, strict=True):
        draw.text((GAP, top), _shortened(draw, font, title, width - 2 * GAP), INK, font)
        top += LINE + GAP
        for number, name in enumerate(names):
            left, y = GAP + number % COLUMNS * (SIDE + GAP), top + number // COLUMNS * cell
            picture = _small(store, name)
            sheet.paste(picture, (left + (SIDE - picture.width) // 2, y + (SIDE - picture.height) // 2))
            draw.text((left, y + SIDE), _shortened(draw, font, name, SIDE, end=True), INK, font)
        top += num_rows * cell
    return sheet


def _shortened(
    draw: ImageDraw.ImageDraw,
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
    text: str,
    width: int,
    *,
    end: bool = False,
) -> str:
    """Return as much of a text's beginning, or of its `end`, as is no wider than `width` pixels."""
    shown = text
    while text and draw.textlength(shown, font) > width:
        text = text[1:] if end else text[:-1]
        shown = f"...{text}" if end else f"{text}..."
    return shown


def _small(store: PoseStore, name: str) -> Image.Image:
    """Return a photo upright and small, a blank where it cannot be decoded."""
    folders = (store.images, store.source, store.source.parent, store.source / "images")
    path = next((folder / name for folder in folders if (folder / name).is_file()), Path(name))
    try:
        picture_header(path)  # refuses what is no picture, or too large
        with warnings.catch_warnings(), Image.open(path) as image:
            warnings.simplefilter("ignore")
            image.draft("RGB", (2 * SIDE, 2 * SIDE))
            upright = ImageOps.exif_transpose(image).convert("RGB")
            upright.thumbnail((SIDE, SIDE))
            return upright
    except (OSError, SyntaxError, ValueError, MemoryError):
        return Image.new("RGB", (SIDE, SIDE * 3 // 4), BLANK)
