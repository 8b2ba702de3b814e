"""Checkpoints written while the training goes on: a copy in memory, then a thread that writes it.

Several ranks write one checkpoint together. Rank 0 begins the folder and announces it; each rank copies its
rows, writes them in a thread of its own, and leaves an answer in the folder. Rank 0's thread waits for the
answers and completes the checkpoint. The answers are files, not messages: only the main thread of a rank may
talk to the others. Rank 0 leaves a note there for each of them, and who cannot write even an answer removes
that: it needs no room.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from splatstudio.checkpoints.checkpoint import (
    Checkpoint,
    begin_checkpoint,
    checkpoint_folders,
    complete_checkpoint,
    prune_checkpoints,
    remove_unless_read,
    save_checkpoint,
    write_shard,
)
from splatstudio.checkpoints.manifest import Shard, read_manifest, step_of
from splatstudio.distributed.failures import unless_out_of_memory
from splatstudio.distributed.ranks import ALONE, Ranks
from splatstudio.files.inputs import read_input
from splatstudio.operating_system import free_memory, put_in_place
from splatstudio.strategy.global_order import copied

log = logging.getLogger(__name__)

SPARE_BYTES = 256 << 20  # left free besides the copy, for the training's own ups and downs
POLL_SECONDS = 0.02  # between two looks for the other ranks' answers
LAST_SECONDS = 10.0  # for the answer of a rank that has gone: what it has begun to write it still does


@dataclass(frozen=True)
class SaveResult:
    """What became of one save: the folder, or why there is none; a complete one may have failed to tidy."""

    step: int
    path: Path | None
    error: OSError | None = None
    autosave: bool = False


class CheckpointSaver:
    """Writes the checkpoints of one run, one at a time, in order.

    After each, the autosave before it is deleted, and older checkpoints as the configuration's `keep` says,
    among which an autosave does not count. An OSError of a save that runs in the background is kept in its
    result; any other error is raised where the result is asked for.

    With several `ranks` each has a saver. Rank 0 starts, saves and takes, and `announce` tells the others the
    folder, on the thread that starts or saves; they call `write_part`, and `run_dir` is of no use to them.
    """

    def __init__(
        self,
        run_dir: Path | None,
        ranks: Ranks = ALONE,
        announce: Callable[[Path], object] = lambda staging: None,
    ) -> None:
        self._run_dir = run_dir
        self._ranks = ranks
        self._announce = announce
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[SaveResult] | None = None
        self._part: Future[None] | None = None  # of another rank than 0
        self._waits_until = math.inf  # for the others' answers, on the monotonic clock

    @property
    def busy(self) -> bool:
        """Return whether a checkpoint is being written now."""
        return self._pending is not None and not self._pending.done()

    def start(self, checkpoint: Checkpoint) -> None:
        """Begin to write; the tensors of `checkpoint` may change as soon as this returns, on all ranks.

        Where memory is too short for a copy, this returns when the checkpoint is written. The result of the
        save before must have been taken.
        """
        begun = self._begin(checkpoint)
        copy = copy_where_there_is_room(checkpoint, self._ranks.num_ranks)
        if copy is not None:
            self._pending = self._pool.submit(self._write, copy, begun)
        else:
            self._pending = Future()
            self._pending.set_result(self._write(checkpoint, begun))

    def take(self, *, wait: bool) -> SaveResult | None:
        """Return the result of the save under way once it is done; None: nothing new."""
        pending = self._pending
        if pending is None or not (wait or pending.done()):
            return None
        self._pending = None
        return pending.result()

    def save(self, checkpoint: Checkpoint) -> SaveResult:
        """Write now, from the tensors themselves; the result of the save before must have been taken."""
        return self._write(checkpoint, self._begin(checkpoint))

    def write_part(self, staging: Path, checkpoint: Checkpoint) -> None:
        """Write the rows of another rank than 0 into the folder that rank 0 has announced.

        The rows may change when this returns: they are written in the background, or without memory for a
        copy they are written already. Whether it went well is in the answer that rank 0 reads, whatever the
        error was; `check_part` raises where the disk takes not even that.
        """
        self._take_part()
        copy = copy_where_there_is_room(checkpoint, self._ranks.num_ranks)
        if copy is not None:
            self._part = self._pool.submit(_write_part, staging, copy, self._ranks)
        else:
            _write_part(staging, checkpoint, self._ranks)

    def check_part(self) -> None:
        """Raise OSError where this rank could neither write its rows nor tell rank 0 so."""
        if self._part is not None and self._part.done():
            self._take_part()

    def give_up(self) -> None:
        """Wait no longer than a moment for what other ranks write: one has gone, and does not answer."""
        self._waits_until = time.monotonic() + LAST_SECONDS

    def close(self) -> None:
        """Wait for the save under way and end the thread."""
        self._pool.shutdown(wait=True)
        self._take_part()

    def _take_part(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            part.result()

    def _begin(self, checkpoint: Checkpoint) -> Path | OSError | None:
        """Return the folder that all ranks write to, or why there is none; None: there is only this rank."""
        assert self._pending is None, "the save before has not been taken"
        assert self._run_dir is not None, "rank 0 knows the run"
        num_ranks = self._ranks.num_ranks
        if num_ranks == 1:
            return None
        try:
            # Shards are kept at nearly one size.
            staging = begin_checkpoint(self._run_dir, checkpoint.step, checkpoint.num_bytes * num_ranks)
            for rank in range(1, num_ranks):
                _note_of(staging, rank).touch()
        except OSError as error:
            return error  # told when it is written, as any other failure
        self._announce(staging)
        return staging

    def _write(self, checkpoint: Checkpoint, begun: Path | OSError | None) -> SaveResult:
        try:
            path = self._save(checkpoint, begun)
        except OSError as error:
            return SaveResult(checkpoint.step, None, error, checkpoint.autosave)
        try:
            remove_older_autosaves(path)
            if not checkpoint.autosave:
                prune_checkpoints(path, checkpoint.config.keep)
        except OSError as error:
            return SaveResult(checkpoint.step, path, error, checkpoint.autosave)
        return SaveResult(checkpoint.step, path, autosave=checkpoint.autosave)

    def _save(self, checkpoint: Checkpoint, begun: Path | OSError | None) -> Path:
        if begun is None:
            assert self._run_dir is not None, "rank 0 knows the run"
            return save_checkpoint(self._run_dir, checkpoint)
        if isinstance(begun, OSError):
            raise begun
        num_ranks = self._ranks.num_ranks

        def shards() -> list[Shard]:
            own = write_shard(begun, checkpoint.population, 0, num_ranks)
            return [own, *(self._answer_of(begun, rank) for rank in range(1, num_ranks))]

        return complete_checkpoint(begun, checkpoint, shards)

    def _answer_of(self, staging: Path, rank: int) -> Shard:
        """Wait for the answer of a rank; OSError when it could not write its part, or has gone."""
        file, note = _answer_file(staging, rank), _note_of(staging, rank)
        while not file.exists():
            if not note.exists():
                raise OSError(f"rank {rank}: its disk is full, or takes no files")
            if time.monotonic() > self._waits_until:
                raise OSError(f"rank {rank} has gone")
            time.sleep(POLL_SECONDS)
        answer = json.loads(read_input(file))
        file.unlink()
        note.unlink()
        if "error" in answer:
            raise OSError(f"rank {rank}: {answer['error']}")
        return Shard(**answer["shard"])


def save_on_all_ranks(ranks: Ranks, run_dir: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint of all ranks now and return its folder; all ranks call it, each with its own rows.

    Raises OSError on all of them where the disk of any is full or fails.
    """
    announced: list[Path] = []

    def announce(staging: Path) -> None:
        announced.append(staging)
        ranks.all_gather_bytes(str(staging).encode())

    saver = CheckpointSaver(run_dir, ranks, announce)
    said = ""
    if ranks.rank == 0:
        result = saver.save(checkpoint)
        if ranks.num_ranks > 1 and not announced:
            ranks.all_gather_bytes(b"")
        said = f"-{result.error}" if result.path is None else f"+{result.path}"
    elif staging := ranks.all_gather_bytes(b"")[0]:
        saver.write_part(Path(staging.decode()), checkpoint)
    saver.close()
    said = ranks.all_gather_bytes(said.encode())[0].decode()
    if said.startswith("-"):
        raise OSError(said[1:])
    return Path(said[1:])


