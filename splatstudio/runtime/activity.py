"""What a worker does of its job: the interface of a training and of a finished model on view."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from splatstudio.distributed import ALONE, Ranks
from splatstudio.models.model import Model
from splatstudio.runtime.control import Turn
from splatstudio.runtime.frames import ShownModel
from splatstudio.runtime.looks import ViewRequest
from splatstudio.runtime.messages import Command, Event
from splatstudio.runtime.shared_frames import SharedFrames


@dataclass(frozen=True)
class WorkerContext:
    """What an activity is given by its worker."""

    emit: Callable[[Event], None]
    publish: Callable[[ShownModel], None]
    log_into: Callable[[Path], None]
    # Called now and then within a long task, such as between the images of an evaluation: orders that can be
    # obeyed there are; it raises EvaluationAbandoned where one cannot wait.
    breathe: Callable[[], None]
    rank: int = 0
    # The processes that do this job together; known when there is something to do.
    ranks: Callable[[], Ranks] = lambda: ALONE
    # Rank 0's way to tell the others what all do next; where there are no others, it does nothing.
    tell: Callable[[Turn, bytes], None] = lambda turn, body: None
    # Called before what may take much longer than a step: a checkpoint on a slow disk.
    saving: Callable[[], None] = lambda: None
    # Called now and then in a step that may take long: it shows that the step gets on.
    alive: Callable[[], None] = lambda: None


class Part(Protocol):
    """What every rank does of a job: steps, orders, an end. All is called on the process's main thread."""

    def begin(self) -> None:
        """Do what comes before the first order."""
        ...

    @property
    def step(self) -> int:
        """Return the number of steps done."""
        ...

    def execute(self, command: Command) -> None:
        """Carry out one order."""
        ...

    def advance(self) -> None:
        """Do the next step."""
        ...

    def close(self) -> None:
        """Save what is unsaved and let everything go."""
        ...


class SharedPart(Part, Protocol):
    """What a rank other than 0 does: it follows."""

    def take_part(self, turn: Turn, body: bytes) -> None:
        """Do this rank's part of what rank 0 told all of them."""
        ...


class Activity(Part, Protocol):
    """What rank 0, often the only one, does: it also decides and answers."""

    @property
    def running(self) -> bool:
        """Say whether there is a next step."""
        ...

    def model_copy(self) -> Model | None:
        """Return the model as it is now, for a task beside the steps; None while there is none."""
        ...

    def shared_frames(self) -> SharedFrames | None:
        """Return what draws pictures of a model that lies on several ranks; None where one has all of it."""
        ...

    def seen_by(self, looks: Sequence[ViewRequest]) -> list[ShownModel]:
        """Return what each of `looks` shows of a model that lies on several ranks."""
        ...

    def idle(self) -> None:
        """Look after what goes on in the background; called now and then while there is no step to do."""
        ...

    def rescue(self, error: Exception) -> None:
        """Save what can be saved before `error` ends the worker."""
        ...
