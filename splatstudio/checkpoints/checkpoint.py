"""Checkpoints: ckpts/step_00012000/ with one safetensors file a rank and manifest.json, written last.

A folder that has its final name is complete: it is written under a temporary name, synced and renamed.
Sizes and SHA-256 in the manifest tell damaged files; any number of rank files is read as one model.

`CheckpointSaver` writes them, on one rank or on several. Rank 0 calls `begin_checkpoint`, each rank
`write_shard`, and rank 0, when it has all the answers, `complete_checkpoint`.
"""

from __future__ import annotations

import base64
import errno
import itertools
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor

from splatstudio.checkpoints.manifest import (
    DOOMED_FOLDER,
    REPLACED_FOLDER,
    Shard,
    named_tensors,
    read_manifest,
    read_shard,
    read_tensors,
    shard_name,
    step_of,
    verify_file,
    verify_shard,
    write_sealed,
    write_shard_file,
    write_tensors,
)
from splatstudio.corrections.corrections import SavedCorrections
from splatstudio.distributed.ranks import Ranks
from splatstudio.error_text import shown
from splatstudio.files.outputs import make_folder, refuse_leading_out
from splatstudio.files.run import STEP_FOLDER
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.operating_system import hold, is_held, put_in_place, sync_folder
from splatstudio.scene.scene import KnownPhotos, Scene
from splatstudio.settings.config import TrainConfig, from_json, to_json
from splatstudio.strategy.global_order import copied, joined, rows_of, shard_rows
from splatstudio.strategy.population import Population

NO_PHOTOS = KnownPhotos(())

log = logging.getLogger(__name__)

CORRECTIONS_FILE = "corrections.safetensors"
ENTRY = "corrections"  # of the manifest; a checkpoint without any has none
_TRIES = itertools.count(1)  # of this process to write a checkpoint
# Folders that `newest_known_checkpoint` found good, and what their files were then.
_KNOWN_GOOD: dict[Path, tuple[object, ...]] = {}
SETTLED_NS = 2_000_000_000  # within which a file can be rewritten at what its disk takes for the same time


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """All that a training needs to go on as if it had never stopped."""

    step: int  # steps done
    config: TrainConfig
    population: Population
    scene_path: Path
    scene_transform: np.ndarray  # [4, 4] float64 from the files' world to the frame of the Gaussians
    rng_state: Tensor  # [S] uint8, of the training's random generator
    upcoming: tuple[str, ...]  # the names of the photos already drawn for the next steps
    view_costs: Mapping[str, float] = field(default_factory=dict)  # of photos by name, see `PhotoQueue`
    autosave: bool = False  # written because time had passed: a newer one replaces it
    corrections: SavedCorrections | None = None  # what was learned besides the Gaussians
    photos: KnownPhotos = NO_PHOTOS  # the scene's
    owes: bool = False  # whether its strategy has something to make up for, see `Strategy`

    @property
    def gaussians(self) -> Gaussians:
        """Return the model."""
        return self.population.gaussians

    @property
    def num_bytes(self) -> int:
        """Return how many bytes the tensors have, in memory and on the disk."""
        beside = 0 if self.corrections is None else self.corrections.num_bytes
        return beside + sum(tensor.nbytes for tensor in named_tensors(self.population).values())


def save_checkpoint(run_dir: Path, checkpoint: Checkpoint, *, num_shards: int = 1) -> Path:
    """Write `checkpoint` below `run_dir`/ckpts and return its folder.

    A checkpoint of the same step is replaced. `num_shards` files share the rows evenly. Raises OSError when
    the disk is full or fails; what was there before is then still there.
    """
    staging = begin_checkpoint(run_dir, checkpoint.step, checkpoint.num_bytes)

    def shards() -> list[Shard]:
        return [
            write_shard(staging, shard_rows(checkpoint.population, rank, num_shards), rank, num_shards)
            for rank in range(num_shards)
        ]

    return complete_checkpoint(staging, checkpoint, shards)


def begin_checkpoint(run_dir: Path, step: int, num_bytes: int) -> Path:
    """Make the temporary folder into which the ranks write the checkpoint of `step`, and return it.

    What killed saves left is cleared away first. `num_bytes` is the size of all ranks' tensors. Raises
    OSError when the disk has no room for them.
    """
    parent = Path(run_dir) / "ckpts"
    make_folder(parent)
    _sweep(parent)
    _require_space(parent, num_bytes)
    # No name comes twice: what a slow rank still writes for a try that was given up is in no later one.
    names = (f".step_{step:08d}.tmp-{os.getpid()}-{number}" for number in _TRIES)
    staging = next(parent / name for name in names if not (parent / name).exists())
    staging.mkdir()
    return staging