def _write_part(staging: Path, checkpoint: Checkpoint, ranks: Ranks) -> None:
    """Write the rows of a rank and answer to rank 0; OSError where the disk takes neither."""
    try:
        shard = write_shard(staging, checkpoint.population, ranks.rank, ranks.num_ranks)
        answer = {"shard": shard.to_json()}
    except Exception as error:
        # Whatever it is: rank 0 waits for an answer, and the training goes on without this checkpoint.
        log.exception("rank %d could not write its part of %s", ranks.rank, staging)
        answer = {"error": str(error) or type(error).__name__}
    file = _answer_file(staging, ranks.rank)
    partial = file.with_suffix(".part")
    try:
        partial.write_text(json.dumps(answer))
        put_in_place(partial, file)
    except FileNotFoundError:
        return  # rank 0 has given it up already
    except OSError:
        _note_of(staging, ranks.rank).unlink(missing_ok=True)


def _answer_file(staging: Path, rank: int) -> Path:
    return staging / f"answer{rank:05d}.json"


def _note_of(staging: Path, rank: int) -> Path:
    """Return the file that is there as long as a rank may still answer."""
    return staging / f"note{rank:05d}"


def remove_older_autosaves(newest: Path) -> list[Path]:
    """Delete the run's autosaves of steps before `newest`, which is complete, and return them.

    What was saved for any other reason stays, and so does what cannot be read, or is being read. Raises
    OSError.
    """
    step = step_of(newest)
    assert step is not None, "a checkpoint of a run"
    removed: list[Path] = []
    for folder in checkpoint_folders(newest.parent.parent):
        if (step_of(folder) or 0) < step and is_autosave(folder) and remove_unless_read(folder):
            removed.append(folder)
    return removed


def is_autosave(folder: Path) -> bool:
    """Return whether a checkpoint was written because time had passed, and goes when the next is there."""
    try:
        return read_manifest(folder).get("autosave") is True
    except ValueError:
        return False


def copy_where_there_is_room(checkpoint: Checkpoint, num_copies: int) -> Checkpoint | None:
    """Return a snapshot, None where memory does not hold `num_copies` of its size at the same moment."""
    if not _room_for(checkpoint.num_bytes * num_copies):
        return None
    return unless_out_of_memory(lambda: snapshot(checkpoint))


@torch.no_grad()
def snapshot(checkpoint: Checkpoint) -> Checkpoint:
    """Return the same checkpoint with tensors of its own, on the CPU."""
    corrections = checkpoint.corrections
    return replace(
        checkpoint,
        population=copied(checkpoint.population),
        rng_state=checkpoint.rng_state.clone(),
        corrections=None if corrections is None else corrections.copy(),
    )


def _room_for(num_bytes: int) -> bool:
    """Return whether the memory that is free now, in the machine and the control group, holds a copy."""
    return free_memory() > num_bytes * 1.1 + SPARE_BYTES
