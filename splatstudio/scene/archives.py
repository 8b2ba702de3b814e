"""Scenes in a ZIP or tar archive: unpacked once, beside it, and opened from there."""

from __future__ import annotations

import filecmp
import lzma
import os
import re
import secrets
import shutil
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from splatstudio.error_text import first_line
from splatstudio.files.inputs import can_be_path, open_input, read_input, sha256_of
from splatstudio.files.kinds import kind_of_file
from splatstudio.operating_system import as_file_name, put_in_place
from splatstudio.scene.capture import PHOTO_SUFFIXES, is_apple_double
from splatstudio.scene.layout import STORE, VIDEO_SUFFIXES

ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".r3d")
STAMP = ".unpacked"  # in the folder, with size, time and content of the archive that it was made of
DRIVE = re.compile(r"[A-Za-z]:")
MADE = (STORE, "runs")  # folders of what is made of the photos, not of what is in the archive
MOST_FILES = 200_000
MOST_HEADER_BYTES = 1 << 20  # of a tar's long names, which are read into memory
MIN_FREE_BYTES = 2 << 30  # what is left of the disk
BLOCK = 1 << 20
UTF8_FLAG = 1 << 11  # of a ZIP's entry: its name is in UTF-8, not in that of MS-DOS
CODE_PAGES = ("cp437", "cp1252", "cp850")

DAMAGE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, UnicodeError)


@dataclass(frozen=True)
class _Entry:
    """A file in an archive: its path there, its bytes, and how it is read; `open` is None for a link."""

    name: str
    size: int
    open: Callable[[], IO[bytes]] | None


