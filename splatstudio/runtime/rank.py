"""The process of a rank: trains when told to, shows the model at any time, says how it ended.

Every rank runs the same loop: take the next command, carry it out. Rank 0 alone decides what comes next, and
has an outbox: it takes commands from the client, tells them to the other ranks where all have to do
something, and answers with events. Threads of rank 0: this one trains and obeys; one receives commands; one
sends events; one renders frames; one waits for the death of the parent; one is the pulse; each task has one.
None ever waits for the client.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import multiprocessing
import os
import shutil
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from signal import raise_signal

from splatstudio.devices import accelerator
from splatstudio.distributed.failures import FailedTogether
from splatstudio.distributed.rank_devices import settle_device
from splatstudio.distributed.ranks import ALONE
from splatstudio.models.model import Model
from splatstudio.operating_system import end_within, hold
from splatstudio.runtime import messages
from splatstudio.runtime.activity import Activity, Viewing, WorkerContext
from splatstudio.runtime.channel.broadcast import Broadcast
from splatstudio.runtime.channel.codec import decode_order, encode
from splatstudio.runtime.channel.frame_slots import FrameSlots
from splatstudio.runtime.channel.mailbox import Mailbox, Outbox
from splatstudio.runtime.heartbeat import Phase, Pulse
from splatstudio.runtime.process_setup import TrainingPriority, log_of, redirect_output
from splatstudio.runtime.rank_group import RankPipe, RankSpec
from splatstudio.runtime.root_cause import is_of_a_peer, write_report
from splatstudio.runtime.sentences import error_sentence
from splatstudio.runtime.shared_views import CopyDrawer
from splatstudio.runtime.stop_signals import ends_at_a_signal, leave_when_told, outlive_the_terminal
from splatstudio.runtime.tasks import Tasks
from splatstudio.runtime.training import Training
from splatstudio.runtime.view_renderer import ViewRenderer
from splatstudio.training.session import EvaluationAbandoned

ORPHAN_GRACE_SECONDS = 60.0  # for the last save after the studio has died
LAST_SECONDS = 10  # whole ones, for a rank on a GPU to end after an error
IDLE_SECONDS = 0.25  # between two looks after what goes on in the background
FOR_ALL = (messages.Start, messages.UpdateSettings, messages.SetCap)  # orders that every rank carries out

log = logging.getLogger("splatstudio.runtime")

MakeActivity = Callable[[messages.Job, WorkerContext], Activity]
Work = Callable[[], None]  # what another thread has the main thread do between two steps


def activity_of(job: messages.Job, context: WorkerContext) -> Activity:
    """Return what a rank does of a job."""
    return Training(job, context) if isinstance(job, messages.TrainJob) else Viewing(job, context)


def rank_main(spec: RankSpec, job: messages.Job, pipe: RankPipe | None, make_activity: MakeActivity) -> None:
    """Run one rank until it is told to leave; the process's entry point. `pipe`: to the client, on rank 0."""
    # What is loaded stays: to look through it would take a tenth of a second, and copies of shared memory.
    gc.freeze()
    outlive_the_terminal(launched=spec.launched)
    os.environ.update(spec.environment)
    if spec.log_path is not None:
        redirect_output(spec.log_path)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s")
    # The Log tab is for people: the settings are in run.json, and a frame is a matrix.
    said = {name: value for name, value in vars(job).items() if name not in ("config", "frame") and value}
    told = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in said.items())
    log.info("rank %d of %d starts as process %d: %s", spec.rank, spec.num_ranks, os.getpid(), told)
    if spec.devices is not None:
        settle_device(spec.devices.gpus[spec.rank], spec.devices.num_threads)
    rank = Rank(spec, job, pipe, make_activity)
    leave_when_told(rank.leave_for, launched=spec.launched)
    if pipe is not None:
        # An error in any thread is an error of the rank.
        threading.excepthook = lambda arguments: rank.post(partial(_raise, arguments.exc_value))
    _watch_parent(rank.post)
    with contextlib.suppress(OSError):  # a launched rank makes its folder where it needs one
        hold(spec.folder)  # as long as this process lives, which may be longer than the studio
    try:
        rank.run()
    except Exception as error:
        # Where it only tells that another rank has gone, that one has more to say.
        if not (spec.launched and _is_told(error)):  # a sentence for the user, which is printed below
            log.error("%s", error if is_of_a_peer(error) else traceback.format_exc())
        rank.rescue(error)
        write_report(spec.folder, spec.rank, rank.step, error, error_sentence(error))
        rank.leave_by_error()
        if spec.num_ranks > 1 and accelerator.is_initialized():
            end_within(LAST_SECONDS)
        sys.exit(1)
    rank.leave()
    log.info("rank %d leaves", spec.rank)
    if spec.rank == 0:
        _clear_up(spec, job)


