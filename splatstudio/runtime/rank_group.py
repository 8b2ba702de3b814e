"""The processes of one attempt at a job: one a rank, started together and ended together."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil

from splatstudio.distributed.rank_devices import RankDevices
from splatstudio.operating_system import hold
from splatstudio.runtime.channel.frame_slots import FrameSlots, SlotsFile
from splatstudio.runtime.fork_server import guarded_start, process_context
from splatstudio.runtime.heartbeat import Heartbeats, Silence
from splatstudio.runtime.messages import Job
from splatstudio.runtime.root_cause import RankEnd, read_report
from splatstudio.runtime.standstill import Standing, standing_of

LAST_WORDS_SECONDS = 0.3  # for the other ranks to leave word of their own errors
HANDED_ON = ("CUDA_", "NCCL_", "GLOO_", "PYTORCH_", "TORCH_", "SPLATSTUDIO_")  # environment variables
LEAVE_SECONDS = 60.0  # for the other ranks to leave after the first one that was told to


@dataclass(frozen=True)
class RankSpec:
    """What a process must know to take its part in a group. The folder is the group's own, and temporary."""

    rank: int
    num_ranks: int
    folder: Path
    heartbeats: Heartbeats
    log_path: Path | None  # None: what is printed stays with who started the process
    devices: RankDevices | None = None  # None: the fastest that there is, with all cores
    environment: tuple[tuple[str, str], ...] = ()  # variables as they are where the group is started
    launched: bool = False  # by torchrun or Slurm, whose variables say where the ranks meet

    @property
    def meeting(self) -> Path | None:
        """Return the folder in which the ranks meet, None where the launcher says where."""
        return None if self.launched else self.folder


@dataclass(frozen=True)
class RankPipe:
    """Rank 0's way to its client."""

    connection: Connection
    slots_file: SlotsFile


# What a rank's process runs; the pipe is for rank 0, None for the others.
RankMain = Callable[[RankSpec, Job, "RankPipe | None", Any], None]


