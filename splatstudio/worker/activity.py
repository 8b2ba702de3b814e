"""What a worker does of its job: the interface of a training and of a finished model on view."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from splatstudio.model import Model
from splatstudio.worker.frames import ShownModel
from splatstudio.worker.messages import Command, Event


@dataclass(frozen=True)
class Desk:
    """What an activity is given by its worker."""

    emit: Callable[[Event], None]
    publish: Callable[[ShownModel], None]
    log_into: Callable[[Path], None]
    # Called now and then within a long task, such as between the images of an evaluation: orders that can be
    # obeyed there are; it raises EvaluationAbandoned where one cannot wait.
    breathe: Callable[[], None]
    rank: int = 0
    # Called before what may take much longer than a step: a checkpoint on a slow disk.
    saving: Callable[[], None] = lambda: None


class Activity(Protocol):
    """Something with steps, orders about it, and an end. All is called on the worker's main thread."""

    def begin(self) -> None:
        """Do what comes before the first order."""
        ...

    @property
    def running(self) -> bool:
        """Say whether there is a next step."""
        ...

    @property
    def step(self) -> int:
        """Return the number of steps done."""
        ...

    def model_copy(self) -> Model | None:
        """Return the model as it is now, for a task beside the steps; None while there is none."""
        ...

    def execute(self, command: Command) -> None:
        """Carry out one order."""
        ...

    def advance(self) -> None:
        """Do the next step."""
        ...

    def idle(self) -> None:
        """Look after what goes on in the background; called now and then while there is no step to do."""
        ...

    def close(self) -> None:
        """Save what is unsaved and let everything go."""
        ...

    def rescue(self, error: Exception) -> None:
        """Save what can be saved before `error` ends the worker."""
        ...
