"""The Scene: cameras, photos and sparse points in one normalized frame, whatever the files were."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from splatstudio.cameras.camera import Camera
from splatstudio.scene.capture import View
from splatstudio.scene.photo import Photo, read_photo, read_whole_photo


@dataclass(frozen=True)
class KnownPhotos:
    """The photos that the scene of a training had, so that its frame and its split stay where others join.

    `held_out` are those of `names` that it did not learn from, None: every n-th. The first `num_framed` of
    them make the frame, 0: all that there are.
    """

    names: tuple[str, ...]
    held_out: frozenset[str] | None = None
    num_framed: int = 0


@dataclass(frozen=True, eq=False)
class Scene:
    """A capture that can be trained on.

    `views` are sorted by name. `points` [P, 3] float32 and `colors` [P, 3] uint8 are the sparse points (P
    may be 0). `transform` [4, 4] float64 is the similarity that brought the files' world to this frame: z
    up, the cameras' common point of attention at the origin, the farthest camera at distance 1 from the
    cameras' mean (of those that were there first, where some have joined). `extent` is the radius of the
    cameras around their mean, the unit of learning rates and of size rules: 1, or where the cameras stand
    at one point, the median distance of the points (also scaled to 1).
    """

    # What opens it again: its folder, or the file of poses that was named where the folder has another one.
    path: Path
    format: str  # "COLMAP", "transforms.json", "Blender"
    views: tuple[View, ...]
    points: np.ndarray
    colors: np.ndarray
    transform: np.ndarray
    extent: float
    test_every: int = 8
    notes: tuple[str, ...] = ()  # plain sentences for the user: missing files counted, points dropped ...
    test_names: frozenset[str] | None = None  # the test views where files (Blender) or the user name them
    test_images: tuple[str, ...] = ()  # as the user named them
    images: str = ""  # the folder of photos that the user named
    in_order: tuple[str, ...] = ()  # the photos as they came, where some have joined later
    known: KnownPhotos | None = None  # of a training, whose split stays
    num_framed: int = 0  # how many of `known_names`, from the first on, make the frame; 0: another rule does
    downscale: int = 1  # by what the photos' sides are divided
    unposed: tuple[str, ...] = ()  # photos that lie there, have no pose and are not used
    model_folder: Path | None = None  # COLMAP's model, where it is a scene of COLMAP's
    model: int = -1  # its number, where there are several

    @property
    def cameras(self) -> tuple[Camera, ...]:
        """Return the cameras of all views, sorted by image name."""
        return tuple(view.camera for view in self.views)

    @cached_property
    def photos(self) -> dict[str, tuple[int, ...]]:
        """Return the views of each photo by its name: one, but for those that are cut into several."""
        groups: dict[str, tuple[int, ...]] = {}
        for index, view in enumerate(self.views):
            groups[view.whole] = (*groups.get(view.whole, ()), index)
        return groups

    @cached_property
    def _in_order(self) -> tuple[str, ...]:
        """Return all names in the order of their lots: first those that were there first, some may be gone.

        Those that have joined come behind, so that no photo of the test is trained on.
        """
        first = self.in_order if self.known is None else self.known.names
        return (*first, *sorted(set(self.photos) - set(first))) if first else tuple(self.photos)

    @cached_property
    def known_names(self) -> tuple[str, ...]:
        """Return the names of the photos in the order of their lots, also of known ones that are gone."""
        return tuple(name for name in self._in_order if self.known is not None or name in self.photos)

    @cached_property
    def held_out(self) -> frozenset[str]:
        """Return the names of the photos that are held out, also of known ones that are gone.

        No photo of which a training is known to have learned is among them.
        """
        known = self.known
        there = {self.views[index].whole for index in self.test_indices}
        before = frozenset[str]() if known is None or known.held_out is None else known.held_out
        return frozenset(there | (before - self.photos.keys()))

    @property
    def lost_test_photos(self) -> tuple[str, ...]:
        """Return the names of the photos that were held out and are no longer there."""
        return tuple(sorted(self.held_out - self.photos.keys()))

    @cached_property
    def _lots(self) -> frozenset[str]:
        """Return the names that are to be held out; some may be of no photo that is there."""
        known, every = self.known, self.test_every
        if self.test_names is not None:
            if known is None or known.held_out is None or self.test_images:
                return self.test_names  # who names photos means them
            # A file may name others than it did when the training began.
            return self.test_names - (set(known.names) - known.held_out)
        if every <= 0:
            return frozenset()
        if known is None or known.held_out is None:
            return frozenset(self._in_order[::every])
        behind = enumerate(self._in_order[len(known.names) :], len(known.names))
        return known.held_out | {name for place, name in behind if place % every == 0}

    @cached_property
    def test_indices(self) -> tuple[int, ...]:
        """Return the views held out: those that are named, else every `test_every`-th from the first on.

        Empty when nothing would be left to train on. All parts of a photo share its lot.
        """
        chosen = [i for i, view in enumerate(self.views) if view.whole in self._lots]
        return tuple(chosen) if len(chosen) < len(self.views) else ()

    @cached_property
    def train_indices(self) -> tuple[int, ...]:
        """Return the views that are not held out."""
        held_out = set(self.test_indices)
        return tuple(i for i in range(len(self.views)) if i not in held_out)

    def resized(self, downscale: int) -> Scene:
        """Return the scene as it is with another `downscale`, to within a pixel of each side.

        For plans: what is trained on is read again, and may come from a folder of smaller photos.
        """
        if downscale == self.downscale:
            return self
        factor = self.downscale / downscale

        def camera(own: Camera) -> Camera:
            return own.resized(max(1, round(own.width * factor)), max(1, round(own.height * factor)))

        views = tuple(replace(view, camera=camera(view.camera)) for view in self.views)
        return replace(self, views=views, downscale=downscale)

    def photo(self, index: int) -> Photo:
        """Return view `index`'s photo, upright, undistorted, of its camera's size.

        Nothing is kept in memory; `PhotoLoader` does that. Raises ValueError when the file cannot be decoded.
        """
        return read_photo(self.views[index])

    def whole_photo(self, index: int) -> Photo:
        """Return view `index`'s photo in the size of its file; raises as `photo` does."""
        return read_whole_photo(self.views[index])