class RankGroup:
    """The processes of the ranks, their heartbeats, and rank 0's pipe. Nothing runs before `start`."""

    def __init__(
        self,
        main: RankMain,
        job: Job,
        num_ranks: int,
        log_path: Path,
        activity: Any,
        devices: RankDevices | None = None,
    ):
        self._context = process_context()
        self.num_ranks = num_ranks
        self.connection, self._child_end = self._context.Pipe()
        self.heartbeats = Heartbeats(self._context, num_ranks)
        self._main, self._job, self._activity = main, job, activity
        self._log_path, self._devices = log_path, devices
        # With `start`: a group that is never started leaves neither a file nor memory behind.
        self._slots: FrameSlots | None = None
        self._folder: Path | None = None
        self._let_go: Callable[[], object] | None = None
        self._silence: Silence | None = None
        self._ended_by_us: set[int] = set()
        self._processes: list[BaseProcess] = []
        self._identities: list[psutil.Process] = []  # which the fork server's end does not hide

    @property
    def slots(self) -> FrameSlots:
        """Return where rank 0 puts its frames, once it has been started."""
        assert self._slots is not None, "it has not been started"
        return self._slots

    @property
    def pids(self) -> tuple[int, ...]:
        """Return the process ids, rank 0 first; empty before `start`."""
        return tuple(process.pid for process in self._processes if process.pid is not None)

    def start(self) -> None:
        """Start all processes; nothing is left of them where that fails. Raises OSError."""
        try:
            self._slots = FrameSlots.create()
            self._folder = Path(tempfile.mkdtemp(prefix="splatstudio-ranks-"))
            # Also where nobody closes this, as when the studio ends by an error; what is in use stays.
            self._let_go = weakref.finalize(self, _remove_empty, self._folder, hold(self._folder))
            self._processes = self._new_processes(self._slots.file, self._folder)
            with guarded_start():
                for rank, process in enumerate(self._processes):
                    process.start()
                    if (started := self.process(rank)) is not None:  # it may be gone already
                        self._identities.append(started)
            self._slots.close()
        except BaseException:
            self.abandon()
            raise
        self._child_end.close()

    def abandon(self) -> None:
        """Leave nothing behind of a group that is not wanted, or that could not be started."""
        self.kill()
        for process in self._processes:
            if process.pid is not None:
                process.join()
        self._child_end.close()
        self._tidy()

    def _tidy(self) -> None:
        if self._slots is not None:
            self._slots.close()
        self.connection.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._let_go is not None:
            self._let_go()

    def _new_processes(self, slots_file: SlotsFile, folder: Path) -> list[BaseProcess]:
        processes: list[BaseProcess] = []
        environment = _environment()
        for rank in range(self.num_ranks):
            spec = RankSpec(
                rank, self.num_ranks, folder, self.heartbeats, self._log_path, self._devices, environment
            )
            pipe = RankPipe(self._child_end, slots_file) if rank == 0 else None
            # daemon: a studio that ends in disorder ends the ranks by SIGTERM, at which they save and leave.
            processes.append(
                self._context.Process(  # type: ignore[attr-defined]
                    target=self._main,
                    args=(spec, self._job, pipe, self._activity),
                    name=f"splatstudio-rank-{rank}",
                    daemon=True,
                )
            )
        return processes

    def wait(self) -> bool:
        """Wait for an event of rank 0 or the end of any rank; return whether there is an event to receive."""
        ready = wait([self.connection, *(process.sentinel for process in self._processes)])
        return self.connection in ready

    def process(self, rank: int) -> psutil.Process | None:
        """Return a rank's process; None where it is gone."""
        try:
            return psutil.Process(self.pids[rank])
        except psutil.NoSuchProcess:
            return None

    def kill_silent(self, silence: Silence) -> None:
        """End a rank that hangs; it is to blame then. May be called from any thread."""
        self._silence = silence
        self._kill(silence.rank)

    def kill(self) -> None:
        """End all ranks at once. May be called from any thread."""
        for rank in range(len(self._processes)):
            self._kill(rank)

    def finish(self) -> list[RankEnd]:
        """End what is left of the group, one rank of which has ended, and return how each ended.

        All ranks are over then, also those that only the end of the fork server has hidden, and nothing of
        them is left but what they wrote into the run: the next ones find no checkpoint that goes.
        """
        gone = [process for rank, process in enumerate(self._processes) if rank not in self._left()]
        clean = all(process.exitcode == 0 for process in gone)
        deadline = time.monotonic() + (LEAVE_SECONDS if clean else LAST_WORDS_SECONDS)
        while (left := self._left()) and time.monotonic() < deadline:
            sentinels = [self._processes[rank].sentinel for rank in left]
            wait(sentinels, max(0.0, deadline - time.monotonic()))
        for rank in self._left():
            # A rank that waits for another one in native code does not hear a SIGTERM.
            self._ended_by_us.add(rank)
            self._kill(rank)
        for process in self._processes:
            process.join()
        cut_off = self._end_those_cut_off()
        ends = [self._end(rank, cut_off=rank in cut_off) for rank in range(self.num_ranks)]
        self._tidy()
        return ends

    def _end_those_cut_off(self) -> set[int]:
        """Let ranks that live, though the fork server is gone that told of them, save and leave.

        Returns which those are.
        """
        living = {process for process in self._identities if process.is_running()}
        living = {process for process in living if standing_of(process) is not Standing.GONE}
        for process in living:
            with contextlib.suppress(psutil.Error):
                process.terminate()  # at which it saves
        _, left = psutil.wait_procs(living, timeout=LEAVE_SECONDS if living else 0)
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left)
        pids = {process.pid for process in living}
        return {rank for rank, pid in enumerate(self.pids) if pid in pids}

    def _left(self) -> list[int]:
        ended = wait([process.sentinel for process in self._processes], 0)
        return [rank for rank, process in enumerate(self._processes) if process.sentinel not in ended]

    def _kill(self, rank: int) -> None:
        # Not Process.kill: it asks for the exit code, which the fork server tells once, to one thread.
        process = self._processes[rank]
        if process.pid is not None and not wait([process.sentinel], 0):
            process.kill()

    def _end(self, rank: int, *, cut_off: bool) -> RankEnd:
        assert self._folder is not None, "it has not been started"
        exitcode = self._processes[rank].exitcode
        report = read_report(self._folder, rank)
        if rank in self._ended_by_us and report is None:
            exitcode = 0  # it did nothing wrong
        silence = None
        if self._silence is not None and self._silence.rank == rank:
            silence = silence_in_words(self._silence)
        elif cut_off:
            silence = "was cut off: the process that had started it was killed"
        return RankEnd(rank, self.heartbeats.read(rank).step, exitcode, report, silence)


def _environment() -> tuple[tuple[str, str], ...]:
    """Return the variables that say how a rank computes and talks: the fork server has old ones."""
    return tuple((name, value) for name, value in os.environ.items() if name.startswith(HANDED_ON))


def silence_in_words(silence: Silence) -> str:
    """Return how a rank was silent, as "did not get on for 300 s"."""
    seconds = f"{silence.seconds:.0f} s"
    if silence.frozen:
        return f"stood still for {seconds} (it was stopped, or the machine is out of memory)"
    return f"did not get on for {seconds}"


def _remove_empty(folder: Path, held: int) -> None:
    os.close(held)
    with contextlib.suppress(OSError):
        folder.rmdir()
