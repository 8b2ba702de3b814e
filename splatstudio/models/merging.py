"""One model of the files that the ranks of a training wrote: ours, or those of gsplat's trainer."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from splatstudio.checkpoints.checkpoint import (
    Checkpoint,
    load_checkpoint,
    newest_or_why,
    verify_checkpoint,
    write_manifest,
    write_shard,
)
from splatstudio.checkpoints.manifest import SHARD_NAME, step_of
from splatstudio.checkpoints.rank_parts import (
    GSPLAT_NAME,
    MOMENTS,
    RankPart,
    check_alike,
    check_distinct,
    check_part,
    check_step,
    files_to_merge,
    gsplat_steps,
    in_order_of_ranks,
    part_of,
)
from splatstudio.files.outputs import make_folder
from splatstudio.files.run import is_checkpoint
from splatstudio.formats import format_to_write, free_path
from splatstudio.formats.model_arrays import (
    left_out_note,
    without_infinite_opacities,
    without_infinite_scales,
)
from splatstudio.formats.torch_file import is_gsplat_checkpoint, load_tensors, save_tensors, splats_of_gsplat
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.models.exporter import ExportedModel, write_model
from splatstudio.models.model import Model, model_of
from splatstudio.operating_system import put_in_place, sync_folder
from splatstudio.optimization.optim import SplatAdam
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.setting import typed_path
from splatstudio.strategy.population import Population

# done of total parts, and what is being done
Report = Callable[[int, int, str], None]


def _silent(done: int, total: int, what: str) -> None:
    pass


@dataclass(frozen=True, eq=False)
class Merged:
    """The whole model, and what else its parts held: the way it is written depends on where it comes from."""

    sources: tuple[Path, ...]
    rows: tuple[int, ...]  # Gaussians of each rank
    checkpoint: Checkpoint | None = None  # where the parts were ours
    gsplat: Mapping[str, Any] | None = None  # the joined content where they were gsplat's
    notes: tuple[str, ...] = ()  # sentences on what the parts held that is left out

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

        Raises ValueError for one whose colors an appearance network made: no Gaussian holds them.
        """
        if self.checkpoint is not None:
            return model_of(self.checkpoint)
        assert self.gsplat is not None
        file = splats_of_gsplat(self.sources[0], self.gsplat)
        return Model(file.gaussians, step=self.step, notes=(*self.notes, *file.notes))

    def write(self, output: Path | str) -> ExportedModel:
        """Write the model; the ending of `output` says how, and without one it is a checkpoint folder.

        gsplat's parts keep every value in a .pt and in a checkpoint, our own in a checkpoint; the rest is
        in the format of the ending. Raises ValueError for an unknown ending, a folder that
        is there already, a file that is one of the parts or would pass for one, and one that cannot be
        written.
        """
        output = typed_path(output)
        _keep_apart(output, self.sources)
        if output.suffix == "":
            _write_folder(output, self.checkpoint or _checkpoint_of_gsplat(self))
            return ExportedModel(output, len(self), notes=self.notes)
        form = format_to_write(output)
        if self.gsplat is not None and form.endings[0] == ".pt":
            save_tensors(output, dict(self.gsplat))
            return ExportedModel(output, len(self), form=form, notes=self.notes)
        model = self.model()
        exported = write_model(model, output)
        return replace(exported, notes=(*model.notes, *exported.notes))


def merge(paths: Iterable[Path | str] | Path | str, output: Path | str | None = None) -> Model:
    """Merge the ranks' files of one step, write the model to `output` if that is given, and return it.

    `paths` are files, patterns or a folder: gsplat's `ckpt_{step}_rank{r}.pt`, one of our runs or checkpoints
    or its shards. `output` is as in `Merged.write`. Raises ValueError, naming the file and the reason, when a
    rank is missing, the parts do not belong together, or a file is damaged.
    """
    merged = merged_parts([paths] if isinstance(paths, (str, Path)) else paths)
    if output is not None:
        merged.write(output)
    return merged.model()


def merged_parts(paths: Iterable[Path | str], report: Report = _silent) -> Merged:
    """Read and join the parts as `merge` does, telling `report` of each."""
    files = files_to_merge([_of_run(path) for path in paths])
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


def _of_run(path: Path | str) -> Path | str:
    """Return the newest good checkpoint where `path` is a run, else the path itself.

    Raises ValueError for a run that has checkpoints, but no good one.
    """
    folder = typed_path(path)
    if not (folder / "run.json").exists():
        return folder
    newest, why = newest_or_why(folder)
    if newest is None and why:
        raise ValueError(f"no model in {folder} can be read: {why}")
    return newest or folder


def whole_of(part: RankPart) -> Path | None:
    """Return what holds the whole model of a part already: a checkpoint folder of ours, else None."""
    return part.path.parent if SHARD_NAME.fullmatch(part.path.name) else None


def place_of_merged(part: Path) -> Path:
    """Return where the whole model of one of gsplat's parts goes: `exports` of its results, a free name."""
    named = GSPLAT_NAME.fullmatch(part.name)
    assert named is not None, "only gsplat's parts are merged to a new file"
    folder = part.resolve().parent
    owner = folder.parent if folder.name == "ckpts" else folder
    return free_path(owner / "exports" / f"{owner.name}-{int(named[1])}-merged.pt")


