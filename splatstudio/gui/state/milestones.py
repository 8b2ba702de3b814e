"""The milestones of a good training for the Log tab: growth, scores, finer photographs, colors by view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from splatstudio.gui.state.project import Project
from splatstudio.gui.state.status import Notice, Status
from splatstudio.runtime.messages import Densified, Evaluated, Event, Progress, Started, StateChanged
from splatstudio.train.data.resolution import divisor_at, sh_degree_at

NOTABLE_GROWTH = 1.5  # times the number of splats that was told last, or less than one over it
COARSENESSES = (1, 2, 3, 4, 6, 8)  # by which the sides of photographs are divided, as they are told


class Trained(Protocol):
    """What is known of the training that is followed."""

    project: Project
    status: Status


class Milestones:
    """Follows the worker's events, and notes what is worth a line; each thing once."""

    def __init__(self, trained: Trained, note: Callable[[Notice], None]):
        self._trained = trained
        self._note = note
        self._num_train = 0
        self._told_splats = 0
        self._full = False  # whether it was told that the limit on the splats is reached
        self._degree = 0
        self._coarseness = 1

    def follow(self, event: Event) -> None:
        """Take in an event of the worker, after the status has."""
        if isinstance(event, Started):
            self._begin(event)
        elif isinstance(event, Densified):
            self._grow(event)
        elif isinstance(event, Progress):
            self._refine(event.step)
        elif isinstance(event, Evaluated) and self._trained.status.state == "training":
            scores = f"{event.psnr:.2f} dB, SSIM {event.ssim:.4f}"
            self._tell(event.step, f"test PSNR {scores}")
        elif event == StateChanged("paused"):
            self._tell(self._trained.status.step, "paused")

    def _tell(self, step: int, what: str) -> None:
        self._note(Notice(f"Step {step:,}: {what}", ""))

    def _begin(self, event: Started) -> None:
        config = self._trained.project.config
        self._num_train, self._told_splats, self._full = event.num_train, event.num_gaussians, False
        self._degree = sh_degree_at(event.step, config, event.num_train)
        self._coarseness = _coarseness(divisor_at(event.step, config))
        verb = "goes on" if event.step else "begins"
        photos = f"{event.num_train:,} photos to learn from, {event.num_test:,} for the test"
        self._tell(event.step, f"training {verb} with {event.num_gaussians:,} splats; {photos}")
        if self._coarseness > 1:
            self._tell(event.step, f"photos at about 1/{self._coarseness} of their size at first")

    def _grow(self, event: Densified) -> None:
        told = self._told_splats
        if event.change.opacities_reset:
            self._tell(event.step, "opacities lowered, so that what is not needed can go")
        if not told / NOTABLE_GROWTH < event.num_gaussians < told * NOTABLE_GROWTH:
            verb = "grown" if event.num_gaussians > told else "thinned"
            self._tell(event.step, f"{verb} from {told:,} to {event.num_gaussians:,} splats")
            self._told_splats = event.num_gaussians
        if event.change.capped and not self._full:
            self._full = True
            self._tell(event.step, f"the limit on the number of splats is reached, {event.num_gaussians:,}")

    def _refine(self, step: int) -> None:
        config = self._trained.project.config
        coarseness = _coarseness(divisor_at(step, config))
        if coarseness < self._coarseness:
            size = "in full size" if coarseness == 1 else f"at about 1/{coarseness} of their size"
            self._tell(step, f"photos {size} from here on")
        self._coarseness = coarseness
        degree = sh_degree_at(step, config, self._num_train)
        if degree > self._degree:
            self._tell(step, f"colors depend more on the view from here on (SH degree {degree})")
        self._degree = degree


def _coarseness(divisor: float) -> int:
    """Return the nearest of COARSENESSES that is not below `divisor`."""
    return next((each for each in COARSENESSES if divisor <= each), COARSENESSES[-1])
