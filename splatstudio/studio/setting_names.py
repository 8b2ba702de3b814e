"""What the page calls the settings of a training, and how it writes their values."""

from __future__ import annotations

from typing import Any

# What the groups of the configuration are called; one that is not listed is called by its name.
GROUPS = {
    "": "Training",
    "optim": "Learning rates",
    "densify": "Densification",
    "exposure": "Exposure of photographs",
    "poses": "Places of cameras",
    "sky": "Sky",
    "shapes": "Shapes of splats",
    "absgrad": "Densification by absolute gradients",
    "fast": "Densification where photographs agree",
}


def label_of(path: str) -> str:
    """Return what the setting with the dotted `path` is called below the heading of its group."""
    name = path.rpartition(".")[2]
    if name == "lr":
        return "Learning rate"
    if name.endswith("_lr"):
        return name.removesuffix("_lr")  # of a tensor, which is called as everywhere
    words = name.replace("_", " ").replace("ssim", "SSIM").replace("sh ", "SH ")
    words = words.replace("gaussians", "splats")  # as the page calls them everywhere
    return words[:1].upper() + words[1:]


def setting_text(path: str, value: Any) -> str:
    """Return that a setting has this `value`, without a full stop: `Densification: Max splats is 225,000`."""
    group = path.rpartition(".")[0]
    heading = f"{GROUPS.get(group, group)}: " if group else ""
    return f"{heading}{label_of(path)} is {_written(value)}"


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ", ".join(map(_written, value))
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
