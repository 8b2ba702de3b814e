"""What the page knows of the training, how events change it, what is told, and what settings are called."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from splatstudio.files.path_words import path_words
from splatstudio.runtime import messages
from splatstudio.runtime.sentences import plateau_advice, plateau_words, stopped_sentence

PAUSE = "Pause"  # what the button says of a training

# What the groups of the configuration are called; one that is not listed is called by its name.
GROUPS = {
    "": "Training",
    "optim": "Learning rates",
    "densify": "Densification",
    "exposure": "Exposure of photos",
    "poses": "Places of cameras",
    "sky": "Sky",
    "shapes": "Shapes of splats",
    "dropout": "Splats left out by chance",
    "absgrad": "Densification by absolute gradients",
}

# What a setting is called whose name alone says too little below its heading.
LABELS = {
    "eval_every": "Evaluate every",
    "save_minutes": "Save every, min",
    "keep": "Checkpoints kept",
    "optim.means_lr": "Positions",
    "optim.scales_lr": "Sizes",
    "optim.quats_lr": "Rotations",
    "optim.opacities_lr": "Opacities",
    "optim.sh0_lr": "Base color",
    "optim.shN_lr": "View-dependent color",
    "optim.visible_only": "Visible splats only",
    "densify.enabled": "Add and remove splats",
    "densify.grow_grad": "Growth threshold",
    "densify.prune_opacity": "Remove below opacity",
    "absgrad.grow_grad": "Growth threshold",
    "exposure.stay": "Pull toward none",
    "exposure.grid_smooth": "Smoothness of the grid",
}

# What a setting does, in plainer words than where it is declared, which speaks of tensors.
HELP = {
    "optim.means_lr": "How fast splats move, times the scene's extent. It falls until the last step.",
    "optim.scales_lr": "How fast splats grow and shrink.",
    "optim.quats_lr": "How fast splats turn.",
    "optim.opacities_lr": "How fast splats become opaque or transparent.",
    "optim.sh0_lr": "How fast the base color of splats changes.",
    "optim.shN_lr": "How fast view-dependent color, such as gloss, changes.",
}

# Numbers that stand for no number, and the word for each.
WORDS: dict[str, dict[int, str]] = {
    "eval_every": {-1: "auto", 0: "never"},
    "save_minutes": {0: "never"},
    "keep": {0: "all"},
    "shapes.opacity_weight": {0: "off"},
    "shapes.scale_weight": {0: "off"},
    "shapes.max_scale": {0: "off"},
    "shapes.max_ratio": {0: "off"},
    "shapes.max_thickness": {0: "off"},
    "shapes.min_views": {0: "off"},
    "dropout.rate": {0: "off"},
}


def label_of(path: str) -> str:
    """Return what the setting with the dotted `path` is called below the heading of its group."""
    if path in LABELS:
        return LABELS[path]
    name = path.rpartition(".")[2]
    if name == "lr":
        return "Learning rate"
    words = name.replace("_", " ").replace("ssim", "SSIM").replace("sh ", "SH ")
    words = words.replace("gaussians", "splats")  # as the page calls them everywhere
    return words[:1].upper() + words[1:]


def titled(path: str) -> str:
    """Return what the page calls a setting, with its group where it has one."""
    group = path.rpartition(".")[0]
    return f"{GROUPS.get(group, group)}: {label_of(path)}" if group else label_of(path)


def setting_text(path: str, value: Any) -> str:
    """Return that a setting got this `value`, without a full stop: `Positions changed to 0.00008`."""
    return f"{titled(path)} changed to {WORDS.get(path, {}).get(value) or _written(value)}"


def number_of(path: str, text: str, kind: type[int] | type[float]) -> int | float:
    """Return the number that was typed for a setting, or that a word of its own stands for.

    Raises ValueError, saying what can be typed, when it is neither.
    """
    words = WORDS.get(path, {})
    for number, word in words.items():
        if text.strip().lower() == word:
            return kind(number)
    try:
        return kind(text)
    except ValueError:
        usual = "a number such as 0.001 or 1e-3" if kind is float else "a whole number"
        allowed = " or ".join([usual, *words.values()])
        raise ValueError(f"{label_of(path)} must be {allowed}, not {text!r}") from None


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ", ".join(map(_written, value))
    if isinstance(value, float):
        return format(Decimal(f"{value:g}"), "f")
    return f"{value:,}" if isinstance(value, int) else str(value)


@dataclass(frozen=True)
class Status:
    """What the page shows of the training; replaced as a whole, so that a reader never sees half of it."""

    state: messages.State = "starting"
    step: int = 0
    total_steps: int = 0
    num_gaussians: int | None = None
    steps_per_second: float | None = None
    eta_seconds: float | None = None
    loss: float | None = None
    test_psnr: float | None = None
    message: str = ""  # why it failed; empty otherwise
    has_model: bool = False
    flat: messages.PlateauReached | None = (
        None  # where the test score stands still, and nobody has stopped for that
    )


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


def followed(status: Status, event: messages.Event) -> Status:
    """Return the status after an event."""
    match event:
        case messages.StateChanged(state=state, reason=reason):
            rate = status.steps_per_second if state == "training" else None
            # With the worker goes the model that it showed.
            has_model = status.has_model and state != "ended"
            message = reason or ("" if status.state == "disconnected" else status.message)
            status = replace(status, state=state, message=message, has_model=has_model)
            return replace(status, steps_per_second=rate, eta_seconds=None)
        case messages.ModelLoaded(step=step, num_gaussians=num_gaussians):
            return replace(status, step=step or 0, num_gaussians=num_gaussians, has_model=True)
        case messages.Started(step=step, total_steps=total_steps):
            # From a checkpoint of before it may never be so.
            flat = status.flat if status.flat is not None and status.flat.step <= step else None
            return replace(status, step=step, total_steps=total_steps, flat=flat)
        case messages.Progress():
            still = status.state == "paused"  # the step that it was at may be told afterward
            return replace(
                status,
                step=event.step,
                total_steps=event.total_steps,
                num_gaussians=event.num_gaussians,
                steps_per_second=None if still else event.steps_per_second,
                eta_seconds=None if still else event.eta_seconds,
                loss=event.loss,
            )
        case messages.SettingChanged(path="steps", value=value):
            return replace(status, total_steps=value)
        case messages.Evaluated(psnr=psnr):
            return replace(status, test_psnr=psnr)
        case messages.PlateauReached(stops=stops):
            return replace(status, flat=None if stops else event)
        case messages.PlateauLeft():
            return replace(status, flat=None)
        case messages.Finished(step=step):
            return replace(status, step=step, flat=None)
        case messages.Failed(sentence=sentence):
            return replace(status, state="failed", message=sentence, has_model=False)
    return status


def notice_of(event: messages.Event) -> Notice | None:
    """Return what to tell the user about an event, None where the page shows it anyway."""
    match event:
        case messages.Saved(step=step, path=path, autosave=True):
            return Notice(
                f"Saved step {step:,} for safety", f"{path_words(path)}; the next save takes its place."
            )
        case messages.Saved(step=step, path=path):
            return Notice(f"Saved step {step:,}", path_words(path))
        case messages.Finished(step=step, completed=True):
            return Notice("Training finished", f"All {step:,} steps are done.")
        case messages.Finished(step=step):
            return Notice("Training stopped", f"At step {step:,}; Resume goes on from there.")
        case messages.PlateauReached(stops=True):
            return Notice("Test score has plateaued", stopped_sentence(event))
        case messages.PlateauReached():
            parts = (f"{plateau_words(event)}.", plateau_advice(event), "You can stop now: press Stop here.")
            return Notice("Test score has plateaued", " ".join(filter(None, parts)))
        case messages.SettingChanged(step=step, path=path, value=value):
            return Notice("Changed", f"{setting_text(path, value)} at step {step + 1:,}.")
        case messages.EvaluationStopped(sentence=sentence):
            return Notice("Evaluation stopped", sentence)
        case messages.Warned(sentence=sentence):
            return Notice("Please note", sentence, bad=True)
        case messages.Failed(sentence=sentence):
            return Notice("Failed", sentence, bad=True)
    return None
