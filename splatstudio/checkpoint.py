"""Checkpoints: ckpts/step_00012000/ with one safetensors file a rank and manifest.json, written last.

A folder that has its final name is complete: it is written under a temporary name, synced and renamed.
Sizes and SHA-256 in the manifest tell damaged files; any number of rank files is read as one model.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from splatstudio.config import TrainConfig, from_json, to_json
from splatstudio.durable import sync_file, sync_folder, write_json_durably
from splatstudio.gaussians import Gaussians, concatenated
from splatstudio.optim import SplatAdam
from splatstudio.strategy import Population

FORMAT = "splatstudio checkpoint"
FORMAT_VERSION = 1
RANK_FILE = re.compile(r"rank\d{5}-of-\d{5}\.safetensors")
STEP_FOLDER = re.compile(r"step_(\d{8,})")

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """All that a training needs to go on as if it had never stopped."""

    step: int  # steps done
    config: TrainConfig
    population: Population  # tensors on the CPU, without gradients
    scene_path: Path
    scene_transform: np.ndarray  # [4, 4] float64 from the files' world to the frame of the Gaussians
    rng_state: Tensor  # [S] uint8, of the training's random generator
    upcoming: tuple[str, ...]  # the names of the photographs already drawn for the next steps

    @property
    def gaussians(self) -> Gaussians:
        """Return the model."""
        return self.population.gaussians


def save_checkpoint(run_dir: Path, checkpoint: Checkpoint) -> Path:
    """Write `checkpoint` below `run_dir`/ckpts and return its folder.

    A checkpoint of the same step is replaced. Raises OSError when the disk is full or fails; what was there
    before is then still there.
    """
    parent = Path(run_dir) / "ckpts"
    parent.mkdir(parents=True, exist_ok=True)
    _sweep(parent)
    tensors = _named_tensors(checkpoint.population)
    _require_space(parent, sum(tensor.nbytes for tensor in tensors.values()))
    final = parent / f"step_{checkpoint.step:08d}"
    temporary = parent / f".{final.name}.tmp-{os.getpid()}"
    temporary.mkdir()
    try:
        file = temporary / "rank00000-of-00001.safetensors"
        try:
            save_file(tensors, file)
        except SafetensorError as error:
            raise OSError(f"{file} could not be written: {error}") from error
        sync_file(file)
        write_json_durably(temporary / "manifest.json", _manifest(checkpoint, [file]))
        if final.exists():
            final.rename(parent / f".{final.name}.old-{os.getpid()}")
        temporary.rename(final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(parent)
    shutil.rmtree(parent / f".{final.name}.old-{os.getpid()}", ignore_errors=True)
    return final


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read and verify a checkpoint.

    Raises ValueError with the file and the reason when anything is missing, cut off or changed.
    """
    folder = Path(folder)
    manifest = verify_checkpoint(folder)
    parts = [_read_rank(folder / rank["file"], rank["rows"]) for rank in manifest["ranks"]]
    try:
        config = from_json(TrainConfig, manifest["config"])
        transform = np.array(manifest["scene"]["transform"], dtype=np.float64)
        rng_state = torch.frombuffer(bytearray(base64.b64decode(manifest["rng"])), dtype=torch.uint8)
        if transform.shape != (4, 4) or not np.isfinite(transform).all():
            raise ValueError("the scene's transform is no matrix of 4 x 4 numbers")
        counts = [part.counts.keys() for part in parts]
        if any(names != counts[0] for names in counts):
            raise ValueError("the ranks' files hold different tensors")
        return Checkpoint(
            step=manifest["step"],
            config=config,
            population=_joined(parts, manifest["optimizer"]["num_steps"]),
            scene_path=Path(manifest["scene"]["path"]),
            scene_transform=transform,
            rng_state=rng_state,
            upcoming=tuple(manifest["upcoming"]),
        )
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{folder / 'manifest.json'} is damaged: {reason}") from error


