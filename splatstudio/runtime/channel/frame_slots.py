"""Frames in memory that two processes share."""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import tempfile
from dataclasses import dataclass
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import numpy as np

from splatstudio.operating_system import WINDOWS, memory_folder, reserve

MAX_FRAME_PIXELS = 2560 * 1440
NUM_SLOTS = 3


@dataclass(frozen=True)
class SlotsFile:
    """Where the frame slots lie, for the process that writes into them: a file that has no name.

    So nothing is left of it, however and whenever the processes end. It goes to another process while that is
    started, and in no other way. On Windows it is an array of multiprocessing, not a file.
    """

    opened: Any
    num_slots: int
    slot_bytes: int

    def __reduce__(self) -> tuple[Any, ...]:
        if WINDOWS:
            return SlotsFile, (self.opened, self.num_slots, self.slot_bytes)
        return _received, (reduction.DupFd(self.opened.fileno()), self.num_slots, self.slot_bytes)


def _received(descriptor: Any, num_slots: int, slot_bytes: int) -> SlotsFile:
    return SlotsFile(open(descriptor.detach(), "r+b", buffering=0), num_slots, slot_bytes)


class FrameSlots:
    """Images in memory that two processes share; who may touch a slot is agreed over the pipe (credits)."""

    def __init__(self, file: SlotsFile, memory: Any):
        self.file = file
        self._memory = memory

    @classmethod
    def create(cls, num_slots: int = NUM_SLOTS, slot_bytes: int = 3 * MAX_FRAME_PIXELS) -> FrameSlots:
        """Return new slots, in memory where there is room, else in the folder for temporary files.

        Raises OSError when neither has `num_slots` x `slot_bytes` bytes free.
        """
        size = num_slots * slot_bytes
        if WINDOWS:
            array = multiprocessing.get_context("spawn").RawArray(ctypes.c_ubyte, size)
            return cls(SlotsFile(array, num_slots, slot_bytes), array)
        folders = [Path(tempfile.gettempdir())]
        if (in_memory := memory_folder()) is not None:
            folders.insert(0, in_memory)
        for folder in folders:
            opened = tempfile.TemporaryFile(  # noqa: SIM115 - open as long as the slots are
                prefix="splatstudio-frames-", dir=folder, buffering=0
            )
            try:
                reserve(opened.fileno(), size)
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
        if WINDOWS:
            return cls(file, file.opened)
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
        if not WINDOWS:
            self.file.opened.close()
