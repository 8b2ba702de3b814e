"""The folder of a run as a whole: what it holds, and how it is renamed or deleted. No link is followed."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from splatstudio.error_text import first_of
from splatstudio.files.inputs import can_be_path
from splatstudio.files.run import CROP_FILE, ORDERS_FILE, PATHS_FOLDER, Run, RunLock, newest_step
from splatstudio.operating_system import is_held, put_in_place

# What a run writes. A folder that holds anything else may be more than a run, and is not deleted.
OWN = {"run.json", "metrics.jsonl", "lock", "ckpts", "eval", "exports", "logs", "renders"}
OWN |= {PATHS_FOLDER, CROP_FILE, ORDERS_FILE}
LONGEST_NAME = 100  # letters
FORBIDDEN = '/\\:*?"<>|'  # that a name may not hold on one system or another
MOST_FILES = 100_000  # that are counted
_HERE = "{} is the folder in which splatstudio was started: start it elsewhere first"


@dataclass(frozen=True)
class RunContent:
    """What a run's folder holds."""

    path: Path
    scene: Path | None  # None: its run.json is damaged
    step: int | None  # of its last checkpoint
    parts: tuple[tuple[str, int, int], ...]  # its folders with files: name, files, bytes
    num_bytes: int
    whole: bool = True  # all files were counted


def run_content(run_dir: Path) -> RunContent:
    """Return what a run's folder holds; ValueError, naming it, for a folder that is none, or for a link."""
    _refuse_no_run(run_dir)
    try:
        scene = Run.open(run_dir).scene_path
    except ValueError:
        scene = None
    counts: dict[str, tuple[int, int]] = {}
    num_left = MOST_FILES
    for root, _, files in os.walk(run_dir):
        inside = Path(root).relative_to(run_dir).parts
        for name in files[:num_left]:
            with suppress(OSError):
                size = os.lstat(os.path.join(root, name)).st_size
                part = inside[0] if inside else ""
                num, total = counts.get(part, (0, 0))
                counts[part] = num + 1, total + size
        num_left -= min(num_left, len(files))
        if not num_left:
            break
    parts = tuple((name, *counts[name]) for name in sorted(counts) if name)
    num_bytes = sum(total for _, total in counts.values())
    return RunContent(run_dir, scene, newest_step(run_dir), parts, num_bytes, whole=num_left > 0)


def why_to_keep(run_dir: Path) -> str | None:
    """Return why a run is not deleted, None where its folder holds nothing but what it has written."""
    if _is_here(run_dir):
        return _HERE.format(run_dir)
    others = sorted(name for name in os.listdir(run_dir) if name not in OWN and not _is_leftover(name))
    if others:
        return (
            f"{run_dir} holds what no run writes ({first_of(others, 3)}), so nothing is deleted:"
            " move that elsewhere first"
        )
    with suppress(ValueError, OSError):
        if Run.open(run_dir).scene_path.resolve().is_relative_to(run_dir.resolve()):
            return f"the photos of {run_dir} lie in it, so nothing is deleted: move them elsewhere first"
    return None


def delete_run(run_dir: Path) -> None:
    """Delete a run's folder with all that the run has written; what links in it lead to stays.

    Raises ValueError with one sentence, and deletes nothing, where it is being trained or looked at, is a
    link, or holds anything else; also where some of it cannot be deleted.
    """
    lock = _taken(run_dir)
    try:
        if (reason := why_to_keep(run_dir)) is not None:
            raise ValueError(reason)
        # What tells that it is a run goes last: one that could not be deleted wholly can be chosen again.
        names = sorted(os.listdir(run_dir), key=lambda name: (name == "run.json", name))
        for name in names:
            if name != "lock":
                _remove(run_dir / name)
        lock.release()
        run_dir.rmdir()
    except OSError as error:
        raise ValueError(
            f"{error.filename or run_dir} cannot be deleted ({error.strerror}); what is left of the run is in"
            f" {run_dir}"
        ) from error
    finally:
        lock.release()


def rename_run(run_dir: Path, name: str) -> Path:
    """Give a run's folder another name, beside where it is, and return it.

    Raises ValueError with one sentence for a name that is taken or not allowed, and for a run that is being
    trained or looked at.
    """
    name = name.strip()
    if not name or len(name) > LONGEST_NAME or name.startswith(".") or not can_be_path(name):
        raise ValueError(
            f"{name[:LONGEST_NAME]!r} cannot be the name of a run: choose 1 to {LONGEST_NAME} letters, the"
            " first of which is no dot"
        )
    if any(letter in FORBIDDEN or not letter.isprintable() for letter in name) or name.endswith("."):
        raise ValueError(
            f"{name!r} cannot be the name of a run: it may not hold any of {' '.join(FORBIDDEN)}, nor end in"
            " a dot"
        )
    if _is_here(run_dir):
        raise ValueError(
            f"{run_dir} is the folder in which splatstudio was started: start it elsewhere first"
        )
    renamed = run_dir.with_name(name)
    lock = _taken(run_dir)
    try:
        if os.path.lexists(renamed):
            raise ValueError(f"there is a {name} beside {run_dir.name} already: choose another name")
        put_in_place(run_dir, renamed)
        (renamed / "lock").unlink(missing_ok=True)  # which releasing would look for under the old name
    except OSError as error:
        raise ValueError(f"{run_dir} cannot be renamed: {error.strerror}") from error
    finally:
        lock.release()
    return renamed


def _is_here(run_dir: Path) -> bool:
    return Path.cwd().resolve().is_relative_to(run_dir.resolve())


def _refuse_no_run(run_dir: Path) -> None:
    if run_dir.is_symlink() or not run_dir.is_dir() or not (run_dir / "run.json").is_file():
        raise ValueError(f"{run_dir} is no run folder")


def _taken(run_dir: Path) -> RunLock:
    """Return the lock of a run that nobody uses; ValueError otherwise."""
    _refuse_no_run(run_dir)
    for folder in (run_dir / "ckpts").glob("step_*"):
        with suppress(OSError):  # it is gone, or lies on a disk without locks
            if is_held(folder):
                raise ValueError(
                    f"a model of {run_dir} is being read by another program: close it there first"
                )
    try:
        lock = RunLock(run_dir)
    except OSError as error:
        raise ValueError(f"{run_dir} cannot be changed: {error.strerror or error}") from error
    if not lock.held:
        lock.release()
        raise ValueError(
            f"the disk of {run_dir} knows no locks, so nobody can tell whether it is being trained: rename or"
            " delete it by hand"
        )
    return lock


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def _is_leftover(name: str) -> bool:
    """Return whether something is what a write that was killed has left."""
    return name.startswith(".") and ".tmp-" in f".{name}"
