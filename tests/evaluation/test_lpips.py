"""LPIPS: the networks are torchvision's, the distances those of the definition, wrong files are named.

The published weights are not in this repository, so most tests give the networks weights of their own. With
the real ones on this machine the last tests compare with published properties and with the `lpips` package.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from other_programs import lpips_package  # noqa: F401  (a fixture)
from torch import Tensor, nn

from splatstudio.evaluation import lpips as module
from splatstudio.evaluation.lpips import NETWORKS, Lpips, fetch_lpips, load_lpips, weights_folder


def features_of_torchvision(name: str) -> nn.Sequential:
    """Return `features` as torchvision's alexnet and vgg16 build them, written out from their papers."""
    if name == "alex":
        sizes = [(3, 64, 11, 4, 2), "relu", "pool3", (64, 192, 5, 1, 2), "relu", "pool3"]
        sizes += [
            (192, 384, 3, 1, 1),
            "relu",
            (384, 256, 3, 1, 1),
            "relu",
            (256, 256, 3, 1, 1),
            "relu",
        ]
    else:
        sizes, before = [], 3
        for width in [64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512]:
            sizes += ["pool2"] if width == 0 else [(before, width, 3, 1, 1), "relu"]
            before = width or before
    modules = {"relu": nn.ReLU, "pool3": lambda: nn.MaxPool2d(3, 2), "pool2": lambda: nn.MaxPool2d(2, 2)}
    return nn.Sequential(*(modules[s]() if isinstance(s, str) else nn.Conv2d(*s) for s in sizes))


# Where the five compared outputs are, by the number of the rectifier (Zhang et al. 2018, appendix).
TAPS = {"alex": (1, 4, 7, 9, 11), "vgg": (3, 8, 15, 22, 29)}


