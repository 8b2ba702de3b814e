"""Which photos are compared with which: all where they are few, else neighbors of several kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations

import numpy as np

EXHAUSTIVE = 150  # photos up to which every pair is compared
FRAMES_AHEAD = 10  # of a video with which a frame is compared; then at doubled distances
LOOPS = 6  # frames of other times that look most alike
ALIKE = 30  # photos that look most alike
NEAR = 20  # photos by GPS
BLOCK = 16  # photos whose features are in memory together, twice
NUM_WORDS, SAMPLES, SAMPLES_PER_PHOTO = 64, 40_000, 1500

Pair = tuple[int, int]


def pairs_of_photos(
    num: int, descriptors: Callable[[int], np.ndarray], places: np.ndarray | None
) -> set[Pair]:
    """Return the pairs (i < j) of `num` photos to compare.

    `descriptors` returns those of one photo, [N, 128] uint8; `places` [num, 3] are meters by GPS, NaN
    where a photo has none, None where none has.
    """
    if num <= EXHAUSTIVE:
        return set(combinations(range(num), 2))
    pairs = most_alike([descriptors(i) for i in range(num)], ALIKE)
    pairs |= {(i, j) for i in range(num) for j in range(i + 1, min(num, i + 4))}  # taken one after the other
    if places is not None:
        pairs |= nearest(places, NEAR)
    return pairs


def pairs_of_frames(videos: Sequence[int], descriptors: Callable[[int], np.ndarray]) -> set[Pair]:
    """Return the pairs (i < j) of frames to compare; `videos` tells of each frame, in order, whose it is.

    Frames are compared with those that follow in their video, and with those that look alike at other times,
    which closes loops and joins videos.
    """
    num = len(videos)
    ahead = [*range(1, FRAMES_AHEAD + 1), *(2**power for power in range(4, 10))]
    pairs = {
        (i, i + step)
        for i in range(num)
        for step in ahead
        if i + step < num and videos[i] == videos[i + step]
    }
    return pairs | most_alike([descriptors(i) for i in range(num)], LOOPS, besides=pairs)


def nearest(places: np.ndarray, num_neighbors: int) -> set[Pair]:
    """Return the pairs (i < j) of each photo and its nearest by `places` [N, 3]; NaN: not known."""
    known = np.flatnonzero(np.isfinite(places).all(axis=1))
    if len(known) < 2:
        return set()
    from scipy.spatial import KDTree  # takes a third of a second to load

    count = min(num_neighbors + 1, len(known))
    found = np.asarray(KDTree(places[known]).query(places[known], k=count)[1])
    return _pairs((int(known[i]), int(known[j])) for i, row in enumerate(found) for j in row)


def most_alike(descriptors: list[np.ndarray], num_alike: int, besides: Iterable[Pair] = ()) -> set[Pair]:
    """Return the pairs (i < j) of each photo and those that look most like it.

    Looks are compared by vectors of locally aggregated descriptors (Jegou et al. 2010) with intra-
    normalization (Arandjelovic and Zisserman 2013) over words of the photos themselves. `descriptors`
    are [N, 128] each; pairs in `besides` do not count.
    """
    vectors = _aggregated(descriptors)
    scores = vectors @ vectors.T
    np.fill_diagonal(scores, -np.inf)
    for i, j in besides:
        scores[i, j] = scores[j, i] = -np.inf
    count = min(num_alike, len(scores) - 1)
    best = np.argpartition(-scores, count - 1, axis=1)[:, :count] if count > 0 else np.zeros((0, 0), int)
    return _pairs((i, j) for i, row in enumerate(best) for j in row if np.isfinite(scores[i, j]))


def _aggregated(descriptors: list[np.ndarray]) -> np.ndarray:
    random = np.random.default_rng(0)
    some = [
        d[random.permutation(len(d))[:SAMPLES_PER_PHOTO]].astype(np.float32) if len(d) else np.zeros((0, 128))
        for d in descriptors
    ]
    every = np.concatenate(some)
    if len(every) < NUM_WORDS:
        return np.zeros((len(descriptors), NUM_WORDS * 128), np.float32)
    sample = every[random.permutation(len(every))[:SAMPLES]]
    from scipy.cluster.vq import kmeans2  # takes half a second to load, and few photos need none

    words, _ = kmeans2(sample, sample[:NUM_WORDS], iter=8, minit="matrix")
    return np.stack([_vector(each, words) for each in some])


def _vector(descriptors: np.ndarray, words: np.ndarray) -> np.ndarray:
    vector = np.zeros(words.shape, np.float32)
    if len(descriptors):
        distances = (words**2).sum(axis=1) - 2 * descriptors @ words.T
        nearest_word = distances.argmin(axis=1)
        np.add.at(vector, nearest_word, descriptors - words[nearest_word])
    vector /= np.maximum(np.linalg.norm(vector, axis=1, keepdims=True), 1e-9)
    return (vector / max(float(np.linalg.norm(vector)), 1e-9)).ravel()


def _pairs(found: Iterable[tuple[int, int]]) -> set[Pair]:
    return {(int(min(i, j)), int(max(i, j))) for i, j in found if i != j}


def in_blocks(pairs: set[Pair]) -> list[list[Pair]]:
    """Return the pairs in groups that need the features of few photos at a time, in order."""
    blocks: dict[tuple[int, int], list[Pair]] = {}
    for i, j in sorted(pairs):
        blocks.setdefault((i // BLOCK, j // BLOCK), []).append((i, j))
    return list(blocks.values())
