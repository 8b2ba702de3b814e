"""What a view can show instead of the colors, and the legend that belongs to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# What the model alone can show; "error" needs a photo too.
DrawnMode = Literal["color", "depth", "median_depth", "normals", "alpha", "ellipsoids", "points", "count"]
RenderMode = DrawnMode | Literal["error"]
ColorMapName = Literal["turbo", "viridis", "gray"]


@dataclass(frozen=True)
class Legend:
    """What the colors of a picture mean: `low` is the color map's first color, `high` its last."""

    low: float
    high: float
    unit: str  # "scene units", "splats", "% covered", "error (0-255)"
    color_map: ColorMapName
