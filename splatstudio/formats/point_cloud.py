"""The centres of Gaussians as a point cloud in PLY: x y z float32, red green blue uchar."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from splatstudio.formats.model_arrays import arrays_to_write, write_file
from splatstudio.formats.quantize import colors_of, rounded
from splatstudio.gaussians import Gaussians

ROW = np.dtype([("xyz", "<f4", 3), ("rgb", "u1", 3)])


def write_point_cloud(path: Path | str, gaussians: Gaussians) -> None:
    """Write the centre of every Gaussian with its colour, without what depends on the view, to `path`.

    Raises ValueError, and writes nothing, when there are no Gaussians, a parameter is not finite or the file
    cannot be written.
    """
    path = Path(path)
    model = arrays_to_write(path, gaussians)
    rows = np.empty(len(model), ROW)
    rows["xyz"] = model.means
    rows["rgb"] = rounded(255.0 * colors_of(model.sh0), 0, 255)
    lines = ["ply", "format binary_little_endian 1.0", "comment splatstudio", f"element vertex {len(model)}"]
    lines += [f"property float {name}" for name in "xyz"]
    lines += [f"property uchar {name}" for name in ("red", "green", "blue")]
    write_file(path, "\n".join([*lines, "end_header\n"]).encode("ascii") + rows.tobytes())