def _is_told(error: Exception) -> bool:
    """Return whether an error is a sentence of this package on what its user gave."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    is_raised = (last.line or "").startswith("raise ")  # not by what the line calls
    ours = Path(last.filename).is_relative_to(Path(__file__).parents[1])
    return isinstance(error, ValueError) and is_raised and ours


def _raise(error: BaseException | None) -> None:
    assert error is not None, "a thread ended by it"
    raise error


class Rank:
    """The main thread of a rank: one training or one finished model, and the commands about it."""

    def __init__(self, spec: RankSpec, job: messages.Job, pipe: RankPipe | None, make_activity: MakeActivity):
        self._spec = spec
        self._pulse = Pulse(spec.heartbeats, spec.rank)
        self._phase = Phase.STARTING
        self._signal = 0  # by which whoever started this rank wants it to end, and its exit code
        self._told_by = 0  # the signal that has come to this rank
        self._broadcast: Broadcast | None = None
        self._mailbox: Mailbox[tuple[int, messages.Command] | Work] = Mailbox(name="commands")
        self._priority = TrainingPriority()
        self._client = None if pipe is None else _Client(self, pipe, several=spec.num_ranks > 1)
        context = WorkerContext(
            log_into=self._log_into,
            breathe=self._breathe,
            ranks=lambda: ALONE if self._broadcast is None else self._broadcast.ranks,
            alive=lambda: self._enter(self._phase),
            rank=spec.rank,
            launched=spec.launched,
        )
        if self._client is not None:
            context = self._client.heard_by(context, self.tell)
        self.activity = make_activity(job, context)
        if self._client is not None:
            self._client.start()
        self._priority.yield_to_others()  # what this thread starts from here on, too

    @property
    def step(self) -> int:
        """Return the training step reached, 0 where nothing is trained."""
        return self.activity.step

    @property
    def running(self) -> bool:
        """Return whether there is a next step to train."""
        return self.activity.running

    def post(self, message: messages.Command | Work, number: int = 0) -> None:
        """Queue a command, or work for the main thread; on rank 0, from any thread and from signal handlers.

        On the others it has no effect: rank 0 tells them what to do.
        """
        if self._client is None:
            return
        if not isinstance(message, messages.Command):
            self._mailbox.put(message)
            return
        self._mailbox.put((number, message), setting_key(message))

    def leave_for(self, signal: int) -> None:
        """Have all ranks save and leave, as whoever started this one wants it; for signal handlers.

        Rank 0 decides that. Of a launched rank beside it, which may have got the signal alone, it hears.
        """
        self._signal = self._told_by = signal
        self._pulse.note_signal(signal)
        self.post(messages.Close())

    def run(self) -> None:
        """Carry out commands until Close, or until rank 0 says to leave."""
        spec = self._spec
        if spec.num_ranks > 1:
            alone = "The other ranks had not come yet; nothing was trained."
            with ends_at_a_signal(alone) if spec.launched else contextlib.nullcontext():
                if self._told_by:  # it came a moment too early
                    raise_signal(self._told_by)
                self._broadcast = Broadcast(spec.rank, spec.num_ranks, spec.meeting)
        self._enter(Phase.LOADING)
        self.activity.begin()
        self._carry_on()
        if self._broadcast is not None:
            self._broadcast.close()

    def _carry_on(self) -> None:
        if self._client is None:
            self._signal = self._follow()
        else:
            self._lead()
        self._enter(Phase.OBEYING)  # a last save may be under way
        self.activity.close()
        if self._client is not None:
            self._signal = 0 if self.activity.complete else self._signal
            self.tell(messages.Leave(self._signal))
        self._pulse.note_signal(self._signal)  # of all ranks the same: it is their exit code

    def _lead(self) -> None:
        """Take the client's commands one by one, and train between them."""
        while True:
            message = self._next_message()
            if message is None:
                self._advance()
            elif isinstance(message, tuple):
                number, command = message
                if isinstance(command, messages.Close):
                    return
                self._obey(number, command)
            else:
                self._enter(Phase.OBEYING)
                message()
                if self.running:
                    self._advance()  # a path of many frames slows the training, it does not stop it

    def _follow(self) -> int:
        """Carry out what rank 0 says, until it says to leave; return for which signal, 0: for none."""
        assert self._broadcast is not None, "rank 0 is another process"
        while True:
            # Rank 0 may be at something long that is its own: this rank waits, it does not hang.
            self._enter(Phase.WAITING)
            command = self._broadcast.receive(self.step)
            if isinstance(command, messages.Leave):
                return command.signal
            if isinstance(command, messages.NextStep):
                self._enter(Phase.TRAINING)
                self.activity.advance()
            elif not isinstance(command, messages.Wait):
                self._enter(Phase.LOADING if isinstance(command, messages.Start) else Phase.OBEYING)
                if isinstance(command, messages.GatherViews):
                    self._priority.yield_to_views()
                self.activity.execute(command)

    def _advance(self) -> None:
        self.tell(messages.NextStep())
        self._enter(Phase.TRAINING)
        self.activity.advance()

    def tell(self, command: messages.Command) -> None:
        """Tell the other ranks, where there are any, what all do next; for rank 0."""
        if self._broadcast is not None:
            self._broadcast.send(command, self.step)

    def rescue(self, error: Exception) -> None:
        """Save what can be saved before `error` ends this rank, where no other rank is somewhere else.

        What all ranks met with in the same place rank 0 can still save together with them.
        """
        if self._broadcast is not None and not isinstance(error, FailedTogether):
            if self._client is not None:
                self.activity.abandon()
            return
        if self._client is None:
            self._carry_on()
        else:
            self.activity.rescue(error)
            self.tell(messages.Leave())

    def leave(self) -> None:
        """End the tasks, send what is left to send and stop the threads.

        Those that a signal cuts off nobody has cancelled, either.
        """
        if self._client is not None and self._told_by:
            self._client.tasks.abandon()
        if self._client is not None:
            self._client.close()

    def leave_by_error(self) -> None:
        """Leave as `leave` does; the tasks that are cut off are not told of as cancelled: nobody did."""
        if self._client is not None:
            self._client.tasks.abandon()
        self.leave()

    def yield_to_views(self) -> None:
        """Let the training give way to who looks at its model."""
        self._priority.yield_to_views()

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self._pulse.move(phase, self.step)

    def _obey(self, number: int, command: messages.Command) -> None:
        client = self._client
        assert client is not None and not isinstance(command, messages.RankCommand), command
        self._enter(Phase.LOADING if isinstance(command, messages.Start) else Phase.OBEYING)
        client.emit(messages.Receipt(number, done=False))
        if isinstance(command, messages.JobCommand):
            client.tasks.start(command, partial(self._model_for, command))
        else:
            if isinstance(command, FOR_ALL):
                self.tell(command)
            self.activity.execute(command)
        client.emit(messages.Receipt(number, done=True))

    def _model_for(self, command: messages.JobCommand) -> Model | CopyDrawer | None:
        """Return what a task works on: a model, or for pictures of one on several ranks what draws them."""
        views = self.activity.shared_views
        if views is None or not isinstance(command, (messages.RenderPath, messages.Snapshot)):
            return self.activity.model_copy()
        return views.copy(command.job, self.post)

    def _breathe(self) -> None:
        """Obey what came during a long task of the main thread, or break that off for what cannot wait.

        On several ranks the others are in the midst of the task: it can be broken off, but nothing else be
        done.
        """
        phase = self._phase
        self._enter(phase)
        if self._broadcast is not None:
            if any(_cannot_wait(message) for message in self._mailbox.messages()):
                raise EvaluationAbandoned
            return
        while (message := self._mailbox.peek()) is not None:
            if _cannot_wait(message):
                raise EvaluationAbandoned
            if not self._mailbox.take_if(message):
                continue  # a newer one took its place
            assert isinstance(message, tuple), message
            number, command = message
            self._obey(number, command)
        self._enter(phase)

    def begin_saving(self) -> None:
        """Show that what follows may take longer than a step."""
        self._enter(Phase.OBEYING)

    def _log_into(self, path: Path) -> None:
        """Go on with the log in the run's folder, once there is one."""
        if self._spec.log_path is not None:
            redirect_output(path)
        where = f" as rank {self._spec.rank}" if self._spec.num_ranks > 1 else ""
        log.info("worker started (PID %d)%s", os.getpid(), where)

    def _next_message(self) -> tuple[int, messages.Command] | Work | None:
        """Return the next command; None when there is a step to train instead of waiting."""
        while True:
            message = self._mailbox.take()
            if message is not None or self.running:
                return message
            self.tell(messages.Wait())
            self.activity.idle()
            self._enter(Phase.WAITING)
            self._mailbox.wait(IDLE_SECONDS)


