"""Which files hold the parts of one model: a training on several GPUs writes one file a rank."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor

from splatstudio.checkpoints.manifest import SHARD_NAME
from splatstudio.error_text import shown
from splatstudio.files.run import is_checkpoint
from splatstudio.formats.torch_file import FLOATS, claims_too_much

GSPLAT_NAME = re.compile(r"ckpt_(\d+)_rank(\d+)\.pt")
# gsplat's trainer writes these beside the folder of the checkpoints, one a rank as well.
GSPLAT_STATS = re.compile(r"train_step(\d+)_rank(\d+)\.json")
FRACTIONS = {2: "half", 3: "a third", 4: "a quarter"}

MOMENTS = ("exp_avg", "exp_avg_sq")
# What differs between ranks; all else each of them holds whole.
SPLIT = ("splats", "optimizers")
DEEPEST = 20  # levels of nesting in a state_dict: more is no state_dict


@dataclass(frozen=True)
class RankPart:
    """A file that holds one rank's share of a model, and the files of the other ranks."""

    path: Path
    rank: int
    num_ranks: int
    others: tuple[Path, ...]  # those found beside it, by rank
    missing: tuple[int, ...]  # ranks without a file

    @property
    def complete(self) -> bool:
        """Return whether the files of all ranks are there."""
        return not self.missing

    def __str__(self) -> str:
        share = FRACTIONS.get(self.num_ranks, f"1/{self.num_ranks}")
        sentence = f"{self.path.name} is rank {self.rank} of {self.num_ranks}: about {share} of the scene"
        if self.missing:
            ranks = " and ".join(f"rank {rank}" for rank in self.missing)
            return f"{sentence}; the file of {ranks} is not beside it"
        names = ", ".join(other.name for other in self.others)
        return f"{sentence}; merge with {names} (found beside it)?"


def part_of(path: Path) -> RankPart | None:
    """Return what part of a model a file holds, or None when it holds all of one, as far as names tell.

    gsplat's names do not tell how many ranks there were: the files of other steps beside it, and those in
    gsplat's `stats` folder, are counted too.
    """
    path = Path(path)
    shard = SHARD_NAME.fullmatch(path.name)
    if shard is not None:
        rank, num_ranks = int(shard[1]), int(shard[2])
        by_rank = {int(m[1]): file for file, m in _siblings(path.parent, SHARD_NAME) if m[2] == shard[2]}
    else:
        named = GSPLAT_NAME.fullmatch(path.name)
        if named is None:
            return None
        rank = int(named[2])
        by_rank = {int(m[2]): file for file, m in _siblings(path.parent, GSPLAT_NAME) if m[1] == named[1]}
        num_ranks = max(_ranks_seen(path.parent) | {rank}) + 1
    if num_ranks < 2:
        return None
    others = tuple(by_rank[other] for other in sorted(by_rank) if other != rank)
    missing = tuple(r for r in range(num_ranks) if r != rank and r not in by_rank)
    return RankPart(path, rank, num_ranks, others, missing)


def gsplat_steps(folder: Path) -> dict[int, tuple[Path, ...]]:
    """Return gsplat's checkpoint files in a folder, or in its `ckpts` folder, by step and then by rank."""
    found: dict[int, list[tuple[int, Path]]] = {}
    for place in (Path(folder), Path(folder) / "ckpts"):
        for file, match in _siblings(place, GSPLAT_NAME):
            found.setdefault(int(match[1]), []).append((int(match[2]), file))
        if found:
            break
    return {step: tuple(file for _, file in sorted(found[step])) for step in sorted(found)}


def files_to_merge(paths: Iterable[Path | str]) -> tuple[Path, ...]:
    """Return the files or the checkpoint folder that a list of files, patterns and folders names.

    Of a folder with gsplat's checkpoints of several steps, the last step's are taken. Raises ValueError for
    a path that is not there and a pattern or a folder without any.
    """
    files: list[Path] = []
    for given in paths:
        path = Path(given)
        if path.is_dir():
            files += _in_folder(path)
        elif path.exists():
            files.append(path)
        elif glob.has_magic(str(given)):
            matching = sorted(Path(name) for name in glob.glob(str(given)))
            if not matching:
                raise ValueError(f"no file matches {given}")
            files += matching
        else:
            raise ValueError(f"{path} does not exist")
    if not files:
        raise ValueError("nothing to merge: name the ranks' files, a pattern, or their folder")
    return tuple(files)


def missing_ranks(ranks: Sequence[int]) -> str:
    """Return that ranks are missing: `missing ranks 1 and 2`."""
    *first, last = map(str, ranks)
    return f"missing ranks {', '.join(first)} and {last}" if first else f"missing rank {last}"


