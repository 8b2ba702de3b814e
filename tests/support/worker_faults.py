"""Activities that go wrong on demand, for the processes that the fault tests start."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from splatstudio.checkpoints.checkpoint import Checkpoint
from splatstudio.checkpoints.saver import SaveResult
from splatstudio.runtime import messages, tasks
from splatstudio.runtime.activity import WorkerContext
from splatstudio.runtime.heartbeat import Limits, Phase
from splatstudio.runtime.rank import rank_main
from splatstudio.runtime.supervisor import Plan
from splatstudio.runtime.training import Training
from splatstudio.training.step import TrainingDiverged


def plan_fault(run_dir: Path, kind: str, step: int = 0, times: int = 1000) -> None:
    """Let the faulty training of a run go wrong before the step after `step`, `times` times."""
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    (run_dir.parent / "fault.json").write_text(json.dumps({"kind": kind, "step": step, "times": times}))


def _draw_seldom() -> None:
    """Let frames that are rendered beside the training be few: they go on, but leave others the processor."""
    draw = tasks.render_image

    def draw_later(*shown: Any) -> Any:
        time.sleep(0.2)
        return draw(*shown)

    tasks.render_image = draw_later


class FaultyTraining(Training):
    """A training that goes wrong where `plan_fault` says."""

    def __init__(self, job: messages.TrainJob, desk: WorkerContext):
        super().__init__(job, replace(desk, breathe=lambda: self._slowly(desk)))

    def _slowly(self, desk: WorkerContext) -> None:
        """Hold an evaluation up: "slow evaluation" obeys meanwhile, "busy evaluation" does not."""
        fault, folder = self._fault(), self._job.run_dir.parent
        if fault is not None and fault["kind"] in ("slow evaluation", "busy evaluation"):
            (folder / "evaluating").touch()
            while not (folder / "go on").exists():
                if fault["kind"] == "slow evaluation":
                    desk.breathe()
                time.sleep(0.02)
        desk.breathe()

    def execute(self, command: messages.Command) -> None:
        """Carry out one order."""
        if isinstance(command, messages.Start):
            self._fail_where_planned("die while loading")
        super().execute(command)

    def advance(self) -> None:
        """Train one step."""
        self._fail_where_planned(
            "raise", "no memory", "diverge", "hang", "hold", "slow save", "full disk", "die"
        )
        super().advance()

    def _fail_where_planned(self, *kinds: str) -> None:
        fault = self._fault()
        if fault is None or fault["kind"] not in kinds or self.step != fault["step"] or fault["times"] == 0:
            return
        # A process that dies does so ten steps later than the one before: never twice at the same step.
        later = 10 if fault["kind"] == "die" else 0
        plan_fault(self._job.run_dir, fault["kind"], fault["step"] + later, fault["times"] - 1)
        if fault["kind"] == "raise":
            raise RuntimeError("the injected fault")
        if fault["kind"] == "no memory":
            raise MemoryError
        if fault["kind"] == "diverge":
            raise TrainingDiverged(f"the loss became nan at step {self.step + 1}")
        if fault["kind"] == "hold":
            # Native code that does not let the other threads run meanwhile.
            ctypes.PyDLL(None).sleep(3)
            return
        if fault["kind"] == "full disk":
            self._fill_disk()
            return
        if fault["kind"] == "slow save":
            self._save_slowly()
            return
        if fault["kind"] == "hang":
            _draw_seldom()
            time.sleep(600)
        os.kill(os.getpid(), signal.SIGKILL)

    def _save_slowly(self) -> None:
        assert self._session is not None
        saver = self._session._saver
        write = saver._write

        def write_slowly(checkpoint: Checkpoint, begun: Any) -> SaveResult:
            time.sleep(4.0)
            return write(checkpoint, begun)

        saver._write = write_slowly  # type: ignore[method-assign]

    def _fill_disk(self) -> None:
        assert self._session is not None
        saver, flag = self._session._saver, self._job.run_dir.parent / "disk is full"
        write = saver._write

        def write_where_there_is_room(checkpoint: Checkpoint, begun: Any) -> SaveResult:
            if flag.exists():
                return SaveResult(checkpoint.step, None, OSError(errno.ENOSPC, "No space left on device"))
            return write(checkpoint, begun)

        saver._write = write_where_there_is_room  # type: ignore[method-assign]

    def _fault(self) -> dict[str, Any] | None:
        path = self._job.run_dir.parent / "fault.json"
        return json.loads(path.read_text()) if path.exists() else None


def faulty(job: messages.TrainJob, desk: WorkerContext) -> FaultyTraining:
    """Return a training that goes wrong on demand; a Plan's activity."""
    return FaultyTraining(job, desk)


class Counting:
    """Steps that all ranks do together: each adds up what all have, and notes what it was told."""

    def __init__(self, job: messages.TrainJob, desk: WorkerContext):
        self._log = job.run_dir.parent / f"rank{desk.rank}.txt"
        self._emit = desk.emit
        self._rank = desk.rank
        self.step = 0
        self.running = self.complete = False
        self._pause_at: int | None = None

    def begin(self) -> None:
        self._emit(messages.StateChanged("ready"))

    def model_copy(self) -> None:
        return None

    def execute(self, command: messages.Command) -> None:
        self._note(f"{self.step} {command}")
        if isinstance(command, messages.Start):
            self._emit(messages.Started(0, 1_000_000, 0, 0, 0))
        if isinstance(command, (messages.Start, messages.Resume, messages.Step)):
            self.running = True
            self._pause_at = self.step + command.count if isinstance(command, messages.Step) else None
            self._tell("training")
        elif isinstance(command, messages.Pause):
            self._pause()
        elif isinstance(command, messages.UpdateSettings) and dict(command.values).get("raise") == self._rank:
            raise RuntimeError("the injected fault")

    def advance(self) -> None:
        total = torch.tensor([1 + self._rank])
        dist.all_reduce(total)
        assert int(total) == sum(1 + rank for rank in range(dist.get_world_size()))
        self.step += 1
        self._emit(messages.Progress(self.step, 1_000_000, 0.0, None, 0, 1.0, None))
        if self.step == self._pause_at:
            self._pause()
        time.sleep(0.001)

    def idle(self) -> None:
        pass

    def close(self) -> None:
        self._note(f"{self.step} closed")

    def rescue(self, error: Exception) -> None:
        pass

    def abandon(self) -> None:
        pass

    def _pause(self) -> None:
        self.running = False
        self._note(f"{self.step} paused")
        self._tell("paused")

    def _tell(self, state: messages.State) -> None:
        self._emit(messages.StateChanged(state))

    def _note(self, line: str) -> None:
        with open(self._log, "a") as file:
            file.write(line + "\n")


def counting(job: messages.TrainJob, desk: WorkerContext) -> Counting:
    """Return steps that all ranks do together; a Plan's activity."""
    return Counting(job, desk)


FAULTY = Plan(rank_main, faulty)


QUICK = Limits(frozen=1.0, stuck={Phase.TRAINING: 4.0})
