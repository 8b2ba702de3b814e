"""The demo scene: 48 rendered photos of a table, which come with the package."""

from __future__ import annotations

from pathlib import Path

STEPS = 7000  # that `splatstudio demo` trains
_PACKAGE = Path(__file__).parents[1]
# In an installed package; in a checkout, whose package is used where it lies.
_PLACES = (_PACKAGE / "demo", _PACKAGE.parent / "assets" / "demo")


def demo_scene() -> Path:
    """Return the folder of the demo scene; ValueError with one sentence where it was left out."""
    for folder in _PLACES:
        if (folder / "sparse").is_dir():
            return folder
    raise ValueError("this installation came without the demo scene; install it anew, or open a scene")
