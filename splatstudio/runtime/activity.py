"""What a rank does of its job: the interface of a training and of a finished model on view."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from splatstudio.distributed.ranks import ALONE, Ranks
from splatstudio.models.model import Model, load_model
from splatstudio.runtime.messages import Command, Event, StateChanged, ViewJob, ViewRequest, Warned
from splatstudio.runtime.shared_views import SharedViews
from splatstudio.runtime.training_news import model_loaded
from splatstudio.runtime.view_renderer import ShownModel

log = logging.getLogger("splatstudio.runtime")


def _nothing(*_: object) -> None:
    """Do nothing: what a rank without an outbox does of what is told to clients."""


@dataclass(frozen=True)
class WorkerContext:
    """What an activity is given by its rank; on ranks beside 0 nobody hears what it emits and publishes."""

    emit: Callable[[Event], None] = _nothing
    publish: Callable[[ShownModel], None] = _nothing
    log_into: Callable[[Path], None] = _nothing
    # Called now and then within a long task, such as between the images of an evaluation: orders that can be
    # obeyed there are; it raises EvaluationAbandoned where one cannot wait.
    breathe: Callable[[], None] = _nothing
    # The processes that do this job together; known when there is something to do.
    ranks: Callable[[], Ranks] = lambda: ALONE
    # Rank 0's way to tell the others what all do next; where there are no others, it does nothing.
    tell: Callable[[Command], None] = _nothing
    # Called before what may take much longer than a step: a checkpoint on a slow disk.
    saving: Callable[[], None] = _nothing
    # Called now and then in a step that may take long: it shows that the step gets on.
    alive: Callable[[], None] = _nothing
    rank: int = 0
    launched: bool = False  # by torchrun or Slurm: the ranks may be on several machines


class Activity:
    """What every rank does of a job, on the process's main thread; rank 0 also decides and answers."""

    def begin(self) -> None:
        """Do what comes before the first order."""
        raise NotImplementedError

    @property
    def step(self) -> int:
        """Return the number of steps done."""
        raise NotImplementedError

    @property
    def running(self) -> bool:
        """Return whether there is a next step."""
        return False

    @property
    def complete(self) -> bool:
        """Return whether all steps are done; for rank 0."""
        return False

    def execute(self, command: Command) -> None:
        """Carry out an order, or this rank's part of what rank 0 has all ranks do."""
        raise NotImplementedError

    def advance(self) -> None:
        """Do the next step, where there is one."""
        raise NotImplementedError

    def idle(self) -> None:
        """Look after what goes on in the background; called now and then while there is no step to do."""

    def close(self) -> None:
        """Save what is unsaved and let everything go."""
        raise NotImplementedError

    def rescue(self, error: Exception) -> None:
        """Save what can be saved before `error` ends the worker; for rank 0."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Wait no longer for what other ranks do in the background: one of them has gone; for rank 0."""

    def model_copy(self) -> Model | None:
        """Return the model as it is now, for a task beside the steps; None while there is none."""
        raise NotImplementedError

    @property
    def shared_views(self) -> SharedViews | None:
        """Return what draws pictures of a model that lies on several ranks; None where one has all of it."""
        return None

    def gather_views(self, requests: Sequence[ViewRequest]) -> list[ShownModel]:
        """Return what each request shows of a model that lies on several ranks."""
        raise NotImplementedError


class Viewing(Activity):
    """The model of a ViewJob: one process shows it, and it has no next step."""

    def __init__(self, job: ViewJob, context: WorkerContext):
        self._job = job
        self._emit = context.emit
        self._publish = context.publish
        self._model: Model | None = None

    @property
    def step(self) -> int:
        """Return the training step of the model, 0 where it is not known."""
        return (self._model.step or 0) if self._model else 0

    def begin(self) -> None:
        """Load the model and put it on view; raises ValueError when there is none or it is damaged."""
        self._emit(StateChanged("loading"))
        model = load_model(self._job.model_path, scene=self._job.scene)
        if self._job.frame is not None:
            model = model.in_frame(np.array(self._job.frame))
        self._model = model
        self._publish(ShownModel(model.gaussians, model.options, self.step))
        self._emit(model_loaded(model))
        for note in model.notes:
            self._emit(Warned(f"{note}."))
        self._emit(StateChanged("viewing"))

    def execute(self, command: Command) -> None:
        """Answer with a Warned: what a finished model can do are jobs."""
        log.info("not done, as there is no training here: %s", type(command).__name__)
        self._emit(Warned("A finished model can be looked at, rendered and exported, not trained."))

    def model_copy(self) -> Model | None:
        """Return the model for a job: nothing changes it, so that it needs no copy."""
        return self._model

    def close(self) -> None:
        """Do nothing: nothing is unsaved."""

    def rescue(self, error: Exception) -> None:
        """Do nothing: a finished model is on the disk already."""
