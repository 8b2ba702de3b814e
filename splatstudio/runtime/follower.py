"""The ranks beside rank 0: each does what rank 0 says, when rank 0 says it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from splatstudio.distributed import Ranks
from splatstudio.distributed.failures import FailedTogether
from splatstudio.runtime.activity import SharedPart, WorkerContext
from splatstudio.runtime.control import ControlGroup, Turn, decoded
from splatstudio.runtime.group import RankSpec
from splatstudio.runtime.heartbeat import Phase, Pulse
from splatstudio.runtime.log_file import log_of, redirect_output
from splatstudio.runtime.messages import Command, Job, Start, TrainJob
from splatstudio.runtime.priority import TrainingPriority

log = logging.getLogger("splatstudio.runtime")


class Follower:
    """The main thread of a rank other than 0: the same activity, without a studio to talk to."""

    def __init__(
        self,
        place: RankSpec,
        job: Job,
        pulse: Pulse,
        make_activity: Callable[[Job, WorkerContext], SharedPart],
    ):
        self._place = place
        self._log = log_of(job.run_dir) if place.log_path is not None and isinstance(job, TrainJob) else None
        self._pulse = pulse
        self._control: ControlGroup | None = None
        desk = WorkerContext(
            lambda _: None,
            lambda _: None,
            lambda _: None,
            self._breathe,
            place.rank,
            ranks=self._ranks,
            alive=lambda: self._enter(Phase.TRAINING),
        )
        self._activity: SharedPart = make_activity(job, desk)
        self._priority = TrainingPriority()
        self._priority.yield_to_others()  # what this thread starts from here on, too

    @property
    def step(self) -> int:
        """Return the training step reached."""
        return self._activity.step

    def post(self, command: Command) -> None:
        """Do nothing: rank 0, which gets the same signals, tells this rank to leave."""

    def run(self) -> None:
        """Follow rank 0 until it says to leave."""
        control = self._control = ControlGroup(self._place.rank, self._place.num_ranks, self._place.meeting)
        self._enter(Phase.LOADING)
        self._activity.begin()
        self._follow(control)
        control.close()

    def _follow(self, control: ControlGroup) -> None:
        while True:
            # Rank 0 may be at something long that is its own: this rank waits, it does not hang.
            self._enter(Phase.WAITING)
            turn, body = control.follow(self.step)
            if turn == Turn.LEAVE:
                break
            if turn not in (Turn.ORDER, Turn.IDLE):
                self._print_into_run()
            if turn == Turn.STEP:
                self._enter(Phase.TRAINING)
                self._activity.advance()
            elif turn == Turn.ORDER:
                order = decoded(body)
                self._enter(Phase.LOADING if isinstance(order, Start) else Phase.OBEYING)
                self._activity.execute(order)
            elif turn != Turn.IDLE:
                self._enter(Phase.OBEYING)
                if turn == Turn.LOOK:
                    self._priority.yield_to_views()
                self._activity.take_part(turn, body)
        self._enter(Phase.OBEYING)  # a last save may be under way
        self._activity.close()

    def rescue(self, error: Exception) -> None:
        """Take part in what rank 0 still does where all ranks met with `error`.

        Else there is nothing to do: a part of a model is nothing to save.
        """
        if isinstance(error, FailedTogether):
            assert self._control is not None, "the ranks have met"
            self._follow(self._control)

    def leave(self) -> None:
        """Do nothing: there is nobody to tell."""

    def _print_into_run(self) -> None:
        """Go on in the run's log, which the user is pointed to; rank 0 has made its folder by now."""
        if self._log is not None:
            redirect_output(self._log)
            self._log = None
            log.info("process %d trains here as rank %d", os.getpid(), self._place.rank)

    def _enter(self, phase: Phase) -> None:
        self._pulse.move(phase, self.step)

    def _breathe(self) -> None:
        """Show that a long task gets on, by whatever rank 0 announced."""
        self._enter(Phase.OBEYING)

    def _ranks(self) -> Ranks:
        assert self._control is not None, "the ranks have not met"
        return self._control.ranks