def in_order_of_ranks(files: Sequence[Path]) -> tuple[Path, ...]:
    """Return gsplat's files of one step by rank.

    They may lie in several folders, as the machines of a cluster leave them. Raises ValueError when a name
    tells no rank, when steps differ, when a rank is missing or given twice, or when a folder of another part
    has the same rank once more: then there were several trainings.
    """
    by_rank: dict[int, Path] = {}
    steps: dict[int, Path] = {}
    for file in files:
        match = GSPLAT_NAME.fullmatch(file.name)
        if match is None:
            raise ValueError(f"{file} does not tell its rank: it must be named ckpt_STEP_rankN.pt")
        step, rank = int(match[1]), int(match[2])
        steps[step] = file
        if rank in by_rank:
            raise ValueError(f"rank {rank} is there twice: {by_rank[rank]} and {file}")
        by_rank[rank] = file
    if len(steps) > 1:
        first, second = sorted(steps)[:2]
        raise ValueError(
            f"the steps do not agree: {steps[first]} is of step {first}, {steps[second]} of step {second}"
        )
    _refuse_rivals(by_rank)
    num_ranks = max(max(by_rank), *(max(_ranks_seen(file.parent), default=0) for file in files)) + 1
    missing = [rank for rank in range(num_ranks) if rank not in by_rank]
    if missing:
        (step,) = steps
        names = ", ".join(f"ckpt_{step}_rank{rank}.pt" for rank in missing)
        raise ValueError(f"step {step} is not complete: {missing_ranks(missing)}: {names}")
    return tuple(by_rank[rank] for rank in range(num_ranks))


def _refuse_rivals(by_rank: dict[int, Path]) -> None:
    """Raise ValueError when a rank has a file of the same name in the folder of another one."""
    folders = {file.parent.resolve(): file for file in by_rank.values()}
    for file in by_rank.values():
        for folder, other in folders.items():
            if folder != file.parent.resolve() and (folder / file.name).exists():
                raise ValueError(
                    f"these files may be parts of different trainings: {file} and {other} are given, and"
                    f" {folder} has a {file.name} of its own; name the folder of one training"
                )


def _in_folder(folder: Path) -> list[Path]:
    if is_checkpoint(folder):
        return [folder]
    steps = gsplat_steps(folder)
    if not steps:
        raise ValueError(f"{folder} holds neither a checkpoint nor files named ckpt_STEP_rankN.pt")
    return list(steps[max(steps)])


def _ranks_seen(folder: Path) -> set[int]:
    """Return the ranks of which gsplat's trainer left any trace."""
    ranks = {int(match[2]) for _, match in _siblings(folder, GSPLAT_NAME)}
    return ranks | {int(match[2]) for _, match in _siblings(folder.parent / "stats", GSPLAT_STATS)}


def _siblings(folder: Path, name: re.Pattern[str]) -> list[tuple[Path, re.Match[str]]]:
    try:
        files = sorted(folder.iterdir())
    except OSError:
        return []  # not there, or not ours to list
    return [(file, match) for file in files if (match := name.fullmatch(file.name)) is not None]


def check_part(file: Path, content: Mapping[str, Any]) -> None:
    """Raise ValueError, naming the file, unless its splats and optimizers are what gsplat writes."""
    step = content.get("step", 0)
    if type(step) is not int or not step >= 0:
        raise ValueError(f"{file} is damaged: its 'step' is {shown(step)}, not a number of steps")
    _check_splats(file, content["splats"])
    if "optimizers" in content:
        _check_optimizers(file, content["optimizers"], content["splats"])


def check_step(file: Path, content: Mapping[str, Any]) -> None:
    """Raise ValueError when a file holds another step than its name tells."""
    named = GSPLAT_NAME.fullmatch(file.name)
    if named is not None and content.get("step", int(named[1])) != int(named[1]):
        raise ValueError(
            f"{file} was renamed or mixed up: it holds step {content['step']}, not {int(named[1])}"
        )


def check_alike(first_file: Path, first: Mapping[str, Any], file: Path, content: Mapping[str, Any]) -> None:
    """Raise ValueError unless two parts are of one step, of the same shapes, and share what is not split."""
    steps = [first.get("step"), content.get("step")]
    if steps[0] != steps[1]:
        raise ValueError(
            f"the steps do not agree: {first_file} holds step {steps[0]}, {file} step {steps[1]}"
        )
    for ours, theirs in [
        (first, content),
        (first["splats"], content["splats"]),
        (first.get("optimizers", {}), content.get("optimizers", {})),
    ]:
        if ours.keys() != theirs.keys():
            names = ", ".join(sorted(str(name) for name in ours.keys() ^ theirs.keys()))
            raise ValueError(f"{first_file} and {file} do not hold the same: {names} is in one alone")
    for name, tensor in first["splats"].items():
        _check_row(name, first_file, tensor, file, content["splats"][name])
    for name in first:
        if name not in SPLIT and not _same(first[name], content[name]):
            raise ValueError(
                f"{first_file} and {file} are not parts of one training: {name!r}, which all ranks share,"
                " differs"
            )


