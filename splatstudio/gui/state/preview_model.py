"""Another model in the view while a training goes on: a second worker that only shows it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from splatstudio.gui.state.status import Notice
from splatstudio.runtime.client import WorkerClient
from splatstudio.runtime.messages import Event, Failed, ModelLoaded, ViewJob
from splatstudio.runtime.supervisor import Plan

log = logging.getLogger(__name__)


class Beside:
    """At most one model beside that of the training. Methods may be called from any thread."""

    def __init__(self, notify: Callable[[Notice], None]):
        self.redraw: Callable[[], None] = lambda: None  # every picture, as it is of another model now
        self._notify = notify
        self._lock = threading.RLock()
        self._client: WorkerClient | None = None
        self._loaded = False

    @property
    def path(self) -> Path | None:
        """Return which model is in the view, or is about to be; None: that of the training."""
        client = self._client
        return client.job.model_path if client is not None and isinstance(client.job, ViewJob) else None

    @property
    def worker(self) -> WorkerClient | None:
        """Return whose pictures are shown; None: the training's, also while the model is still being read."""
        return self._client if self._loaded else None

    def show(self, job: ViewJob, plan: Plan) -> None:
        """Bring a model into the view as soon as it has been read; ValueError when that cannot begin."""
        before = self._client, self._loaded
        try:
            client = WorkerClient(job, plan)
            client.subscribe(lambda event: self._follow(client, event))
            with self._lock:
                before = self._client, self._loaded
                # Known before it starts: the events of another one are dropped.
                self._client, self._loaded = client, False
            client.start()
        except OSError as error:
            log.exception("no worker for a model beside the training")
            with self._lock:
                self._client, self._loaded = before
            raise ValueError(
                f"{job.model_path} cannot be shown: {error}. The training is not touched."
            ) from error
        self._end(before[0])

    def leave(self) -> None:
        """Bring the training's own model back into the view."""
        with self._lock:
            old, self._client, self._loaded = self._client, None, False
        if old is not None:
            self.redraw()
            self._end(old)

    def close(self) -> None:
        """End the worker, where there is one, and wait for it."""
        with self._lock:
            old, self._client, self._loaded = self._client, None, False
        if old is not None:
            old.close()

    def kill(self) -> None:
        """End the worker at once, where there is one."""
        with self._lock:
            old, self._client, self._loaded = self._client, None, False
        if old is not None:
            old.kill()

    def _follow(self, client: WorkerClient, event: Event) -> None:
        with self._lock:
            if client is not self._client:
                return
            if isinstance(event, ModelLoaded):
                self._loaded = True
            elif not isinstance(event, Failed):
                return
        if isinstance(event, Failed):
            self._notify(Notice("Not opened", f"{event.sentence} The training is not touched.", bad=True))
            self.leave()
        else:
            self.redraw()

    def _end(self, client: WorkerClient | None) -> None:
        if client is not None:
            # It may be one of the client's own threads that asks for it.
            threading.Thread(target=client.close, name="beside-ends", daemon=True).start()