def write_shard(staging: Path, population: Population, rank: int, num_ranks: int) -> Shard:
    """Write the rows of one rank into the folder of `begin_checkpoint`; OSError when that fails."""
    return write_shard_file(staging / shard_name(rank, num_ranks), population)


def commit_checkpoint(staging: Path, checkpoint: Checkpoint, shards: Sequence[Shard]) -> Path:
    """Make a checkpoint of the shards that all ranks have written, in their order; return its folder.

    Of `checkpoint` all but the population's rows is kept: they are in the shards. Raises OSError.
    """
    parent = staging.parent
    final = parent / staging.name[1:].partition(".")[0]
    replaced = parent / f".{final.name}.old-{os.getpid()}"
    write_manifest(staging, checkpoint, shards)
    if final.exists():
        put_in_place(final, replaced)
    try:
        put_in_place(staging, final)
    except OSError:
        if replaced.exists():
            put_in_place(replaced, final)
        raise
    sync_folder(parent)
    shutil.rmtree(replaced, ignore_errors=True)
    return final


def complete_checkpoint(staging: Path, checkpoint: Checkpoint, shards: Callable[[], Sequence[Shard]]) -> Path:
    """Commit the checkpoint of what `shards` returns once all are written, and return its folder.

    Where anything fails, nothing of it stays.
    """
    try:
        return commit_checkpoint(staging, checkpoint, shards())
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read and verify a checkpoint, of however many ranks, onto the CPU.

    Raises ValueError with the file and the reason when anything is missing, cut off or changed.
    """
    with _reading(Path(folder)):
        manifest = verify_checkpoint(Path(folder))
        return _checkpoint_of(Path(folder), manifest, manifest["ranks"])


def config_of_checkpoint(folder: Path) -> TrainConfig:
    """Return the settings of the training at a checkpoint: some may have been changed since it began.

    Raises ValueError with the file and the reason when the manifest is damaged.
    """
    try:
        return from_json(TrainConfig, read_manifest(Path(folder))["config"])
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error


def load_shard(file: Path) -> Checkpoint:
    """Read and verify one rank's file of a checkpoint alone: its rows, with what all ranks share.

    Raises ValueError with the file and the reason when it is damaged or does not belong to a checkpoint.
    """
    folder = Path(file).parent
    manifest = read_manifest(folder)
    entries = [entry for entry in manifest["ranks"] if entry["file"] == Path(file).name]
    if not entries:
        raise ValueError(f"{file} is no file of the checkpoint {folder}")
    verify_shard(folder, Shard(**entries[0]))
    return _checkpoint_of(folder, manifest, entries)


def load_share(folder: Path, ranks: Ranks) -> Checkpoint:
    """Read and verify the rows of a checkpoint that are this rank's, onto the CPU.

    On as many ranks as have written it, each has the rows that it had; otherwise they share them evenly, in
    order. Only the files with these rows are read. Raises ValueError with the file and the reason when
    anything of them is missing, cut off or changed.
    """
    if ranks.num_ranks == 1:
        return load_checkpoint(folder)
    with _reading(folder):
        return _load_share(folder, ranks)


def _load_share(folder: Path, ranks: Ranks) -> Checkpoint:
    entries = read_manifest(folder)["ranks"]
    if len(entries) == ranks.num_ranks:
        return load_shard(folder / entries[ranks.rank]["file"])
    own = ranks.share(sum(entry["rows"] for entry in entries))
    parts, first, offset = [], 0, 0
    for entry in entries:
        if own.start < first + entry["rows"] and first < own.stop:
            offset = first if not parts else offset
            parts.append(load_shard(folder / entry["file"]))
        first += entry["rows"]
    if not parts:  # a share without rows: fewer Gaussians than ranks
        parts, offset = [load_shard(folder / entries[0]["file"])], 0
    together = joined([part.population for part in parts], parts[0].population.optimizer.num_steps)
    rows = slice(own.start - offset, own.stop - offset)
    # Rows of their own: views would keep all that was read in memory.
    return replace(parts[0], population=copied(rows_of(together, rows)))


def _checkpoint_of(folder: Path, manifest: dict[str, Any], entries: list[dict[str, Any]]) -> Checkpoint:
    parts = [read_shard(folder, Shard(**entry)) for entry in entries]
    try:
        config = from_json(TrainConfig, manifest["config"])
        transform = np.array(manifest["scene"]["transform"], dtype=np.float64)
        rng_state = torch.frombuffer(bytearray(base64.b64decode(manifest["rng"])), dtype=torch.uint8)
        if transform.shape != (4, 4) or not np.isfinite(transform).all():
            raise ValueError("the scene's transform is no matrix of 4 x 4 numbers")
        if any(part.counts.keys() != parts[0].counts.keys() for part in parts):
            raise ValueError("the ranks' files hold different tensors")
        if len({part.gaussians.sh_degree for part in parts}) > 1:
            raise ValueError("the ranks' files hold spherical harmonics of different degrees")
        return Checkpoint(
            step=manifest["step"],
            config=config,
            population=joined(parts, manifest["optimizer"]["num_steps"]),
            scene_path=Path(manifest["scene"]["path"]),
            scene_transform=transform,
            rng_state=rng_state,
            upcoming=tuple(manifest["upcoming"]),
            view_costs={name: float(cost) for name, cost in dict(manifest.get("view_costs", {})).items()},
            autosave=manifest.get("autosave") is True,
            corrections=_read_corrections(folder, manifest),
            photos=photos_of(manifest) or NO_PHOTOS,
            owes=manifest.get("owes") is True,
        )
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{folder / 'manifest.json'} is damaged: {reason}") from error


def photos_of(manifest: Mapping[str, Any]) -> KnownPhotos | None:
    """Return the photos that the scene of a checkpoint had; None: it does not tell."""
    scene = manifest["scene"]
    names, held_out, num_framed = scene.get("photographs"), scene.get("held_out"), scene.get("num_framed", 0)
    if not _are_names(names) or not names:
        return None
    framed = num_framed if isinstance(num_framed, int) and num_framed > 0 else 0
    return KnownPhotos(tuple(names), frozenset(held_out) if _are_names(held_out) else None, framed)


def _told_held_out(photos: KnownPhotos) -> dict[str, list[str]]:
    return {} if photos.held_out is None else {"held_out": sorted(photos.held_out)}


def _are_names(told: object) -> bool:
    return isinstance(told, list) and all(isinstance(name, str) for name in told)


def same_frame(transform: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two transforms [4, 4] of a scene lead to the same frame."""
    return np.allclose(transform, other, rtol=1e-6, atol=1e-6)


