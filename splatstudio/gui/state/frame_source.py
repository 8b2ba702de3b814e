"""Where the pictures of the streams come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from splatstudio.cameras.camera import Camera
from splatstudio.runtime.client import ReceivedFrame
from splatstudio.runtime.messages import ViewOptions

FRAME_SECONDS = 10.0  # a worker that needs longer has another problem


@dataclass(frozen=True)
class ModelState:
    """What of the model matters to a stream: whether there is one, its step, and whether it trains now.

    `anew`: there is none, and the one that was seen last is of a run that was left.
    """

    step: int | None
    training: bool
    anew: bool = False


class FrameSource(Protocol):
    """Where pictures come from. The streams know nothing else of the worker."""

    def model_state(self) -> ModelState:
        """Return the state of the model; `step` None: there is nothing to see yet."""
        ...

    def render(self, view: int, camera: Camera, options: ViewOptions) -> ReceivedFrame | None:
        """Return a picture of the model, None when there was none within FRAME_SECONDS."""
        ...

    def forget(self, view: int) -> None:
        """Note that nobody looks at this view any more."""
        ...
