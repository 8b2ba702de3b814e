"""A model that was made before, as what the training of a scene starts from.

One in coordinates of its own is brought to the points of the scene: turned, scaled and shifted by iterative
closest points (Besl and McKay 1992), trimmed, in both directions so that nothing shrinks, from the turns that
bring the principal axes of one onto those of the other and those that exchange axes.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from splatstudio.cameras.camera import rigid
from splatstudio.formats.ply import holds_points_alone
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.gaussians.initialize import from_points, random_in_cameras
from splatstudio.gaussians.transform import transformed
from splatstudio.models.gsplat_frame import MOST_POINTS, MOST_SPLATS, TOO_FAR
from splatstudio.models.model import Model, load_model, splats_of_points
from splatstudio.rendering.render import RenderOptions, render
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig

log = logging.getLogger(__name__)

MAX_CAMERAS_ASKED = 100  # a model of the scene is seen by the first one or two
FEWEST_TO_FIT = 30
SEEN_OPACITY = 0.1
DARKEST = 25  # of 255: a photo of 12 bits in files of 16 has 15
ASKED_WIDTH = 64  # pixels: enough to tell whether anything is in the picture


def first_gaussians(scene: Scene, config: TrainConfig, generator: torch.Generator) -> Gaussians:
    """Return what a training begins with: `config.init`, the scene's points, or Gaussians at random.

    Raises ValueError for a model to start from that cannot be read or is of another scene.
    """
    if config.init and scene.train_indices:
        return gaussians_to_start_from(scene, config)
    if len(scene.points):
        return from_points(
            scene.points,
            scene.colors,
            sh_degree=config.sh_degree,
            init_scale=config.init_scale,
            init_opacity=config.init_opacity,
            generator=generator,
        )
    return random_in_cameras(
        [scene.views[index].camera for index in scene.train_indices],
        config.init_random,
        sh_degree=config.sh_degree,
        init_scale=config.init_scale,
        init_opacity=config.init_opacity,
        generator=generator,
    )


def gaussians_to_start_from(scene: Scene, config: TrainConfig) -> Gaussians:
    """Return the model `config.init` in the scene's frame, with the coefficients of `config.sh_degree`.

    A file of Gaussians, or of points, is taken to lie in the coordinates of the scene's files; a checkpoint
    knows its own. Where `config.init_fit` asks for it, it is brought to the scene's points first.
    Coefficients of higher degrees are dropped, missing ones are zero. Raises ValueError for a path without a
    model, a damaged one, a model that no camera of the scene sees, and one that cannot be brought to its
    points.
    """
    if holds_points_alone(file := Path(config.init)):
        model = Model(splats_of_points(file, config.init_scale, config.init_opacity))
    else:
        model = load_model(config.init, scene=scene.path)
    if model.part is not None:
        log.warning("the training starts from a part: %s", model.part)
    for note in model.notes:
        log.warning("%s", note)
    gaussians = model.in_frame_of(scene).gaussians.detach()
    if config.init_fit:
        gaussians = _fitted(gaussians, scene, config.init)
    if not _is_seen(gaussians, scene, RenderOptions(sh_degree=0, near=config.near, far=config.far)):
        raise ValueError(
            f"{config.init} does not belong to {scene.path}: no photo's camera has any of its"
            f" {len(gaussians):,} splats before it; a file must be in the scene's own coordinates"
        )
    return with_sh_degree(gaussians, config.sh_degree)


def note_on_start(scene: Scene, config: TrainConfig, gaussians: Gaussians) -> str | None:
    """Return a sentence where a training begins with what its user may not have meant, None elsewhere.

    That is more points than there are to be splats, a model `config.init` that seems to lie in other
    coordinates than the scene, or photos that are nearly black or partly transparent.

    `gaussians` is what it has become in the scene's frame. Each of the scene's sparse points should have a
    splat near it; of a scene without points nothing is known.
    """
    limit = config.densify.max_gaussians
    if not config.init and len(scene.points) > limit:
        return (
            f"The training begins with the scene's {len(scene.points):,} points, which are more than the"
            f" {limit:,} splats that are allowed: none is added, and none of them is taken away for that."
        )
    if not config.init or len(scene.points) < 2 or len(gaussians) < 2 or _lies_at_points(gaussians, scene):
        return _note_on_photos(scene)
    return (
        f"The splats of {config.init} do not lie where the points of the scene do: they may be in other"
        " coordinates than the scene's files, as exports of nerfstudio are. The training starts all"
        " the same; --init-fit brings them there."
    )


def _note_on_photos(scene: Scene) -> str | None:
    """Return a sentence where photos that are trained on are nearly black, or transparent in places."""
    indices = scene.train_indices
    asked = sorted({indices[0], indices[len(indices) // 2], indices[-1]})
    try:
        photos = [scene.photo(index) for index in asked]
    except ValueError:
        return None  # the training says so
    brightest = [int(photo.rgb.max(initial=0)) for photo in photos]
    dark = [index for index, value in zip(asked, brightest, strict=True) if value <= DARKEST]
    if dark:
        few = f"{len(dark)} of {len(asked)} photos that were looked at are"
        all_of_them = len(dark) == len(asked)
        return (
            f"{'The photos are' if all_of_them else few} nearly black: the brightest value of"
            f" {scene.views[dark[0]].name} is {brightest[asked.index(dark[0])]} of 255. Photos of 16 bits"
            " are assumed to use the full range: rescale those of a camera with 10 to 14 bits."
        )
    clear = [index for index, photo in zip(asked, photos, strict=True) if photo.alpha is not None]
    if clear and scene.format != "Blender":  # whose photos are meant so
        return (
            f"{scene.views[clear[0]].name} is transparent in places: transparent pixels become empty space."
            " To ignore pixels instead, use a mask that is black there."
        )
    return None


def _lies_at_points(gaussians: Gaussians, scene: Scene) -> bool:
    """Return whether most of the scene's points have a splat near them, as far as there are enough splats."""
    means = gaussians.means.detach().cpu().numpy()
    means = means[:: math.ceil(len(means) / MOST_SPLATS)]
    points = scene.points[:: math.ceil(len(scene.points) / MOST_POINTS)]
    from scipy.spatial import KDTree  # takes a third of a second to load

    tree = KDTree(means)
    distance = float(np.median(tree.query(points)[0]))
    spacing = float(np.median(tree.query(means[:: math.ceil(len(means) / MOST_POINTS)], k=2)[0][:, 1]))
    size = float(np.median(np.linalg.norm(points - np.median(points, axis=0), axis=1)))
    # Where there are few splats, all is far from one.
    return distance <= TOO_FAR * size or distance <= 2 * spacing


