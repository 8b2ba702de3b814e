"""One model of the files that the ranks of a training wrote: ours, or those of gsplat's trainer."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from splatstudio.checkpoint import Checkpoint, load_checkpoint, verify_checkpoint, write_manifest, write_shard
from splatstudio.config import TrainConfig
from splatstudio.durable import sync_folder
from splatstudio.formats import format_to_write
from splatstudio.formats.gsplat_checkpoint import gaussians_of_gsplat, is_gsplat_checkpoint
from splatstudio.formats.torch_file import FLOATS, load_tensors, save_tensors
from splatstudio.gaussians import Gaussians
from splatstudio.model import Model, model_of
from splatstudio.optim import SplatAdam
from splatstudio.rank_parts import SHARD_NAME, files_to_merge, in_order_of_ranks
from splatstudio.strategy import Population

# done of total parts, and what is being done
Report = Callable[[int, int, str], None]
MOMENTS = ("exp_avg", "exp_avg_sq")


def _silent(done: int, total: int, what: str) -> None:
    pass


@dataclass(frozen=True, eq=False)
class Merged:
    """The whole model, and what else its parts held: the way it is written depends on where it comes from."""

    sources: tuple[Path, ...]
    rows: tuple[int, ...]  # Gaussians of each rank
    checkpoint: Checkpoint | None = None  # where the parts were ours
    gsplat: Mapping[str, Any] | None = None  # the joined content where they were gsplat's

    @property
    def step(self) -> int:
        """Return the step of the training; 0: not known."""
        if self.checkpoint is not None:
            return self.checkpoint.step
        assert self.gsplat is not None
        step = self.gsplat.get("step")
        return step if type(step) is int else 0

    def __len__(self) -> int:
        return sum(self.rows)

    def model(self) -> Model:
        """Return the model to show.

        Raises ValueError for one whose colours an appearance network made: no Gaussian holds them.
        """
        if self.checkpoint is not None:
            return model_of(self.checkpoint)
        assert self.gsplat is not None
        return Model(gaussians_of_gsplat(self.sources[0], self.gsplat), step=self.step)

    def write(self, output: Path | str) -> Path:
        """Write the model; the ending of `output` says how, and without one it is a checkpoint folder.

        gsplat's parts keep every value in a .pt and in a checkpoint, our own in a checkpoint; the rest is
        in the format of the ending, as `Model.save`. Raises ValueError for an unknown ending, a folder that
        is there already, and a file that cannot be written.
        """
        output = Path(output)
        if output.suffix == "":
            return _write_folder(output, self.checkpoint or _checkpoint_of_gsplat(self))
        form = format_to_write(output)
        if self.gsplat is not None and form.endings[0] == ".pt":
            save_tensors(output, dict(self.gsplat))
            return output
        return self.model().save(output)


def merge(paths: Iterable[Path | str] | Path | str, output: Path | str | None = None) -> Model:
    """Merge the ranks' files of one step, write the model to `output` if that is given, and return it.

    `paths` are files, patterns or a folder: gsplat's `ckpt_{step}_rank{r}.pt`, one of our checkpoints or its
    shards. `output` is as in `Merged.write`. Raises ValueError, naming the file and the reason, when a rank
    is missing, the parts do not belong together, or a file is damaged.
    """
    merged = merged_parts([paths] if isinstance(paths, (str, Path)) else paths)
    if output is not None:
        merged.write(output)
    return merged.model()


def merged_parts(paths: Iterable[Path | str], report: Report = _silent) -> Merged:
    """Read and join the parts as `merge` does, telling `report` of each."""
    files = files_to_merge(paths)
    folders = {_checkpoint_folder(file) for file in files}
    if None not in folders:
        if len(folders) > 1:
            names = ", ".join(sorted(str(folder) for folder in folders))
            raise ValueError(f"these are different checkpoints, not parts of one: {names}")
        (folder,) = folders
        assert folder is not None
        report(0, 1, f"reading {folder.name}")
        return _merged_checkpoint(folder)
    if len(folders) > 1:
        raise ValueError("parts of a checkpoint of splatstudio and of gsplat do not belong together")
    return _merged_gsplat(in_order_of_ranks(files), report)


def _checkpoint_folder(path: Path) -> Path | None:
    if (path / "manifest.json").exists():
        return path
    return path.parent if SHARD_NAME.fullmatch(path.name) else None


def _merged_checkpoint(folder: Path) -> Merged:
    # Which of the shards were named does not matter: the manifest knows them all.
    checkpoint = load_checkpoint(folder)
    sources = tuple(sorted(folder.glob("rank*.safetensors")))
    rows = tuple(int(entry["rows"]) for entry in verify_checkpoint(folder, content=False)["ranks"])
    return Merged(sources, rows, checkpoint=checkpoint)


def _merged_gsplat(files: Sequence[Path], report: Report) -> Merged:
    contents: list[Mapping[str, Any]] = []
    for number, file in enumerate(files):
        report(number, len(files) + 1, f"reading {file.name}")
        content = load_tensors(file)
        if not is_gsplat_checkpoint(content):
            raise ValueError(f"{file} is a file of PyTorch, but no checkpoint of gsplat's trainer")
        _check_splats(file, content["splats"])
        contents.append(content)
    report(len(files), len(files) + 1, f"joining {len(files)} parts")
    first = contents[0]
    for file, content in zip(files[1:], contents[1:], strict=True):
        _check_alike(files[0], first, file, content)
    rows = tuple(_num_rows(content["splats"]) for content in contents)
    joined: dict[str, Any] = dict(first)  # appearance and pose modules are the same on every rank
    joined["splats"] = {
        name: torch.cat([content["splats"][name] for content in contents]) for name in first["splats"]
    }
    if "optimizers" in first:
        joined["optimizers"] = _joined_optimizers(files, contents, rows)
    return Merged(tuple(files), rows, gsplat=joined)


def _check_splats(file: Path, splats: Mapping[str, Any]) -> None:
    """Raise ValueError unless these are dense tensors with one row for each Gaussian."""
    if "means" not in splats:
        raise ValueError(f"{file} has no 'means': it is not a model of Gaussians")
    for name, tensor in splats.items():
        dense = isinstance(tensor, Tensor) and tensor.dtype in FLOATS and tensor.layout == torch.strided
        if not dense or tensor.is_quantized or tensor.device.type != "cpu" or tensor.ndim == 0:
            raise ValueError(f"{file}: {name!r} is not a dense tensor of floating-point numbers")
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise ValueError(f"{file} is damaged: {name!r} claims more numbers than it has")
        if len(tensor) != _num_rows(splats):
            raise ValueError(
                f"{file} is damaged: {name!r} has {len(tensor)} rows, the means {_num_rows(splats)}"
            )


def _num_rows(splats: Mapping[str, Tensor]) -> int:
    return len(splats["means"])


def _check_alike(first_file: Path, first: Mapping[str, Any], file: Path, content: Mapping[str, Any]) -> None:
    """Raise ValueError unless two parts are of one step and have tensors of the same shapes."""
    steps = [first.get("step"), content.get("step")]
    if steps[0] != steps[1]:
        raise ValueError(
            f"the steps do not agree: {first_file} holds step {steps[0]}, {file} step {steps[1]}"
        )
    ours, theirs = first["splats"], content["splats"]
    if ours.keys() != theirs.keys() or first.keys() != content.keys():
        names = sorted({*ours, *first} ^ {*theirs, *content})
        raise ValueError(f"{first_file} and {file} do not hold the same: {', '.join(names)} is in one alone")
    for name, tensor in ours.items():
        shapes = [tuple(part[name].shape[1:]) for part in (ours, theirs)]
        if shapes[0] != shapes[1]:
            found = [" x ".join(map(str, shape)) for shape in shapes]
            why = ": the degrees of their spherical harmonics differ" if name == "shN" else ""
            raise ValueError(
                f"{name!r} has {found[0]} numbers for each Gaussian in {first_file}, but {found[1]}"
                f" in {file}{why}"
            )
        if tensor.dtype != theirs[name].dtype:
            raise ValueError(f"{name!r} is {tensor.dtype} in {first_file}, {theirs[name].dtype} in {file}")


def _joined_optimizers(
    files: Sequence[Path], contents: Sequence[Mapping[str, Any]], rows: Sequence[int]
) -> dict[str, Any]:
    """Return the state_dicts of the tensors' optimisers, joined: moments by row, the rest from rank 0."""
    joined: dict[str, Any] = {}
    for name, first in contents[0]["optimizers"].items():
        try:
            states = [content["optimizers"][name]["state"][0] for content in contents]
            state = dict(states[0])
            for moment in MOMENTS:
                if any(len(one[moment]) != num for one, num in zip(states, rows, strict=True)):
                    raise ValueError(f"{moment} of {name!r} does not have a row for each Gaussian")
                state[moment] = torch.cat([one[moment] for one in states])
        except (KeyError, TypeError, IndexError, RuntimeError, ValueError) as error:
            raise ValueError(f"{files[0].parent}: the optimisers' states do not fit: {error}") from error
        joined[name] = {**first, "state": {0: state}}
    return joined


