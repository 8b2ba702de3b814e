"""The files of a checkpoint: one shard a rank, and the manifest that names them all."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from splatstudio.error_text import first_line, shown
from splatstudio.files.durable import write_json_durably
from splatstudio.files.inputs import read_input, refuse_larger_than_memory, sha256_of
from splatstudio.files.run import STEP_FOLDER
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.optimization.optim import SplatAdam
from splatstudio.strategy.population import Population

SHARD_NAME = re.compile(r"rank(\d{5})-of-(\d{5})\.safetensors")
DTYPES = {torch.float32: "F32", torch.float64: "F64", torch.int32: "I32", torch.int64: "I64"}
DTYPES |= {torch.uint8: "U8", torch.bool: "BOOL"}
BLOCK = 8 << 20  # bytes hashed and written at a time; other threads run meanwhile

FORMAT = "splatstudio checkpoint"
FORMAT_VERSION = 1
# What a save that was killed between its two renames leaves of the checkpoint it was about to replace.
REPLACED_FOLDER = re.compile(r"\.(step_(\d{8,}))\.old-\d+")
DOOMED_FOLDER = re.compile(r"\..*\.del-(\d+)")  # what `remove_checkpoint` of a process is emptying
SEAL = "sha256"  # of the manifest's other values, as canonical JSON


@dataclass(frozen=True)
class Shard:
    """A complete shard file as the manifest lists it."""

    file: str
    rows: int
    bytes: int
    sha256: str

    def to_json(self) -> dict[str, Any]:
        """Return the manifest's entry."""
        return asdict(self)


def shard_name(rank: int, num_ranks: int) -> str:
    """Return the file name of a rank's share."""
    return f"rank{rank:05d}-of-{num_ranks:05d}.safetensors"


def named_tensors(population: Population) -> dict[str, Tensor]:
    """Return every tensor of a population with the name it has in a file."""
    groups = {
        "": population.gaussians.tensors(),
        "exp_avg.": population.optimizer.exp_avg.tensors(),
        "exp_avg_sq.": population.optimizer.exp_avg_sq.tensors(),
        "counts.": population.counts,
    }
    return {prefix + name: tensor for prefix, group in groups.items() for name, tensor in group.items()}


def write_shard_file(file: Path, population: Population) -> Shard:
    """Write a population and wait until it is on the disk; OSError when that fails."""
    size, digest = write_tensors(file, named_tensors(population))
    return Shard(file.name, len(population), size, digest)


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> tuple[int, str]:
    """Write tensors as safetensors, wait until they are on the disk, and return the size and the SHA-256.

    Tensors are copied from their device one at a time, and hashed as they are written. Raises OSError.
    """
    digest = hashlib.sha256()
    with open(file, "wb") as stream:
        header = _header(tensors)
        stream.write(header)
        digest.update(header)
        for tensor in tensors.values():
            if tensor.numel() == 0:
                continue
            data = tensor.detach().cpu().contiguous().numpy().data.cast("B")
            for start in range(0, len(data), BLOCK):
                stream.write(data[start : start + BLOCK])
                digest.update(data[start : start + BLOCK])
        stream.flush()
        os.fsync(stream.fileno())
        return stream.tell(), digest.hexdigest()


def verify_shard(folder: Path, shard: Shard, *, content: bool = True) -> None:
    """Raise ValueError, naming file, rank and reason, unless a shard has the size and SHA-256 it should.

    `content` False compares the size alone.
    """
    where = f"{folder / shard.file} ({_rank_words(shard.file)})"
    verify_file(folder / shard.file, where, shard.bytes, shard.sha256 if content else None)


def verify_file(file: Path, where: str, num_bytes: int, sha256: str | None) -> None:
    """Raise ValueError, beginning with `where`, unless a file has the size and, where given, the SHA-256."""
    try:
        size = file.stat().st_size
        if size != num_bytes:
            raise ValueError(f"{where} is damaged: it has {size} bytes instead of {num_bytes}")
        if sha256 is not None and sha256_of(file) != sha256:
            raise ValueError(f"{where} is damaged: its SHA-256 is not the one in manifest.json")
    except FileNotFoundError as error:
        raise ValueError(f"{where} cannot be read: it is missing") from error
    except OSError as error:
        raise ValueError(f"{where} cannot be read: {error.strerror or error}") from error


