"""Evaluation: the scores are those of the definitions, on the images they should be."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from blob_models import blobs

from splatstudio.evaluation import evaluate as evaluate_module
from splatstudio.evaluation.evaluate import (
    DEFINITIONS,
    SCORES,
    Measures,
    color_corrected,
    evaluate,
    evaluation_from_json,
    measures_for,
    target_of,
    write_evaluation,
)
from splatstudio.evaluation.lpips import load_lpips
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.gaussians.transform import transformed
from splatstudio.kernels.reference import ssim
from splatstudio.rendering.render import RenderOptions, render
from splatstudio.scene.load import load_scene
from splatstudio.scene.photo import Photo
from splatstudio.scene.photo_uploads import pixels_of
from splatstudio.scene.scene import Scene


@pytest.fixture(scope="module")
def truth(blob_scene: Scene) -> Gaussians:
    """The Gaussians that the photos show, in the scene's frame."""
    return transformed(blobs(), blob_scene.transform)


def test_the_time_of_a_picture_is_that_of_kernels_that_are_awake(
    truth: Gaussians, blob_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 5.0, 10.0, 10.25])  # before and after each of the two renders
    monkeypatch.setattr(evaluate_module, "now", lambda device: next(clock))
    assert evaluate(truth, blob_scene).seconds_per_image == 0.25
    clock = iter([0.0, 5.0])
    assert evaluate(truth, blob_scene, indices=blob_scene.test_indices[:1]).seconds_per_image == 5.0


def test_the_true_model_shows_the_test_photos_up_to_their_rounding(
    truth: Gaussians, blob_scene: Scene
) -> None:
    evaluation = evaluate(truth, blob_scene)
    assert [score.name for score in evaluation.images] == ["view_01.png", "view_09.png"]
    # 8-bit rounding alone is an error of 1/255/sqrt(12): 58.9 dB.
    assert 57.0 < evaluation.psnr < 61.0 and evaluation.ssim > 0.999
    assert evaluation.num_gaussians == 60 and evaluation.seconds_per_image > 0


def test_the_scores_are_those_of_the_definitions(truth: Gaussians, blob_scene: Scene) -> None:
    brighter = replace(truth, sh0=truth.sh0 + 1.0)  # some values rise above 1: they are clamped
    evaluation = evaluate(brighter, blob_scene, indices=[0])
    with torch.no_grad():
        image = render(brighter, blob_scene.cameras[0]).rgb.clamp(0, 1)
    photo = np.asarray(cv2.imread(str(blob_scene.views[0].image_path)))[..., ::-1] / 255.0
    error = np.mean((image.numpy().astype(np.float64) - photo) ** 2)
    assert evaluation.psnr == pytest.approx(-10.0 * np.log10(error), abs=1e-4)
    similarity = ssim(image.double(), torch.from_numpy(photo.copy()), padding="valid")
    assert evaluation.ssim == pytest.approx(float(similarity), abs=1e-4)
    assert evaluation.psnr < 30.0 and float(image.max()) == 1.0


def test_the_mean_is_over_images(truth: Gaussians, blob_scene: Scene) -> None:
    seen: list[tuple[str, torch.Size]] = []
    evaluation = evaluate(
        truth, blob_scene, indices=[2, 5], on_image=lambda score, rgb, _: seen.append((score.name, rgb.shape))
    )
    assert seen == [("view_03.png", (40, 48, 3)), ("view_06.png", (40, 48, 3))]
    assert evaluation.psnr == pytest.approx(np.mean([score.psnr for score in evaluation.images]))


