"""Checkpoints that several ranks write together, each its own part, while the training goes on.

Rank 0 begins the folder and tells the others where it is; each rank copies its part, writes it in a thread
of its own and leaves an answer beside it. Rank 0's thread waits for the answers and completes the folder.
Files, not messages: no thread but the main one of a rank may talk to the others.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from splatstudio.checkpoints.checkpoint import (
    Checkpoint,
    abandon_checkpoint,
    begin_checkpoint,
    commit_checkpoint,
    write_shard,
)
from splatstudio.checkpoints.saver import CheckpointSaver, SaveResult, copy_where_there_is_room
from splatstudio.checkpoints.shard_file import Shard

log = logging.getLogger(__name__)

POLL_SECONDS = 0.02  # between two looks for the other ranks' answers


class SharedSaver(CheckpointSaver):
    """The saver of rank 0: its checkpoints are complete when all `num_ranks` have written.

    `announce` tells the other ranks, which call `PartSaver.write`, the folder; it is called on the thread
    that saves or begins to save.
    """

    def __init__(self, run_dir: Path, num_ranks: int, announce: Callable[[Path], None]) -> None:
        super().__init__(run_dir)
        self._num_ranks = self._num_copies = num_ranks  # shards are kept of nearly one size
        self._announce = announce
        self._staging: Path | OSError = OSError("no checkpoint was begun")

    def start(self, checkpoint: Checkpoint) -> None:
        """Begin to write on all ranks; their tensors may change as soon as this returns."""
        self._begin(checkpoint)
        super().start(checkpoint)

    def save(self, checkpoint: Checkpoint) -> SaveResult:
        """Write now, on all ranks."""
        self._begin(checkpoint)
        return super().save(checkpoint)

    def _begin(self, checkpoint: Checkpoint) -> None:
        assert self._pending is None, "the save before has not been taken"
        try:
            num_bytes = checkpoint.num_bytes * self._num_ranks
            self._staging = begin_checkpoint(self._run_dir, checkpoint.step, num_bytes)
        except OSError as error:
            self._staging = error  # told when it is written, as any other failure
            return
        self._announce(self._staging)

    def _save(self, checkpoint: Checkpoint) -> Path:
        staging, num_ranks = self._staging, self._num_ranks
        if isinstance(staging, OSError):
            raise staging
        try:
            shards = [write_shard(staging, checkpoint.population, 0, num_ranks)]
            shards += [_answer_of(staging, rank) for rank in range(1, num_ranks)]
            return commit_checkpoint(staging, checkpoint, shards)
        except BaseException:
            abandon_checkpoint(staging)
            raise


class PartSaver:
    """The saver of another rank: writes its part where rank 0 says."""

    def __init__(self, rank: int, num_ranks: int) -> None:
        self._rank = rank
        self._num_ranks = num_ranks
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def write(self, staging: Path, checkpoint: Checkpoint) -> None:
        """Write this rank's rows into `staging` in the background; they may change when this returns.

        Without memory for a copy it returns when they are written. Whether it went well is in the answer
        that rank 0 reads, whatever the error was.
        """
        self._take()
        copy = copy_where_there_is_room(checkpoint, self._num_ranks)
        if copy is not None:
            self._pending = self._pool.submit(self._write, staging, copy)
        else:
            self._write(staging, checkpoint)

    def close(self) -> None:
        """Wait for the save under way and end the thread."""
        self._pool.shutdown(wait=True)
        self._take()

    def _take(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _write(self, staging: Path, checkpoint: Checkpoint) -> None:
        try:
            shard = write_shard(staging, checkpoint.population, self._rank, self._num_ranks)
            answer = {"shard": shard.to_json()}
        except Exception as error:
            # Whatever it is: rank 0 waits for an answer, and the training goes on without this checkpoint.
            log.exception("rank %d could not write its part of %s", self._rank, staging)
            answer = {"error": str(error) or type(error).__name__}
        file = _answer_file(staging, self._rank)
        partial = file.with_suffix(".part")
        try:
            partial.write_text(json.dumps(answer))
            os.replace(partial, file)
        except FileNotFoundError:
            return  # rank 0 has given it up already
        except OSError:
            file.touch()  # a full disk has no room for words, but for a name


def _answer_file(staging: Path, rank: int) -> Path:
    return staging / f"answer{rank:05d}.json"


def _answer_of(staging: Path, rank: int) -> Shard:
    """Wait for what a rank says of its part; OSError when it could not write it.

    A rank that dies does not answer; then the supervisor ends this one too.
    """
    file = _answer_file(staging, rank)
    while not file.exists():
        time.sleep(POLL_SECONDS)
    words = file.read_text()
    file.unlink()
    if not words:
        raise OSError(f"rank {rank}: its disk is full")
    answer = json.loads(words)
    if "error" in answer:
        raise OSError(f"rank {rank}: {answer['error']}")
    return Shard(**answer["shard"])
