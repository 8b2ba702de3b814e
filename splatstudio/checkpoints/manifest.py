"""The manifest of a checkpoint's folder: what it is of, which files belong to it, and a seal on all that."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from splatstudio.checkpoints.shard_file import shard_name
from splatstudio.files.durable import write_json_durably

FORMAT = "splatstudio checkpoint"
FORMAT_VERSION = 1
STEP_FOLDER = re.compile(r"step_(\d{8,})")
# What a save that was killed between its two renames leaves of the checkpoint it was about to replace.
REPLACED_FOLDER = re.compile(r"\.(step_(\d{8,}))\.old-\d+")
DOOMED_FOLDER = re.compile(r"\..*\.del-(\d+)")  # what `remove_checkpoint` of a process is emptying
SEAL = "sha256"  # of the manifest's other values, as canonical JSON
# The values that a manifest had before there was a seal.
UNSEALED = {"format", "format_version", "step", "num_gaussians", "ranks", "config", "scene", "optimizer"}
UNSEALED |= {"rng", "upcoming", "autosave"}


def write_sealed(folder: Path, values: dict[str, Any]) -> None:
    """Write the manifest of a folder with its format and its seal; OSError when that fails."""
    # Read back as JSON, so that what is sealed is what a reader finds.
    values = json.loads(json.dumps({"format": FORMAT, "format_version": FORMAT_VERSION, **values}))
    write_json_durably(folder / "manifest.json", {**values, SEAL: _seal(values)})


def step_of(folder: Path) -> int | None:
    """Return the step that the name of a checkpoint's folder tells, or None for another name."""
    match = STEP_FOLDER.fullmatch(folder.name)
    if match is not None:
        return int(match[1])
    match = REPLACED_FOLDER.fullmatch(folder.name)
    return int(match[2]) if match is not None else None


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint, its fields checked; ValueError with the reason otherwise."""
    file = folder / "manifest.json"
    try:
        manifest = json.loads(file.read_bytes())
    except OSError as error:
        raise ValueError(f"{folder} is no checkpoint: {file} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is damaged: it is not JSON ({error})") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ValueError(f"{file} is not the manifest of a {FORMAT}")
    if manifest.get("format_version") != FORMAT_VERSION:
        version = manifest.get("format_version")
        raise ValueError(f"{file} has format version {version}; this program reads {FORMAT_VERSION}")
    expected = {"step": int, "num_gaussians": int, "ranks": list, "config": dict, "scene": dict}
    for name, kind in expected.items():
        if type(manifest.get(name)) is not kind:
            raise ValueError(f"{file} is damaged: {name} is {manifest.get(name)!r}")
    num_ranks = len(manifest["ranks"])
    if num_ranks == 0:
        raise ValueError(f"{file} is damaged: it names no rank's file")
    for rank, entry in enumerate(manifest["ranks"]):
        if not _is_shard(entry, rank, num_ranks):
            raise ValueError(
                f"{file} is damaged: the entry {entry!r} is not the file of rank {rank} of {num_ranks}"
                " with its size"
            )
    if manifest["num_gaussians"] != sum(entry["rows"] for entry in manifest["ranks"]):
        raise ValueError(f"{file} is damaged: the ranks' rows do not add up to num_gaussians")
    _check_whole(folder, manifest)
    return manifest


def _check_whole(folder: Path, manifest: dict[str, Any]) -> None:
    """Raise ValueError unless the manifest is the one that was written to this folder."""
    file = folder / "manifest.json"
    if not _is_intact(manifest):
        raise ValueError(f"{file} is damaged: it is not what was written, as its SHA-256 tells")
    if step_of(folder) not in (None, manifest["step"]):
        raise ValueError(
            f"{file} is of step {manifest['step']}, but its folder's name tells another: rename it back"
        )


def _is_intact(manifest: dict[str, Any]) -> bool:
    """Return whether the seal fits the rest; a manifest of an earlier version has none, and nothing new."""
    rest = {name: value for name, value in manifest.items() if name != SEAL}
    if SEAL not in manifest:
        return rest.keys() <= UNSEALED
    try:
        return manifest[SEAL] == _seal(rest)
    except RecursionError:  # nested deeper than anything that was ever written
        return False


def _seal(values: dict[str, Any]) -> str:
    """Return the SHA-256 of values as JSON, independent of the order of names and of white space."""
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _is_shard(entry: Any, rank: int, num_ranks: int) -> bool:
    fields = {"file": str, "rows": int, "bytes": int, "sha256": str}
    return (
        isinstance(entry, dict)
        and entry.keys() == fields.keys()
        and all(type(entry[name]) is kind for name, kind in fields.items())
        and entry["rows"] >= 0
        and entry["file"] == shard_name(rank, num_ranks)
    )
