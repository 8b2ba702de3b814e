"""splatstudio: the desktop studio for 3D Gaussian Splatting.

import splatstudio as ss
scene = ss.load_scene("assets/demo")
model = ss.train(scene, steps=1000)
image = ss.render(model, scene.cameras[0])
model.save_ply("demo.ply")
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

# Torch's threads spin for milliseconds after each of its operations, on the cores that the native kernels
# want next: small images train twice as fast when they sleep instead. OpenMP reads this when torch is
# loaded, so it has no effect where torch was imported before, and a setting of the user's stays.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Intel's library computes exp, sqrt and the products of matrices in other ways on each kind of processor, and
# by threads: of one seed came other models. This way it does all of it alike; a training asks little of it.
os.environ.setdefault("MKL_CBWR", "COMPATIBLE")

if TYPE_CHECKING:
    from splatstudio.api import mesh, render, train
    from splatstudio.gui.notebook import show
    from splatstudio.models.merging import merge
    from splatstudio.models.model import Model, load_model
    from splatstudio.poses.estimate import estimate_poses
    from splatstudio.scene.load import load_scene

__all__ = ["Model", "estimate_poses", "load_model", "load_scene", "merge", "mesh", "render", "show", "train"]


def __getattr__(name: str) -> Any:
    # torch takes seconds to import: only when the first function is used, not for `splatstudio --help`.
    if name in __all__:
        from splatstudio import api

        return getattr(api, name)
    raise AttributeError(f"module 'splatstudio' has no attribute {name!r}")
