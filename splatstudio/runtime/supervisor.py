"""A job that is kept going, and the client that steers it.

The Supervisor attends to the processes of a job, sees them die or hang, and puts others in their place. The
WorkerClient gives orders, hears events and keeps the newest frames.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from splatstudio.checkpoints.checkpoint import newest_or_why
from splatstudio.distributed.rank_devices import RankDevices
from splatstudio.files.leftovers import clear_leftovers, keep
from splatstudio.operating_system import hold
from splatstudio.runtime import messages
from splatstudio.runtime.channel.codec import decode, encode_order
from splatstudio.runtime.channel.hub import Hub, HubClient
from splatstudio.runtime.channel.mailbox import Outbox
from splatstudio.runtime.command_replay import CommandReplay, OpenJobs
from splatstudio.runtime.heartbeat import Limits, Phase, SilenceWatch
from splatstudio.runtime.process_setup import log_of
from splatstudio.runtime.rank import activity_of, rank_main, setting_key
from splatstudio.runtime.rank_group import RankGroup, RankMain
from splatstudio.runtime.remote_run import RemotePlan
from splatstudio.runtime.root_cause import Cause, rank_name, root_cause
from splatstudio.runtime.sentences import failure_sentence, restart_sentence
from splatstudio.runtime.standstill import Patience

# A disk that is full at the end must not cost the model, and a batch job must not wait for ever.
RETRY_SECONDS, RETRY_MINUTES = 10.0, 10

WATCH_SECONDS = 0.25  # between two looks at the heartbeats
MAX_RESTARTS = 3
WINDOW_SECONDS = 600.0
LOADING_PATIENCE_SECONDS = 5.0  # for a worker that is told to leave and has nothing to save

log = logging.getLogger(__name__)


class SaveRetries:
    """Counts the saves that found no room, and says when the next one is due; for one thread."""

    def __init__(self) -> None:
        """Begin without any that has failed."""
        self.num_failed = 0
        self._due_at: float | None = None

    def fail(self) -> bool:
        """Note that a save found no room; return whether to try another one."""
        self.num_failed += 1
        if self.num_failed > RETRY_MINUTES * 60 / RETRY_SECONDS:
            self._due_at = None
            return False
        self._due_at = time.monotonic() + RETRY_SECONDS
        return True

    def take_due(self) -> bool:
        """Return whether to save again now; it is said once after each that failed."""
        due = self._due_at is not None and time.monotonic() >= self._due_at
        if due:
            self._due_at = None
        return due


def retry_sentence(*, told: bool) -> str:
    """Return what happens while the disk is full; `told`: Ctrl-C was pressed once already."""
    how = "Ctrl-C again ends" if told else "Ctrl-C tries at once, and again ends"
    return f"It is tried again every {RETRY_SECONDS:g} s for {RETRY_MINUTES} minutes ({how} without it)."


@dataclass(frozen=True)
class Plan:
    """What to run: `main` in each of `num_ranks` processes; `activity` makes what they do of a job."""

    main: RankMain
    activity: Any
    num_ranks: int = 1
    limits: Limits = field(default_factory=Limits)
    devices: RankDevices | None = None  # one a rank; None: the fastest that there is

    def supervise(self, job: messages.Job, log_path: Callable[[], Path], listener: HubClient) -> Supervisor:
        """Return what will run `job` for `listener`."""
        return Supervisor(self, job, log_path, listener)


class RestartPolicy:
    """At most MAX_RESTARTS in WINDOW_SECONDS; none where the same would only happen again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._restarts: deque[float] = deque()
        self._last: tuple[str, int] | None = None

    @property
    def count(self) -> int:
        """Return the number of restarts within the last WINDOW_SECONDS."""
        while self._restarts and self._clock() - self._restarts[0] > WINDOW_SECONDS:
            self._restarts.popleft()
        return len(self._restarts)

    def refuse_or_count(self, cause: Cause) -> str | None:
        """Return None, and count a restart, where one may help; else why there is none, one sentence.

        An empty sentence: the cause says it all.
        """
        if cause.final:
            return ""
        before, self._last = self._last, (cause.kind, cause.step)
        if before == self._last:
            where = f"at step {cause.step:,}" if cause.step > 0 else "before the first step"
            return f"It happened {where} for the second time, so it was not started again by itself."
        if self.count >= MAX_RESTARTS:
            minutes = round(WINDOW_SECONDS / 60)
            return f"It had been restarted {MAX_RESTARTS} times within {minutes} minutes, which is the limit."
        self._restarts.append(self._clock())
        return None


