"""Checkpoints written while the training goes on: a copy in memory, then a thread that writes it."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import torch

from splatstudio.checkpoints.checkpoint import (
    Checkpoint,
    checkpoint_folders,
    prune_checkpoints,
    read_manifest,
    remove_checkpoint,
    save_checkpoint,
    step_of,
)
from splatstudio.distributed.failures import unless_out_of_memory
from splatstudio.strategy.parts import copied

SPARE_BYTES = 256 << 20  # left free beside the copy, for the training's own ups and downs


@dataclass(frozen=True)
class SaveResult:
    """What became of one save: the folder, or why there is none; a complete one may have failed to tidy."""

    step: int
    path: Path | None
    error: OSError | None = None
    autosave: bool = False


class CheckpointSaver:
    """Writes the checkpoints of one run, one at a time, in order.

    After each, the autosave before it is deleted, and older ones as the configuration's `keep` says, among
    which an autosave does not count. An OSError of a save that runs in the background is kept in its result;
    any other error is raised where the result is asked for.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._num_copies = 1  # that are made at the same moment, of this size, on this machine
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[SaveResult] | None = None

    @property
    def busy(self) -> bool:
        """Say whether a checkpoint is being written now."""
        return self._pending is not None and not self._pending.done()

    def start(self, checkpoint: Checkpoint) -> None:
        """Begin to write; the tensors of `checkpoint` may change as soon as this returns.

        Where memory is too short for a copy, this returns when the checkpoint is written. The result of the
        save before must have been taken.
        """
        assert self._pending is None, "the save before has not been taken"
        copy = copy_where_there_is_room(checkpoint, self._num_copies)
        if copy is not None:
            self._pending = self._pool.submit(self._write, copy)
        else:
            self._pending = Future()
            self._pending.set_result(self._write(checkpoint))

    def take(self, *, wait: bool) -> SaveResult | None:
        """Return the result of the save under way once it is done; None: nothing new to tell."""
        pending = self._pending
        if pending is None or not (wait or pending.done()):
            return None
        self._pending = None
        return pending.result()

    def save(self, checkpoint: Checkpoint) -> SaveResult:
        """Write now, from the tensors themselves; the result of the save before must have been taken."""
        assert self._pending is None, "the save before has not been taken"
        return self._write(checkpoint)

    def close(self) -> None:
        """Wait for the save under way and end the thread."""
        self._pool.shutdown(wait=True)

    def _save(self, checkpoint: Checkpoint) -> Path:
        return save_checkpoint(self._run_dir, checkpoint)

    def _write(self, checkpoint: Checkpoint) -> SaveResult:
        try:
            path = self._save(checkpoint)
        except OSError as error:
            return SaveResult(checkpoint.step, None, error, checkpoint.autosave)
        try:
            remove_older_autosaves(path)
            if not checkpoint.autosave:
                prune_checkpoints(path, checkpoint.config.keep)
        except OSError as error:
            return SaveResult(checkpoint.step, path, error, checkpoint.autosave)
        return SaveResult(checkpoint.step, path, autosave=checkpoint.autosave)


def remove_older_autosaves(newest: Path) -> list[Path]:
    """Delete the run's autosaves of steps before `newest`, which is complete, and return them.

    What was saved for any other reason stays, and so does what cannot be read. Raises OSError.
    """
    step = step_of(newest)
    assert step is not None, "a checkpoint of a run"
    removed: list[Path] = []
    for folder in checkpoint_folders(newest.parent.parent):
        if (step_of(folder) or 0) < step and _is_autosave(folder):
            remove_checkpoint(folder)
            removed.append(folder)
    return removed


def _is_autosave(folder: Path) -> bool:
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
    """Say whether the memory that is free now, in the machine and the control group, holds a copy."""
    return free_memory() > num_bytes * 1.1 + SPARE_BYTES


def free_memory() -> int:
    """Return how many bytes this process may still take without pushing others out."""
    free = psutil.virtual_memory().available
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit.isdigit():
            used = int((group / "memory.current").read_text())
            # Cached files count as used, but give way.
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            free = min(free, int(limit) - used + int(stat.get("inactive_file", 0)))
    except OSError:
        pass  # no control groups of version 2: not Linux, or not limited
    return free