@pytest.fixture(params=["alex", "vgg"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def files(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Weights of chance in the cache folder, under names that vouch for them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    folder = weights_folder()
    folder.mkdir(parents=True)
    torch.manual_seed(3)
    backbone = features_of_torchvision(name)
    content = {f"features.{key}": tensor for key, tensor in backbone.state_dict().items()}
    content["classifier.1.weight"] = torch.zeros(2, 2)
    torch.save(content, folder / "backbone")
    digits = hashlib.sha256((folder / "backbone").read_bytes()).hexdigest()[:8]
    network = replace(NETWORKS[name], backbone=f"net-{digits}.pth")
    (folder / "backbone").rename(folder / network.backbone)
    heads = {f"lin{i}.model.1.weight": torch.rand(1, w, 1, 1) for i, w in enumerate(network.widths)}
    torch.save(heads, folder / network.head)
    monkeypatch.setitem(NETWORKS, name, network)
    load_lpips.cache_clear()
    yield folder
    load_lpips.cache_clear()


def by_the_definition(name: str, folder: Path, image: Tensor, target: Tensor) -> float:
    """Compute the distance with torch.nn's modules and loops, as the paper writes it."""
    network = NETWORKS[name]
    backbone = features_of_torchvision(name)
    content = torch.load(folder / network.backbone, weights_only=True)
    state = {k.removeprefix("features."): v for k, v in content.items() if k.startswith("features")}
    backbone.load_state_dict(state)
    heads = list(torch.load(folder / network.head, weights_only=True).values())
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    taps: list[list[Tensor]] = []
    for one in (image, target):
        # The shift and scale of LPIPS are ImageNet's mean and deviation for images in -1..1.
        shown = one * 2 - 1 if name == "alex" else one
        x = ((shown + 1) / 2 - mean) / std
        x = x.permute(2, 0, 1)[None]
        outputs: list[Tensor] = []
        for number, layer in enumerate(backbone):
            x = layer(x)
            if number in TAPS[name]:
                outputs.append(x[0])
        taps.append(outputs)
    total = 0.0
    for head, ours, theirs in zip(heads, *taps, strict=True):
        units = [one / one.norm(dim=0, keepdim=True).clamp_min(1e-10) for one in (ours, theirs)]
        total += float(((units[0] - units[1]) ** 2 * head[0]).sum(dim=0).mean())
    return total


@torch.no_grad()
def test_the_distance_is_that_of_the_definition(name: str, files: Path) -> None:
    image, target = torch.rand(2, 41, 50, 3)
    distance = load_lpips(name)
    expected = by_the_definition(name, files, image, target)
    assert distance(image, target) == pytest.approx(expected, rel=2e-3) and expected > 0
    assert distance(target, target) == 0.0
    assert distance(image, target) == pytest.approx(distance(target, image), rel=1e-5)
    assert distance(image * 1.5 - 0.2, target) == distance((image * 1.5 - 0.2).clamp(0, 1), target)


def test_what_a_mask_hides_does_not_count(name: str, files: Path) -> None:
    distance = load_lpips(name)
    image, target = torch.rand(2, 40, 64, 3)
    mask = torch.ones(40, 64, dtype=torch.bool)
    mask[:, 32:] = False
    other = torch.where(mask[..., None], image, torch.rand_like(image))
    assert distance(image, target, mask) == distance(other, target, mask) > 0
    same = torch.where(mask[..., None], target, image)
    assert distance(same, target, mask) == 0.0
    everything = distance(image, target, torch.ones_like(mask))
    assert everything == pytest.approx(distance(image, target), rel=0.2)


def test_an_image_too_small_for_the_network_has_no_distance(name: str, files: Path) -> None:
    image = torch.rand(20, 80, 3)
    assert load_lpips(name)(image, image) != load_lpips(name)(image, image)  # NaN


def test_wrong_files_are_named(name: str, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Heads of a package that somebody has installed are no concern of this test.
    monkeypatch.setattr(module, "importlib", SimpleNamespace(util=SimpleNamespace(find_spec=lambda _: None)))
    network = NETWORKS[name]
    backbone, head = files / network.backbone, files / network.head
    good = backbone.read_bytes(), head.read_bytes()
    backbone.write_bytes(good[0][:-1])
    with pytest.raises(ValueError, match="is damaged or another file: its SHA-256"):
        load_lpips(name)
    backbone.write_bytes(good[0])
    for content in (b"", b"PK", good[1][:200]):
        head.write_bytes(content)
        with pytest.raises(ValueError, match=f"{network.head} is damaged"):
            load_lpips(name)
    torch.save({"lin0.model.1.weight": -torch.ones(1, network.widths[0], 1, 1)}, head)
    with pytest.raises(ValueError, match="is not the head of LPIPS"):
        load_lpips(name)
    head.unlink()
    with pytest.raises(ValueError, match=f"weights not found, put {network.head} at {files}"):
        load_lpips(name)


def test_what_is_missing_can_be_fetched(
    name: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = NETWORKS[name]
    store = tmp_path / "store"
    files.rename(store)
    monkeypatch.setattr(module, "BACKBONES_URL", f"file://{store}/")
    monkeypatch.setattr(module, "HEADS_URL", f"file://{store}/")
    fetch_lpips(name)
    image, target = torch.rand(2, 32, 32, 3)
    assert load_lpips(name)(image, target) > 0
    (weights_folder() / network.backbone).unlink()
    (store / network.backbone).write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"cannot be fetched .*put .* by hand"):
        fetch_lpips(name)
    assert not (weights_folder() / network.backbone).exists()


@pytest.mark.parametrize("kind", ["alex", "vgg"])
def test_the_published_weights_know_what_people_see(kind: str) -> None:
    load_lpips.cache_clear()
    try:
        distance: Lpips = load_lpips(kind)
    except ValueError as error:
        pytest.skip(str(error))
    torch.manual_seed(0)
    image = torch.rand(8, 8, 3).movedim(2, 0)[None]
    image = nn.functional.interpolate(image, (128, 128), mode="bicubic")[0].movedim(0, 2).clamp(0, 1)
    noisy = (image + 0.1 * torch.randn_like(image)).clamp(0, 1)
    brighter = (image + (noisy - image).square().mean().sqrt()).clamp(0, 1)
    assert distance(brighter, image) < 0.5 * distance(noisy, image), "noise is seen, a little light is not"


def theirs(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *, published: bool) -> Any:
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
    name: str,
    files: Path,
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
