"""Scenes as real captures are: in changing light, with cameras that are off, with people, under an open sky.

All but the last are made of a scene of photos, the last by the program that draws the demo scene.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np

from splatstudio.corrections.poses import corrected_camera
from splatstudio.scene.load import load_scene
from splatstudio.scene.scene import Scene

DEMO = Path(__file__).parents[2] / "assets" / "demo"
LIGHT_SEED, GAIN_SPREAD, CHANNEL_SPREAD, MOST_LIFT = 11, 0.25, 0.06, 0.04
PASSERS_SEED, PASSER_WIDTH, PASSER_HEIGHT = 13, 0.2, 0.5  # shares of the photo
SKY_VIEWS, SKY_WIDTH, SKY_HEIGHT, SKY_FOCAL = 20, 192, 120, 138.0


def in_changing_light(folder: Path, target: Path) -> Path:
    """Write a copy of a COLMAP scene whose training photos differ in exposure and white balance.

    A photo is brighter or darker by a quarter (one standard deviation), its channels apart by 6 %, and
    its black is lifted by up to 0.04. The test photos (every eighth) stay as they are, and the mean gain
    is 1, so that plain PSNR tells whether the model has kept the scene's own light. The name of the folder,
    which is returned, is that of `target` and what the light depends on; one that is there is complete.
    """
    target = target.with_name(f"{target.name}-{LIGHT_SEED}-{GAIN_SPREAD}-{CHANNEL_SPREAD}-{MOST_LIFT}")
    if target.exists():
        return target
    training = {view.name for i, view in enumerate(load_scene(folder).views) if i % 8 != 0}
    random = np.random.default_rng(LIGHT_SEED)
    common = random.normal(0.0, GAIN_SPREAD, (len(training), 1))
    gains = np.exp(common + random.normal(0.0, CHANNEL_SPREAD, (len(training), 3)))
    gains /= gains.mean(axis=0)
    lifts = random.uniform(0.0, MOST_LIFT, len(training))
    staging = _staging(target)
    shutil.copytree(folder / "sparse", staging / "sparse")
    (staging / "images").mkdir()
    for file in sorted((folder / "images").iterdir()):
        if file.name not in training:
            shutil.copy(file, staging / "images" / file.name)
            continue
        number = sorted(training).index(file.name)
        pixels = cv2.imread(str(file))
        assert pixels is not None, f"{file} cannot be read"
        changed = pixels / 255.0 * gains[number, ::-1] + lifts[number]
        stored = np.rint(np.clip(changed, 0.0, 1.0) * 255.0).astype(np.uint8)
        cv2.imwrite(str(staging / "images" / file.name), stored, [cv2.IMWRITE_JPEG_QUALITY, 95])
    staging.rename(target)
    return target


def with_passers_by(folder: Path, target: Path, *, masked: bool) -> Path:
    """Write a copy of a COLMAP scene in which somebody stands in each training photo, elsewhere in each.

    He is a rectangle of one color, and `masked` says whether masks leave it out. The test photos (every
    eighth) stay as they are. The name of the folder, which is returned, is that of `target` and what the
    photos depend on; one that is there is complete.
    """
    target = target.with_name(f"{target.name}-{PASSERS_SEED}-{PASSER_WIDTH}x{PASSER_HEIGHT}")
    if target.exists():
        return target
    training = sorted(view.name for i, view in enumerate(load_scene(folder).views) if i % 8 != 0)
    random = np.random.default_rng(PASSERS_SEED)
    staging = _staging(target)
    shutil.copytree(folder / "sparse", staging / "sparse")
    shutil.copytree(folder / "images", staging / "images")
    if masked:
        (staging / "masks").mkdir()
    for name in training:
        pixels = cv2.imread(str(folder / "images" / name))
        assert pixels is not None, f"{name} cannot be read"
        height, width = pixels.shape[:2]
        left = int(random.uniform(0.0, 1.0 - PASSER_WIDTH) * width)
        top = int(random.uniform(0.0, 1.0 - PASSER_HEIGHT) * height)
        covered = slice(top, top + int(PASSER_HEIGHT * height)), slice(left, left + int(PASSER_WIDTH * width))
        pixels[covered] = random.integers(0, 256, 3)
        cv2.imwrite(str(staging / "images" / name), pixels, [cv2.IMWRITE_JPEG_QUALITY, 95])
        if masked:
            counts = np.full((height, width), 255, np.uint8)
            # Some pixels more: what a JPEG paints beside the edge is his, too.
            cv2.rectangle(counts, (left - 8, top - 8), (covered[1].stop + 7, covered[0].stop + 7), 0, -1)
            cv2.imwrite(str(staging / "masks" / f"{name}.png"), counts)
    staging.rename(target)
    return target


def with_cameras_off(scene: Scene) -> Scene:
    """Return the scene with training cameras turned by 0.2 degrees and shifted by 0.003 extents an axis."""
    random, views = np.random.default_rng(12), list(scene.views)
    for index in scene.train_indices:
        off = np.concatenate([random.normal(0.0, 0.003, 3), random.normal(0.0, np.radians(0.2), 3)])
        views[index] = replace(views[index], camera=corrected_camera(views[index].camera, off))
    return replace(scene, views=tuple(views))


def under_an_open_sky(target: Path) -> Path:
    """Draw the demo's garden from lower down, with half of each picture sky and far hills: a COLMAP scene."""
    target = target.with_name(f"{target.name}-{SKY_VIEWS}-{SKY_WIDTH}x{SKY_HEIGHT}-{SKY_FOCAL:g}")
    if target.exists():
        return target
    sys.path.insert(0, str(DEMO))
    import make_demo  # pyright: ignore[reportMissingImports]
    from demo_points import sparse_points  # pyright: ignore[reportMissingImports]
    from demo_render import Pinhole, render  # pyright: ignore[reportMissingImports]

    make_demo.WIDTH, make_demo.HEIGHT, make_demo.FOCAL = SKY_WIDTH, SKY_HEIGHT, SKY_FOCAL
    views, photos = [], []
    for number in range(SKY_VIEWS):
        angle = 2.0 * np.pi * number / SKY_VIEWS
        radius, height = 2.0 + 0.3 * np.sin(3.0 * angle), 1.15 + 0.25 * np.cos(5.0 * angle)
        position = np.array([radius * np.cos(angle), radius * np.sin(angle), height])
        forward = np.array([0.0, 0.0, 1.05]) - position
        forward /= np.linalg.norm(forward)
        right = np.cross(forward, [0.0, 0.0, 1.0])
        right /= np.linalg.norm(right)
        rotation = np.stack([right, np.cross(forward, right), forward])
        views.append(Pinhole(rotation, position, SKY_FOCAL, SKY_WIDTH, SKY_HEIGHT))
        photos.append(render(views[-1]))
    staging = _staging(target)
    (staging / "images").mkdir()
    for number, photo in enumerate(photos):
        file = staging / "images" / make_demo.photo_name(number)
        cv2.imwrite(str(file), photo[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 95])
    make_demo.write_sparse(staging / "sparse" / "0", views, photos, sparse_points(views, photos))
    staging.rename(target)
    return target


def _staging(target: Path) -> Path:
    """Return an empty folder beside `target`, to be renamed when the scene in it is complete."""
    staging = target.with_name(target.name + ".tmp")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    return staging
