"""What models lie in a folder of runs: checkpoints by step, their files, and whether they are whole."""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from splatstudio.checkpoints.checkpoint import checkpoint_folders, remove_checkpoint, verify_checkpoint
from splatstudio.checkpoints.manifest import read_manifest, step_of
from splatstudio.checkpoints.rank_parts import gsplat_steps, missing_ranks, part_of
from splatstudio.files.inputs import read_input

EntryState = Literal["complete", "part", "damaged"]


@dataclass(frozen=True)
class CatalogEntry:
    """One model of one step. Sizes and names tell the state: the content is checked when it is used."""

    owner: Path  # the run folder, or gsplat's result folder
    step: int
    path: Path  # the checkpoint folder, or the file of the first rank that is there
    files: tuple[Path, ...]  # the ranks' files, in their order
    num_ranks: int
    num_bytes: int
    num_gaussians: int | None  # None: not known without reading the files
    state: EntryState
    reason: str = ""  # why it is not complete
    psnr: float | None = None  # of the test photos, where it was evaluated

    @property
    def is_gsplat(self) -> bool:
        """Return whether gsplat's trainer wrote it."""
        return self.path.suffix == ".pt"

    @property
    def scores(self) -> Path | None:
        """Return where the scores of its evaluation lie once there is one; None: gsplat's have no place."""
        return None if self.is_gsplat else self.owner / "eval" / f"step_{self.step:08d}.json"


def folders_with_models(root: Path) -> tuple[Path, ...]:
    """Return the folders in `root` that are runs or results of gsplat, the newest first, or `root` itself."""
    root = Path(root)
    if _has_models(root):
        return (root,)
    try:
        inside = list(root.iterdir())
    except OSError:
        inside = []
    return tuple(sorted(filter(_has_models, inside), key=_changed, reverse=True))


def entries_of(folder: Path) -> tuple[CatalogEntry, ...]:
    """Return the models of a run or of a result folder of gsplat, the last step first.

    What cannot be listed, or goes while it is looked at, is left out.
    """
    folder = Path(folder)
    try:
        checkpoints = checkpoint_folders(folder)
    except OSError:
        checkpoints = []
    entries = [_of_checkpoint(folder, path) for path in checkpoints]
    entries += [_of_gsplat(folder, step, files) for step, files in gsplat_steps(folder).items()]
    return tuple(sorted(entries, key=lambda entry: entry.step, reverse=True))


def content_mark(entry: CatalogEntry) -> tuple[object, ...]:
    """Return what changes when the files of a model are written again or removed."""
    files = entry.files if entry.is_gsplat else (entry.path / "manifest.json", *entry.files)
    return tuple(_mark(file) for file in files)


def _mark(file: Path) -> tuple[int, int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def delete_entry(entry: CatalogEntry) -> None:
    """Delete the files of a model; ValueError, naming the file, when one cannot be."""
    try:
        if entry.is_gsplat:
            for file in entry.files:
                file.unlink(missing_ok=True)
        else:
            remove_checkpoint(entry.path)
    except OSError as error:
        raise ValueError(f"{error.filename or entry.path} cannot be deleted: {error.strerror}") from error


def bytes_of(file: Path) -> int | None:
    """Return the size of a file; None where it is gone or not ours to look at."""
    try:
        return file.stat().st_size
    except OSError:
        return None


def _has_models(folder: Path) -> bool:
    # Not Path.exists, which raises PermissionError for what lies in a folder that is not ours.
    return os.path.exists(folder / "run.json") or bool(gsplat_steps(folder))


def _changed(folder: Path) -> float:
    times = [0.0]
    for place in (folder, folder / "ckpts"):
        with contextlib.suppress(OSError):
            times.append(place.stat().st_mtime)
    return max(times)


def _of_checkpoint(run: Path, folder: Path) -> CatalogEntry:
    step = step_of(folder) or 0
    files = tuple(sorted(folder.glob("rank*.safetensors")))
    state, reason, num_gaussians, num_ranks = _condition(folder, files)
    return CatalogEntry(
        owner=run,
        step=step,
        path=folder,
        files=files,
        num_ranks=num_ranks,
        num_bytes=_total(files),
        num_gaussians=num_gaussians,
        state=state,
        reason=reason,
        psnr=_psnr(run, step),
    )


def _condition(folder: Path, files: tuple[Path, ...]) -> tuple[EntryState, str, int | None, int]:
    """Return state, reason, number of Gaussians and of ranks of a checkpoint of ours."""
    try:
        manifest = read_manifest(folder)
    except ValueError as error:
        return "damaged", str(error), None, len(files)
    num, num_ranks = manifest["num_gaussians"], len(manifest["ranks"])
    missing = [entry["file"] for entry in manifest["ranks"] if _is_missing(folder / entry["file"])]
    if missing:
        return "part", f"{', '.join(missing)} is missing", num, num_ranks
    try:
        verify_checkpoint(folder, content=False)
    except ValueError as error:
        return "damaged", str(error), num, num_ranks
    return "complete", "", num, num_ranks


def _is_missing(file: Path) -> bool:
    try:
        file.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False  # it may be there
    return False


def _of_gsplat(folder: Path, step: int, files: tuple[Path, ...]) -> CatalogEntry:
    part = part_of(files[0])
    state: EntryState = "complete"
    reason = ""
    if part is not None and not part.complete:
        state, reason = "part", missing_ranks(part.missing)
    # An archive's list of contents is at its end: a file that was cut off has none.
    broken = [file.name for file in files if not zipfile.is_zipfile(file)]
    if broken:
        state, reason = "damaged", f"{', '.join(broken)} is cut off"
    return CatalogEntry(
        owner=folder,
        step=step,
        path=files[0],
        files=files,
        num_ranks=1 if part is None else part.num_ranks,
        num_bytes=_total(files),
        num_gaussians=None,
        state=state,
        reason=reason,
    )


def _total(files: tuple[Path, ...]) -> int:
    return sum(bytes_of(file) or 0 for file in files)


def _psnr(run: Path, step: int) -> float | None:
    try:
        values: Any = json.loads(read_input(run / "eval" / f"step_{step:08d}.json"))
    except (OSError, ValueError):
        return None
    psnr = values.get("psnr") if isinstance(values, dict) else None
    return float(psnr) if isinstance(psnr, (int, float)) else None
