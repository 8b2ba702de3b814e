"""LPIPS: how differently two images look to a network (Zhang et al. 2018, version 0.1, lower is more alike).

The networks are AlexNet and VGG16 as torchvision trained them on ImageNet, cut behind their rectifiers, with
the linear heads of the `lpips` package. Weights are never part of this program. To have them, put these files
into ~/.cache/splatstudio/lpips (below $XDG_CACHE_HOME where that is set), or let `splatstudio eval RUN
--fetch-lpips` do it on a machine that reaches the internet:

    AlexNet  alexnet-owt-7be5be79.pth of BACKBONES_URL, alex.pth of HEADS_URL
    VGG16    vgg16-397923af.pth of BACKBONES_URL, vgg.pth of HEADS_URL

What torch keeps in its own cache and the heads that an installed `lpips` or torchmetrics has are found too.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from splatstudio.files.inputs import sha256_of
from splatstudio.formats.torch_file import DAMAGE

SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)  # of the inputs in -1..1
SMALLEST = 32  # pixels a side: below, nothing is left after AlexNet's strides
HEADS_URL = "https://raw.githubusercontent.com/richzhang/PerceptualSimilarity/master/lpips/weights/v0.1/"
NOT_FOUND = ": weights not found"
BACKBONES_URL = "https://download.pytorch.org/models/"


@dataclass(frozen=True)
class Layer:
    """A convolution with its rectifier, by its number in torchvision's `features`."""

    index: int
    pool: int = 0  # window of the maximum before it, stride 2; 0: none
    stride: int = 1
    padding: int = 1
    tap: bool = False  # whether its output is compared


@dataclass(frozen=True)
class Network:
    """One of the two networks: its layers, its files, and the range of what it is shown."""

    title: str
    backbone: str  # torchvision's file name; the digits before .pth begin its SHA-256
    head: str
    widths: tuple[int, ...]  # channels of the tapped layers
    layers: tuple[Layer, ...]
    centered: bool  # whether images in 0..1 are brought to -1..1 first

    @property
    def files(self) -> tuple[str, str]:
        """Return the names of the two files of weights."""
        return self.backbone, self.head


NETWORKS: dict[str, Network] = {
    "alex": Network(
        title="AlexNet",
        backbone="alexnet-owt-7be5be79.pth",
        head="alex.pth",
        widths=(64, 192, 384, 256, 256),
        layers=(
            Layer(0, stride=4, padding=2, tap=True),
            Layer(3, pool=3, padding=2, tap=True),
            Layer(6, pool=3, tap=True),
            Layer(8, tap=True),
            Layer(10, tap=True),
        ),
        centered=True,
    ),
    "vgg": Network(
        title="VGG16",
        backbone="vgg16-397923af.pth",
        head="vgg.pth",
        widths=(64, 128, 256, 512, 512),
        layers=(
            Layer(0),
            Layer(2, tap=True),
            Layer(5, pool=2),
            Layer(7, tap=True),
            Layer(10, pool=2),
            Layer(12),
            Layer(14, tap=True),
            Layer(17, pool=2),
            Layer(19),
            Layer(21, tap=True),
            Layer(24, pool=2),
            Layer(26),
            Layer(28, tap=True),
        ),
        # The first 3DGS program gave VGG its images in 0..1 as they are, and all tables follow it.
        centered=False,
    ),
}


class Lpips:
    """One network with its weights, ready to compare images."""

    def __init__(self, name: str, weights: dict[str, Tensor], heads: list[Tensor]) -> None:
        self.name = name
        self.network = NETWORKS[name]
        self._weights = weights
        self._heads = heads

    def to(self, device: torch.device) -> Lpips:
        """Return the network on a device."""
        weights = {key: tensor.to(device) for key, tensor in self._weights.items()}
        return Lpips(self.name, weights, [head.to(device) for head in self._heads])

    @torch.no_grad()
    def __call__(self, image: Tensor, target: Tensor, mask: Tensor | None = None) -> float:
        """Return the distance of two images [H, W, 3], clamped to 0..1; 0 for equal ones.

        With `mask` [H, W] bool the image is taken to equal the target outside it, and the distances, brought
        to the image's size bilinearly, are averaged inside. An image with a side below 32 pixels gives NaN.
        """
        if min(image.shape[:2]) < SMALLEST:
            return float("nan")
        if mask is not None:
            image = torch.where(mask[..., None], image, target)
        features = [self._features(one.clamp(0.0, 1.0)) for one in (image, target)]
        total = 0.0
        for head, ours, theirs in zip(self._heads, *features, strict=True):
            difference = ((_unit(ours) - _unit(theirs)) ** 2 * head).sum(dim=1, keepdim=True)
            if mask is not None:
                full = functional.interpolate(difference, mask.shape, mode="bilinear", align_corners=False)
                difference = full[0, 0][mask]
            total += float(difference.mean())
        return total

    def _features(self, image: Tensor) -> list[Tensor]:
        x = image.movedim(2, 0)[None]
        if self.network.centered:
            x = 2.0 * x - 1.0
        x = (x - x.new_tensor(SHIFT).reshape(1, 3, 1, 1)) / x.new_tensor(SCALE).reshape(1, 3, 1, 1)
        taps: list[Tensor] = []
        for layer in self.network.layers:
            if layer.pool:
                x = functional.max_pool2d(x, layer.pool, 2)
            weight, bias = (self._weights[f"features.{layer.index}.{kind}"] for kind in ("weight", "bias"))
            x = functional.relu_(functional.conv2d(x, weight, bias, layer.stride, layer.padding))
            if layer.tap:
                taps.append(x)
        return taps