def test_what_a_mask_hides_does_not_count(truth: Gaussians, blob_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "masked"
    for part in ("images", "sparse/0", "masks"):
        (folder / part).mkdir(parents=True)
    for file in [*(blob_folder / "images").iterdir(), *(blob_folder / "sparse" / "0").iterdir()]:
        (folder / file.relative_to(blob_folder)).write_bytes(file.read_bytes())
    spoilt = np.asarray(cv2.imread(str(folder / "images" / "view_01.png")))
    spoilt[:, :12] = 255
    cv2.imwrite(str(folder / "images" / "view_01.png"), spoilt)
    without = evaluate(truth, load_scene(folder), indices=[0])
    mask = np.full((40, 48), 255, np.uint8)
    mask[:, :18] = 0  # the window of the SSIM reaches 5 pixels further
    cv2.imwrite(str(folder / "masks" / "view_01.png"), mask)
    cv2.imwrite(str(folder / "masks" / "view_09.png"), np.zeros((40, 48), np.uint8))
    scene = load_scene(folder)
    masked = evaluate(truth, scene)
    assert without.psnr < 20.0 and masked.psnr > 55.0 and masked.ssim > 0.999
    assert [score.name for score in masked.images] == ["view_01.png"]  # the other is hidden altogether
    cv2.imwrite(str(folder / "masks" / "view_01.png"), np.zeros((40, 48), np.uint8))
    with pytest.raises(ValueError, match=r"the masks of .*masked hide all of its test photos"):
        evaluate(truth, load_scene(folder))


def test_what_was_measured_of_the_same_pictures_stays_in_the_file(
    truth: Gaussians, blob_scene: Scene, tmp_path: Path
) -> None:
    whole = evaluate(truth, blob_scene, measures=Measures(color_correct=True))
    write_evaluation(tmp_path, 7, whole)
    file = write_evaluation(tmp_path, 7, evaluate(truth, blob_scene))
    again = evaluation_from_json(json.loads(file.read_text()))
    assert again.psnr_corrected == whole.psnr_corrected
    assert [score.psnr_corrected for score in again.images] == [s.psnr_corrected for s in whole.images]
    other = replace(truth, sh0=truth.sh0 + 0.1)
    file = write_evaluation(tmp_path, 7, evaluate(other, blob_scene))
    assert evaluation_from_json(json.loads(file.read_text())).psnr_corrected is None, "of other pictures"


def test_a_photo_with_alpha_is_put_over_the_background() -> None:
    rgb = np.full((2, 2, 3), 200, np.uint8)
    alpha = np.array([[0, 255], [51, 102]], np.uint8)
    target, mask = target_of(pixels_of(Photo(rgb, alpha=alpha), torch.device("cpu")), (1.0, 0.0, 0.5))
    color, share = 200 / 255, torch.tensor([[0.0, 1.0], [0.2, 0.4]])[..., None]
    expected = share * color + (1 - share) * torch.tensor([1.0, 0.0, 0.5])
    torch.testing.assert_close(target, expected)
    assert mask is None


def test_a_background_shows_where_nothing_is(truth: Gaussians, blob_scene: Scene) -> None:
    black = evaluate(truth, blob_scene)
    white = evaluate(truth, blob_scene, options=RenderOptions(background=(1.0, 1.0, 1.0)))
    assert white.psnr < black.psnr - 20


def test_without_test_photos_it_says_so(truth: Gaussians, blob_folder: Path) -> None:
    with pytest.raises(ValueError, match="has no test photos to compare with"):
        evaluate(truth, load_scene(blob_folder, test_every=0))


def test_the_file_has_the_promised_keys(truth: Gaussians, blob_scene: Scene, tmp_path: Path) -> None:
    evaluation = evaluate(truth, blob_scene)
    path = write_evaluation(tmp_path, 7000, evaluation)
    assert path == tmp_path / "eval" / "step_00007000.json"
    values = json.loads(path.read_text())
    keys = {"step", "psnr", "ssim", "num_gaussians", "images", "seconds_per_image", "notes", "definitions"}
    assert set(values) == keys
    assert set(values["definitions"]) == {"psnr", "ssim", "mean", "seconds_per_image", "test_photos"}
    assert values["images"][0] == {
        "name": "view_01.png",
        "psnr": evaluation.images[0].psnr,
        "ssim": evaluation.images[0].ssim,
    }


def test_the_table_has_the_worst_first_and_the_mean_last(
    truth: Gaussians, blob_scene: Scene, tmp_path: Path
) -> None:
    brighter = replace(truth, sh0=truth.sh0 + 0.3)
    evaluation = evaluate(brighter, blob_scene, indices=[0, 1, 2, 3], measures=Measures(color_correct=True))
    table = write_evaluation(tmp_path, 7, evaluation).with_suffix(".csv").read_text()
    rows = list(csv.DictReader(io.StringIO(table)))
    assert list(rows[0]) == ["name", "psnr", "ssim", "psnr_corrected"]
    values = [float(row["psnr"]) for row in rows]
    assert values[:-1] == sorted(values[:-1]) and rows[-1]["name"] == "mean"
    assert values[-1] == pytest.approx(np.mean(values[:-1])) == evaluation.psnr


def test_a_color_cast_costs_nothing_once_it_is_corrected(truth: Gaussians, blob_scene: Scene) -> None:
    target, _ = target_of(pixels_of(blob_scene.photo(0), torch.device("cpu")), (0.0, 0.0, 0.0))
    mix = torch.tensor([[0.7, 0.1, 0.0], [0.05, 0.6, 0.1], [0.0, 0.1, 0.5]])
    cast = target @ mix + torch.tensor([0.1, 0.0, 0.05])
    torch.testing.assert_close(color_corrected(cast, target), target, rtol=0, atol=1e-5)
    # Pixels outside the mask have no say, and an image of one color is no trouble.
    mask = torch.ones(target.shape[:2], dtype=torch.bool)
    mask[:, :9] = False
    spoilt = torch.where(mask[..., None], cast, torch.rand_like(cast))
    torch.testing.assert_close(color_corrected(spoilt, target, mask)[mask], target[mask], rtol=0, atol=1e-5)
    gray = color_corrected(torch.full_like(target, 0.5), target)
    torch.testing.assert_close(gray[0, 0], target.mean(dim=(0, 1)), rtol=0, atol=1e-4)
    evaluation = evaluate(
        replace(truth, sh0=truth.sh0 * 0.8), blob_scene, measures=Measures(color_correct=True)
    )
    assert evaluation.psnr_corrected is not None and evaluation.psnr_corrected > evaluation.psnr + 1.0


def test_without_weights_of_lpips_the_rest_is_measured(
    truth: Gaussians, blob_scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    load_lpips.cache_clear()
    evaluation = evaluate(truth, blob_scene, measures=measures_for(("alex", "vgg")))
    assert evaluation.psnr > 57.0 and evaluation.lpips_alex is None
    assert [note.partition(",")[0] for note in evaluation.notes] == [
        "LPIPS (AlexNet): weights not found",
        "LPIPS (VGG16): weights not found",
        "MS-SSIM is skipped: a photo has a side below 176 pixels",
    ]
    assert (
        f"put alexnet-owt-7be5be79.pth and alex.pth at {tmp_path / 'splatstudio' / 'lpips'}"
        in (evaluation.notes[0])
    )
    with pytest.raises(ValueError, match="no LPIPS with the network 'squeeze'"):
        measures_for(("squeeze",))


def test_every_score_is_defined() -> None:
    assert set(SCORES) < set(DEFINITIONS)


def test_a_score_that_is_not_finite_has_no_number_in_the_file(blob_scene: Scene, tmp_path: Path) -> None:
    black = Gaussians(*(t[:0] for t in blobs().tensors().values()))
    photo = blob_scene.photo(0)
    assert photo.rgb.max() > 0
    evaluation = evaluate(black, blob_scene, indices=[0])
    perfect = replace(evaluation, psnr=math.inf)
    text = write_evaluation(tmp_path, 1, perfect).read_text()
    assert "Infinity" not in text and json.loads(text)["psnr"] is None


def test_an_image_without_a_finite_score_spoils_no_mean(
    truth: Gaussians, blob_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = iter([0.5, math.nan, 0.7])
    monkeypatch.setattr(sys.modules[evaluate.__module__], "ssim", lambda *_: next(values))
    evaluation = evaluate(truth, blob_scene, indices=[0, 1, 2])
    assert evaluation.ssim == pytest.approx(0.6)
    assert evaluation.notes == ("ssim: 1 of 3 images have no finite value; the mean is without them",)
    assert math.isfinite(evaluation.psnr)
    first, second, third = evaluation.images
    spoilt = replace(evaluation, images=(first, replace(second, psnr=math.nan), third))
    assert spoilt.worst_first[0].name == second.name


def test_a_name_in_the_table_is_no_formula(truth: Gaussians, blob_scene: Scene) -> None:
    evaluation = evaluate(truth, blob_scene, indices=[0])
    names = ["=cmd()", "+1", "-1", "@a", "plain.jpg"]
    images = tuple(replace(evaluation.images[0], name=name) for name in names)
    rows = list(csv.DictReader(io.StringIO(replace(evaluation, images=images).to_csv())))
    assert [row["name"] for row in rows[:-1]] == ["'=cmd()", "'+1", "'-1", "'@a", "plain.jpg"]
