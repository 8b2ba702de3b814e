"""Comparisons of a backend with float64 reference data: projection, images, SSIM and all gradients."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from backends import backend_module
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.kernels.stages import Projected, ProjectSettings, Raster, RasterSettings

OWN = Path(__file__).parents[1] / "data" / "oracle"
ROOT = Path(__file__).parents[2]
SHARED = [folder / "shared" / "oracle" for folder in (ROOT, ROOT.parent)]
FOLDER = next((folder for folder in SHARED if folder.is_dir()), OWN)
SCENES = sorted([*FOLDER.glob("tiny*.npz"), *FOLDER.glob("garden*.npz")])
GRADIENT_SCENES = [path for path in SCENES if path.name.startswith("tiny") or path.stem.endswith("_grad")]
ABSGRAD_SCENES = [path for path in SCENES if path.name.startswith("tiny")]
SSIM_PAIRS = sorted(FOLDER.glob("ssim*.npz"))
LOSS_PAIRS = [path for path in SSIM_PAIRS if "7x5" not in path.name]  # smaller than the window of SSIM
PARAMETERS = ("means", "quats", "scales", "opacities", "sh")


@dataclass(frozen=True)
class Kind:
    """A backend in one precision; `strictness` multiplies the tolerances, which are those of float32."""

    backend: str
    dtype: torch.dtype
    strictness: float = 1.0


# In float64 the reference is equal to the data but for rounding; 1e-5 leaves room for the needles.
KINDS = {
    "reference64": Kind("reference", torch.float64, 1e-5),
    "reference32": Kind("reference", torch.float32),
    "native": Kind("ops", torch.float32),
}


def each(paths: list[Path]):
    """Parametrize a test by reference files."""
    assert paths, f"no reference data in {FOLDER}"
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.stem)


@functools.lru_cache(maxsize=2)
def load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as archive:
        return dict(archive)


@dataclass
class View:
    """One view of an oracle scene, drawn by one backend."""

    projected: Projected
    raster: Raster
    probe: Tensor


def parameters(data: dict[str, np.ndarray], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: torch.tensor(data[name], dtype=dtype, requires_grad=True) for name in PARAMETERS}


def project(data: dict[str, np.ndarray], index: int, kind: Kind, params: dict[str, Tensor]) -> Projected:
    camera = Camera(
        data["viewmats"][index].astype(float),
        data["Ks"][index].astype(float),
        int(data["width"]),
        int(data["height"]),
        str(data["camera_model"]),  # type: ignore[arg-type]
    )
    return backend_module(kind.backend).project(
        params["means"],
        params["quats"],
        params["scales"],
        params["opacities"],
        params["sh"][:, :1],
        params["sh"][:, 1:],
        camera=camera,
        settings=ProjectSettings(int(data["sh_degree"]), str(data["rasterize_mode"]) == "antialiased"),
    )


def draw(
    data: dict[str, np.ndarray], index: int, kind: Kind, params: dict[str, Tensor], absgrad: bool = False
) -> View:
    stages = backend_module(kind.backend)
    projected = project(data, index, kind, params)
    projected.conics.retain_grad()
    probe = torch.zeros(len(data["means"]), 2, dtype=kind.dtype, requires_grad=True)
    background = torch.tensor(data["background"], dtype=kind.dtype)
    settings = RasterSettings(int(data["width"]), int(data["height"]), background, float(data["max_alpha"]))
    rasterize = stages.rasterize_absgrad if absgrad else stages.rasterize
    return View(projected, rasterize(projected, settings, probe), probe)


def array(tensor: Tensor | None) -> np.ndarray:
    assert tensor is not None
    return tensor.detach().double().cpu().numpy()


def storage_error(expected: np.ndarray) -> float:
    """Return how far stored values may be from the computed ones, relative to the largest."""
    return 1.2e-7 if expected.dtype == np.float32 else 0.0


def assert_near(actual: np.ndarray, expected: np.ndarray, tolerance: float, what: str) -> None:
    if expected.size:
        tolerance += storage_error(expected) * float(np.abs(expected).max())
    error = np.abs(actual - expected).max(initial=0.0)
    assert error <= tolerance, f"{what}: off by {error:.3g}, allowed {tolerance:.3g}"


def assert_gradient(actual: Tensor | None, expected: np.ndarray, strictness: float, what: str) -> None:
    """Compare a gradient by relative L2 (1e-3) and by its largest deviation (3e-3 of the largest entry)."""
    difference, stored = array(actual) - expected, storage_error(expected)
    relative = np.linalg.norm(difference) / np.linalg.norm(expected)
    assert relative <= 1e-3 * strictness + stored, f"gradient of {what}: relative L2 error {relative:.3g}"
    largest = np.abs(difference).max() / np.abs(expected).max()
    assert largest <= 3e-3 * strictness + stored, f"gradient of {what}: largest error {largest:.3g}"


def check_projection(path: Path, kind: Kind) -> None:
    """Compare what is projected with the data: places, colors, conics, depths and opacities."""
    data = load(path)
    params = parameters(data, kind.dtype)
    for index in range(len(data["viewmats"])):
        projected = project(data, index, kind, params)
        radii = data["radii"][index]
        ours = projected.radii.cpu().numpy()
        off = np.abs(ours - radii)
        assert off.max() <= 1 and (off > 0).mean() <= 1e-3 * min(kind.strictness, 1)
        # A Gaussian at the edge of visibility may round to either side; it has no values to compare then.
        seen = (radii > 0).all(axis=1) & (ours > 0).all(axis=1)
        assert seen.sum() > 0
        tolerances = {"means2d": 1e-3, "colors": 5e-6}
        for name, tolerance in tolerances.items():
            values = array(getattr(projected, name))
            assert_near(values[seen], data[name][index][seen], tolerance * kind.strictness, name)
        conics, expected = array(projected.conics)[seen], data["conics"][index][seen]
        largest = np.abs(expected).max(axis=1, keepdims=True)
        assert_near(conics / largest, expected / largest, 5e-4 * kind.strictness, "conics")
        expected = data["depths"][index][seen]
        depths = array(projected.depths)[seen] / expected
        assert_near(depths, np.ones_like(expected), 5e-5 * kind.strictness, "relative depths")
        opacities = data["opacities"]
        if "compensations" in data:
            opacities = opacities * data["compensations"][index]
        effective = array(projected.opacities)
        assert_near(effective[seen], opacities[seen], 5e-4 * kind.strictness, "effective opacities")


def check_image(path: Path, kind: Kind) -> None:
    """Compare pictures, alphas and depths with the data."""
    data = load(path)
    params = parameters(data, kind.dtype)
    for index in range(len(data["viewmats"])):
        raster = draw(data, index, kind, params).raster
        clear = ~data["ambiguous"][index]
        rgb, expected = array(raster.rgb), data["rgb"][index]
        strictness = kind.strictness
        assert_near(rgb[clear], expected[clear], 1e-4 * strictness, "rgb")
        rms = np.sqrt(((rgb - expected)[clear] ** 2).mean())
        assert rms <= 1e-5 * strictness + storage_error(expected), f"rgb: root mean square error {rms:.3g}"
        assert_near(rgb[~clear], expected[~clear], 5e-3, "rgb of ambiguous pixels")
        alpha = array(raster.alpha)
        assert_near(alpha[clear], data["alpha"][index][clear], 1e-4 * strictness, "alpha")
        depth = array(raster.depth_sum) / np.maximum(alpha, 1e-10)
        there = clear & (data["alpha"][index] > 0.05)
        assert there.any()
        assert_near(depth[there], data["depth"][index][there], 2e-3 * strictness, "depth")


def check_gradients_of_the_colors(path: Path, kind: Kind) -> None:
    """Compare the gradients of a loss of the colors with the data."""
    data = load(path)
    params = parameters(data, kind.dtype)
    total = 0.0
    for index in range(len(data["viewmats"])):
        view = draw(data, index, kind, params)
        loss = (view.raster.rgb * torch.tensor(data["w_rgb"][index], dtype=kind.dtype)).sum()
        loss.backward()
        total += loss.item()
        assert_gradient(view.probe.grad, data["grad_means2d"][index], kind.strictness, "means2d")
        assert_gradient(view.projected.conics.grad, data["grad_conics"][index], kind.strictness, "conics")
    assert total == pytest.approx(float(data["loss"]), rel=1e-4 * kind.strictness)
    for name, param in params.items():
        assert_gradient(param.grad, data[f"grad_{name}"], kind.strictness, name)


def check_gradients_of_colors_alpha_and_depth(path: Path, kind: Kind) -> None:
    """Compare the gradients of a loss of colors, alpha and depth with the data."""
    data = load(path)
    params = parameters(data, kind.dtype)
    total = 0.0
    for index in range(len(data["viewmats"])):
        raster = draw(data, index, kind, params).raster
        loss = torch.zeros((), dtype=kind.dtype)
        for image, weight in (
            (raster.rgb, "w_rgb"),
            (raster.alpha, "w_alpha"),
            (raster.depth_sum, "w_depth_acc"),
        ):
            loss = loss + (image * torch.tensor(data[weight][index], dtype=kind.dtype)).sum()
        loss.backward()
        total += loss.item()
    assert total == pytest.approx(float(data["loss_all"]), rel=1e-4 * kind.strictness)
    for name, param in params.items():
        # Colors are in neither of the other two terms, so there is one array for both losses.
        expected = data["grad_sh" if name == "sh" else f"gradall_{name}"]
        assert_gradient(param.grad, expected, kind.strictness, name)


def check_absolute_gradients(path: Path, kind: Kind) -> None:
    """Compare the absolute gradients of the places, and that the others are as without them."""
    data = load(path)
    params = parameters(data, kind.dtype)
    for index in range(len(data["viewmats"])):
        view = draw(data, index, kind, params, absgrad=True)
        (view.raster.rgb * torch.tensor(data["w_rgb"][index], dtype=kind.dtype)).sum().backward()
        assert_gradient(view.probe.grad, data["absgrad_means2d"][index], kind.strictness, "|means2d|")
    for name, param in params.items():
        assert_gradient(param.grad, data[f"grad_{name}"], kind.strictness, name)


def image_pair(data: dict[str, np.ndarray], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.tensor(data["img1"], dtype=dtype, requires_grad=True), torch.tensor(
        data["img2"], dtype=dtype
    )


def assert_image_gradient(image: Tensor, expected: np.ndarray, strictness: float) -> None:
    # A photo against itself has no gradient but rounding errors, whose scale is that of an image of
    # this many pixels.
    largest = max(np.abs(expected).max(), 1.0 / expected.size)
    assert_near(array(image.grad), expected, 1e-3 * largest * strictness, "gradient of the image")


def check_ssim(path: Path, padding: str, kind: Kind) -> None:
    """Compare a similarity and its gradient with the data."""
    data = load(path)
    stages = backend_module(kind.backend)
    image, target = image_pair(data, kind.dtype)
    if f"ssim_{padding}" not in data:
        with pytest.raises(ValueError, match="too small"):
            stages.ssim(image, target, padding=padding)
        return
    similarity = stages.ssim(image, target, padding=padding)
    assert similarity.item() == pytest.approx(float(data[f"ssim_{padding}"]), abs=5e-5 * kind.strictness)
    similarity.backward()
    assert_image_gradient(image, data[f"grad_{padding}"], kind.strictness)


def check_l1_ssim(path: Path, ssim_weight: float, kind: Kind) -> None:
    """Compare the loss of a training and its gradient with the data."""
    data = load(path)
    image, target = image_pair(data, kind.dtype)
    difference = data["img1"].astype(float) - data["img2"].astype(float)
    expected = (1 - ssim_weight) * np.abs(difference).mean() + ssim_weight * (1 - float(data["ssim_valid"]))
    loss = backend_module(kind.backend).l1_ssim(image, target, ssim_weight=ssim_weight, mask=None)
    assert loss.item() == pytest.approx(expected, abs=5e-5 * kind.strictness)
    loss.backward()
    gradient = (1 - ssim_weight) * np.sign(difference) / difference.size - ssim_weight * data["grad_valid"]
    assert_image_gradient(image, gradient.astype(np.float32), kind.strictness)