def _unit(features: Tensor) -> Tensor:
    return features / (features.square().sum(dim=1, keepdim=True).sqrt() + 1e-10)


def weights_folder() -> Path:
    """Return our own folder for the files of weights."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "splatstudio" / "lpips"


@functools.cache
def load_lpips(name: str) -> Lpips:
    """Return the network "alex" or "vgg" with its weights, on the CPU.

    Raises ValueError saying which files to put where when they are not on this machine, and naming the file
    when it is damaged or another one.
    """
    network = NETWORKS[name]
    found = {file: _found(file, network) for file in network.files}
    missing = [file for file, path in found.items() if path is None]
    if missing:
        raise ValueError(
            f"LPIPS ({network.title}){NOT_FOUND}, put {' and '.join(missing)} at {weights_folder()},"
            " or let splatstudio eval --fetch-lpips download them"
        )
    backbone, head = found.values()
    assert backbone is not None and head is not None
    return Lpips(name, _backbone(backbone, network), _heads(head, network))


def short_notes(notes: Sequence[str], remedy: str = "splatstudio eval --fetch-lpips gets them.") -> list[str]:
    """Return the notes of an evaluation, those on missing weights as one at the end with a `remedy`."""
    kept = [note for note in notes if NOT_FOUND not in note]
    if len(kept) < len(notes):
        kept.append(f"LPIPS skipped: weights not installed. {remedy}")
    return kept


def lacks_weights(name: str) -> bool:
    """Whether files of the network "alex" or "vgg" are missing on this machine."""
    network = NETWORKS[name]
    return any(_found(file, network) is None for file in network.files)


def fetch_lpips(name: str) -> None:
    """Download the files of a network that are missing into our folder; ValueError when that fails."""
    network = NETWORKS[name]
    folder = weights_folder()
    for file, url in zip(network.files, (BACKBONES_URL, HEADS_URL), strict=True):
        if _found(file, network) is not None:
            continue
        digits = _digits(file) if file == network.backbone else None
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"{folder} cannot be made: {error.strerror or error}; let XDG_CACHE_HOME name a folder that"
                " can be written"
            ) from error
        try:
            torch.hub.download_url_to_file(url + file, str(folder / file), hash_prefix=digits, progress=False)
        except (OSError, RuntimeError) as error:
            raise ValueError(
                f"{url + file} cannot be fetched ({error}); put {file} at {folder} by hand"
            ) from error
    load_lpips.cache_clear()


def _found(file: str, network: Network) -> Path | None:
    """Return where a file of weights lies on this machine, or None."""
    places = [weights_folder(), Path(torch.hub.get_dir()) / "checkpoints"]
    if file == network.head:
        packages = {"lpips": "weights/v0.1", "torchmetrics": "functional/image/lpips_models"}
        for package, inside in packages.items():
            spec = importlib.util.find_spec(package)
            if spec is not None and spec.origin is not None:
                places.append(Path(spec.origin).parent / inside)
    return next((place / file for place in places if (place / file).is_file()), None)


def _digits(backbone: str) -> str:
    return backbone.removesuffix(".pth").rpartition("-")[2]


def _backbone(path: Path, network: Network) -> dict[str, Tensor]:
    """Return the convolutions of a file whose SHA-256 is the one in its name."""
    try:
        digest = sha256_of(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    if not digest.startswith(_digits(network.backbone)):
        raise ValueError(f"{path} is damaged or another file: its SHA-256 does not begin as its name says")
    content = _tensors(path)
    names = [f"features.{layer.index}.{kind}" for layer in network.layers for kind in ("weight", "bias")]
    missing = [name for name in names if not isinstance(content.get(name), Tensor)]
    if missing:
        raise ValueError(f"{path} is no {network.title} of torchvision: {missing[0]} is missing")
    return {name: content[name].float() for name in names}


def _heads(path: Path, network: Network) -> list[Tensor]:
    content = _tensors(path)
    heads: list[Tensor] = []
    for number, width in enumerate(network.widths):
        head = content.get(f"lin{number}.model.1.weight")
        if not isinstance(head, Tensor) or head.shape != (1, width, 1, 1) or not (head >= 0).all():
            raise ValueError(f"{path} is not the head of LPIPS for {network.title}: lin{number} does not fit")
        heads.append(head.float())
    return heads


def _tensors(path: Path) -> dict[str, Any]:
    try:
        # Files of 2017 are in torch's old form, which this reads as well; never more than tensors.
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    except DAMAGE as error:
        raise ValueError(f"{path} is damaged: {type(error).__name__}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: it holds no named tensors")
    return content
