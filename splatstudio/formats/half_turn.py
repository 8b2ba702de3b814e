"""Gaussians after half a turn about an axis, exactly: what lies between the axes of file formats.

COLMAP's and PLY's world has x right, y down, z forward (RDF). Half a turn about x makes x right, y up, z
back (RUB, as OpenGL), one about z makes x left, y up, z forward (LUF, as glTF). Both undo themselves.
"""

from __future__ import annotations

import numpy as np

from splatstudio.formats.model_arrays import ModelArrays

ABOUT_X = (1.0, -1.0, -1.0)
ABOUT_Z = (-1.0, -1.0, 1.0)
# The axes of which each SH basis function beyond the first holds an odd power, in the coefficients' order.
ODD_AXES = ["y", "z", "x", "xy", "yz", "", "xz", "", "y", "xyz", "y", "z", "x", "z", "x"]


def half_turned(arrays: ModelArrays, signs: tuple[float, float, float]) -> ModelArrays:
    """Return the same Gaussians in a world whose axes have the signs ABOUT_X or ABOUT_Z.

    Quaternions are conjugated: the own axes of a Gaussian turn along, which its shape does not show.
    """
    axis_signs = np.array(signs, np.float32)
    by_axis = dict(zip("xyz", signs, strict=True))
    sh_signs = np.array([np.prod([by_axis[axis] for axis in axes]) for axes in ODD_AXES], np.float32)
    return ModelArrays(
        means=arrays.means * axis_signs,
        quats=arrays.quats * np.array([1.0, *signs], np.float32),
        scales=arrays.scales,
        opacities=arrays.opacities,
        sh0=arrays.sh0,
        shN=arrays.shN * sh_signs[: arrays.shN.shape[1], None],
    )
