"""Which sparse points each photograph shows, as the structure from motion that made them knows."""

from __future__ import annotations

import numpy as np

from splatstudio.scene import colmap_binary, colmap_text
from splatstudio.scene.colmap import model_folder
from splatstudio.scene.scene import Scene


def visible_points(scene: Scene) -> dict[str, np.ndarray]:
    """Return the sparse points [M, 3] float64, in the scene's frame, that each photograph shows, by its name.

    Raises ValueError for a scene that is not COLMAP's, as no other tells it, and where no photograph of this
    scene has any.
    """
    folder = model_folder(scene.path) if scene.format == "COLMAP" else None
    if folder is None:
        raise ValueError(
            f"{scene.path} does not tell which photographs show its sparse points, as COLMAP's scenes do:"
            " their depths cannot guide the training; set depth.weight to 0"
        )
    reader, kind = colmap_binary, "bin"
    if not (folder / "images.bin").exists():
        reader, kind = colmap_text, "txt"
    ids, points, _ = reader.read_points(folder / f"points3D.{kind}")
    order = np.argsort(ids, kind="stable")
    ids, points = ids[order], points[order] @ scene.transform[:3, :3].T + scene.transform[:3, 3]
    shown: dict[str, np.ndarray] = {}
    for name, observed in reader.read_observed_points(folder / f"images.{kind}").items():
        places = np.searchsorted(ids, observed).clip(0, max(len(ids) - 1, 0))
        known = np.unique(places[ids[places] == observed]) if len(ids) else places
        if len(known):
            shown[name] = points[known]
    if not any(view.name in shown for view in scene.views):
        raise ValueError(
            f"the images in {folder} have no observations of sparse points: their depths cannot guide the"
            " training; set depth.weight to 0"
        )
    return shown