def _fitted(gaussians: Gaussians, scene: Scene, name: str) -> Gaussians:
    """Return the splats turned, scaled and shifted to the scene's points; ValueError where none fit."""
    if len(scene.points) < FEWEST_TO_FIT or len(gaussians) < FEWEST_TO_FIT:
        raise ValueError(
            f"{name} cannot be fitted to {scene.path}: one has fewer than {FEWEST_TO_FIT} points or splats;"
            " omit --init-fit, and name a model in the coordinates of the scene's files"
        )
    seen = gaussians.means[gaussians.opacities.sigmoid() > SEEN_OPACITY]
    means = (seen if len(seen) >= FEWEST_TO_FIT else gaussians.means).double().cpu().numpy()
    fitted = transformed(gaussians, similarity_between(means, scene.points.astype(np.float64)))
    if not _lies_at_points(fitted, scene):
        raise ValueError(
            f"{name} cannot be fitted to the points of {scene.path}: it seems to be of another scene; omit"
            " --init-fit, or name another model"
        )
    log.warning("the splats of %s were turned, scaled and shifted to the points of the scene", name)
    return fitted


def with_sh_degree(gaussians: Gaussians, sh_degree: int) -> Gaussians:
    """Return Gaussians of that degree (0..3): higher coefficients are dropped, new ones are zero."""
    shN = gaussians.shN.new_zeros((len(gaussians), (sh_degree + 1) ** 2 - 1, 3))
    kept = min(shN.shape[1], gaussians.shN.shape[1])
    shN[:, :kept] = gaussians.shN[:, :kept]
    return replace(gaussians, shN=shN)


@torch.no_grad()
def _is_seen(gaussians: Gaussians, scene: Scene, options: RenderOptions) -> bool:
    """Return whether a training camera has a Gaussian in its picture; of many cameras some are asked."""
    indices = scene.train_indices
    for index in indices[:: math.ceil(len(indices) / MAX_CAMERAS_ASKED)]:
        camera = scene.views[index].camera
        small = camera.resized(ASKED_WIDTH, max(1, round(ASKED_WIDTH * camera.height / camera.width)))
        if bool((render(gaussians, small, options).radii > 0).any()):
            return True
    return False


