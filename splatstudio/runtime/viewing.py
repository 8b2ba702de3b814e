"""A finished model on view: it can be looked at and exported."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from splatstudio.models.model import Model, load_model
from splatstudio.runtime.activity import WorkerContext
from splatstudio.runtime.messages import Command, StateChanged, ViewJob, ViewRequest, Warned
from splatstudio.runtime.training_news import model_loaded
from splatstudio.runtime.view_renderer import ShownModel

log = logging.getLogger("splatstudio.runtime")


class Viewing:
    """The model of a ViewJob, with the interface of a Training that never runs."""

    running = False
    shared_views = None  # one process shows a finished model

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
        model = load_model(self._job.model_path)
        if self._job.frame is not None:
            model = model.in_frame(np.array(self._job.frame))
        self._model = model
        self._publish(ShownModel(model.gaussians, model.options, self.step))
        self._emit(model_loaded(model))
        self._emit(StateChanged("viewing"))

    def execute(self, command: Command) -> None:
        """Answer with a Warned: what a finished model can do are jobs."""
        log.info("not done, as there is no training here: %s", type(command).__name__)
        self._emit(Warned("A finished model can be looked at, rendered and exported, not trained."))

    def model_copy(self) -> Model | None:
        """Return the model for a job: nothing changes it, so that it needs no copy."""
        return self._model

    def gather_views(self, requests: Sequence[ViewRequest]) -> list[ShownModel]:
        """Never called: one process shows a finished model."""
        raise AssertionError("a finished model lies on one rank")

    def advance(self) -> None:
        """Never called: a finished model has no next step."""
        raise AssertionError("a finished model has no next step")

    def idle(self) -> None:
        """Do nothing: nothing goes on in the background."""

    def close(self) -> None:
        """Do nothing: nothing is unsaved."""

    def rescue(self, error: Exception) -> None:
        """Do nothing: a finished model is on the disk already."""
