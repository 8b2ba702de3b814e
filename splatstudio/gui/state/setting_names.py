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
    "dropout": "Splats left out by chance",
    "absgrad": "Densification by absolute gradients",
    "fast": "Densification where photographs agree",
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
    "fast.grow_grad": "Growth threshold",
    "exposure.stay": "Pull towards none",
    "exposure.grid_smooth": "Smoothness of the grid",
}

# What a setting does, in plainer words than where it is declared, which speaks of tensors.
HELP = {
    "optim.means_lr": "How fast splats move, times the scene's extent. It falls until the last step.",
    "optim.scales_lr": "How fast splats grow and shrink.",
    "optim.quats_lr": "How fast splats turn.",
    "optim.opacities_lr": "How fast splats become opaque or transparent.",
    "optim.sh0_lr": "How fast the color changes that a splat shows from all sides.",
    "optim.shN_lr": "How fast the color changes that depends on where one looks from, as gloss.",
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


def setting_text(path: str, value: Any) -> str:
    """Return that a setting has this `value`, without a full stop: `Densification: Max splats is 225,000`."""
    group = path.rpartition(".")[0]
    heading = f"{GROUPS.get(group, group)}: " if group else ""
    return f"{heading}{label_of(path)} is {WORDS.get(path, {}).get(value) or _written(value)}"


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
        raise ValueError(f"setting {path} must be {allowed}, not {text!r}") from None


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ", ".join(map(_written, value))
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
