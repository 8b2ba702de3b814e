"""Checkpoints of several ranks: each writes its share of the rows, and takes its share when they go on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from splatstudio.checkpoints.checkpoint import (
    Checkpoint,
    abandon_checkpoint,
    begin_checkpoint,
    commit_checkpoint,
    load_checkpoint,
    load_shard,
    save_checkpoint,
    write_shard,
)
from splatstudio.checkpoints.manifest import read_manifest
from splatstudio.checkpoints.shard_file import Shard
from splatstudio.distributed import Ranks
from splatstudio.strategy.parts import copied, joined, rows_of


def load_share(folder: Path, ranks: Ranks) -> Checkpoint:
    """Read and verify the rows of a checkpoint that are this rank's, onto the CPU.

    On as many ranks as have written it, each has the rows that it had; otherwise they share them evenly, in
    order. Only the files with these rows are read. Raises ValueError with the file and the reason when
    anything of them is missing, cut off or changed.
    """
    if ranks.num_ranks == 1:
        return load_checkpoint(folder)
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


def save_together(ranks: Ranks, run_dir: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint of all ranks below `run_dir`/ckpts, which all of them see; return its folder.

    Called by all ranks, each with its own rows. Raises OSError on all of them when the disk of any is full or
    fails; what was there before is then still there.
    """
    if ranks.num_ranks == 1:
        return save_checkpoint(run_dir, checkpoint)
    num_bytes = sum(int(part) for part in ranks.all_gather_bytes(str(checkpoint.num_bytes).encode()))
    first = ranks.rank == 0
    begun = _agreed(
        ranks, lambda: str(begin_checkpoint(run_dir, checkpoint.step, num_bytes)) if first else ""
    )
    staging = Path(begun[0])
    try:
        written = _agreed(ranks, lambda: _write(staging, checkpoint, ranks))
        shards = [Shard(**json.loads(text)) for text in written]
        folder = _agreed(ranks, lambda: str(commit_checkpoint(staging, checkpoint, shards)) if first else "")
    except BaseException:
        if first:
            abandon_checkpoint(staging)
        raise
    return Path(folder[0])


def _write(staging: Path, checkpoint: Checkpoint, ranks: Ranks) -> str:
    shard = write_shard(staging, checkpoint.population, ranks.rank, ranks.num_ranks)
    return json.dumps(shard.to_json())


def _agreed(ranks: Ranks, work: Callable[[], str]) -> list[str]:
    """Return what `work` returns on all ranks; raises OSError on all of them where it does on any."""
    try:
        answer = "+" + work()
    except OSError as error:
        answer = "-" + str(error)
    answers = [message.decode() for message in ranks.all_gather_bytes(answer.encode())]
    for rank, text in enumerate(answers):
        if text.startswith("-"):
            raise OSError(f"rank {rank}: {text[1:]}")
    return [text[1:] for text in answers]
