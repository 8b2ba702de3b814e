"""Numbers as colours."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from splatstudio.rendering.modes import ColorMapName

# 33 colours each at equal distances. Turbo: Mikhailov 2019; viridis: Smith and van der Walt 2015.
_STOPS: dict[ColorMapName, str] = {
    "turbo": (
        "30123b392a734040a24456c7466be34680f64294ff37a8fa28bceb1ccdd818ddc2"
        "1fe9af32f2984ef97d6dfe628bff4ba4fc3cb9f635cdec34dfdf37eecf3af8be39"
        "fdac34fe962bfb7e21f46617eb500edf3f08d02f05be2102a91601920b017a0403"
    ),
    "viridis": (
        "440154470d6048186a482374472d7b4537814240863e49893b528b375b8d33638d"
        "2f6b8e2c728e297a8e26828e23898e21918c1f988b1fa08822a78528ae8032b67a"
        "3fbc734ec36b5ec96270cf5784d44b98d83eaddc30c2df23d8e219ece51bfde725"
    ),
    "gray": "000000ffffff",
}


@cache
def color_table(name: ColorMapName) -> Tensor:
    """Return the 256 colours of a map, [256, 3] uint8."""
    stops = np.frombuffer(bytes.fromhex(_STOPS[name]), np.uint8).reshape(-1, 3).astype(float)
    places = np.linspace(0.0, 1.0, 256)
    channels = [np.interp(places, np.linspace(0.0, 1.0, len(stops)), stops[:, c]) for c in range(3)]
    return torch.from_numpy(np.rint(np.stack(channels, axis=1)).astype(np.uint8))


def colored(values: Tensor, low: float, high: float, name: ColorMapName) -> Tensor:
    """Return `values` [...] as colours [..., 3] uint8: `low` and below the first, `high` and above the last.

    NaN counts as `low`.
    """
    assert high > low, "an empty range"
    places = ((values - low) * (255.0 / (high - low))).clamp(0.0, 255.0).nan_to_num(0.0)
    return color_table(name).to(values.device)[places.round().long()]