def known_photos(folder: Path | None) -> KnownPhotos | None:
    """Return the photos that the scene of a checkpoint had.

    None: there is no checkpoint, or it cannot be read, or it does not tell.
    """
    try:
        return None if folder is None else photos_of(read_manifest(folder))
    except (OSError, ValueError, KeyError):
        return None


def is_of_scene(folder: Path, scene: Scene) -> bool:
    """Return whether a checkpoint can go on with a scene that was loaded with its known photos.

    That is its own, a copy, or what became of it: its cameras make the same frame, and most photos are there.
    """
    known = scene.known or known_photos(folder)  # by the names that they have now
    there = 0 if known is None else len(scene.photos.keys() & set(known.names))
    transform = np.array(read_manifest(folder)["scene"]["transform"], dtype=np.float64)
    return (known is None or 2 * there > len(known.names)) and same_frame(transform, scene.transform)


def verify_checkpoint(folder: Path, *, content: bool = True) -> dict[str, Any]:
    """Return the manifest of a checkpoint whose files all have the size and the SHA-256 it tells.

    `content` False compares sizes alone, which takes no time. Raises ValueError with the file, the rank and
    the reason otherwise.
    """
    manifest = read_manifest(folder)
    for entry in manifest["ranks"]:
        verify_shard(folder, Shard(**entry), content=content)
    _verify_corrections(folder, manifest, content=content)
    return manifest


def checkpoint_folders(run_dir: Path) -> list[Path]:
    """Return the folders of a run's checkpoints, good or not, by rising step.

    One that a killed save had put aside to replace it counts where the new one is not there. Raises OSError
    where they cannot be listed, as without permission: that is not the same as none.
    """
    parent = Path(run_dir) / "ckpts"
    try:
        names = sorted(os.listdir(parent))
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = {name: parent / name for name in names if STEP_FOLDER.fullmatch(name)}
    for name in names:
        match = REPLACED_FOLDER.fullmatch(name)
        if match is not None and match[1] not in found:
            found[match[1]] = parent / name
    return sorted(found.values(), key=lambda path: step_of(path) or 0)


def newest_checkpoint(run_dir: Path, report: Callable[[str], None] = log.warning) -> Path | None:
    """Return the newest checkpoint folder of a run whose files are whole, or None.

    `report` gets a sentence for each newer one that is damaged, with the one that is used instead.
    """
    return _newest(run_dir, report, verify_checkpoint)


