"""The file of a checkpoint that holds what was learnt beside the Gaussians, once for all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from splatstudio.checkpoints.shard_file import read_tensors, verify_file, write_tensors
from splatstudio.corrections import SavedCorrections

CORRECTIONS_FILE = "corrections.safetensors"
ENTRY = "corrections"  # of the manifest; a checkpoint without any has none


def write_corrections(folder: Path, corrections: SavedCorrections) -> dict[str, Any]:
    """Write the file and return what the manifest has to tell of it; OSError when that fails."""
    size, digest = write_tensors(folder / CORRECTIONS_FILE, corrections.tensors)
    entry = {"file": CORRECTIONS_FILE, "bytes": size, "sha256": digest}
    return {ENTRY: {**entry, "photographs": list(corrections.photographs)}}


def verify_corrections(folder: Path, manifest: dict[str, Any], *, content: bool = True) -> None:
    """Raise ValueError unless the file that a manifest tells of, if any, has its size and SHA-256.

    `content` False compares the size alone.
    """
    entry = _entry(folder, manifest)
    if entry is not None:
        file = folder / entry["file"]
        verify_file(file, str(file), entry["bytes"], entry["sha256"] if content else None)


def read_corrections(folder: Path, manifest: dict[str, Any]) -> SavedCorrections | None:
    """Return what was learnt beside the Gaussians of a verified checkpoint, on the CPU; None: nothing was.

    Raises ValueError when the file cannot be read.
    """
    entry = _entry(folder, manifest)
    if entry is None:
        return None
    file = folder / entry["file"]
    return SavedCorrections(tuple(entry["photographs"]), read_tensors(file, str(file)))


def _entry(folder: Path, manifest: dict[str, Any]) -> dict[str, Any] | None:
    entry = manifest.get(ENTRY)
    if entry is None:
        return None
    kinds = {"file": str, "bytes": int, "sha256": str, "photographs": list}
    fits = isinstance(entry, dict) and entry.keys() == kinds.keys()
    if not fits or any(type(entry[name]) is not kind for name, kind in kinds.items()):
        raise ValueError(f"{folder / 'manifest.json'} is damaged: {ENTRY} is {entry!r}")
    names = entry["photographs"]
    if entry["file"] != CORRECTIONS_FILE or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{folder / 'manifest.json'} is damaged: {ENTRY} is {entry!r}")
    return entry