def _checkpoint_of_gsplat(merged: Merged) -> Checkpoint:
    """Return gsplat's model as a checkpoint of ours: no scene, and moments of zero unless they were kept."""
    assert merged.gsplat is not None
    gaussians = merged.model().gaussians
    return Checkpoint(
        step=merged.step,
        config=TrainConfig(sh_degree=gaussians.sh_degree),
        population=Population(gaussians, _moments(merged.gsplat, gaussians), {}),
        scene_path=Path(),
        scene_transform=np.eye(4),
        rng_state=torch.Generator().get_state(),
        upcoming=(),
    )


def _moments(content: Mapping[str, Any], gaussians: Gaussians) -> SplatAdam:
    optimizers = content.get("optimizers", {})
    names = gaussians.tensors().keys()
    if not names <= optimizers.keys():
        return SplatAdam.zeros(gaussians)
    states = {name: optimizers[name]["state"][0] for name in names}
    moments = [
        Gaussians(**{name: state[moment].float().contiguous() for name, state in states.items()})
        for moment in MOMENTS
    ]
    return SplatAdam(moments[0], moments[1], int(states["means"].get("step", 0)))


def _write_folder(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint to a folder of any name, complete or not there."""
    if folder.exists():
        raise ValueError(f"{folder} is there already: name another one")
    staging = folder.with_name(f".{folder.name}.tmp-{os.getpid()}")
    try:
        staging.mkdir(parents=True)
        write_manifest(staging, checkpoint, [write_shard(staging, checkpoint.population, 0, 1)])
        staging.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        shutil.rmtree(staging, ignore_errors=True)
        raise ValueError(f"{folder} cannot be written: {error.strerror or error}") from error
    return folder
