"""A scene in a few plain lines, as `splatstudio info` prints it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from splatstudio.error_text import first_of
from splatstudio.scene.capture import NAMED_BY_INFO
from splatstudio.scene.scene import Scene

MOST_NAMES = 500  # of photos


def describe_scene(scene: Scene) -> list[tuple[str, str]]:
    """Return what a person wants to know of a scene as (label, text) rows; no photo is decoded."""
    delivered = Counter(f"{view.camera.width} x {view.camera.height}" for view in scene.views)
    stored = Counter(f"{view.lens.width} x {view.lens.height}" for view in scene.views)
    lenses = {view.lens for view in scene.views}
    distorted = {view.whole for view in scene.views if view.lens.distorted}
    masks = sum(view.mask_path is not None for view in scene.views)
    turned = sum(view.orientation != 1 for view in scene.views)
    models = Counter(view.lens.model for view in scene.views)
    rows = [
        ("Scene", str(scene.path.resolve())),
        ("Format", scene.format),
        ("Photos", _photos(scene)),
        ("Size in files", _counted(stored)),
        ("Size in training", _counted(delivered)),
        ("Cameras", f"{len(lenses)} ({_counted(models)})"),
        ("Lens distortion", f"{len(distorted)} photos, undistorted when read" if distorted else "none"),
        (
            "Sparse points",
            f"{len(scene.points):,}" if len(scene.points) else "none: training starts at random",
        ),
        ("Radius of the cameras", f"{_file_radius(scene):.4g} in the files' units"),
    ]
    if masks:
        rows.append(("Masks", f"{masks} photos"))
    if turned:
        rows.append(("EXIF orientation", f"{turned} photos are turned"))
    if scene.unposed:
        rows.append(("Without a pose", first_of(scene.unposed, MOST_NAMES)))
    rows += [("Note", note.removesuffix(NAMED_BY_INFO)) for note in scene.notes]
    return rows


def scene_values(scene: Scene) -> dict[str, Any]:
    """Return what `describe_scene` tells as plain values by name; sizes are [width, height, views]."""
    sizes = Counter((view.lens.width, view.lens.height) for view in scene.views)
    delivered = Counter((view.camera.width, view.camera.height) for view in scene.views)
    num, num_test = len(scene.photos), _num_test(scene)
    return {
        "path": scene.path.resolve(),
        "format": scene.format,
        "photos": num,
        "train": num - num_test,
        "test": num_test,
        "views": len(scene.views),
        "sizes_in_files": [[*size, count] for size, count in sizes.most_common()],
        "sizes_in_training": [[*size, count] for size, count in delivered.most_common()],
        "cameras": len({view.lens for view in scene.views}),
        "lens_models": sorted({view.lens.model for view in scene.views}),
        "distorted": len({view.whole for view in scene.views if view.lens.distorted}),
        "masks": sum(view.mask_path is not None for view in scene.views),
        "turned": sum(view.orientation != 1 for view in scene.views),
        "points": len(scene.points),
        "radius": _file_radius(scene),
        "without_pose": scene.unposed,
        "notes": scene.notes,
    }


def _photos(scene: Scene) -> str:
    """Return how many photos there are, and how many of them are held out."""
    num, num_test = len(scene.photos), _num_test(scene)
    parts = f", cut into {len(scene.views)} views" if len(scene.views) > num else ""
    return f"{num}: {num - num_test} to train, {num_test} to test{parts}"


def _num_test(scene: Scene) -> int:
    return len({scene.views[index].whole for index in scene.test_indices})


def _counted(counter: Counter[str]) -> str:
    """Return the values by frequency; with their counts when there is more than one."""
    if len(counter) == 1:
        return next(iter(counter))
    return first_of([f"{value} ({count})" for value, count in counter.most_common()], 4)


def _file_radius(scene: Scene) -> float:
    positions = np.stack([camera.position for camera in scene.cameras])
    radius = float(np.linalg.norm(positions - positions.mean(axis=0), axis=1).max())
    return radius / float(np.cbrt(np.linalg.det(scene.transform[:3, :3])))
