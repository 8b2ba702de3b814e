"""Which files hold the parts of one model: a training on several GPUs writes one file a rank."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from splatstudio.checkpoints.shard_file import SHARD_NAME

GSPLAT_NAME = re.compile(r"ckpt_(\d+)_rank(\d+)\.pt")
# gsplat's trainer writes these beside the folder of the checkpoints, one a rank as well.
GSPLAT_STATS = re.compile(r"train_step(\d+)_rank(\d+)\.json")
FRACTIONS = {2: "half", 3: "a third", 4: "a quarter"}


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
        ranks = ", ".join(map(str, missing))
        (step,) = steps
        raise ValueError(
            f"step {step} is not complete: of the ranks 0 to {num_ranks - 1}, {ranks} is missing"
            f" (ckpt_{step}_rank{missing[0]}.pt)"
        )
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
    if (folder / "manifest.json").exists():
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
