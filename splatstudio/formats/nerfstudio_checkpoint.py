"""Gaussians of a checkpoint of nerfstudio's splatfacto: {"step": int, "pipeline": {name: tensor}}."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from splatstudio.formats.model_arrays import SplatFile
from splatstudio.formats.quantize import sh0_of
from splatstudio.formats.torch_file import splats_of_tensors

# The parameters' names behind "_model.", in versions before 1.1 without "gauss_params.".
NAMES = {"sh0": "features_dc", "shN": "features_rest"}
PREFIXES = ("_model.gauss_params.", "_model.")


def is_nerfstudio_checkpoint(content: Any) -> bool:
    """Return whether what torch.save wrote is a checkpoint of nerfstudio."""
    return isinstance(content, Mapping) and isinstance(content.get("pipeline"), Mapping)


def splats_of_nerfstudio(path: Path, content: Mapping[str, Any]) -> SplatFile:
    """Return what a checkpoint holds that was read from `path`, in the frame in which it was trained.

    Raises ValueError for a checkpoint of another method than splatfacto, and where a tensor is wrong.
    """
    pipeline = content["pipeline"]
    prefix = next((each for each in PREFIXES if f"{each}means" in pipeline), None)
    if prefix is None:
        raise ValueError(
            f"{path} is a checkpoint of nerfstudio's, but not of its splatfacto: it has no splats"
        )
    wanted = ("means", "quats", "scales", "opacities", "sh0", "shN")
    found = {name: pipeline.get(prefix + NAMES.get(name, name)) for name in wanted}
    tensors = {name: tensor for name, tensor in found.items() if tensor is not None}
    for name in ("sh0", "shN"):
        if isinstance(tensors.get(name), torch.Tensor) and tensors[name].ndim == 2:
            tensors[name] = tensors[name][:, None]
    step = content.get("step")
    shN, sh0 = tensors.get("shN"), tensors.get("sh0")
    if isinstance(shN, torch.Tensor) and isinstance(sh0, torch.Tensor) and shN.numel() == 0:
        # Trained without view-dependent color it keeps the logits of colors.
        tensors["sh0"] = torch.from_numpy(sh0_of(torch.sigmoid(sh0.detach().float()).numpy()))
    return splats_of_tensors(path, tensors, step if type(step) is int else None)
