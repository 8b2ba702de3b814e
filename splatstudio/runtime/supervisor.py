"""Keeps a job going: attends to its processes, sees them die or hang, and puts others in their place."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from splatstudio.checkpoints.checkpoint import newest_checkpoint
from splatstudio.distributed.rank_devices import RankDevices
from splatstudio.files.durable import remove_partial
from splatstudio.runtime.channel.codec import decode, encode_order
from splatstudio.runtime.channel.hub import HubClient
from splatstudio.runtime.channel.mailbox import Outbox
from splatstudio.runtime.command_replay import CommandReplay
from splatstudio.runtime.heartbeat import Limits, Silence, SilenceWatch
from splatstudio.runtime.messages import (
    Close,
    Command,
    DropView,
    Event,
    Failed,
    Finished,
    Frame,
    Job,
    JobCancelled,
    JobCommand,
    JobDone,
    JobFailed,
    PausesAt,
    Receipt,
    ReturnSlot,
    SetView,
    Started,
    StateChanged,
    TrainJob,
    Warned,
)
from splatstudio.runtime.rank import setting_key
from splatstudio.runtime.rank_group import RankGroup, RankMain
from splatstudio.runtime.root_cause import Cause, root_cause
from splatstudio.runtime.sentences import failure_sentence, loss_of_view_sentence, restart_sentence
from splatstudio.runtime.tasks import output_of

WATCH_SECONDS = 0.25  # between two looks at the heartbeats
MAX_RESTARTS = 3
WINDOW_SECONDS = 600.0


@dataclass(frozen=True)
class Plan:
    """What to run: `main` in each of `num_ranks` processes; `activity` makes what they do of a job."""

    main: RankMain
    activity: Any
    num_ranks: int = 1
    limits: Limits = field(default_factory=Limits)
    devices: RankDevices | None = None  # one a rank; None: the fastest that there is

    def supervise(self, job: Job, log_path: Callable[[], Path], listener: HubClient) -> Supervisor:
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

    def refusal(self, cause: Cause) -> str | None:
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


class OpenJobs:
    """The jobs that were ordered and have not ended. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._outputs: dict[int, Path] = {}
        self._lock = threading.Lock()

    def sent(self, command: Command) -> None:
        """Note an order that goes to the worker."""
        if isinstance(command, JobCommand):
            with self._lock:
                self._outputs[command.job] = output_of(command)

    def heard(self, event: Event) -> None:
        """Note an event that has come from the worker."""
        if isinstance(event, (JobDone, JobCancelled, JobFailed)):
            with self._lock:
                self._outputs.pop(event.job, None)

    def abandon(self, pid: int | None, waiting: Container[int] = ()) -> list[JobFailed]:
        """Remove what the dead process `pid` left half-written; return an end for each of its jobs.

        Those that are `waiting`, for another process, go on doing so.
        """
        with self._lock:
            left = {job: output for job, output in self._outputs.items() if job not in waiting}
            self._outputs = {job: output for job, output in self._outputs.items() if job in waiting}
        failed: list[JobFailed] = []
        for job, output in left.items():
            remains = "nothing of it was kept"
            try:
                remove_partial(output, pid)
            except OSError as error:
                remains = f"what is left in {output.parent} cannot be removed ({error.strerror})"
            sentence = (
                f"The background process ended before {output} was complete; {remains}. Start it again."
            )
            failed.append(JobFailed(job, sentence))
        return failed


