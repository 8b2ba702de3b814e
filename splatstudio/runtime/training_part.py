"""A rank's part in a training that rank 0 leads: the same steps, and nobody to tell of them."""

from __future__ import annotations

import logging

from splatstudio.runtime.activity import WorkerContext
from splatstudio.runtime.control import Turn
from splatstudio.runtime.crew import Member
from splatstudio.runtime.messages import Command, SetCap, Start, TrainJob, UpdateSettings
from splatstudio.runtime.trainers import trainer_of

log = logging.getLogger("splatstudio.runtime")


class TrainingPart:
    """The Trainer of a rank other than 0, driven by what rank 0 announces."""

    def __init__(self, job: TrainJob, desk: WorkerContext):
        self._job = job
        self._desk = desk
        self._trainer = None
        self._member: Member | None = None

    @property
    def step(self) -> int:
        """Return the number of steps done, 0 before the start."""
        return self._trainer.step if self._trainer is not None else 0

    def begin(self) -> None:
        """Do nothing: training waits for Start."""

    def execute(self, command: Command) -> None:
        """Carry out an order as far as it concerns every rank; rank 0 answers it."""
        if isinstance(command, Start) and self._trainer is None:
            ranks = self._desk.ranks()
            self._trainer = trainer_of(self._job, ranks)
            self._trainer.alive = self._desk.alive
            self._member = Member(self._trainer, ranks, self._desk.breathe)
        elif isinstance(command, UpdateSettings):
            for path, value in command.values:
                self._set(path, value)
        elif isinstance(command, SetCap):
            self._set("densify.max_gaussians", command.max_gaussians)

    def advance(self) -> None:
        """Train one step."""
        assert self._trainer is not None and self._member is not None
        self._member.after_step(self._trainer.train_step().seconds)

    def take_part(self, turn: Turn, body: bytes) -> None:
        """Do this rank's part of what rank 0 announced."""
        assert self._member is not None, turn
        self._member.take_part(turn, body)

    def close(self) -> None:
        """Let everything go; what is being written is waited for."""
        if self._member is not None:
            self._member.close()
        if self._trainer is not None:
            self._trainer.close()

    def _set(self, path: str, value: object) -> None:
        if self._trainer is None:
            return
        try:
            self._trainer.update_setting(path, value)
        except ValueError as error:
            log.info("not changed, as on rank 0: %s", error)