def newest_and_passed_over(run_dir: Path) -> tuple[Path | None, tuple[str, ...]]:
    """Return the newest good checkpoint of a run, and a sentence on each newer one that is not."""
    passed_over: list[str] = []
    return newest_checkpoint(run_dir, passed_over.append), tuple(passed_over)


def newest_or_why(run_dir: Path) -> tuple[Path | None, str]:
    """Return the newest good checkpoint of a run; where there is none, why those that are there are not good.

    "" where there are none at all. What is passed over for another one is logged.
    """
    newest, passed_over = newest_and_passed_over(run_dir)
    if newest is None:
        return None, "; ".join(passed_over)
    for sentence in passed_over:
        log.warning(sentence)
    return newest, ""


def newest_known_checkpoint(run_dir: Path) -> Path | None:
    """Return the same, but do not read a checkpoint again while no file of it changes that was found good.

    For what a page asks over and over, at a second or more for each gigabyte; not for what is then loaded: a
    disk may fail without telling of a change. Nor is told what is passed over: who opens the run does.
    """
    return _newest(run_dir, lambda _: None, _verify_unless_known)


def _newest(run_dir: Path, report: Callable[[str], None], verify: Callable[[Path], object]) -> Path | None:
    refused: list[str] = []
    chosen = None
    try:
        folders = checkpoint_folders(run_dir)
    except OSError as error:
        report(f"the checkpoints in {error.filename} cannot be listed: {error.strerror}")
        return None
    for folder in reversed(folders):
        try:
            verify(folder)
        except ValueError as error:
            refused.append(str(error))
        else:
            chosen = folder
            break
    instead = "" if chosen is None else f"; step {step_of(chosen)} is used instead"
    for sentence in refused:
        report(f"{sentence}{instead}")
    return chosen


def _verify_unless_known(folder: Path) -> None:
    """Raise ValueError as `verify_checkpoint` does, from memory where the folder is known to be good."""
    place = folder.resolve()
    mark, newest = _mark(place)
    if _KNOWN_GOOD.get(place) == mark:
        return
    verify_checkpoint(folder)
    if time.time_ns() - newest > SETTLED_NS and _mark(place)[0] == mark:
        _KNOWN_GOOD[place] = mark


