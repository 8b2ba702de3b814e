"""One stage of an estimation, in a process of its own.

COLMAP may end its process natively, and its libraries do not go together with Pillow's: each stage has a
process, which gives way to others, prints its progress as JSON lines, and ends with the one that started it.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import msgspec

from splatstudio.error_text import as_utf8, in_words
from splatstudio.files.outputs import open_output
from splatstudio.operating_system import end_with_parent, give_way, peak_memory
from splatstudio.poses.records import Announce, Manifest, NoRoom, Refused, StageEnd, StageStep, write_record
from splatstudio.poses.store import PoseStore

NICENESS = 10


def run_stage(stage: str, source: str, frames: int | None) -> None:
    """Run one stage of an estimation from `source`, with so many frames of each video, None: not said.

    What is wrong with the input, and what the machine could not do, is printed as a sentence, with exit
    code 2.
    """
    give_way(NICENESS)
    end_with_parent()
    store = PoseStore(Path(source))
    lines = _separate_output(store.path / "log.txt")

    def announce(done: int, total: int, what: str) -> None:
        os.write(lines, msgspec.json.encode(StageStep(done, total, what)) + b"\n")

    try:
        if stage == "photos":
            from splatstudio.poses.input import manifest_of

            manifest = manifest_of(store, frames, announce)
            write_record(store.manifest_file, manifest)
        else:
            manifest = store.manifest()
            assert manifest is not None, "the first stage has written it"
            _with_colmap(stage, store, manifest, announce)
    except (ValueError, OSError, MemoryError) as error:
        kind = Refused if isinstance(error, ValueError) else NoRoom
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
            error.filename = str(store.path)
        os.write(lines, msgspec.json.encode(kind(as_utf8(in_words(error)))) + b"\n")
        sys.exit(2)
    os.write(lines, msgspec.json.encode(StageEnd(peak_memory())) + b"\n")


def _with_colmap(stage: str, store: PoseStore, manifest: Manifest, announce: Announce) -> None:
    import pycolmap

    from splatstudio.poses.features import find_features, match_features
    from splatstudio.poses.mapping import estimate

    pycolmap.logging.minloglevel = pycolmap.logging.WARNING.value
    pycolmap.set_random_seed(0)
    {"features": find_features, "matches": match_features, "poses": estimate}[stage](
        store, manifest, announce
    )


def _separate_output(log: Path) -> int:
    """Return where progress is printed; all other output, native code's included, goes to the log."""
    lines = os.dup(1)
    descriptor = open_output(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    return lines
