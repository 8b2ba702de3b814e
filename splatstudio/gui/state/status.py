"""What the page knows of the training, how the worker's events change it, and what is told of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from splatstudio.gui.state.setting_names import setting_text
from splatstudio.runtime.messages import (
    Evaluated,
    Event,
    Failed,
    Finished,
    ModelLoaded,
    PlateauLeft,
    PlateauReached,
    Progress,
    Saved,
    SettingChanged,
    Started,
    State,
    StateChanged,
    Warned,
)
from splatstudio.runtime.sentences import plateau_advice, plateau_words, stopped_sentence


@dataclass(frozen=True)
class Status:
    """What the page shows of the training; replaced as a whole, so that a reader never sees half of it."""

    state: State = "starting"
    step: int = 0
    total_steps: int = 0
    num_gaussians: int | None = None
    steps_per_second: float | None = None
    eta_seconds: float | None = None
    loss: float | None = None
    test_psnr: float | None = None
    message: str = ""  # why it failed; empty otherwise
    has_model: bool = False
    flat: PlateauReached | None = None  # where the test score stands still, and nobody has stopped for that

    def rank_rows(self, num_ranks: int) -> tuple[RankRow, ...]:
        """Return the figures of each rank: all step together, and each has a nearly even share."""
        if self.num_gaussians is None:
            return ()
        rate = self.steps_per_second
        share = self.num_gaussians // max(num_ranks, 1)
        return (RankRow(share, 1.0 / rate if rate else None),) * num_ranks


@dataclass(frozen=True)
class RankRow:
    """What one process of the training has to show; None: not known."""

    num_gaussians: int | None
    step_seconds: float | None
    wait_seconds: float | None = None  # of `step_seconds`, spent waiting for other ranks


@dataclass(frozen=True)
class Notice:
    """Something to tell everybody who watches."""

    title: str
    text: str
    bad: bool = False


@dataclass(frozen=True)
class Choice:
    """What the primary button offers now."""

    label: str
    enabled: bool = True


def followed(status: Status, event: Event) -> Status:
    """Return the status after an event."""
    if isinstance(event, StateChanged):
        rate = status.steps_per_second if event.state == "training" else None
        # With the worker goes the model that it showed.
        has_model = status.has_model and event.state != "ended"
        return replace(
            status, state=event.state, steps_per_second=rate, eta_seconds=None, has_model=has_model
        )
    if isinstance(event, ModelLoaded):
        return replace(status, step=event.step or 0, num_gaussians=event.num_gaussians, has_model=True)
    if isinstance(event, Started):
        # From a checkpoint of before it may never be so.
        flat = status.flat if status.flat is not None and status.flat.step <= event.step else None
        return replace(status, step=event.step, total_steps=event.total_steps, flat=flat)
    if isinstance(event, Progress):
        still = status.state == "paused"  # the step that it was at may be told afterwards
        return replace(
            status,
            step=event.step,
            total_steps=event.total_steps,
            num_gaussians=event.num_gaussians,
            steps_per_second=None if still else event.steps_per_second,
            eta_seconds=None if still else event.eta_seconds,
            loss=event.loss,
        )
    if isinstance(event, SettingChanged) and event.path == "steps":
        return replace(status, total_steps=event.value)
    if isinstance(event, Evaluated):
        return replace(status, test_psnr=event.psnr)
    if isinstance(event, PlateauReached):
        return replace(status, flat=None if event.stops else event)
    if isinstance(event, PlateauLeft):
        return replace(status, flat=None)
    if isinstance(event, Finished):
        return replace(status, step=event.step, flat=None)
    if isinstance(event, Failed):
        return replace(status, state="failed", message=event.sentence, has_model=False)
    return status


def choice_of(status: Status, resume_step: int | None, untrained: bool, will_pause: bool | None) -> Choice:
    """Return what the primary button offers.

    `resume_step` is where a run on the disk can be resumed. `untrained`: a model is on view before the
    training was ever started. `will_pause`: whether a training that is being started again will stand still
    then; None for all others.
    """
    if will_pause is not None:
        return Choice("Resume" if will_pause else "Pause")
    if status.state == "training":
        return Choice("Pause")
    if status.state in ("starting", "loading"):
        return Choice("Starting …", enabled=False)
    if status.state == "restarting":
        return Choice("Restarting …", enabled=False)
    if status.state == "paused" and 0 < status.total_steps <= status.step:
        return Choice("Save again")  # the disk was full at the last step
    if status.state == "paused" or (status.state == "finished" and status.step < status.total_steps):
        return Choice("Resume")
    if status.state == "finished":
        return Choice("All steps done", enabled=False)
    if resume_step is not None:
        return Choice(f"Resume from step {resume_step:,}")
    if status.state == "viewing" and not untrained:
        return Choice("All steps done", enabled=False)
    return Choice("Start training")


def notice_of(event: Event) -> Notice | None:
    """Return what to tell the user about an event, None where the page shows it anyway."""
    if isinstance(event, Saved):
        return Notice(f"Saved step {event.step:,}", str(event.path))
    if isinstance(event, Finished) and event.completed:
        return Notice("Training finished", f"All {event.step:,} steps are done.")
    if isinstance(event, Finished):
        return Notice("Training stopped", f"At step {event.step:,}; Resume goes on from there.")
    if isinstance(event, PlateauReached) and event.stops:
        return Notice("The test score is flat", stopped_sentence(event))
    if isinstance(event, PlateauReached):
        sentences = (f"{plateau_words(event)}.", plateau_advice(event), "The dock has a button to stop here.")
        return Notice("The test score is flat", " ".join(filter(None, sentences)))
    if isinstance(event, SettingChanged):
        return Notice("Changed", f"{setting_text(event.path, event.value)} from step {event.step + 1:,} on.")
    if isinstance(event, Warned):
        return Notice("Please note", event.sentence, bad=True)
    if isinstance(event, Failed):
        return Notice("Failed", event.sentence, bad=True)
    return None