def _mark(folder: Path) -> tuple[tuple[object, ...], int]:
    """Return what changes when a file of a folder is written, replaced or removed, and when one was last."""
    try:
        stats = sorted((path.name, path.stat()) for path in folder.iterdir())
    except OSError as error:
        raise ValueError(f"{folder} cannot be read: {error.strerror or error}") from error
    mark = tuple((name, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for name, s in stats)
    return mark, max((s.st_ctime_ns for _, s in stats), default=0)


def remove_checkpoint(folder: Path) -> None:
    """Delete a checkpoint: it is gone at once, even when the deletion is cut short.

    Raises OSError, with EBUSY where somebody reads it.
    """
    refuse_leading_out(folder.parent)
    if _is_read(folder):
        raise OSError(errno.EBUSY, "it is being read; try again later", str(folder))
    doomed = folder.with_name(f".{folder.name.lstrip('.')}.del-{os.getpid()}")
    try:
        put_in_place(folder, doomed)
    except FileNotFoundError:
        return  # somebody else deleted it
    sync_folder(folder.parent)
    # A file that another process holds open keeps its name on some network disks: a later save tries again.
    shutil.rmtree(doomed, ignore_errors=True)


def _is_read(folder: Path) -> bool:
    try:
        return is_held(folder)
    except OSError:
        return False  # it is gone, or lies on a disk without locks


def remove_unless_read(folder: Path) -> bool:
    """Delete a checkpoint that nobody reads; return whether it is gone. Raises OSError."""
    try:
        remove_checkpoint(folder)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False  # a later save tries again
    return True


@contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """Keep a checkpoint from being deleted."""
    held = None
    with suppress(OSError):  # told by who opens its files
        held = hold(folder)
    try:
        yield
    finally:
        if held is not None:
            os.close(held)


def prune_checkpoints(newest: Path, keep: int) -> list[Path]:
    """Delete the run's older checkpoints but for the last `keep`, with `newest`, and return them.

    `newest` is the checkpoint that was just written: it always stays, and so do those of later steps, which
    an earlier training left, and damaged ones, which do not count. `keep` 0 keeps all. Raises OSError.
    """
    if keep < 1:
        return []
    step = step_of(newest)
    assert step is not None, "a checkpoint of a run"
    older = [folder for folder in checkpoint_folders(newest.parent.parent) if (step_of(folder) or 0) < step]
    whole: list[Path] = []
    for folder in older:
        try:
            verify_checkpoint(folder, content=False)
        except ValueError:
            continue
        whole.append(folder)
    surplus = whole[: max(len(whole) - (keep - 1), 0)]
    return [folder for folder in surplus if remove_unless_read(folder)]


def write_manifest(folder: Path, checkpoint: Checkpoint, shards: Sequence[Shard]) -> None:
    """Write the manifest that makes a checkpoint of the shards in a folder; OSError when that fails.

    What was learned besides the Gaussians is written with it, once, whatever the number of ranks.
    """
    values = {
        "step": checkpoint.step,
        "num_gaussians": sum(shard.rows for shard in shards),
        "ranks": [shard.to_json() for shard in shards],
        "config": to_json(checkpoint.config),
        "scene": {
            "path": str(checkpoint.scene_path),
            "transform": checkpoint.scene_transform.tolist(),
            "photographs": list(checkpoint.photos.names),
            **_told_held_out(checkpoint.photos),
            "num_framed": checkpoint.photos.num_framed,
        },
        "optimizer": {"num_steps": checkpoint.population.optimizer.num_steps},
        "rng": base64.b64encode(checkpoint.rng_state.cpu().numpy().tobytes()).decode(),
        "upcoming": list(checkpoint.upcoming),
        "autosave": checkpoint.autosave,
    }
    if checkpoint.owes:
        values["owes"] = True
    if checkpoint.view_costs:
        values["view_costs"] = dict(checkpoint.view_costs)
    if checkpoint.corrections is not None:
        values |= _write_corrections(folder, checkpoint.corrections)
    write_sealed(folder, values)


def _write_corrections(folder: Path, corrections: SavedCorrections) -> dict[str, Any]:
    """Write the file and return what the manifest has to tell of it; OSError when that fails."""
    size, digest = write_tensors(folder / CORRECTIONS_FILE, corrections.tensors)
    entry = {"file": CORRECTIONS_FILE, "bytes": size, "sha256": digest}
    return {ENTRY: {**entry, "photographs": list(corrections.photos)}}


def _verify_corrections(folder: Path, manifest: dict[str, Any], *, content: bool = True) -> None:
    """Raise ValueError unless the file that a manifest tells of, if any, has its size and SHA-256.

    `content` False compares the size alone.
    """
    entry = _corrections_entry(folder, manifest)
    if entry is not None:
        file = folder / entry["file"]
        verify_file(file, str(file), entry["bytes"], entry["sha256"] if content else None)


def _read_corrections(folder: Path, manifest: dict[str, Any]) -> SavedCorrections | None:
    """Return what was learned besidess the Gaussians of a verified checkpoint, on the CPU; None: nothing.

    Raises ValueError when the file cannot be read.
    """
    entry = _corrections_entry(folder, manifest)
    if entry is None:
        return None
    file = folder / entry["file"]
    return SavedCorrections(tuple(entry["photographs"]), read_tensors(file, str(file)))


def _corrections_entry(folder: Path, manifest: dict[str, Any]) -> dict[str, Any] | None:
    entry = manifest.get(ENTRY)
    if entry is None:
        return None
    kinds = {"file": str, "bytes": int, "sha256": str, "photographs": list}
    fits = isinstance(entry, dict) and entry.keys() == kinds.keys()
    if not fits or any(type(entry[name]) is not kind for name, kind in kinds.items()):
        raise ValueError(f"{folder / 'manifest.json'} is damaged: {ENTRY} is {shown(entry)}")
    names = entry["photographs"]
    if entry["file"] != CORRECTIONS_FILE or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{folder / 'manifest.json'} is damaged: {ENTRY} is {shown(entry)}")
    return entry


def _sweep(parent: Path) -> None:
    """Clear away what a killed save left: put back what it was about to replace, drop what it had begun."""
    for left in parent.glob(".step_*.old-*"):
        final = parent / left.name[1:].partition(".")[0]
        if not final.exists():
            put_in_place(left, final)
    for left in parent.glob(".step_*"):
        doomed = DOOMED_FOLDER.fullmatch(left.name)
        if doomed is not None and psutil.pid_exists(int(doomed[1])):
            continue  # another process is emptying it
        # What cannot be removed now is in the way of nothing.
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def _require_space(folder: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    needed = 1.05 * num_bytes
    if not free > needed:
        kept = "; the earlier checkpoints are still good" if any(folder.glob("step_*")) else ""
        raise OSError(
            f"no checkpoint was written: it needs {needed / 1e6:.1f} MB, and {folder} has"
            f" {free / 1e6:.1f} MB free{kept}"
        )
