"""What files say of how their Gaussians were trained: anti-aliased, and so to be drawn, or not.

A PLY has a comment, of which several spellings are about, SPZ a flag, SOG an entry of its description.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from splatstudio.formats.ply_header import LONGEST_HEADER, PLY, parse_header
from splatstudio.formats.sog_description import is_antialiased_sog
from splatstudio.formats.spz import GZIP, MAGIC, is_antialiased_spz

ZIP = b"PK\x03\x04"


def says_antialiased(path: Path | str) -> bool:
    """Return whether a file of Gaussians, which could be read, says that they are anti-aliased.

    Raises ValueError when it can be read no more.
    """
    path = Path(path)
    try:
        if path.name.lower() == "meta.json":
            return is_antialiased_sog(path.read_bytes())
        with open(path, "rb") as file:
            start = file.read(LONGEST_HEADER)
        if start[:4] in PLY:
            return parse_header(path, start).antialiased
        if start[:4] == MAGIC or start[:2] == GZIP:
            return is_antialiased_spz(start)
        if start[:4] != ZIP:
            return False
        with zipfile.ZipFile(path) as archive:
            return "meta.json" in archive.namelist() and is_antialiased_sog(archive.read("meta.json"))
    except (OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} changed while it was read: {error}") from error
