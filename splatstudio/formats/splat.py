"""Gaussians as .splat, antimatter15's layout: 32 bytes each and no header.

Position and scale (not its logarithm) as three float32 each, color and opacity as four bytes, the quaternion
(w, x, y, z) as four bytes around 128. Source: the description and converter of antimatter15/splat (MIT).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from splatstudio.formats.model_arrays import (
    ModelArrays,
    SplatFile,
    arrays_to_write,
    read_file,
    require_memory,
    splats_read,
    write_file,
)
from splatstudio.formats.quantize import colors_of, opacity_logits, rounded, sh0_of, sigmoid, unit_quats
from splatstudio.gaussians.gaussians import Gaussians

ROW = np.dtype([("means", "<f4", 3), ("scales", "<f4", 3), ("rgba", "u1", 4), ("quats", "u1", 4)])
MORE_EACH = 56  # bytes a Gaussian that decoding takes beside the model, measured
SMALLEST_SCALE = np.finfo(np.float32).tiny  # a scale of 0 has no logarithm
LARGEST_LOG_SCALE = 88.0  # more leaves float32


def write_splat(path: Path | str, gaussians: Gaussians) -> None:
    """Write the Gaussians to `path` without their view-dependent color, the most visible first.

    Viewers draw such a file while it arrives, so large and opaque ones come first. Raises ValueError, and
    writes nothing, when there are none, a parameter is not finite or the file cannot be written.
    """
    path = Path(path)
    model = arrays_to_write(path, gaussians).without_shN()
    visible = model.scales.sum(axis=1, dtype=np.float64) + np.log(sigmoid(model.opacities) + 1e-30)
    order = np.argsort(-visible, kind="stable")
    rows = np.empty(len(model), ROW)
    for chunk, _ in model.chunks():
        part = model[order[chunk]]
        rows["means"][chunk] = part.means
        rows["scales"][chunk] = np.exp(np.minimum(part.scales, LARGEST_LOG_SCALE))
        rows["rgba"][chunk, :3] = rounded(255.0 * colors_of(part.sh0), 0, 255)
        rows["rgba"][chunk, 3] = rounded(255.0 * sigmoid(part.opacities), 0, 255)
        rows["quats"][chunk] = rounded(128.0 * unit_quats(part.quats) + 128.0, 0, 255)
    write_file(path, rows.view(np.uint8).data)


def read_splat(path: Path | str) -> SplatFile:
    """Return the content of a .splat file, of SH degree 0.

    The format has no mark of its own: damage shows only where it leaves a size that is not a multiple of 32,
    or values that no file holds. Raises ValueError, naming the file and the reason, for those.
    """
    path = Path(path)
    require_memory(path, path.stat().st_size // ROW.itemsize if path.is_file() else 0, 0, MORE_EACH)
    content = read_file(path)
    if len(content) == 0 or len(content) % ROW.itemsize:
        raise ValueError(
            f"{path} is not a whole .splat file: its {len(content)} bytes are no multiple of {ROW.itemsize}"
        )
    rows = np.frombuffer(content, ROW)
    num = len(rows)
    wrong = (rows["scales"] < 0.0).any(axis=1)
    if wrong.any():
        index = int(wrong.argmax())
        raise ValueError(f"{path} is damaged: splat {index} has the scales {rows['scales'][index].tolist()}")
    with np.errstate(invalid="ignore"):  # what is not finite stays so
        log_scales = np.log(np.maximum(rows["scales"], SMALLEST_SCALE))
    model = ModelArrays(
        means=rows["means"],
        quats=unit_quats((rows["quats"].astype(np.float32) - 128.0) / 128.0),
        scales=log_scales,
        opacities=opacity_logits(rows["rgba"][:, 3]),
        sh0=sh0_of(rows["rgba"][:, :3] / np.float32(255)),
        shN=np.empty((num, 0, 3), np.float32),
    )
    return splats_read(path, model)
