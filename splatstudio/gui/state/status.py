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
    match event:
        case StateChanged(state=state):
            rate = status.steps_per_second if state == "training" else None
            # With the worker goes the model that it showed.
            has_model = status.has_model and state != "ended"
            return replace(status, state=state, steps_per_second=rate, eta_seconds=None, has_model=has_model)
        case ModelLoaded(step=step, num_gaussians=num_gaussians):
            return replace(status, step=step or 0, num_gaussians=num_gaussians, has_model=True)
        case Started(step=step, total_steps=total_steps):
            # From a checkpoint of before it may never be so.
            flat = status.flat if status.flat is not None and status.flat.step <= step else None
            return replace(status, step=step, total_steps=total_steps, flat=flat)
        case Progress():
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
        case SettingChanged(path="steps", value=value):
            return replace(status, total_steps=value)
        case Evaluated(psnr=psnr):
            return replace(status, test_psnr=psnr)
        case PlateauReached(stops=stops):
            return replace(status, flat=None if stops else event)
        case PlateauLeft():
            return replace(status, flat=None)
        case Finished(step=step):
            return replace(status, step=step, flat=None)
        case Failed(sentence=sentence):
            return replace(status, state="failed", message=sentence, has_model=False)
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
    match event:
        case Saved(step=step, path=path):
            return Notice(f"Saved step {step:,}", str(path))
        case Finished(step=step, completed=True):
            return Notice("Training finished", f"All {step:,} steps are done.")
        case Finished(step=step):
            return Notice("Training stopped", f"At step {step:,}; Resume goes on from there.")
        case PlateauReached(stops=True):
            return Notice("The test score is flat", stopped_sentence(event))
        case PlateauReached():
            parts = (f"{plateau_words(event)}.", plateau_advice(event), "The dock has a button to stop here.")
            return Notice("The test score is flat", " ".join(filter(None, parts)))
        case SettingChanged(step=step, path=path, value=value):
            return Notice("Changed", f"{setting_text(path, value)} from step {step + 1:,} on.")
        case Warned(sentence=sentence):
            return Notice("Please note", sentence, bad=True)
        case Failed(sentence=sentence):
            return Notice("Failed", sentence, bad=True)
    return None
