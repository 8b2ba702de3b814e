"""The wires between two processes: a queue that never blocks its writer, and frames in shared memory."""

from __future__ import annotations

import logging
import mmap
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import count
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

MAX_FRAME_PIXELS = 2560 * 1440
NUM_SLOTS = 3
MAX_WAITING = 10_000  # messages

log = logging.getLogger("splatstudio.runtime")


class Outbox:
    """Messages waiting to be sent over a pipe by a thread of their own.

    A writer never waits for the reader at the other end. Messages are sent in order; one with a `key`
    replaces the one of the same key that still waits (latest wins), and goes to the end. Where the reader
    has stopped reading, the oldest messages are dropped: a writer's memory does not grow without end.
    """

    def __init__(self, connection: Connection, name: str, limit: int = MAX_WAITING):
        self._connection = connection
        self._limit = limit
        self._dropping = False
        self._waiting: OrderedDict[Hashable, Any] = OrderedDict()
        self._serial = count()
        self._changed = threading.Condition()
        self._closed = False
        self._sending = False
        self._thread = threading.Thread(target=self._send_all, name=name, daemon=True)
        self._thread.start()

    def put(self, message: Any, key: Hashable | None = None) -> None:
        """Queue a message; after the other end has gone it is dropped."""
        with self._changed:
            if self._closed:
                return
            slot = ("serial", next(self._serial)) if key is None else ("key", key)
            self._waiting.pop(slot, None)
            self._waiting[slot] = message
            if len(self._waiting) > self._limit:
                self._waiting.popitem(last=False)
                if not self._dropping:
                    log.warning("nobody reads the %s: the oldest are dropped", self._thread.name)
                self._dropping = True
            self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until everything is sent, at most `timeout` seconds; return whether it was."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._closed or not (self._waiting or self._sending), timeout
            )

    def close(self) -> None:
        """Drop what waits and end the thread."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def _send_all(self) -> None:
        while True:
            with self._changed:
                self._sending = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                _, message = self._waiting.popitem(last=False)
                self._sending = True
            try:
                self._connection.send(message)
            except OSError:
                # The other process is gone; whoever reads this pipe notices and reports it.
                self.close()


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
