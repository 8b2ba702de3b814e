"""Count how well the CPU's rasterizer fills its lanes, by the size of splats, and what blending throws away.

python tests/bench/occupancy.py --scene SCENE --ply model.ply --downscale 1

A lane slot is a pixel of a block that is visited for a splat. Printed for each class of sizes (half the width
of a splat's box, pixels): its share of the pairs that are composited; pairs over slots where blocks of 8 x 1
pixels are visited that the ellipse's rows touch and that have a pixel left, which is what the kernels do; of
these slots the shares below 1/255, of pixels that are opaque already, and in blocks of which no pixel counts;
and pairs over slots of other blocks (columns x rows), of which those of four columns are visited where a
pixel counts: the best there could be. By the definition, not by the kernels: rounding may move a pair.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import splatstudio  # noqa: F401 - before torch: it says how torch's threads wait

# isort: split
import torch
from step import camera_numbers, example_of, load_model, projected_by
from torch import Tensor

from splatstudio.kernels.stages import ALPHA_THRESHOLD, TRANSMITTANCE_STOP, Projected
from splatstudio.scene.load import load_scene

TILE = 16  # px
SIZES = (2.0, 4.0, 8.0, 16.0, 32.0)  # px, where a class ends and the next begins
BLOCKS = ((8, 1), (16, 1), (8, 2), (4, 4), (4, 2))  # columns x rows
WASTED = ("below 1/255", "opaque", "none counts")
MAX_ALPHA = 0.999


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scene", type=Path, required=True)
    parser.add_argument("--ply", type=Path, help="the model, in the scene's own frame; default: its points")
    parser.add_argument("--downscale", type=int, default=1)
    parser.add_argument("--camera", type=int, help="draw by this camera alone, counted from 0")
    arguments = parser.parse_args()
    scene = load_scene(arguments.scene, downscale=arguments.downscale)
    (number,) = camera_numbers(scene, arguments.camera, 1)
    camera = example_of(scene, number)[0]
    projected = projected_by(load_model(scene, arguments.ply), camera)
    counts = counted(projected, camera.width, camera.height)
    names = ("pairs", "pairs/slots", *WASTED, *(f"{columns} x {rows}" for columns, rows in BLOCKS[1:]))
    print(f"{'pixels':>10}" + "".join(f"{name:>13}" for name in names))
    ends = [f"to {size:g}" for size in SIZES] + ["larger"]
    for name, row in zip((*ends, "all"), [*counts, counts.sum(0)], strict=True):
        pairs, *wasted = row[: 1 + len(WASTED)].tolist()
        slots, *others = row[1 + len(WASTED) :].clamp_min(1).tolist()
        shares = [pairs / float(counts[:, 0].sum()), pairs / slots, *(each / slots for each in wasted)]
        shares += [pairs / other for other in others]
        print(f"{name:>10}" + "".join(f"{share:13.3f}" for share in shares))


@torch.no_grad()
def counted(projected: Projected, width: int, height: int) -> Tensor:
    """Return by class of sizes: pairs, slots wasted in each way, slots of all blocks; float64."""
    visible = (projected.radii > 0).all(dim=1).nonzero()[:, 0]
    order = visible[torch.argsort(projected.depths[visible], stable=True)]
    low, high = (projected.means2d[order] + sign * projected.radii[order] for sign in (-1, 1))
    classes = torch.bucketize(projected.radii[order].float().amax(1), torch.tensor(SIZES))
    counts = torch.zeros(len(SIZES) + 1, 1 + len(WASTED) + len(BLOCKS), dtype=torch.float64)
    for top in range(0, height, TILE):
        for left in range(0, width, TILE):
            inside = (high[:, 0] >= left) & (low[:, 0] <= left + TILE)
            inside &= (high[:, 1] >= top) & (low[:, 1] <= top + TILE)
            y, x = torch.meshgrid(
                torch.arange(top, top + TILE) + 0.5, torch.arange(left, left + TILE) + 0.5, indexing="ij"
            )
            in_image = (x < width) & (y < height)
            if inside.any():
                counts.index_add_(0, classes[inside], _of_tile(projected, order[inside], x, y, in_image))
    return counts


def _of_tile(projected: Projected, rows: Tensor, x: Tensor, y: Tensor, in_image: Tensor) -> Tensor:
    """Return the counts of each splat in a tile, [N, columns of `counted`]."""
    dx, dy = (projected.means2d[rows, :, None, None] - torch.stack([x, y])).unbind(1)
    a, b, c = projected.conics[rows].T[:, :, None, None]
    sigma = 0.5 * (a * dx * dx + c * dy * dy) + b * dx * dy
    alpha = (projected.opacities[rows, None, None] * torch.exp(-sigma)).clamp_max(MAX_ALPHA)
    shown = (sigma >= 0) & (alpha >= ALPHA_THRESHOLD)
    left = torch.where(shown, 1.0 - alpha, 1.0).cumprod(0)
    before = torch.cat([torch.ones_like(left[:1]), left[:-1]])
    live = (before > TRANSMITTANCE_STOP) & in_image
    visited = _blocks((_touched(projected, rows, dx, dy) & _blocks(live, 8, 1)), 8, 1)
    counts = [(shown & live & (left > TRANSMITTANCE_STOP)).sum((1, 2))]
    useful = shown & live
    for wasted in (visited & live & ~shown, visited & ~live, visited & ~_blocks(useful, 8, 1)):
        counts.append(wasted.sum((1, 2)))
    # Narrower blocks than the kernels' are visited where a pixel counts: the least there could be.
    wide = [_blocks(useful if columns < 8 else visited, columns, rows) for columns, rows in BLOCKS]
    counts += [slots.sum((1, 2)) for slots in wide]
    return torch.stack(counts, dim=1).double()


def _touched(projected: Projected, rows: Tensor, dx: Tensor, dy: Tensor) -> Tensor:
    """Return of which pixels the row's half of eight is met by the ellipse of 1/255, as csrc/cpu/cells.h."""
    a, b, c = projected.conics[rows].T[:, :, None, None]
    limit = 2.0 * torch.log(255.0 * projected.opacities[rows, None, None])
    half_width = (limit / a - (a * c - b * b) / (a * a) * dy * dy).sqrt()
    # Both ends of the ellipse on the row, from each pixel.
    center = dx + b / a * dy
    begins, ends = center - half_width, center + half_width
    number = torch.arange(TILE) % 8
    return (begins <= 7 - number) & (ends >= -number)


def _blocks(marked: Tensor, columns: int, rows: int) -> Tensor:
    """Return all pixels of blocks of which one is marked."""
    num = len(marked)
    split = marked.reshape(num, TILE // rows, rows, TILE // columns, columns)
    return split.any(4, keepdim=True).any(2, keepdim=True).expand(split.shape).reshape(num, TILE, TILE)


if __name__ == "__main__":
    main()
