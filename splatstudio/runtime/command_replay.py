"""What a process that takes another one's place must be told, and what of the other's work has no end."""

from __future__ import annotations

import threading
from collections.abc import Container
from dataclasses import replace
from itertools import count
from pathlib import Path

from splatstudio.files.durable import remove_partial
from splatstudio.runtime import messages
from splatstudio.runtime.root_cause import MEMORY, Cause
from splatstudio.runtime.tasks import output_of
from splatstudio.settings.config import LIMIT

# Of these nothing is known before they are done; the others hold from the moment they are begun with.
HOLD_WHEN_DONE = (messages.UpdateSettings, messages.SetCap, messages.Step)

ROOM_LEFT = 0.8  # of the Gaussians that memory did not hold: the limit on their number afterward


class CommandReplay:
    """The orders that still hold, and those that no process has carried out: they are the next one's.

    What the training is at, as far as the worker has obeyed: whether it was started, stands still, or is to
    at some step; the live settings; the newest view of each browser. Methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._numbers = count(1)
        self._waiting: dict[int, messages.Command] = {}  # by number: sent, and not begun with
        self._begun: dict[int, messages.Command] = {}  # and not done
        self._unwanted: set[int] = set()  # jobs that were cancelled before they began
        self._started = self._paused = self._stopped = False
        self._pause_at: int | None = None
        self._views: dict[int, messages.SetView] = {}
        self._settings: dict[str, messages.SettingValue] = {}
        self._num_gaussians: int | None = None
        self._lowered: messages.SettingChanged | None = None  # a limit that nobody has been told of
        self._lock = threading.Lock()

    @property
    def started(self) -> bool:
        """Return whether the training was told to start."""
        with self._lock:
            return self._started or any(isinstance(order, messages.Start) for order in self._waiting.values())

    @property
    def paused(self) -> bool:
        """Return whether the training was told to stand still, or to end."""
        with self._lock:
            paused = self._paused
            for order in self._waiting.values():
                if isinstance(
                    order, (messages.Start, messages.Pause, messages.Stop, messages.Resume, messages.Step)
                ):
                    paused = isinstance(order, (messages.Pause, messages.Stop))
            return paused

    @property
    def waiting_jobs(self) -> frozenset[int]:
        """Return the long tasks that no process has begun with."""
        with self._lock:
            orders = self._waiting.values()
            return frozenset(order.job for order in orders if isinstance(order, messages.JobCommand))

    def sent(self, command: messages.Command) -> int:
        """Note an order, and return the number under which it goes to the worker; 0 where none is kept."""
        with self._lock:
            if isinstance(command, messages.SetView):
                self._views[command.view] = command
            elif isinstance(command, messages.DropView):
                self._views.pop(command.view, None)
            elif isinstance(command, messages.CancelJob):
                self._unwanted.add(command.job)
            elif not isinstance(command, (messages.ReturnSlot, messages.Close)):
                number = next(self._numbers)
                self._waiting[number] = command
                return number
            return 0

    def heard(self, event: messages.Event) -> None:
        """Note an event that has come from the worker."""
        with self._lock:
            if isinstance(event, messages.Receipt):
                self._take_receipt(event)
            elif isinstance(event, messages.PausesAt):
                self._pause_at = event.step
                self._begun = {
                    number: order
                    for number, order in self._begun.items()
                    if not isinstance(order, messages.Step)
                }
            elif isinstance(event, (messages.Progress, messages.Started)):
                self._num_gaussians = event.num_gaussians
            elif isinstance(event, messages.SettingChanged):
                self._settings[event.path] = event.value
            elif isinstance(event, messages.StateChanged) and event.state in ("paused", "training"):
                # It may have paused by itself: after the last step of a Step, on a full disk.
                self._paused, self._stopped = event.state == "paused", False
            elif isinstance(event, messages.Finished):
                self._paused = True

    def _take_receipt(self, receipt: messages.Receipt) -> None:
        if receipt.done:
            self._begun.pop(receipt.number, None)
            return
        order = self._waiting.get(receipt.number)
        # They are begun with in their order; one that was left out was replaced by a later one.
        self._waiting = {number: order for number, order in self._waiting.items() if number > receipt.number}
        if order is None:
            return
        self._begun[receipt.number] = order
        if isinstance(order, messages.Start):
            self._started, self._pause_at = True, order.pause_at
        if isinstance(order, (messages.Start, messages.Pause, messages.Stop, messages.Resume, messages.Step)):
            self._paused = isinstance(order, (messages.Pause, messages.Stop))
            self._stopped = isinstance(order, messages.Stop)

    def again(self) -> tuple[list[tuple[int, messages.Command]], list[messages.Event]]:
        """Return the orders for a new process by number, and what to tell of those that cannot be obeyed.

        None has begun with anything then: it is to be told where the training was, and what still waits.
        """
        with self._lock:
            told: list[messages.Event] = [] if self._lowered is None else [self._lowered]
            self._lowered = None
            if any(isinstance(order, messages.Evaluate) for order in self._begun.values()):
                told.append(
                    messages.Warned("The evaluation ended with the background process; ask for it again.")
                )
            orders: list[messages.Command] = [messages.Start(self._pause_at)] if self._started else []
            if self._started and self._paused:
                orders.append(messages.Stop() if self._stopped else messages.Pause())
            half_done = [order for order in self._begun.values() if isinstance(order, HOLD_WHEN_DONE)]
            for order in (*half_done, *self._waiting.values()):
                if isinstance(order, messages.Save) and self._started:
                    told.append(
                        messages.Warned("Not saved: the background process ended before it had begun to.")
                    )
                elif isinstance(order, messages.JobCommand) and order.job in self._unwanted:
                    told.append(messages.JobCancelled(order.job))
                else:
                    orders.append(order)
            numbered = [(next(self._numbers), order) for order in orders]
            self._waiting, self._begun = dict(numbered), {}
            self._started = self._paused = self._stopped = False
            self._pause_at = None
            return [*((0, view) for view in self._views.values()), *numbered], told

    def job_again(
        self, job: messages.Job, checkpoint: Path | None, cause: Cause | None = None
    ) -> messages.Job:
        """Return the job of the new process: from `checkpoint` on, with the live settings as they were.

        Where memory was the `cause`, fewer Gaussians are allowed than there were.
        """
        if not isinstance(job, messages.TrainJob):
            return job
        with self._lock:
            if cause is not None and cause.kind == MEMORY:
                limit = self._settings.get(LIMIT, job.config.densify.max_gaussians)
                assert isinstance(limit, int), limit
                limit = max(1, int(min(limit, self._num_gaussians or limit) * ROOM_LEFT))
                self._settings[LIMIT] = limit
                self._lowered = messages.SettingChanged(cause.step, LIMIT, limit)
            # What was set at a start is not told again: it holds as long as nobody changes it.
            settings = tuple({**dict(job.settings), **self._settings}.items())
        return replace(job, checkpoint=checkpoint, settings=settings, attempt=job.attempt + 1)


class OpenJobs:
    """The jobs that were ordered and have not ended. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._outputs: dict[int, Path] = {}
        self._lock = threading.Lock()

    def sent(self, command: messages.Command) -> None:
        """Note an order that goes to the worker."""
        if isinstance(command, messages.JobCommand):
            with self._lock:
                self._outputs[command.job] = output_of(command)

    def heard(self, event: messages.Event) -> None:
        """Note an event that has come from the worker."""
        if isinstance(event, (messages.JobDone, messages.JobCancelled, messages.JobFailed)):
            with self._lock:
                self._outputs.pop(event.job, None)

    def abandon(self, pid: int | None, waiting: Container[int] = ()) -> list[messages.JobFailed]:
        """Remove what the dead process `pid` left half-written; return an end for each of its jobs.

        Those that are `waiting`, for another process, go on doing so.
        """
        with self._lock:
            left = {job: output for job, output in self._outputs.items() if job not in waiting}
            self._outputs = {job: output for job, output in self._outputs.items() if job in waiting}
        failed: list[messages.JobFailed] = []
        for job, output in left.items():
            remains = "nothing of it was kept"
            try:
                remove_partial(output, pid)
            except OSError as error:
                remains = f"what is left in {output.parent} cannot be removed ({error.strerror})"
            sentence = (
                f"The background process ended before {output} was complete; {remains}. Start it again."
            )
            failed.append(messages.JobFailed(job, sentence))
        return failed
