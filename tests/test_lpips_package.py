"""LPIPS beside the `lpips` package of its authors, both with the same weights of chance.

The package is not needed by anything else here and is not installed for the tests; where somebody has it
(`pip install lpips`), this compares. What stays unchecked without the published weights are these alone.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from test_lpips import features_of_torchvision, files, name  # noqa: F401  (fixtures)

from splatstudio.lpips import NETWORKS, load_lpips


def theirs(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: F811
    """Return the package's network with the weights in `folder`; torchvision need not be there."""
    try:
        import torchvision  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        stand_in = ModuleType("torchvision")
        stand_in.models = SimpleNamespace(  # pyright: ignore[reportAttributeAccessIssue]
            alexnet=lambda **_: SimpleNamespace(features=features_of_torchvision("alex")),
            vgg16=lambda **_: SimpleNamespace(features=features_of_torchvision("vgg")),
        )
        monkeypatch.setitem(sys.modules, "torchvision", stand_in)
    package = pytest.importorskip("lpips", reason="the lpips package is not installed")
    network = package.LPIPS(pretrained=False, pnet_rand=True, net=name, verbose=False)
    content = torch.load(folder / NETWORKS[name].backbone, weights_only=True)
    numbers = {number: layer for part in network.net.children() for number, layer in part.named_children()}
    with torch.no_grad():
        for key, value in content.items():
            kind, number, *rest = key.split(".")
            if kind == "features":
                getattr(numbers[number], rest[0]).copy_(value)
        heads = torch.load(folder / NETWORKS[name].head, weights_only=True)
        for lin, head in zip(network.lins, heads.values(), strict=True):
            lin.model[-1].weight.copy_(head)
    return network


@torch.no_grad()
def test_the_distance_is_that_of_the_package(
    name: str,  # noqa: F811
    files: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = theirs(name, files, monkeypatch)
    ours = load_lpips(name)
    for height, width in [(41, 50), (64, 96)]:
        image, target = torch.rand(2, height, width, 3)
        one, other = (picture.movedim(2, 0)[None] for picture in (image, target))
        # As gsplat and the first 3DGS program call it: AlexNet's images in -1..1, VGG's as they are.
        expected = float(network(one, other, normalize=name == "alex"))
        assert expected > 0
        assert ours(image, target) == pytest.approx(expected, rel=1e-4)