class Supervisor:
    """The groups of processes of one job, one after the other, until it ends for good."""

    def __init__(self, plan: Plan, job: messages.Job, log_path: Callable[[], Path], listener: HubClient):
        self.job = job
        self._plan = plan
        self._log_path = log_path
        self._listener = listener
        self._policy = RestartPolicy()
        self._replay = CommandReplay()
        self._jobs = OpenJobs()
        self._closing = False
        self._killed = self._quiet = False
        self._finished = self._ended = False
        self._restarting = False
        self._num_sent = 0
        self._saved_at: float | None = None  # when all that had been trained was on the disk
        self._sending = threading.Lock()
        self._group = self._new_group()
        self._outbox = _orders_to(self._group)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def start(self) -> None:
        """Start the processes; raises OSError where that is not possible."""
        try:
            self._group.start()
        except OSError:
            self._outbox.close()
            raise
        self._thread.start()
        threading.Thread(target=self._watch, name="heartbeats", daemon=True).start()

    @property
    def alive(self) -> bool:
        """Return whether it has been started and has not ended for good."""
        return self._thread.is_alive()

    @property
    def pids(self) -> tuple[int, ...]:
        """Return the process ids of the ranks, rank 0 first."""
        return self._group.pids

    @property
    def will_pause(self) -> bool | None:
        """Return whether the training will stand still once all is obeyed; None: it was not told to start."""
        return self._replay.paused if self._replay.started else None

    @property
    def trains(self) -> bool:
        """Return whether rank 0 is at a step of the training; its events may come later."""
        return self._group.heartbeats.read(0).phase == Phase.TRAINING

    def send(self, command: messages.Command) -> None:
        """Give an order; never waits.

        One that a process dies before obeying is for the next process; after the end none has an effect.
        """
        with self._sending:
            ended = self._ended
            if not ended:
                number = self._replay.sent(command)
                self._jobs.sent(command)
                if isinstance(command, messages.Close):
                    self._closing = True
                if not isinstance(command, (messages.ReturnSlot, messages.DropView)):
                    self._num_sent += 1
                self._outbox.put((number, command), _key(command))
        if ended and isinstance(command, messages.JobCommand):
            self._listener.receive(messages.JobFailed(command.job, "The background process has ended."))

    def kill(self, *, quietly: bool = False) -> None:
        """End the ranks at once; `quietly` where nothing is lost by it, so that nothing failed."""
        with self._sending:
            self._closing = self._killed = True
            self._quiet = quietly
            group = self._group
        group.kill()

    def join(self, timeout: float) -> None:
        """Wait for the end, `timeout` seconds at most."""
        if self.alive:
            self._thread.join(timeout)

    def _new_group(self) -> RankGroup:
        plan = self._plan
        return RankGroup(plan.main, self.job, plan.num_ranks, self._log_path(), plan.activity, plan.devices)

    def _run(self) -> None:
        while True:
            self._forward_events(self._group)
            pids, ends = self._group.pids, self._group.finish()
            self._end_jobs(pids[0], self._replay.waiting_jobs)
            cause = root_cause(ends, self._plan.num_ranks)
            clean = all(end.exitcode == 0 and end.silence is None for end in ends)
            last_words = self._restart_or_end(cause, clean)
            if last_words:
                break
        with self._sending:
            self._ended = True
        self._end_jobs(pids[0], ())
        for event in last_words:
            self._listener.receive(event)
        self._over.set()
        self._outbox.close()

    def _restart_or_end(self, cause: Cause, clean: bool) -> list[messages.Event]:
        """Return how it ended for good, after the end of a group; nothing when another one goes on."""
        if self._closing and (clean or self._quiet):
            return [messages.StateChanged("ended")]
        if self._finished:
            # The training had its last word; only the view of its result is gone.
            return [
                messages.Warned(failure_sentence(cause.sentence, self.job)),
                messages.StateChanged("ended"),
            ]
        if cause.final and _is_gone(self.job):
            cause = replace(cause, final=False)  # another checkpoint may serve
        # Who ended it by SIGTERM, at which it saves and leaves, does not want it back.
        refusal = "" if clean or self._closing else self._policy.refuse_or_count(cause)
        if refusal is None and self._restart(cause):
            return []
        why = " ".join(filter(None, (cause.sentence, refusal)))
        sentence = failure_sentence(why, self.job)
        return [messages.Failed(sentence, cause.step, self._log_path(), why, cause.final)]

    def _end_jobs(self, pid: int, waiting: Container[int]) -> None:
        for failed in self._jobs.abandon(pid, waiting):
            self._listener.receive(failed)

    def _forward_events(self, group: RankGroup) -> None:
        """Hand on the events of a group until one of its ranks has ended."""
        while group.wait():
            try:
                event = decode(group.connection.recv_bytes(), messages.Event)
            except (EOFError, OSError):
                return
            except ValueError:  # what follows is heard all the same
                log.exception("an event of the training could not be read")
                continue
            if isinstance(event, messages.Frame):
                image = group.slots.view(event.slot, event.height, event.width).copy()
                self.send(messages.ReturnSlot(event.slot))
                self._listener.take_frame(event, image)
                continue
            self._jobs.heard(event)
            self._replay.heard(event)
            if isinstance(event, (messages.Receipt, messages.PausesAt)):
                continue  # for the replay alone
            if isinstance(event, (messages.Started, messages.Saved)):
                self._saved_at = time.monotonic()
            if isinstance(event, (messages.Started, messages.Finished)):
                self._finished = isinstance(event, messages.Finished)
            if event == messages.StateChanged("ready") and self._restarting and self._replay.started:
                continue  # it was told to start already
            self._restarting = False
            self._listener.receive(event)

    def _restart(self, cause: Cause) -> bool:
        """Put another group in the place of one that died; return False where that is not possible."""
        self._restarting = True
        self._listener.receive(messages.StateChanged("restarting"))
        checkpoint = None
        if isinstance(self.job, messages.TrainJob):
            checkpoint, why = newest_or_why(self.job.run_dir)
            if why:  # not from the beginning, in the place of what may be good
                self._listener.receive(messages.Warned(f"It is not started again: {why}."))
                return False
        replay = self._replay
        self.job = replay.job_again(self.job, checkpoint, cause)
        try:
            group = self._new_group()
            group_outbox = _orders_to(group)
            with self._sending:
                if self._closing:
                    group_outbox.close()
                    group.abandon()
                    return False
                self._outbox.close()
                self._group, self._outbox = group, group_outbox
                orders, told = replay.again()
                for number, command in orders:
                    self._outbox.put((number, command), _key(command))
            sentence = restart_sentence(
                cause, checkpoint, self.job, started=replay.started, paused=replay.paused
            )
            group.start()
        except OSError as error:
            self._listener.receive(messages.Warned(f"It could not be started again: {error}."))
            return False
        if self._killed:
            group.kill()
        for event in (messages.Warned(sentence), *told):
            self._jobs.heard(event)
            self._listener.receive(event)
        return True

    def _watch(self) -> None:
        """End ranks that hang."""
        group: RankGroup | None = None
        watch: SilenceWatch | None = None
        patience = self._new_patience()
        answered = sent = self._num_sent
        looked = time.monotonic()
        while not self._over.wait(WATCH_SECONDS):
            if group is not self._group or watch is None:
                group, patience = self._group, self._new_patience()
                watch = SilenceWatch(group.heartbeats, self._plan.num_ranks, self._plan.limits)
                answered = sent = self._num_sent
            assert group is not None
            now = time.monotonic()
            silence = watch.check(now - looked, order_waits=answered != self._num_sent)
            looked = now
            on_disk = patience.on_disk(group, self._plan.num_ranks, watch.stuck_seconds)
            if silence is not None and (
                patience.is_over(group, silence, self._at_stake) if silence.frozen else not on_disk
            ):
                group.kill_silent(silence)
                watch = None
            elif watch.all_alive:
                patience.forget()
                # Alive since the look before: what had been sent by then has arrived.
                answered = sent
            sent = self._num_sent

    @property
    def _at_stake(self) -> float:
        """Return the seconds of training since the last checkpoint."""
        return 0.0 if self._saved_at is None else time.monotonic() - self._saved_at

    def _new_patience(self) -> Patience:
        def tell(rank: int, what: str) -> None:
            sentence = f"{rank_name(rank, self._plan.num_ranks)} {what}. Nothing is lost."
            self._listener.receive(messages.Warned(sentence))

        return Patience(self._plan.limits, tell)


