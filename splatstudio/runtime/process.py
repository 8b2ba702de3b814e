"""The background process of a rank: trains when told to, shows the model at any time, says how it ended.

Threads of rank 0: this one trains and obeys; one receives commands; one sends events; one renders frames; one
waits for the death of the parent; one is the pulse; each job has one. None ever waits for the studio. The
other ranks only follow rank 0.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

from splatstudio.distributed import ALONE, Ranks
from splatstudio.distributed.failures import FailedTogether
from splatstudio.distributed.rank_devices import settle_device
from splatstudio.models.model import Model
from splatstudio.runtime.activity import Activity, SharedPart, WorkerContext
from splatstudio.runtime.channel import FrameSlots, Outbox
from splatstudio.runtime.control import ControlGroup, Turn, encoded
from splatstudio.runtime.follower import Follower
from splatstudio.runtime.frames import FrameRenderer
from splatstudio.runtime.group import RankSpec, Studio
from splatstudio.runtime.heartbeat import Phase, Pulse
from splatstudio.runtime.jobs import Jobs
from splatstudio.runtime.log_file import log_of, redirect_output
from splatstudio.runtime.mailbox import Mailbox
from splatstudio.runtime.messages import (
    CancelJob,
    Close,
    Command,
    DropView,
    Event,
    Job,
    JobCommand,
    JobProgress,
    Progress,
    RenderPath,
    ReturnSlot,
    SetView,
    Snapshot,
    Start,
    Stop,
    TrainJob,
)
from splatstudio.runtime.priority import TrainingPriority
from splatstudio.runtime.receipts import Receipt
from splatstudio.runtime.reports import error_sentence
from splatstudio.runtime.root_cause import is_of_a_peer, write_report
from splatstudio.runtime.shared_frames import Round, SharedDrawing
from splatstudio.runtime.signals import end_within, leave_when_told, outlive_the_terminal
from splatstudio.runtime.training import Training
from splatstudio.runtime.training_part import TrainingPart
from splatstudio.runtime.viewing import Viewing
from splatstudio.train.session import EvaluationAbandoned

ORPHAN_GRACE_SECONDS = 60.0  # for the last save after the studio has died
LAST_SECONDS = 10  # whole ones, for a rank on a GPU to end after an error
IDLE_SECONDS = 0.25  # between two looks after what goes on in the background

log = logging.getLogger("splatstudio.runtime")

MakeActivity = Callable[[Job, WorkerContext], Any]  # an Activity for rank 0, a SharedPart for the others


def activity_of(job: Job, desk: WorkerContext) -> Activity | SharedPart:
    """Return what a rank does of a job."""
    if desk.rank > 0:
        assert isinstance(job, TrainJob), "one process shows a finished model"
        return TrainingPart(job, desk)
    return Training(job, desk) if isinstance(job, TrainJob) else Viewing(job, desk)


def worker_main(place: RankSpec, job: Job, studio: Studio | None, make_activity: MakeActivity) -> None:
    """Run one rank until it is told to leave; the process's entry point."""
    outlive_the_terminal(launched=place.launched)
    os.environ.update(place.environment)
    if place.log_path is not None:
        redirect_output(place.log_path)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s")
    # The Log tab is for people: the settings are in run.json, and a frame is a matrix.
    said = {name: value for name, value in vars(job).items() if name not in ("config", "frame") and value}
    told = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in said.items())
    log.info("rank %d of %d starts as process %d: %s", place.rank, place.num_ranks, os.getpid(), told)
    if place.devices is not None:
        settle_device(place.devices.gpus[place.rank], place.devices.num_threads)
    pulse = Pulse(place.heartbeats, place.rank)
    if studio is None:
        rank: Worker | Follower = Follower(place, job, pulse, make_activity)
    else:
        rank = Worker(place, job, studio, pulse, make_activity)
    # Leaving is what rank 0 decides for all of them.
    leave_when_told(lambda: rank.post(Close()), launched=place.launched)
    # An error in any thread is an error of the worker.
    threading.excepthook = lambda arguments: rank.post(_ThreadError(arguments.exc_value))
    _watch_parent(rank.post)
    try:
        rank.run()
    except Exception as error:
        # Where it only tells that another rank has gone, that one has more to say.
        log.error("%s", error if is_of_a_peer(error) else traceback.format_exc())
        rank.rescue(error)
        write_report(place.folder, place.rank, rank.step, error, error_sentence(error))
        rank.leave()
        if place.num_ranks > 1 and torch.cuda.is_initialized():
            end_within(LAST_SECONDS)
        sys.exit(1)
    rank.leave()
    log.info("rank %d leaves", place.rank)
    if place.rank == 0:
        _clear_up(place, job)


