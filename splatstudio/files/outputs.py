"""What a run writes lies in its own folder: one from elsewhere may hold links to files of others."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from splatstudio.operating_system import open_descriptor, sync_folder

MOST_FOLDERS = 3  # from a run's folder down to any that it writes into, as eval/lost


class UnsafeOutput(OSError, ValueError):
    """What a run does not write to; its text is a sentence for the user, who can change that."""

    def __str__(self) -> str:
        return f"{self.filename} cannot be written: {self.strerror}"


def open_output(path: Path, flags: int) -> int:
    """Open or make a regular file to be written and return its descriptor; `flags` are those of `os.open`.

    Raises UnsafeOutput for a link, a device or a pipe, and OSError for what cannot be written.
    """
    try:
        descriptor = open_descriptor(path, flags | os.O_CREAT, follow=False)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EMLINK):  # the second is FreeBSD's
            raise
        raise UnsafeOutput(
            errno.ELOOP, "it is a link, which a run does not write through: remove it", str(path)
        ) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnsafeOutput(errno.EINVAL, "it is no regular file: remove it", str(path))
    return descriptor


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, unless a link in a run leads out of the run; raises OSError.

    Their names are on the disk when this returns: else a power cut takes what is written into them along.
    """
    refuse_leading_out(folder)
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for place in missing:
        sync_folder(place.parent)


def refuse_unwritable(run_dir: Path, instead: str) -> None:
    """Raise ValueError where the folder of a run cannot be made, or a training not be saved and logged in it.

    `instead` is what else to do, as "name another run folder with --run".
    """
    places = [run_dir / "ckpts", run_dir / "logs", run_dir]
    while not os.path.exists(places[-1]) and places[-1] != places[-1].parent:
        places.append(places[-1].parent)
    for place in places:
        if os.path.exists(place) and not os.access(place, os.W_OK):
            raise ValueError(
                f"{place.absolute()} may not be written to: change its permissions, or {instead}"
            )


def refuse_leading_out(folder: Path) -> None:
    """Raise UnsafeOutput for a folder below that of a run which a link leads out of it.

    The run's own folder may be a link, and so may what stays inside.
    """
    for run in (folder, *folder.parents)[: MOST_FOLDERS + 1]:
        if (run / "run.json").exists() and not folder.resolve().is_relative_to(run.resolve()):
            sentence = "it is a link out of the run, which writes only into itself: put a folder in its place"
            raise UnsafeOutput(errno.ELOOP, sentence, str(folder))