def merge_to_open(path: Path, report: Report = _silent) -> Path:
    """Return a model that is whole where `path` is one rank's part: merge it with the others where need be.

    Of a folder of gsplat's it is the last step. Raises ValueError where it is no part, where one of the
    others is missing, and as `merge`.
    """
    steps = gsplat_steps(path) if path.is_dir() else {}
    part = part_of(steps[max(steps)][0] if steps else path)
    if part is None:
        raise ValueError(f"{path} is not the part of a rank, so there is nothing to merge: omit --merge")
    if not part.complete:
        raise ValueError(f"{part}: copy it there and merge again")
    whole = whole_of(part)
    if whole is not None:
        return whole
    merged = merged_parts([part.path, *part.others], report)
    output = place_of_merged(part.path)
    make_folder(output.parent)
    return merged.write(output).output


def _checkpoint_folder(path: Path) -> Path | None:
    if is_checkpoint(path):
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
    notes: list[str] = []
    for number, file in enumerate(files):
        report(number, len(files) + 1, f"reading {file.name}")
        content = load_tensors(file)
        if not is_gsplat_checkpoint(content):
            raise ValueError(f"{file} is a file of PyTorch, but no checkpoint of gsplat's trainer")
        check_part(file, content)
        content, left_out = _finite_alone(file, content)
        contents.append(content)
        notes += left_out
    report(len(files), len(files) + 1, f"joining {len(files)} parts")
    first = contents[0]
    for file, content in zip(files[1:], contents[1:], strict=True):
        check_alike(files[0], first, file, content)
    check_step(files[0], first)
    check_distinct(files, contents)
    rows = tuple(len(content["splats"]["means"]) for content in contents)
    joined: dict[str, Any] = dict(first)  # what else there is was found to be the same on every rank
    joined["splats"] = {
        name: torch.cat([content["splats"][name] for content in contents]) for name in first["splats"]
    }
    if "optimizers" in first:
        joined["optimizers"] = _joined_optimizers(contents)
    return Merged(tuple(files), rows, gsplat=joined, notes=tuple(notes))


def _finite_alone(file: Path, content: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """Return a part without the splats that have a value that is not finite, and a sentence on them.

    As from any file of splats: opacities of exactly 0 and 1, and sizes of exactly 0, have finite values.
    Raises ValueError where that leaves less than half of them: then the file is damaged.
    """
    splats: dict[str, Tensor] = dict(content["splats"])
    for name, bounded in (("opacities", without_infinite_opacities), ("scales", without_infinite_scales)):
        if name in splats:
            splats[name] = torch.from_numpy(bounded(splats[name].detach().numpy()))
    finite = torch.ones(len(splats["means"]), dtype=torch.bool)
    for tensor in splats.values():
        finite &= tensor.isfinite().flatten(1).all(dim=1) if tensor.ndim > 1 else tensor.isfinite()
    num_out = int((~finite).sum())
    if num_out == 0:
        return {**content, "splats": splats}, []
    if 2 * num_out > len(finite):
        raise ValueError(
            f"{file} is damaged: {num_out:,} of its {len(finite):,} splats have values that are not finite"
        )
    alone = {**content, "splats": {name: tensor[finite] for name, tensor in splats.items()}}
    if "optimizers" in content:
        alone["optimizers"] = {
            name: {**kept, "state": {0: {**state, **{moment: state[moment][finite] for moment in MOMENTS}}}}
            for name, kept in content["optimizers"].items()
            for state in [kept["state"][0]]
        }
    return alone, [left_out_note(file, num_out, len(finite))]


def _joined_optimizers(contents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the state_dicts of the tensors' optimizers, joined: moments by row, the rest from rank 0."""
    joined: dict[str, Any] = {}
    for name, first in contents[0]["optimizers"].items():
        states = [content["optimizers"][name]["state"][0] for content in contents]
        moments = {moment: torch.cat([state[moment] for state in states]) for moment in MOMENTS}
        joined[name] = {**first, "state": {0: {**states[0], **moments}}}
    return joined


def _keep_apart(output: Path, sources: Sequence[Path]) -> None:
    """Raise ValueError for an output that would replace a part, or be taken for one the next time."""
    place = output.resolve()
    if place in {source.resolve() for source in sources}:
        raise ValueError(f"{output} is one of the parts that are merged: name another file")
    named_so = GSPLAT_NAME.fullmatch(output.name) or SHARD_NAME.fullmatch(output.name)
    if named_so and place.parent in {source.parent.resolve() for source in sources}:
        raise ValueError(
            f"{output} would be taken for the part of a rank, as it is named like one and lies beside them:"
            " name another file"
        )


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
        Gaussians(
            **{
                # gsplat may keep a row as 1 x 3 or as 3, as N x 1 or as N.
                name: states[name][moment].float().reshape(tensor.shape).contiguous()
                for name, tensor in gaussians.tensors().items()
            }
        )
        for moment in MOMENTS
    ]
    return SplatAdam(moments[0], moments[1], int(states["means"].get("step", 0)))


def _write_folder(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint to a folder of any name, complete or not there."""
    if folder.exists():
        raise ValueError(f"{folder} is there already: name another one")
    if step_of(folder) not in (None, checkpoint.step):
        raise ValueError(f"{folder} would tell a wrong step: the model is of step {checkpoint.step}")
    staging = folder.with_name(f".{folder.name}.tmp-{os.getpid()}")
    try:
        make_folder(folder.parent)
        staging.mkdir()
        write_manifest(staging, checkpoint, [write_shard(staging, checkpoint.population, 0, 1)])
        put_in_place(staging, folder)
        sync_folder(folder.parent)
    except OSError as error:
        shutil.rmtree(staging, ignore_errors=True)
        raise ValueError(f"{folder} cannot be written: {error.strerror or error}") from error