if TYPE_CHECKING:
    from scipy.spatial import KDTree

FEW, MANY = 400, 4000  # positions that are compared in the first rounds, and in the last
FIRST_ROUNDS, LAST_ROUNDS = 12, 25
BEST_STARTS = 4  # of 48, which are followed to the end
KEPT = 0.75  # of the pairs; the others show what the other side lacks
CENTRAL = 2.0  # of the median distance from the middle, within which principal axes are measured


def similarity_between(model: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return the similarity [4, 4] that brings positions [N, 3] of a model to the points [P, 3] of its scene.

    Both need two positions or more. Where they are not of one scene the result means nothing: who asks
    compares afterwards. The same for the same input.
    """
    generator = np.random.default_rng(0)
    few = [part[generator.permutation(len(part))[:FEW]] for part in (model, points)]
    many = [part[generator.permutation(len(part))[:MANY]] for part in (model, points)]
    (middle, size), (center, radius) = _middle(many[0]), _middle(many[1])
    scale = radius / max(size, 1e-12)
    starts = []
    for turn in _turns(_axes(many[0]), _axes(many[1])):
        start = rigid(scale * turn, center - scale * turn @ middle)
        starts.append(_closest(few[0], few[1], start, FIRST_ROUNDS))
    starts.sort(key=lambda pair: pair[1])
    ends = [_closest(many[0], many[1], start, LAST_ROUNDS) for start, _ in starts[:BEST_STARTS]]
    return min(ends, key=lambda pair: pair[1])[0]


def _middle(positions: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the median position and the median distance from it."""
    middle = np.median(positions, axis=0)
    return middle, float(np.median(np.linalg.norm(positions - middle, axis=1)))


def _axes(positions: np.ndarray) -> np.ndarray:
    """Return the principal axes [3, 3] of what is central, as the columns of a rotation."""
    middle, size = _middle(positions)
    central = positions[np.linalg.norm(positions - middle, axis=1) <= CENTRAL * size]
    axes = np.linalg.svd(central - central.mean(axis=0), full_matrices=False)[2].T
    axes[:, 0] *= np.sign(np.linalg.det(axes))
    return axes


def _turns(model: np.ndarray, points: np.ndarray) -> list[np.ndarray]:
    """Return the 24 rotations that exchange coordinate axes, and those that bring axes to the other's."""
    identity = np.eye(3)
    signed = [
        identity[list(order)] * np.array(signs)
        for order in permutations(range(3))
        for signs in product((1.0, -1.0), repeat=3)
    ]
    turns = [matrix for matrix in signed if np.linalg.det(matrix) > 0]
    return [*turns, *(points @ turn @ model.T for turn in turns)]


def _closest(
    model: np.ndarray, points: np.ndarray, start: np.ndarray, rounds: int
) -> tuple[np.ndarray, float]:
    """Return `start`, improved, and the median distances that are left, from both sides."""
    from scipy.spatial import KDTree  # takes a third of a second to load

    tree, similarity = KDTree(points), start
    for _ in range(rounds):
        moved = model @ similarity[:3, :3].T + similarity[:3, 3]
        to_points, to_model = _nearest(tree, moved), _nearest(KDTree(moved), points)
        pairs = (
            np.concatenate([model[to_points[0]], model[to_model[1]]]),
            np.concatenate([points[to_points[1]], points[to_model[0]]]),
        )
        similarity = _best(*pairs)
    moved = model @ similarity[:3, :3].T + similarity[:3, 3]
    left = np.median(tree.query(moved)[0]) + np.median(KDTree(moved).query(points)[0])
    return similarity, float(left)


def _nearest(tree: KDTree, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions that have a near one in the tree, by index, and which that is."""
    distances, index = tree.query(positions)
    kept = np.argsort(distances, kind="stable")[: max(2, int(KEPT * len(positions)))]
    return kept, np.asarray(index)[kept]


def _best(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the similarity of least squares between pairs; its scale is that of both spreads (Horn 1987)."""
    middle, center = source.mean(axis=0), target.mean(axis=0)
    spread, wanted = source - middle, target - center
    u, _, vt = np.linalg.svd(wanted.T @ spread)
    turn = u @ np.diag([1.0, 1.0, np.sign(np.linalg.det(u @ vt))]) @ vt
    scale = float(np.sqrt((wanted**2).sum() / max((spread**2).sum(), 1e-24)))
    return rigid(scale * turn, center - scale * turn @ middle)
