"""Gaussians of a checkpoint of the original trainer (chkpnt30000.pth): ((degree, xyz, ...), iteration)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from splatstudio.formats.model_arrays import SplatFile
from splatstudio.formats.torch_file import splats_of_tensors

# The order of the state that its model returns for saving; statistics and the optimizer's state follow.
ORDER = ("sh_degree", "means", "sh0", "shN", "scales", "quats", "opacities")


def is_inria_checkpoint(content: Any) -> bool:
    """Return whether what torch.save wrote is a checkpoint of the original trainer."""
    return (
        isinstance(content, tuple)
        and len(content) == 2
        and isinstance(content[0], tuple)
        and len(content[0]) >= len(ORDER)
        and isinstance(content[0][0], int)
    )


def splats_of_inria(path: Path, content: Any) -> SplatFile:
    """Return what a checkpoint holds that was read from `path`; ValueError when it is not whole."""
    state: dict[str, Any] = dict(zip(ORDER, content[0], strict=False))
    return splats_of_tensors(path, state)
