"""How long a mesh takes and how much memory: depth of a known solid, fused, meshed and compared with it.

    python tests/bench/mesh.py --resolution 512 --solid torus

Drawing a model's depth comes on top of it, which `step.py` measures.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import numpy as np
from traced_shapes import SOLIDS, f_score, views_of

from splatstudio.surfaces.extract import extract_surface
from splatstudio.surfaces.tsdf import Grid, find_blocks, fuse


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--resolution", type=int, default=512, help="voxels along the longest side")
    parser.add_argument("--views", type=int, default=8, help="on each of three rings")
    parser.add_argument("--pixels", type=int, default=640)
    parser.add_argument("--solid", choices=list(SOLIDS), default="torus")
    options = parser.parse_args()
    solid = SOLIDS[options.solid]
    views = views_of(solid, options.views, options.pixels)
    size = 2 * float(solid.surface(2000).abs().max()) / options.resolution
    grid = Grid(np.full(3, -1.6), size)
    times = [time.perf_counter()]
    keys = find_blocks(grid, views)
    times.append(time.perf_counter())
    field = fuse(grid, keys, views)
    times.append(time.perf_counter())
    mesh = extract_surface(field)
    times.append(time.perf_counter())
    found, fused, extracted = np.diff(times)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{len(field):,} blocks, {mesh.num_triangles:,} triangles of {len(views)} views, {peak:.2f} GB")
    print(f"finding blocks {found:.1f} s, fusing {fused:.1f} s, surface {extracted:.1f} s")
    score, chamfer = f_score(mesh, solid)
    print(f"F-score at 1 % of the diagonal {score:.4f}, Chamfer distance {chamfer:.5f} of it")


if __name__ == "__main__":
    main()
