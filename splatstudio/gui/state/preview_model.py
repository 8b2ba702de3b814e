"""Another model in the view than the training's, or beside it: its worker, how it comes and how it goes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from splatstudio.files.path_words import path_words
from splatstudio.gui.state.status import Notice, notice_of
from splatstudio.runtime import messages
from splatstudio.runtime.supervisor import Plan, WorkerClient

log = logging.getLogger(__name__)


def model_of(job: messages.Job) -> Path | None:
    """Return the model that a job only shows, None where it trains one."""
    return job.model_path if isinstance(job, messages.ViewJob) else None


class PreviewModel:
    """Another model in the view, or beside it: a second worker that only shows it, at most one.

    Methods may be called from any thread.
    """

    def __init__(self, notify: Callable[[Notice], None]):
        self.on_change: Callable[[], None] = lambda: None  # every picture is of another model now
        self.on_export: Callable[[messages.Exported], None] = lambda event: None  # of the other model
        self._notify = notify
        self._lock = threading.RLock()
        self._client: WorkerClient | None = None
        self.loaded: messages.ModelLoaded | None = None  # what is known of it, once it has been read

    @property
    def path(self) -> Path | None:
        """Return which model is in the view, or is about to be; None: that of the training."""
        return None if (client := self._client) is None else model_of(client.job)

    @property
    def worker(self) -> WorkerClient | None:
        """Return whose pictures are shown; None: the training's, also while the model is still being read."""
        return self._client if self.loaded is not None else None

    @property
    def shown(self) -> tuple[WorkerClient, messages.ModelLoaded] | None:
        """Return `worker` and `loaded` of one moment, None while there is no other model."""
        with self._lock:
            client, loaded = self._client, self.loaded
        return None if client is None or loaded is None else (client, loaded)

    def show(self, job: messages.ViewJob, plan: Plan) -> None:
        """Bring a model into the view as soon as it has been read; ValueError when that cannot begin."""
        before = self._client, self.loaded
        try:
            client = WorkerClient(job, plan)
            client.subscribe(lambda event: self._follow(client, event))
            with self._lock:
                # Known before it starts: the events of another one are dropped.
                before, self._client, self.loaded = (self._client, self.loaded), client, None
            client.start()
        except OSError as error:
            log.exception("no worker for a model beside the training")
            with self._lock:
                self._client, self.loaded = before
            sentence = f"{path_words(job.model_path)} cannot be shown: {error}. The training is not touched."
            raise ValueError(sentence) from error
        _close_later(before[0])

    def leave(self) -> None:
        """Bring the training's own model back into the view."""
        old = self._take_away()
        if old is not None:
            self.on_change()
            _close_later(old)

    def end(self, *, at_once: bool = False) -> None:
        """End the worker, where there is one, and wait for it."""
        old = self._take_away()
        if old is not None:
            old.kill() if at_once else old.close()

    def _take_away(self) -> WorkerClient | None:
        with self._lock:
            old, self._client, self.loaded = self._client, None, None
        return old

    def _follow(self, client: WorkerClient, event: messages.Event) -> None:
        with self._lock:
            if client is not self._client:
                return
            if isinstance(event, messages.ModelLoaded):
                self.loaded = event
        if isinstance(event, messages.Failed):
            self._notify(Notice("Not opened", f"{event.sentence} The training is not touched.", bad=True))
            self.leave()
        elif isinstance(event, messages.ModelLoaded):
            self.on_change()
        elif isinstance(event, messages.Exported):
            self.on_export(event)
        elif isinstance(event, messages.Warned) and (notice := notice_of(event)) is not None:
            self._notify(notice)


def _close_later(client: WorkerClient | None) -> None:
    if client is not None:
        # It may be one of the client's own threads that asks for it.
        threading.Thread(target=client.close, name="preview-ends", daemon=True).start()
