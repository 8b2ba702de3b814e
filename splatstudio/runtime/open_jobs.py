"""The client's list of the worker's long tasks: each has an end, also when the worker dies before."""

from __future__ import annotations

import threading
from collections.abc import Container
from pathlib import Path

from splatstudio.files.durable import remove_partial
from splatstudio.runtime.jobs import output_of
from splatstudio.runtime.messages import Command, Event, JobCancelled, JobCommand, JobDone, JobFailed


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
