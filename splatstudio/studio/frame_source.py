"""Where the pictures of the streams come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from splatstudio.camera import Camera
from splatstudio.worker.client import ReceivedFrame
from splatstudio.worker.messages import ViewOptions


@dataclass(frozen=True)
class ModelState:
    """What of the model matters to a stream: whether there is one, its step, and whether it trains now."""

    step: int | None
    training: bool


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
