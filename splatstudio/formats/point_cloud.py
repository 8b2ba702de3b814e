"""The centres of Gaussians as a point cloud in PLY: x y z float32, perhaps normals, red green blue uchar."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from splatstudio.formats.model_arrays import arrays_to_write, write_file
from splatstudio.formats.quantize import colors_of, rounded
from splatstudio.gaussians.gaussians import Gaussians


def write_point_cloud(path: Path | str, gaussians: Gaussians, normals: torch.Tensor | None = None) -> None:
    """Write the centre of every Gaussian with its colour, without what depends on the view, to `path`.

    `normals` [N, 3] are written where they are given; programs that make surfaces of points need them.
    Raises ValueError, and writes nothing, when there are no Gaussians, a parameter is not finite or the file
    cannot be written.
    """
    path = Path(path)
    model = arrays_to_write(path, gaussians)
    normal_type = [] if normals is None else [("normal", "<f4", 3)]
    rows = np.empty(len(model), np.dtype([("xyz", "<f4", 3), *normal_type, ("rgb", "u1", 3)]))
    rows["xyz"] = model.means
    if normals is not None:
        rows["normal"] = normals.numpy()
    rows["rgb"] = rounded(255.0 * colors_of(model.sh0), 0, 255)
    lines = ["ply", "format binary_little_endian 1.0", "comment splatstudio", f"element vertex {len(model)}"]
    names = [*"xyz", *([] if normals is None else ("nx", "ny", "nz"))]
    lines += [f"property float {name}" for name in names]
    lines += [f"property uchar {name}" for name in ("red", "green", "blue")]
    write_file(path, "\n".join([*lines, "end_header\n"]).encode("ascii") + rows.tobytes())