def check_distinct(files: Sequence[Path], contents: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError where the parts hold nothing, or two of them the same: ranks share no Gaussian."""
    means = [content["splats"]["means"] for content in contents]
    if sum(map(len, means)) == 0:
        raise ValueError(f"{files[0]} and the parts with it hold no splats")
    for index, later in enumerate(means):
        for other in range(index):
            if len(later) > 0 and torch.equal(means[other], later):
                raise ValueError(
                    f"{files[other]} and {files[index]} hold the same splats: one was copied over the"
                    " part of another rank"
                )


def _check_splats(file: Path, splats: Mapping[str, Any]) -> None:
    """Raise ValueError unless these are dense tensors with one row for each Gaussian."""
    if "means" not in splats:
        raise ValueError(f"{file} has no 'means': it is not a model of splats")
    for name, tensor in splats.items():
        if not _is_dense(tensor) or tensor.ndim == 0:
            raise ValueError(f"{file}: {name!r} is not a dense tensor of floating-point numbers")
        if claims_too_much(tensor):
            raise ValueError(f"{file} is damaged: {name!r} claims more numbers than it has")
        num = len(splats["means"])
        if len(tensor) != num:
            raise ValueError(f"{file} is damaged: {name!r} has {len(tensor)} rows, the means {num}")


def _check_optimizers(file: Path, optimizers: Any, splats: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless these are the state_dicts of an Adam for each of some of the splats."""
    if not isinstance(optimizers, Mapping):
        raise ValueError(f"{file} is damaged: its 'optimizers' are {shown(optimizers)}, not one by name")
    for name, optimizer in optimizers.items():
        states = optimizer.get("state") if isinstance(optimizer, Mapping) else None
        state = states.get(0) if isinstance(states, Mapping) else None
        if not isinstance(state, Mapping) or name not in splats:
            raise ValueError(f"{file} is damaged: the optimizer {name!r} has no state of one of the splats")
        for moment in MOMENTS:
            tensor = state.get(moment)
            if not _is_dense(tensor) or claims_too_much(tensor) or tensor.shape != splats[name].shape:
                raise ValueError(
                    f"{file} is damaged: {moment} of the optimizer {name!r} is not a tensor of the shape of"
                    f" {name!r}"
                )
        if not _is_count(state.get("step", 0)):
            raise ValueError(
                f"{file} is damaged: the step of the optimizer {name!r} is {shown(state['step'])},"
                " not a number of steps"
            )


def _check_row(name: str, first_file: Path, ours: Tensor, file: Path, theirs: Tensor) -> None:
    shapes = [tuple(tensor.shape[1:]) for tensor in (ours, theirs)]
    if shapes[0] != shapes[1]:
        found = [" x ".join(map(str, shape)) for shape in shapes]
        why = ": the degrees of their spherical harmonics differ" if name == "shN" else ""
        raise ValueError(
            f"{name!r} has {found[0]} numbers for each splat in {first_file}, but {found[1]} in {file}{why}"
        )
    if ours.dtype != theirs.dtype:
        raise ValueError(f"{name!r} is {ours.dtype} in {first_file}, {theirs.dtype} in {file}")


def _is_dense(tensor: Any) -> TypeGuard[Tensor]:
    return (
        isinstance(tensor, Tensor)
        and tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and tensor.dtype in FLOATS
        and not tensor.is_quantized
    )


def _is_count(step: Any) -> bool:
    """Return whether this is a number of steps as Adam keeps it: a number, or a tensor of one."""
    if isinstance(step, Tensor):
        if (
            step.numel() != 1
            or step.layout != torch.strided
            or step.device.type != "cpu"
            or step.is_complex()
        ):
            return False
        step = step.item()
    return type(step) in (int, float) and 0 <= step < 2**62


def _same(ours: Any, theirs: Any, depth: int = 0) -> bool:
    """Return whether two state_dicts, or values in them, are equal; NaN equals itself."""
    if depth > DEEPEST or type(ours) is not type(theirs):
        return False
    if isinstance(ours, Tensor):
        return _same_tensor(ours, theirs)
    if isinstance(ours, Mapping):
        return ours.keys() == theirs.keys() and all(_same(ours[k], theirs[k], depth + 1) for k in ours)
    if isinstance(ours, (list, tuple)):
        pairs = zip(ours, theirs, strict=False)
        return len(ours) == len(theirs) and all(_same(one, other, depth + 1) for one, other in pairs)
    return bool(ours == theirs or (ours != ours and theirs != theirs))


def _same_tensor(ours: Tensor, theirs: Tensor) -> bool:
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return False
    if any(
        one.layout != torch.strided or one.is_quantized or one.device.type != "cpu" for one in (ours, theirs)
    ):
        return False
    if claims_too_much(ours) or claims_too_much(theirs):
        return False
    return bool(torch.all((ours == theirs) | ((ours != ours) & (theirs != theirs))))