def read_shard(folder: Path, shard: Shard) -> Population:
    """Read a shard; its optimizer's num_steps, which the manifest knows, is left at 0.

    Raises ValueError, naming file, rank and reason, when it is damaged.
    """
    file = folder / shard.file
    where = f"{file} ({_rank_words(shard.file)})"
    tensors = read_tensors(file, where)
    groups = [_taken(tensors, prefix, shard.rows, where) for prefix in ("", "exp_avg.", "exp_avg_sq.")]
    counts = {name.removeprefix("counts."): tensor for name, tensor in tensors.items()}
    wrong = [name for name, tensor in counts.items() if tensor.shape != (shard.rows,)]
    if wrong or any(not name.startswith("counts.") for name in tensors):
        raise ValueError(f"{where} is damaged: it holds unexpected tensors ({', '.join(tensors)})")
    return Population(groups[0], SplatAdam(groups[1], groups[2]), counts)


def read_tensors(file: Path, where: str) -> dict[str, Tensor]:
    """Return the tensors of a file, on the CPU; ValueError, beginning with `where`, when it is damaged."""
    try:
        refuse_larger_than_memory(file)
    except OSError as error:
        raise ValueError(f"{where} cannot be read: {error.strerror or error}") from error
    try:
        # The library checks the header against the file's size before it allocates anything.
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{where} is damaged: {first_line(error)[:200]}") from error


def _rank_words(name: str) -> str:
    match = SHARD_NAME.fullmatch(name)
    assert match is not None, name
    return f"rank {int(match[1])} of {int(match[2])}"


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _taken(tensors: dict[str, Tensor], prefix: str, rows: int, where: str) -> Gaussians:
    """Take the six tensors of a model or of a moment out of `tensors`."""
    shapes = {"means": (3,), "quats": (4,), "scales": (3,), "opacities": (), "sh0": (1, 3)}
    sh = tensors.get(prefix + "shN")
    shapes["shN"] = tuple(sh.shape[1:]) if sh is not None else ()
    taken: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        tensor = tensors.pop(prefix + name, None)
        if tensor is None or tensor.dtype != torch.float32 or tensor.shape != (rows, *shape):
            raise ValueError(f"{where} is damaged: the tensor {prefix}{name} is missing or of a wrong shape")
        taken[name] = tensor
    if shapes["shN"] not in ((0, 3), (3, 3), (8, 3), (15, 3)):
        raise ValueError(f"{where} is damaged: the tensor {prefix}shN has the shape {shapes['shN']}")
    return Gaussians(**taken)


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
        manifest = json.loads(read_input(file))
    except OSError as error:
        raise ValueError(f"{folder} is no checkpoint: {file} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is damaged: it is not JSON ({error})") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ValueError(f"{file} is not the manifest of a {FORMAT}")
    if manifest.get("format_version") != FORMAT_VERSION:
        version = manifest.get("format_version")
        raise ValueError(f"{file} has format version {shown(version)}; this program reads {FORMAT_VERSION}")
    expected = {"step": int, "num_gaussians": int, "ranks": list, "config": dict, "scene": dict}
    for name, kind in expected.items():
        if type(manifest.get(name)) is not kind:
            raise ValueError(f"{file} is damaged: {name} is {shown(manifest.get(name))}")
    num_ranks = len(manifest["ranks"])
    if num_ranks == 0:
        raise ValueError(f"{file} is damaged: it names no rank's file")
    for rank, entry in enumerate(manifest["ranks"]):
        if not _is_shard(entry, rank, num_ranks):
            raise ValueError(
                f"{file} is damaged: the entry {shown(entry)} is not the file of rank {rank} of {num_ranks}"
                " with its size"
            )
    if manifest["num_gaussians"] != sum(entry["rows"] for entry in manifest["ranks"]):
        raise ValueError(f"{file} is damaged: the ranks' rows do not add up to num_gaussians")
    _check_whole(folder, manifest)
    return manifest


def _check_whole(folder: Path, manifest: dict[str, Any]) -> None:
    """Raise ValueError unless the manifest is the one that was written to this folder."""
    file = folder / "manifest.json"
    if SEAL not in manifest:
        raise ValueError(f"{file} has no SHA-256: an earlier version wrote it, which this one cannot read")
    if not _is_intact(manifest):
        raise ValueError(f"{file} is damaged: it is not what was written, as its SHA-256 tells")
    if step_of(folder) not in (None, manifest["step"]):
        raise ValueError(
            f"{file} is of step {manifest['step']}, but its folder's name tells another: rename it back"
        )


def _is_intact(manifest: dict[str, Any]) -> bool:
    """Return whether the seal fits the rest."""
    rest = {name: value for name, value in manifest.items() if name != SEAL}
    try:
        return manifest.get(SEAL) == _seal(rest)
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