def _is_gone(job: messages.Job) -> bool:
    """Return whether the checkpoint that a training was to begin with is no longer there."""
    return isinstance(job, messages.TrainJob) and job.checkpoint is not None and not job.checkpoint.exists()


def _orders_to(group: RankGroup) -> Outbox[tuple[int, messages.Command]]:
    connection = group.connection
    return Outbox(lambda order: connection.send_bytes(encode_order(order[1], order[0])), "orders")


def _key(command: messages.Command) -> object | None:
    """Return the key under which a newer order replaces one that still waits, None where both count."""
    return ("view", command.view) if isinstance(command, messages.SetView) else setting_key(command)


ONE_RANK = Plan(rank_main, activity_of)


def plan_for(job: messages.Job, devices: RankDevices) -> Plan:
    """Return how a job is done on some devices: a training by one rank on each, all else by one."""
    devices = devices if isinstance(job, messages.TrainJob) else devices.alone()
    return Plan(rank_main, activity_of, devices.num_ranks, devices=devices)


@dataclass(frozen=True, eq=False)
class ReceivedFrame:
    """A frame and its image, [height, width, 3] uint8, which belongs to the receiver."""

    frame: messages.Frame
    image: np.ndarray


class WorkerClient:
    """A worker: one process, or another one in its place when it dies.

    Or a training that runs elsewhere, by a RemotePlan. It is a client of the training's hub, as are the
    remote clients of one that a launcher started. Events are handed to the subscribers on a thread of the
    supervisor's, in order, and kept for `poll`.
    """

    def __init__(self, job: messages.Job, plan: Plan | RemotePlan = ONE_RANK):
        self.state: messages.State = "starting"
        self.step = 0
        # The run's folder is made when the training starts; what is printed before goes here.
        clear_leftovers()
        descriptor, name = tempfile.mkstemp(prefix="splatstudio-", suffix=".log")
        os.close(descriptor)
        self._first_log = Path(name)
        # Also where nobody closes this, as when the studio ends by an error.
        held = hold(self._first_log)
        self._let_go_log = weakref.finalize(self, _remove_empty, self._first_log, held)
        self._run_log = log_of(job.run_dir) if isinstance(job, messages.TrainJob) else None
        self._events: deque[messages.Event] = deque(maxlen=10_000)
        self._frames: dict[int, ReceivedFrame] = {}
        self._views: set[int] = set()  # that somebody has asked for and not dropped
        self._changed = threading.Condition()
        self._subscribers: list[Callable[[messages.Event], None]] = []
        hub = Hub(lambda command: self._supervisor.send(command))
        self._supervisor = plan.supervise(job, lambda: self.log_path, hub)
        self._place = hub.connect(self)

    def start(self) -> WorkerClient:
        """Start the process; it says StateChanged("ready") or ("viewing") when it is there."""
        self._supervisor.start()
        return self

    @property
    def job(self) -> messages.Job:
        """Return the job; after a restart it begins at the checkpoint that was the newest then."""
        return self._supervisor.job

    @property
    def log_path(self) -> Path:
        """Return the file with everything that the worker printed."""
        if self._run_log is not None and self._run_log.exists():
            return self._run_log
        return self._first_log

    @property
    def pid(self) -> int:
        """Return the process id of rank 0."""
        return self._supervisor.pids[0]

    @property
    def pids(self) -> tuple[int, ...]:
        """Return the process ids of the ranks, rank 0 first; empty before `start`."""
        return self._supervisor.pids

    @property
    def alive(self) -> bool:
        """Return whether the worker has been started and has not ended for good."""
        return self._supervisor.alive

    @property
    def will_pause(self) -> bool | None:
        """Return whether a training will stand still once all orders are obeyed.

        None: it was not told to start, or orders that are given while there is no process are not kept for
        the next one.
        """
        return self._supervisor.will_pause

    @property
    def unsaved(self) -> bool:
        """Return whether the worker has something to save, also where its events are late."""
        return self.state in ("training", "paused") or (
            self.state not in ("failed", "ended", "finished") and self._supervisor.trains
        )

    def send(self, command: messages.Command) -> None:
        """Give an order; never waits. After the worker's end it has no effect."""
        if isinstance(command, messages.SetView):
            with self._changed:
                self._views.add(command.view)
        self._place.send(command)

    def subscribe(self, subscriber: Callable[[messages.Event], None]) -> None:
        """Call `subscriber` with every event from now on; it must return quickly."""
        self._subscribers.append(subscriber)

    def poll(self, timeout: float = 0.0) -> list[messages.Event]:
        """Return the events since the last poll, waiting up to `timeout` seconds for the first."""
        with self._changed:
            self._changed.wait_for(lambda: self._events, timeout)
            events = list(self._events)
            self._events.clear()
            return events

    def wait_for_frame(self, view: int, seq: int, timeout: float) -> ReceivedFrame | None:
        """Return the frame that answers SetView `seq` or a later one; None when it does not come in time."""

        def answer() -> ReceivedFrame | None:
            received = self._frames.get(view)
            return received if received is not None and received.frame.seq >= seq else None

        with self._changed:
            self._changed.wait_for(lambda: answer() or self.state in ("failed", "ended"), timeout)
            return answer()

    def drop_view(self, view: int) -> None:
        """Forget a view here and in the worker."""
        self.send(messages.DropView(view))
        with self._changed:
            self._views.discard(view)
            self._frames.pop(view, None)

    def close(self, timeout: float = 60.0) -> None:
        """Let the worker save and leave; kill it after `timeout` seconds, a few where nothing is unsaved."""
        unsaved = self.unsaved
        self.send(messages.Close())
        self._supervisor.join(timeout if unsaved else min(timeout, LOADING_PATIENCE_SECONDS))
        if self.alive:
            self._supervisor.kill(quietly=not unsaved)
            self._supervisor.join(10.0)
        self._forget_first_log(failed=self.state == "failed")

    def kill(self, *, quietly: bool = False) -> None:
        """End the worker at once; unsaved steps are lost. `quietly` where that is what was asked for."""
        failed = self.state == "failed"
        self._supervisor.kill(quietly=quietly)
        self._supervisor.join(10.0)
        self._forget_first_log(failed=failed)

    def _forget_first_log(self, *, failed: bool) -> None:
        """Remove what was printed before there was a run, unless it tells of a failure."""
        told_of = failed and self.log_path == self._first_log
        if not self.alive and not (told_of and self._first_log.exists() and self._first_log.stat().st_size):
            self._let_go_log()
            self._first_log.unlink(missing_ok=True)
        elif not self.alive:
            keep(self._first_log)

    def take_frame(self, frame: messages.Frame, image: np.ndarray) -> None:
        """Keep the newest frame of each view; for the hub."""
        with self._changed:
            if frame.view in self._views:  # or nobody looks any more
                self._frames[frame.view] = ReceivedFrame(frame, image)
                self._changed.notify_all()

    def receive(self, event: messages.Event) -> None:
        """Follow an event and hand it out; for the hub."""
        if isinstance(event, messages.StateChanged):
            self.state = event.state
        elif isinstance(
            event,
            (messages.Progress, messages.Started, messages.ModelLoaded, messages.Saved, messages.Finished),
        ):
            self.step = event.step or 0
        elif isinstance(event, messages.Failed):
            self.state, self.step = "failed", event.step
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception:  # it runs on the supervisor's thread, which must live to hear the worker
                log.exception("a listener failed with %s", type(event).__name__)


def _remove_empty(file: Path, held: int) -> None:
    os.close(held)
    with contextlib.suppress(OSError):  # it is gone already
        if file.stat().st_size == 0:
            file.unlink()