class Supervisor:
    """The groups of processes of one job, one after the other, until it ends for good."""

    def __init__(self, plan: Plan, job: Job, log_path: Callable[[], Path], listener: HubClient):
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

    def send(self, command: Command) -> None:
        """Give an order; never waits.

        One that a process dies before obeying is for the next process; after the end none has an effect.
        """
        with self._sending:
            ended = self._ended
            if not ended:
                number = self._replay.sent(command)
                self._jobs.sent(command)
                if isinstance(command, Close):
                    self._closing = True
                if not isinstance(command, (ReturnSlot, DropView)):
                    self._num_sent += 1
                self._outbox.put((number, command), _key(command))
        if ended and isinstance(command, JobCommand):
            self._listener.receive(JobFailed(command.job, "The background process has ended."))

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
            self._attend(self._group)
            pids, ends = self._group.pids, self._group.finish()
            self._end_jobs(pids[0], self._replay.waiting_jobs)
            cause = root_cause(ends, self._plan.num_ranks)
            clean = all(end.exitcode == 0 and end.silence is None for end in ends)
            last_words = self._last_words(cause, clean)
            if last_words:
                break
        with self._sending:
            self._ended = True
        self._end_jobs(pids[0], ())
        for event in last_words:
            self._listener.receive(event)
        self._over.set()
        self._outbox.close()

    def _last_words(self, cause: Cause, clean: bool) -> list[Event]:
        """Return how it ended for good, after the end of a group; nothing when another one goes on."""
        if self._closing and (clean or self._quiet):
            return [StateChanged("ended")]
        if self._finished:
            # The training had its last word; only the view of its result is gone.
            return [Warned(loss_of_view_sentence(cause, self.job)), StateChanged("ended")]
        # Who ended it by SIGTERM, at which it saves and leaves, does not want it back.
        refusal = "" if clean or self._closing else self._policy.refusal(cause)
        if refusal is None and self._restart(cause):
            return []
        why = " ".join(filter(None, (cause.sentence, refusal)))
        sentence = failure_sentence(why, self.job)
        return [Failed(sentence, cause.step, self._log_path(), why, cause.final)]

    def _end_jobs(self, pid: int, waiting: Container[int]) -> None:
        for failed in self._jobs.abandon(pid, waiting):
            self._listener.receive(failed)

    def _attend(self, group: RankGroup) -> None:
        """Hand on the events of a group until one of its ranks has ended."""
        while group.wait():
            try:
                event = decode(group.connection.recv_bytes(), Event)
            except (EOFError, OSError):
                return
            if isinstance(event, Frame):
                image = group.slots.view(event.slot, event.height, event.width).copy()
                self.send(ReturnSlot(event.slot))
                self._listener.take_frame(event, image)
                continue
            self._jobs.heard(event)
            self._replay.heard(event)
            if isinstance(event, (Receipt, PausesAt)):
                continue  # for the replay alone
            if isinstance(event, (Started, Finished)):
                self._finished = isinstance(event, Finished)
            if event == StateChanged("ready") and self._restarting and self._replay.started:
                continue  # it was told to start already
            self._restarting = False
            self._listener.receive(event)

    def _restart(self, cause: Cause) -> bool:
        """Put another group in the place of one that died; return False where that is not possible."""
        self._restarting = True
        self._listener.receive(StateChanged("restarting"))
        checkpoint = newest_checkpoint(self.job.run_dir) if isinstance(self.job, TrainJob) else None
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
            self._listener.receive(Warned(f"It could not be started again: {error}."))
            return False
        if self._killed:
            group.kill()
        for event in (Warned(sentence), *told):
            self._jobs.heard(event)
            self._listener.receive(event)
        return True

    def _watch(self) -> None:
        """End ranks that hang."""
        group: RankGroup | None = None
        watch: SilenceWatch | None = None
        answered = sent = self._num_sent
        looked = time.monotonic()
        while not self._over.wait(WATCH_SECONDS):
            if group is not self._group or watch is None:
                group = self._group
                watch = SilenceWatch(group.heartbeats, self._plan.num_ranks, self._plan.limits)
                answered = sent = self._num_sent
            assert group is not None
            now = time.monotonic()
            silence = watch.check(now - looked, order_waits=answered != self._num_sent)
            looked = now
            if silence is not None and self._hangs(group, silence):
                group.silenced(silence)
                watch = None
            elif watch.all_alive:
                # Alive since the look before: what had been sent by then has arrived.
                answered = sent
            sent = self._num_sent

    def _hangs(self, group: RankGroup, silence: Silence) -> bool:
        busy = silence.frozen and silence.seconds < self._plan.limits.busy
        return not busy or group.stopped(silence.rank)


def _orders_to(group: RankGroup) -> Outbox[tuple[int, Command]]:
    connection = group.connection
    return Outbox(lambda order: connection.send_bytes(encode_order(order[1], order[0])), "orders")


def _key(command: Command) -> object | None:
    """Return the key under which a newer order replaces one that still waits, None where both count."""
    return ("view", command.view) if isinstance(command, SetView) else setting_key(command)