def verify_checkpoint(folder: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint whose files all have the size and the SHA-256 it tells.

    Raises ValueError with the file and the reason otherwise.
    """
    manifest = _read_manifest(folder)
    for rank in manifest["ranks"]:
        file = folder / rank["file"]
        try:
            size = file.stat().st_size
            if size != rank["bytes"]:
                raise ValueError(f"{file} is damaged: it has {size} bytes instead of {rank['bytes']}")
            if _sha256(file) != rank["sha256"]:
                raise ValueError(f"{file} is damaged: its SHA-256 is not the one in manifest.json")
        except OSError as error:
            raise ValueError(f"{file} cannot be read: {error.strerror or error}") from error
    return manifest


def newest_checkpoint(run_dir: Path, report: Callable[[str], None] = log.warning) -> Path | None:
    """Return the newest checkpoint folder of a run whose files are whole, or None.

    `report` gets a sentence for each newer one that is damaged.
    """
    folders = [path for path in (Path(run_dir) / "ckpts").glob("step_*") if STEP_FOLDER.fullmatch(path.name)]
    for folder in sorted(folders, key=lambda path: int(path.name.removeprefix("step_")), reverse=True):
        try:
            verify_checkpoint(folder)
        except ValueError as error:
            report(f"{error}; an older checkpoint is used where there is one")
        else:
            return folder
    return None


def _named_tensors(population: Population) -> dict[str, Tensor]:
    groups = {
        "": population.gaussians.tensors(),
        "exp_avg.": population.optimizer.exp_avg.tensors(),
        "exp_avg_sq.": population.optimizer.exp_avg_sq.tensors(),
        "counts.": population.counts,
    }
    return {
        prefix + name: tensor.detach().cpu().contiguous()
        for prefix, tensors in groups.items()
        for name, tensor in tensors.items()
    }


def _manifest(checkpoint: Checkpoint, files: list[Path]) -> dict[str, Any]:
    rows = len(checkpoint.gaussians)
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "step": checkpoint.step,
        "num_gaussians": rows,
        "ranks": [
            {"file": file.name, "rows": rows, "bytes": file.stat().st_size, "sha256": _sha256(file)}
            for file in files
        ],
        "config": to_json(checkpoint.config),
        "scene": {"path": str(checkpoint.scene_path), "transform": checkpoint.scene_transform.tolist()},
        "optimizer": {"num_steps": checkpoint.population.optimizer.num_steps},
        "rng": base64.b64encode(checkpoint.rng_state.numpy().tobytes()).decode(),
        "upcoming": list(checkpoint.upcoming),
    }


def _read_manifest(folder: Path) -> dict[str, Any]:
    file = folder / "manifest.json"
    try:
        manifest = json.loads(file.read_bytes())
    except OSError as error:
        raise ValueError(f"{folder} is no checkpoint: {file} cannot be read ({error.strerror})") from error
    except ValueError as error:
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
    for rank in manifest["ranks"] or [None]:
        if not _is_rank(rank):
            raise ValueError(f"{file} is damaged: the ranks' entry {rank!r} is not a file with its size")
    if manifest["num_gaussians"] != sum(rank["rows"] for rank in manifest["ranks"]):
        raise ValueError(f"{file} is damaged: the ranks' rows do not add up to num_gaussians")
    return manifest


def _is_rank(entry: Any) -> bool:
    fields = {"file": str, "rows": int, "bytes": int, "sha256": str}
    return (
        isinstance(entry, dict)
        and all(type(entry.get(name)) is kind for name, kind in fields.items())
        and RANK_FILE.fullmatch(entry["file"]) is not None
    )


def _read_rank(file: Path, rows: int) -> Population:
    try:
        # The library checks the header against the file's size before it allocates anything.
        tensors = load_file(file)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    groups = [_taken(tensors, prefix, rows, file) for prefix in ("", "exp_avg.", "exp_avg_sq.")]
    counts = {name.removeprefix("counts."): tensor for name, tensor in tensors.items()}
    wrong = [name for name, tensor in counts.items() if tensor.shape != (rows,)]
    if wrong or any(not name.startswith("counts.") for name in tensors):
        raise ValueError(f"{file} is damaged: it holds unexpected tensors ({', '.join(tensors)})")
    return Population(groups[0], SplatAdam(groups[1], groups[2]), counts)


def _taken(tensors: dict[str, Tensor], prefix: str, rows: int, file: Path) -> Gaussians:
    """Take the six tensors of a model or of a moment out of `tensors`."""
    shapes = {"means": (3,), "quats": (4,), "scales": (3,), "opacities": (), "sh0": (1, 3)}
    sh = tensors.get(prefix + "shN")
    shapes["shN"] = tuple(sh.shape[1:]) if sh is not None else ()
    taken: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        tensor = tensors.pop(prefix + name, None)
        if tensor is None or tensor.dtype != torch.float32 or tensor.shape != (rows, *shape):
            raise ValueError(f"{file} is damaged: the tensor {prefix}{name} is missing or of a wrong shape")
        taken[name] = tensor
    if shapes["shN"] not in ((0, 3), (3, 3), (8, 3), (15, 3)):
        raise ValueError(f"{file} is damaged: the tensor {prefix}shN has the shape {shapes['shN']}")
    return Gaussians(**taken)


def _joined(parts: list[Population], num_steps: int) -> Population:
    if type(num_steps) is not int:
        raise ValueError(f"the optimiser's num_steps is {num_steps!r}")
    return Population(
        concatenated([part.gaussians for part in parts]),
        SplatAdam(
            concatenated([part.optimizer.exp_avg for part in parts]),
            concatenated([part.optimizer.exp_avg_sq for part in parts]),
            num_steps,
        ),
        {name: torch.cat([part.counts[name] for part in parts]) for name in parts[0].counts},
    )


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with open(file, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _sweep(parent: Path) -> None:
    """Clear away what a killed save left: put back what it was about to replace, drop what it had begun."""
    for left in parent.glob(".step_*.old-*"):
        final = parent / left.name[1:].partition(".")[0]
        if not final.exists():
            left.rename(final)
    for left in parent.glob(".step_*"):
        shutil.rmtree(left)


def _require_space(folder: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if not free > 1.05 * num_bytes:
        raise OSError(
            f"no checkpoint was written: it needs {num_bytes / 1e6:.0f} MB, and {folder} has"
            f" {free / 1e6:.0f} MB free; the earlier checkpoints are still good"
        )