class _ThreadError(Command):
    """An exception that ended a thread, on its way to the main thread."""

    def __init__(self, error: BaseException | None):
        self.error = error


class _Look(Command):
    """Somebody looks at a model that is spread over the ranks."""


class Worker:
    """The main thread of rank 0: one training or one finished model, and the orders about it."""

    def __init__(self, place: RankSpec, job: Job, studio: Studio, pulse: Pulse, make_activity: MakeActivity):
        self._place = place
        self._connection = studio.connection
        self._pulse = pulse
        self._mailbox = Mailbox()
        self._outbox = Outbox(studio.connection, "events")
        slots = FrameSlots.attach(studio.slots_file)
        slots.close()
        fetch = self._want_looks if place.num_ranks > 1 else None
        self._frames = FrameRenderer(slots, self.emit, lambda: self._activity.running, fetch)
        self._looks_wanted = False
        self._jobs = Jobs(self.emit, lambda: self._activity.running)
        self._control: ControlGroup | None = None
        self._phase = Phase.STARTING
        desk = WorkerContext(
            self.emit,
            self._frames.publish,
            self._log_into,
            self._breathe,
            ranks=self._ranks,
            tell=self._tell_ranks,
            saving=self._begin_saving,
            alive=lambda: self._enter(self._phase),
        )
        self._activity: Activity = make_activity(job, desk)
        self._priority = TrainingPriority()
        threading.Thread(target=self._receive, name="commands", daemon=True).start()
        self._priority.yield_to_others()  # what this thread starts from here on, too

    @property
    def step(self) -> int:
        """Return the training step reached, 0 where nothing is trained."""
        return self._activity.step

    def post(self, command: Command) -> None:
        """Queue an order for the main thread; may be called from any thread and from signal handlers."""
        self._mailbox.put(command)

    def emit(self, event: Event) -> None:
        """Send an event; never waits."""
        key = None
        if isinstance(event, Progress):
            key = ("progress", 0)
        elif isinstance(event, JobProgress):
            key = ("job", event.job)
        self._outbox.put(event, key)

    def run(self) -> None:
        """Obey until Close."""
        if self._place.num_ranks > 1:
            self._control = ControlGroup(self._place.rank, self._place.num_ranks, self._place.meeting)
        self._enter(Phase.LOADING)
        self._activity.begin()
        while True:
            command = self._next_command()
            if isinstance(command, _ThreadError):
                assert command.error is not None
                raise command.error
            if isinstance(command, Close):
                break
            if isinstance(command, _Look):
                self._serve_looks()
            elif isinstance(command, Round):
                self._enter(Phase.OBEYING)
                command.do()
                if self._activity.running:
                    self._advance()  # a path of many frames slows the training, it does not stop it
            elif command is None:
                self._advance()
            else:
                self._obey(command)
        self._enter(Phase.OBEYING)
        self._activity.close()
        self._tell_ranks(Turn.LEAVE)
        if self._control is not None:
            self._control.close()

    def _advance(self) -> None:
        self._tell_ranks(Turn.STEP)
        self._enter(Phase.TRAINING)
        self._activity.advance()

    def rescue(self, error: Exception) -> None:
        """Save what can be saved before `error` ends the worker."""
        if self._control is not None and not isinstance(error, FailedTogether):
            return  # the other ranks are somewhere else
        self._activity.rescue(error)
        self._tell_ranks(Turn.LEAVE)

    def leave(self) -> None:
        """End the jobs, send what is left to send and stop the threads."""
        self._jobs.close()
        self._frames.close()
        self._outbox.flush(5.0)
        self._outbox.close()

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self._pulse.move(phase, self.step)

    def _ranks(self) -> Ranks:
        return ALONE if self._control is None else self._control.ranks

    def _tell_ranks(self, turn: Turn, body: bytes = b"") -> None:
        if self._control is not None:
            self._control.lead(turn, self.step, body)

    def _obey(self, command: Command) -> None:
        self._enter(Phase.LOADING if isinstance(command, Start) else Phase.OBEYING)
        self.emit(Receipt(command.number, done=False))
        if isinstance(command, JobCommand):
            self._jobs.start(command, partial(self._model_for, command))
        else:
            self._tell_ranks(Turn.ORDER, encoded(command) if self._control is not None else b"")
            self._activity.execute(command)
        self.emit(Receipt(command.number, done=True))

    def _model_for(self, command: JobCommand) -> Model | SharedDrawing | None:
        """Return what a task works on: a model, or for pictures of one on several ranks what draws them."""
        frames = self._activity.shared_frames()
        if frames is None or not isinstance(command, (RenderPath, Snapshot)):
            return self._activity.model_copy()
        return frames.copy(command.job, self.post)

    def _want_looks(self) -> None:
        """Let the main thread serve those who look, after the step in progress; called on any thread."""
        if not self._looks_wanted:
            self._looks_wanted = True
            self.post(_Look())

    def _serve_looks(self) -> None:
        """Gather from all ranks what is looked at; the frames' thread draws it."""
        self._looks_wanted = False  # before the requests are taken: none is forgotten
        taken = self._frames.take_wanted()
        if not taken:
            return
        models = self._activity.seen_by([look for _, look in taken])
        for (wanted, _), model in zip(taken, models, strict=True):
            self._frames.show(wanted, model)

    def _breathe(self) -> None:
        """Obey what came during a long task of the main thread, or break that off for what cannot wait."""
        phase = self._phase
        self._enter(phase)
        if self._control is not None:
            # The other ranks are in the midst of the task: it can be broken off, but nothing else be done.
            if self._mailbox.holds(Stop, Close, _ThreadError):
                raise EvaluationAbandoned
            return
        while (command := self._mailbox.peek()) is not None:
            if isinstance(command, (Stop, Close, _ThreadError)):
                raise EvaluationAbandoned
            self._mailbox.take()
            self._obey(command)
        self._enter(phase)

    def _begin_saving(self) -> None:
        self._enter(Phase.OBEYING)

    def _log_into(self, path: Path) -> None:
        """Go on with the log in the run's folder, once there is one."""
        if self._place.log_path is not None:
            redirect_output(path)
        log.info("process %d trains here", os.getpid())

    def _next_command(self) -> Command | None:
        """Return the next order; None when there is a step to train instead of waiting."""
        while True:
            command = self._mailbox.take()
            if command is not None or self._activity.running:
                return command
            self._tell_ranks(Turn.IDLE)
            self._activity.idle()
            self._enter(Phase.WAITING)
            self._mailbox.wait(IDLE_SECONDS)

    def _receive(self) -> None:
        """Serve view requests and cancelled jobs at once; hand everything else to the main thread."""
        while True:
            try:
                command = self._connection.recv()
            except (EOFError, OSError):
                self.post(Close())
                return
            if isinstance(command, SetView):
                self._frames.request(command)
                self._priority.yield_to_views()
            elif isinstance(command, DropView):
                self._frames.drop(command.view)
            elif isinstance(command, ReturnSlot):
                self._frames.return_slot(command.slot)
            elif isinstance(command, CancelJob):
                self._jobs.cancel(command.job)
            else:
                self.post(command)


def _clear_up(place: RankSpec, job: Job) -> None:
    """Remove the log from before there was a run, and for a studio that is gone what it cannot remove."""
    parent = multiprocessing.parent_process()
    orphan = parent is not None and not parent.is_alive()
    if orphan:
        shutil.rmtree(place.folder, ignore_errors=True)
    run_log = log_of(job.run_dir) if isinstance(job, TrainJob) else None
    if place.log_path in (None, run_log) or not (orphan or (run_log is not None and run_log.exists())):
        return
    try:
        place.log_path.unlink(missing_ok=True)
    except OSError as error:
        log.info("%s stays: %s", place.log_path, error)  # where what is open cannot be removed


def _watch_parent(post: Callable[[Command], None]) -> None:
    """Save and leave when the parent dies, however it dies."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        log.warning("the studio is gone: saving and leaving")
        post(Close())
        timer = threading.Timer(ORPHAN_GRACE_SECONDS, os._exit, (1,))
        timer.daemon = True
        timer.start()

    threading.Thread(target=watch, name="parent", daemon=True).start()