class _BoundedHeader(tarfile.TarInfo):
    """A header of a tar, refused where the extended one that it announces would fill the memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _BoundedHeader:
        header = super().frombuf(buf, encoding, errors)
        if header.type in b"xgXLK" and header.size > MOST_HEADER_BYTES:
            raise tarfile.ReadError(f"a name of {header.size} bytes")
        return header


def is_archive(path: Path) -> bool:
    """Return whether `path` is a file that is called as a ZIP or tar archive, and no model of splats."""
    if not (path.name.lower().endswith(ENDINGS) and path.is_file()):
        return False
    return not (kind_of_file(path) is None and zipfile.is_zipfile(path))


def unpacked(path: Path) -> Path:
    """Return the folder in which the archive `path` is unpacked; unpack it where that is not done yet.

    It lies in `.splatstudio` beside the archive and is complete or not there. Of an archive that has changed
    it is made anew, but for the poses and runs that have been made in it. Links are left out. Raises
    ValueError, with one sentence, for a damaged archive, one without photos, a file that would lie
    outside, and where it needs more than the disk has free; then nothing is left behind.
    """
    folder = path.parent / STORE / "unpacked" / path.name
    earlier = folder.with_name(f".before-{path.name}")  # an earlier state, until what was made there is moved
    stamp = None
    try:
        _take_over(earlier, folder)  # where that was broken off
        status = path.stat()
        stamp = f"{status.st_size} {status.st_mtime_ns}"
        known, known_content = _stamp_of(folder)
        if known == stamp:
            return folder
        content = sha256_of(path)
        if known_content == content:  # copied, or touched
            (folder / STAMP).write_text(f"{stamp}\n{content}")
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = folder.parent / f".tmp-{secrets.token_hex(8)}"
        partial.mkdir()  # for whom the rest of the folder is: `mkdtemp` would keep others out
        try:
            _unpack(path, partial)
            (partial / STAMP).write_text(f"{stamp}\n{content}")
            if folder.exists():
                put_in_place(folder, earlier)
            put_in_place(partial, folder)
            _take_over(earlier, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except DAMAGE as error:
        reason = first_line(error)[:200].rstrip(" :")
        raise ValueError(f"{path} is cut off or damaged ({reason}): copy or download it again") from error
    except NotImplementedError as error:  # of the ways in which a ZIP may be packed
        reason = first_line(error)[:200]
        raise ValueError(
            f"{path} is packed in a way that is not known here ({reason}): unpack it with another program,"
            " and open that folder"
        ) from error
    except OSError as error:
        if _stamp_of(folder)[0] == stamp and not earlier.exists():  # another process was faster
            return folder
        place = error.filename or folder
        raise ValueError(
            f"{path} cannot be unpacked: {place}: {error.strerror or error}; unpack it elsewhere, and open"
            " that folder"
        ) from error
    return folder


def _stamp_of(folder: Path) -> tuple[str, str]:
    """Return size and time of the archive that a folder is unpacked from, and its content; or empty texts."""
    with suppress(OSError):
        stamp, _, content = read_input(folder / STAMP).decode(errors="replace").partition("\n")
        return stamp, content
    return "", ""


def _take_over(earlier: Path, folder: Path) -> None:
    """Move what was made beside the photos, perhaps for hours, to those in their place, and remove the rest.

    Photos that are the same stay the same files: poses and features are of the time of their writing.
    """
    if not (earlier.is_dir() and folder.is_dir()):
        return
    for root, below, names in os.walk(earlier):
        place = folder / Path(root).relative_to(earlier)
        made = [name for name in below if name in MADE and place.is_dir() and not (place / name).exists()]
        same = [name for name in names if name != STAMP and _are_same(Path(root, name), place / name)]
        for name in (*made, *same):
            put_in_place(Path(root, name), place / name)
        below[:] = [name for name in below if name not in MADE]
    shutil.rmtree(earlier, ignore_errors=True)


def _are_same(file: Path, other: Path) -> bool:
    return other.is_file() and filecmp.cmp(file, other, shallow=False)


def _unpack(path: Path, folder: Path) -> None:
    free = shutil.disk_usage(folder).free - MIN_FREE_BYTES
    with _entries(path) as entries:
        total, files = 0, list[tuple[_Entry, PurePosixPath]]()
        for entry in entries:
            total += entry.size
            if total > free:
                raise ValueError(
                    f"{path} needs more than {total / 1e9:.1f} GB where it lies, and {max(free, 0) / 1e9:.1f}"
                    " GB can be used there: make room, or move it to a disk with more"
                )
            if len(files) == MOST_FILES:
                raise ValueError(f"{path} holds more than {MOST_FILES:,} files: unpack it yourself")
            place = _place(path, entry.name)
            if (
                entry.open is not None
                and place.parts[:1] != ("__MACOSX",)
                and not is_apple_double(place.name)
            ):
                files.append((entry, place))
        if not any(place.suffix.lower() in (*PHOTO_SUFFIXES, *VIDEO_SUFFIXES) for _, place in files):
            within = next((place for _, place in files if place.name.lower().endswith(ENDINGS)), None)
            more = "splats in it are opened" if within is None else f"{within}, an archive in it, is opened"
            raise ValueError(f"{path} is an archive without photos; {more} once it is unpacked")
        # A file that was added again is there twice: the later one counts, as where others unpack it.
        last = {place: number for number, (_, place) in enumerate(files)}
        for number, (entry, place) in enumerate(files):
            if last[place] == number:
                _write(entry, folder / place)


def _place(path: Path, name: str) -> PurePosixPath:
    """Return where a file goes below the folder; ValueError for one that would lie elsewhere."""
    place = PurePosixPath(name.replace("\\", "/"))
    if not place.parts:
        raise zipfile.BadZipFile("a file has no name")
    outside = place.is_absolute() or ".." in place.parts or DRIVE.match(place.parts[0]) is not None
    if outside or not can_be_path(name):
        raise ValueError(
            f"{path} holds a file {name[:80]!r}, which would lie outside of its folder: it is not unpacked;"
            " get it from whom you trust"
        )
    return PurePosixPath(*map(as_file_name, place.parts))


def _write(entry: _Entry, place: Path) -> None:
    assert entry.open is not None
    place.parent.mkdir(parents=True, exist_ok=True)
    left = entry.size
    with entry.open() as source, open(place, "xb") as target:
        while left and (block := source.read(min(BLOCK, left))):
            left -= len(block)
            target.write(block)
    if left:
        raise EOFError(f"{entry.name} lacks {left} bytes")


@contextmanager
def _entries(path: Path) -> Iterator[Iterator[_Entry]]:
    """Open an archive and yield its files and links, in its order."""
    with open_input(path) as file:
        if path.suffix.lower() in (".zip", ".r3d"):  # the latter is Record3D's
            with zipfile.ZipFile(file) as archive:
                page = _code_page(archive.infolist())
                yield (
                    _of_zip(path, archive, info, page) for info in archive.infolist() if not _is_folder(info)
                )
        else:
            with tarfile.open(fileobj=file, mode="r:*", tarinfo=_BoundedHeader) as archive:
                yield (_of_tar(archive, info) for info in archive if not info.isdir())


def _is_folder(info: zipfile.ZipInfo) -> bool:
    """Return whether an entry is a folder: programs of Windows end these with a backslash."""
    return info.filename.endswith("/") or (info.filename.endswith("\\") and info.file_size == 0)


def _of_zip(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, page: str) -> _Entry:
    if info.flag_bits & 1:
        raise ValueError(f"{path} is locked with a password: unpack it yourself, and open that folder")
    is_link = info.external_attr >> 28 == 0o12  # the kind of file, in the mode of Unix
    return _Entry(_name_in_zip(info, page), info.file_size, None if is_link else lambda: archive.open(info))


def _name_in_zip(info: zipfile.ZipInfo, page: str) -> str:
    """Return a name, which some programs, as that of macOS, write in UTF-8 without saying so."""
    if info.flag_bits & UTF8_FLAG:
        return info.filename
    try:
        written = info.filename.encode("cp437")  # which Python takes it for
    except UnicodeError:  # an extra field has it in Unicode
        return info.filename
    for encoding in ("utf-8", page):
        with suppress(UnicodeError):
            return written.decode(encoding)
    return info.filename


def _code_page(entries: list[zipfile.ZipInfo]) -> str:
    """Return the code page in which the letters of names that are not in UTF-8 are Latin, else MS-DOS's.

    Programs of Windows write names in the one of the country where they run.
    """
    written = "".join(info.filename for info in entries if not info.flag_bits & UTF8_FLAG)
    names = written.encode("cp437", "ignore")
    for page in CODE_PAGES:
        letters = {letter for letter in names.decode(page, "replace") if not letter.isascii()}
        if all(unicodedata.name(letter, "").startswith("LATIN ") for letter in letters):
            return page
    return CODE_PAGES[0]


def _of_tar(archive: tarfile.TarFile, info: tarfile.TarInfo) -> _Entry:
    def opened() -> IO[bytes]:
        file = archive.extractfile(info)
        assert file is not None, "it is a regular file"
        return file

    return _Entry(info.name, info.size, opened if info.isreg() else None)
