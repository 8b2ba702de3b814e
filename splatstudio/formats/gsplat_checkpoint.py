"""Gaussians as a checkpoint of gsplat's trainer: {"step": int, "splats": {means, scales, quats, ...}}."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from splatstudio.formats.model_arrays import SplatFile, arrays_to_write
from splatstudio.formats.torch_file import save_tensors, splats_of_tensors
from splatstudio.gaussians.gaussians import Gaussians


def write_gsplat_checkpoint(path: Path | str, gaussians: Gaussians, *, step: int = 0) -> None:
    """Write the Gaussians to `path`, with the `step` of training that they come from.

    gsplat's trainer and viewer load it with --ckpt. Raises ValueError, and writes nothing, when there are no
    Gaussians, a parameter is not finite or the file cannot be written.
    """
    path = Path(path)
    model = arrays_to_write(path, gaussians)
    splats = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in vars(model).items()}
    splats["sh0"] = splats["sh0"].reshape(-1, 1, 3)
    save_tensors(path, {"step": step, "splats": splats})


def is_gsplat_checkpoint(content: Any) -> bool:
    """Return whether what torch.save wrote is a checkpoint of gsplat."""
    return isinstance(content, Mapping) and isinstance(content.get("splats"), Mapping)


def splats_of_gsplat(path: Path, content: Mapping[str, Any]) -> SplatFile:
    """Return what a checkpoint holds that was read from `path`.

    Raises ValueError when a tensor is missing or wrong, naming what a model of another kind holds instead.
    """
    splats = content["splats"]
    if "features" in splats and "sh0" not in splats:
        raise ValueError(
            f"{path} was trained with an appearance network, whose colors no splat holds;"
            " train without --app_opt to get a model that others can open"
        )
    step = content.get("step")
    return splats_of_tensors(path, splats, step if type(step) is int else None)
