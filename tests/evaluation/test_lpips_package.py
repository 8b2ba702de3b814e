"""LPIPS beside the `lpips` package of its authors, with its published heads and the same networks of chance.

The heads come with the package; what stays unchecked is the published AlexNet and VGG16 below them.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from other_programs import lpips_package  # noqa: F401  (a fixture)
from test_lpips import features_of_torchvision, files, name  # noqa: F401  (fixtures)

from splatstudio.evaluation.lpips import NETWORKS, load_lpips


def theirs(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *, published: bool) -> Any:  # noqa: F811
    """Return the package's network with the weights in `folder`; torchvision need not be there.

    With `published` its heads are the package's own, else those in `folder`.
    """
    try:
        import torchvision  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        stand_in = ModuleType("torchvision")
        stand_in.models = SimpleNamespace(  # pyright: ignore[reportAttributeAccessIssue]
            alexnet=lambda **_: SimpleNamespace(features=features_of_torchvision("alex")),
            vgg16=lambda **_: SimpleNamespace(features=features_of_torchvision("vgg")),
        )
        monkeypatch.setitem(sys.modules, "torchvision", stand_in)
    package = importlib.import_module("lpips")
    network = package.LPIPS(pretrained=published, pnet_rand=True, net=name, verbose=False)
    content = torch.load(folder / NETWORKS[name].backbone, weights_only=True)
    numbers = {number: layer for part in network.net.children() for number, layer in part.named_children()}
    with torch.no_grad():
        for key, value in content.items():
            kind, number, *rest = key.split(".")
            if kind == "features":
                getattr(numbers[number], rest[0]).copy_(value)
        if not published:
            heads = torch.load(folder / NETWORKS[name].head, weights_only=True)
            for lin, head in zip(network.lins, heads.values(), strict=True):
                lin.model[-1].weight.copy_(head)
    return network.eval()


@torch.no_grad()
@pytest.mark.parametrize("published", [False, True], ids=["heads of chance", "published heads"])
def test_the_distance_is_that_of_the_package(
    name: str,  # noqa: F811
    files: Path,  # noqa: F811
    lpips_package: Path,  # noqa: F811
    published: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = theirs(name, files, monkeypatch, published=published)
    if published:  # ours are those that are found in the package
        (files / NETWORKS[name].head).unlink()
    ours = load_lpips(name)
    if published:
        file = lpips_package / "weights" / "v0.1" / NETWORKS[name].head
        content = torch.load(file, map_location="cpu", weights_only=True)
        assert all(map(torch.equal, ours._heads, content.values()))
    for height, width in [(41, 50), (64, 96)]:
        image, target = torch.rand(2, height, width, 3)
        one, other = (picture.movedim(2, 0)[None] for picture in (image, target))
        # As gsplat and the first 3DGS program call it: AlexNet's images in -1..1, VGG's as they are.
        expected = float(network(one, other, normalize=name == "alex"))
        print(f"{name}, {height} x {width}: ours {ours(image, target):.6g}, the package's {expected:.6g}")
        assert expected > 0
        assert ours(image, target) == pytest.approx(expected, rel=1e-4)
