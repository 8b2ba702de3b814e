"""Frames in memory that two processes share."""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass
from multiprocessing import reduction
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

MAX_FRAME_PIXELS = 2560 * 1440
NUM_SLOTS = 3


@dataclass(frozen=True)
class SlotsFile:
    """Where the frame slots lie, for the process that writes into them: a file that has no name.

    So nothing is left of it, however and whenever the processes end. It goes to another process while that is
    started, and in no other way.
    """

    opened: BinaryIO
    num_slots: int
    slot_bytes: int

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self.opened.fileno()), self.num_slots, self.slot_bytes)


def _received(descriptor: Any, num_slots: int, slot_bytes: int) -> SlotsFile:
    return SlotsFile(open(descriptor.detach(), "r+b", buffering=0), num_slots, slot_bytes)


class FrameSlots:
    """Images in a file that two processes map; who may touch a slot is agreed over the pipe (credits)."""

    def __init__(self, file: SlotsFile, memory: mmap.mmap):
        self.file = file
        self._memory = memory

    @classmethod
    def create(cls, num_slots: int = NUM_SLOTS, slot_bytes: int = 3 * MAX_FRAME_PIXELS) -> FrameSlots:
        """Return new slots, in memory where there is room, else in the folder for temporary files.

        Raises OSError when neither has `num_slots` x `slot_bytes` bytes free.
        """
        size = num_slots * slot_bytes
        memory_folder = Path("/dev/shm")
        folders = [memory_folder] if os.access(memory_folder, os.W_OK) else []
        folders.append(Path(tempfile.gettempdir()))
        for folder in folders:
            opened = tempfile.TemporaryFile(  # noqa: SIM115 - open as long as the slots are
                prefix="splatstudio-frames-", dir=folder, buffering=0
            )
            try:
                _reserve(opened.fileno(), size)
                memory = mmap.mmap(opened.fileno(), size)
            except OSError:
                opened.close()
                if folder == folders[-1]:
                    raise
                continue
            return cls(SlotsFile(opened, num_slots, slot_bytes), memory)
        raise AssertionError("the folder for temporary files was not tried")

    @classmethod
    def attach(cls, file: SlotsFile) -> FrameSlots:
        """Return the slots that another process created."""
        memory = mmap.mmap(file.opened.fileno(), file.num_slots * file.slot_bytes)
        return cls(file, memory)

    def view(self, slot: int, height: int, width: int) -> np.ndarray:
        """Return the [height, width, 3] uint8 image that lies in `slot`, not a copy."""
        assert 0 <= slot < self.file.num_slots and 3 * height * width <= self.file.slot_bytes
        offset = slot * self.file.slot_bytes
        flat = np.frombuffer(self._memory, np.uint8, 3 * height * width, offset)
        return flat.reshape(height, width, 3)

    def close(self) -> None:
        """Let go of the file, which was mapped; the memory goes when the last process has let go of that."""
        self.file.opened.close()


def _reserve(descriptor: int, size: int) -> None:
    """Make room for `size` bytes now: writing to a mapped file on a full disk would be a bus error later."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    block = bytes(1 << 20)
    for start in range(0, size, len(block)):
        os.write(descriptor, block[: size - start])
