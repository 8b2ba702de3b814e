"""What files of other kinds are, by how they begin, so that they can be refused by their names."""

from __future__ import annotations

import zipfile
from pathlib import Path

from splatstudio.files.inputs import open_input

NUM_BYTES = 512  # that tell a kind
LFS_POINTER = b"version https://git-lfs"
ZIP = b"PK\x03\x04"
TAR = b"ustar"  # at byte 257
PICTURE_BRANDS = {  # of the container that videos have, too: at byte 8
    **dict.fromkeys((b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1"), "a HEIC picture"),
    **dict.fromkeys((b"avif", b"avis"), "an AVIF picture"),
    b"crx ": "a raw picture",
}
UNPACK = "unpack it and open what is in it"

# How a file begins, what it is, and what to do where there is something.
KINDS = (
    (b"\x93NUMPY", "a NumPy array", ""),
    (b"\x89HDF\r\n", "an HDF5 file", ""),
    (
        b"SQLite format 3",
        "an SQLite database, as COLMAP has for its features",
        "open the folder of the scene",
    ),
    (b"glTF", "a binary glTF", ""),
    (b"\x89PNG", "a PNG picture", ""),
    (b"\xff\xd8\xff", "a JPEG picture", ""),
    (b"GIF8", "a GIF picture", ""),
    (b"RIFF", "a WebP picture or a video", ""),
    (b"%PDF", "a PDF document", ""),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    (b"Rar!", "a RAR archive", UNPACK),
    (b"\xfd7zXZ", "an XZ archive", UNPACK),
    (b"<!DOCTYPE", "a web page", "download the file itself again"),
    (b"<html", "a web page", "download the file itself again"),
)


def kind_of_file(path: Path) -> str | None:
    """Return what a file of another kind is and what to do, as "a tar archive: unpack it"; None: not known.

    Raises ValueError for a pointer of Git LFS, OSError where it cannot be read.
    """
    with open_input(path) as file:
        start = file.read(NUM_BYTES)
    refuse_pointer(path, start)
    known = _kind_of_archive(path) if start.startswith(ZIP) else _kind_of(start)
    return None if known is None else ": ".join(filter(None, known))


def _kind_of(start: bytes) -> tuple[str, str] | None:
    for mark, kind, advice in KINDS:
        if start[: len(mark)].upper() == mark.upper():
            return kind, advice
    if start[257:262] == TAR:
        return "a tar archive", UNPACK
    if start[4:8] == b"ftyp":
        if (picture := PICTURE_BRANDS.get(start[8:12])) is not None:
            return picture, ""
        return "a video", "`splatstudio poses` estimates its camera poses"
    return None


def _kind_of_archive(path: Path) -> tuple[str, str] | None:
    """Return what a ZIP archive is, and what to do; None for models and for damaged ones."""
    try:
        with open_input(path) as file, zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return None
    if "meta.json" in names or any(Path(name).name == "data.pkl" for name in names):
        return None
    if names and all(name.endswith(".npy") for name in names):
        return "a NumPy archive", ""
    if "[Content_Types].xml" in names:
        return "an Office document", ""
    return "a ZIP archive", UNPACK


def refuse_pointer(path: Path, start: bytes) -> None:
    """Raise ValueError where a file that begins with `start` stands for one that Git LFS has not fetched."""
    if start.startswith(LFS_POINTER):
        raise ValueError(
            f"{path} is a pointer of Git LFS, not the file itself: run `git lfs pull` in its folder"
        )