class _Client:
    """Rank 0's outbox and inbox, and what it does for clients beside its main thread."""

    def __init__(self, rank: Rank, pipe: RankPipe, *, several: bool):
        self._rank = rank
        self._connection = pipe.connection
        self._outbox: Outbox[messages.Event] = Outbox(
            lambda event: pipe.connection.send_bytes(encode(event)), "events"
        )
        slots = FrameSlots.attach(pipe.slots_file)
        slots.close()
        self._views_wanted = False
        fetch = self._want_views if several else None
        self._views = ViewRenderer(slots, self.emit, lambda: rank.running, fetch)
        self.tasks = Tasks(self.emit, lambda: rank.running)

    def heard_by(self, context: WorkerContext, tell: Callable[[messages.Command], None]) -> WorkerContext:
        """Return the context of an activity whose news reach the client."""
        return replace(
            context, emit=self.emit, publish=self._views.publish, tell=tell, saving=self._rank.begin_saving
        )

    def start(self) -> None:
        """Begin to receive."""
        threading.Thread(target=self._receive, name="commands", daemon=True).start()

    def emit(self, event: messages.Event) -> None:
        """Send an event; never waits."""
        key = None
        if isinstance(event, messages.Progress):
            key = ("progress", 0)
        elif isinstance(event, messages.JobProgress):
            key = ("job", event.job)
        self._outbox.put(event, key)

    def close(self) -> None:
        """End the tasks, send what is left to send and stop the threads."""
        self.tasks.close()
        self._views.close()
        self._outbox.flush(5.0)
        self._outbox.close()

    def _receive(self) -> None:
        """Serve view requests and cancelled tasks at once; hand everything else to the main thread."""
        while True:
            try:
                number, command = decode_order(self._connection.recv_bytes())
            except (EOFError, OSError):
                self._rank.post(messages.Close())
                return
            if isinstance(command, messages.SetView):
                self._views.request(command)
                self._rank.yield_to_views()
            elif isinstance(command, messages.DropView):
                self._views.drop(command.view)
            elif isinstance(command, messages.ReturnSlot):
                self._views.return_slot(command.slot)
            elif isinstance(command, messages.CancelJob):
                self.tasks.cancel(command.job)
            else:
                self._rank.post(command, number)

    def _want_views(self) -> None:
        """Let the main thread serve those who look, after the step in progress; called on any thread."""
        if not self._views_wanted:
            self._views_wanted = True
            self._rank.post(self._gather_views)

    def _gather_views(self) -> None:
        """Gather from all ranks what is looked at; the frames' thread draws it."""
        self._views_wanted = False  # before the requests are taken: none is forgotten
        taken = self._views.take_wanted()
        if not taken:
            return
        models = self._rank.activity.gather_views([request for _, request in taken])
        for (wanted, _), model in zip(taken, models, strict=True):
            self._views.show(wanted, model)


