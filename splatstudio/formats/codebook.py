"""Few values that stand for many: the codebooks and the palette of SOG files."""

from __future__ import annotations

import numpy as np
import torch

BOOK_SIZE = 256  # values that a byte can choose from
SAMPLE = 1_000_000  # values that a codebook is fitted to
BRANCHES = 256  # clusters that a set of vectors is split into at a time
ROUNDS = 5


def codebook(values: np.ndarray) -> np.ndarray:
    """Return 256 float32, ascending, with little squared distance from the nearest to each of `values`.

    Lloyd's algorithm on sorted values, started where Panter and Dite's rule puts them: as dense as the cube
    root of the values' own density.
    """
    flat = values.reshape(-1)
    ordered = np.sort(flat[:: max(1, flat.size // SAMPLE)].astype(np.float64))
    ordered[0], ordered[-1] = flat.min(), flat.max()
    distinct = ordered[np.concatenate([[True], np.diff(ordered) > 0])]
    if len(distinct) <= BOOK_SIZE:
        return np.pad(distinct, (0, BOOK_SIZE - len(distinct)), mode="edge").astype(np.float32)
    counts, edges = np.histogram(ordered, bins=4096)
    density = np.cbrt(counts)
    # A quarter is spread evenly: the few Gaussians far from the others may be the largest of all.
    density = 0.75 * density / density.sum() + 0.25 / len(density)
    share = np.concatenate([[0.0], np.cumsum(density)])
    book = np.interp((np.arange(BOOK_SIZE) + 0.5) / BOOK_SIZE * share[-1], share, edges)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    for _ in range(20):
        ends = np.searchsorted(ordered, 0.5 * (book[1:] + book[:-1]))
        ends = np.concatenate([[0], ends, [len(ordered)]])
        num = np.diff(ends)
        # A value that none is nearest to stays where it is.
        book = np.sort(np.where(num > 0, np.diff(sums[ends]) / np.maximum(num, 1), book))
    return book.astype(np.float32)


def nearest(book: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return for each of `values` the index (uint8) of the nearest in an ascending `book`."""
    middles = 0.5 * (book[1:].astype(np.float64) + book[:-1])
    return np.searchsorted(middles, values).astype(np.uint8)


def palette(vectors: np.ndarray, num: int) -> tuple[np.ndarray, np.ndarray]:
    """Return up to `num` vectors and for each of `vectors` [N, D] the index of the one that stands for it.

    Split and split again, since k-means of a million vectors with 65,536 centres would take hours on a CPU.
    Of what there is each part gets as much as it has squared distance left, which loses least in many
    dimensions.
    """
    rows = np.ascontiguousarray(vectors, np.float32)
    labels = np.empty(len(rows), np.intp)
    centers: list[np.ndarray] = []
    pending = [(np.arange(len(rows)), num)]
    generator = np.random.default_rng(0)
    total = 0
    while pending:
        index, share = pending.pop()
        part = rows[index]
        if len(part) <= share:
            means, nearest_mean = part, np.arange(len(part))
        else:
            # Parts to be split further get about half of the branches each, so that they need no third split.
            branches = share if share <= BRANCHES else min(BRANCHES, -(-2 * share // BRANCHES))
            means, nearest_mean, distances = _clusters(part, branches, generator)
            order, starts = _grouped(nearest_mean, branches)
            missed = np.maximum(distances.astype(np.float64), 0.0)
            if share > BRANCHES and np.diff(starts).max() < len(part) and missed.any():
                for cluster in np.split(order, starts[1:-1]):
                    # One each, and the rest by distance: the shares never exceed what there is.
                    more = int((share - branches) * missed[cluster].sum() / missed.sum())
                    pending.append((index[cluster], 1 + more))
                continue
        centers.append(means)
        labels[index] = total + nearest_mean
        total += len(means)
    return np.concatenate(centers), labels


def _clusters(rows: np.ndarray, num: int, generator: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Return `num` centres [num, D] of k-means, and for each row the nearest's index and squared distance."""
    means = rows[generator.permutation(len(rows))[:num]]
    sample = rows
    if len(rows) > 128 * num:
        sample = rows[generator.integers(0, len(rows), 128 * num)]
    for _ in range(ROUNDS):
        labels, distances = _nearest_rows(sample, means)
        order, starts = _grouped(labels, num)
        counts = np.diff(starts)
        filled = counts > 0
        sums = np.add.reduceat(sample[order], starts[:-1][filled], axis=0)
        means[filled] = sums / counts[filled, None]
        # A centre that none is nearest to goes where one is missed most.
        means[~filled] = sample[np.argsort(distances)[len(sample) - (num - len(sums)) :]]
    return means, *_nearest_rows(rows, means)


def _grouped(labels: np.ndarray, num: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows ordered by label, and where each of the `num` labels starts and the last ends."""
    order = np.argsort(labels, kind="stable")
    return order, np.searchsorted(labels[order], np.arange(num + 1))


def _nearest_rows(rows: np.ndarray, means: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each row the index of the nearest of `means`, and the square of its distance."""
    centers = torch.from_numpy(means)
    offsets = 0.5 * (centers * centers).sum(dim=1)
    labels, halves = np.empty(len(rows), np.intp), np.empty(len(rows), np.float32)
    for start in range(0, len(rows), 16_384):
        part = torch.from_numpy(rows[start : start + 16_384])
        least = torch.addmm(offsets, part, centers.T, alpha=-1).min(dim=1)
        labels[start : start + 16_384] = least.indices.numpy()
        halves[start : start + 16_384] = least.values.numpy()
    return labels, 2 * halves + (rows * rows).sum(axis=1)