def setting_key(command: messages.Command) -> object | None:
    """Return the key under which a newer change of the same settings replaces one that still waits."""
    if isinstance(command, messages.UpdateSettings):
        return ("settings", tuple(path for path, _ in command.values))
    return None


def _cannot_wait(message: tuple[int, messages.Command] | Work) -> bool:
    """Return whether a message breaks off a long task: Stop, Close, or an error of another thread."""
    if isinstance(message, tuple):
        return isinstance(message[1], (messages.Stop, messages.Close))
    return isinstance(message, partial) and message.func is _raise


def _clear_up(spec: RankSpec, job: messages.Job) -> None:
    """Remove the log from before there was a run, and for a studio that is gone what it cannot remove."""
    parent = multiprocessing.parent_process()
    orphan = parent is not None and not parent.is_alive()
    if orphan:
        shutil.rmtree(spec.folder, ignore_errors=True)
    run_log = log_of(job.run_dir) if isinstance(job, messages.TrainJob) else None
    if spec.log_path in (None, run_log) or not (orphan or (run_log is not None and run_log.exists())):
        return
    try:
        spec.log_path.unlink(missing_ok=True)
    except OSError as error:
        log.info("%s stays: %s", spec.log_path, error)  # where what is open cannot be removed


def _watch_parent(post: Callable[[messages.Command], None]) -> None:
    """Save and leave when the parent dies, however it dies."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        log.warning("the studio is gone: saving and leaving")
        post(messages.Close())
        timer = threading.Timer(ORPHAN_GRACE_SECONDS, os._exit, (1,))
        timer.daemon = True
        timer.start()

    threading.Thread(target=watch, name="parent", daemon=True).start()
