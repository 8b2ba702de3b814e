"""The benchmark's scenes are whole or not there, and its mistakes are told in a sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from bench import capture_scenes, quality

from splatstudio.scene.load import load_scene
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig


def test_a_scene_that_was_broken_off_is_made_anew(
    blob_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = []

    def full(*_: object) -> None:
        left.append(1)
        if len(left) == 4:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(capture_scenes.cv2, "imwrite", full)
    with pytest.raises(OSError, match="No space"):
        capture_scenes.in_changing_light(blob_folder, tmp_path / "light")
    monkeypatch.undo()
    made = capture_scenes.in_changing_light(blob_folder, tmp_path / "light")
    assert len(load_scene(made).views) == 9 and [path.name for path in tmp_path.iterdir()] == [made.name]
    times = [file.stat().st_mtime_ns for file in sorted((made / "images").iterdir())]
    assert capture_scenes.in_changing_light(blob_folder, tmp_path / "light") == made
    assert [file.stat().st_mtime_ns for file in sorted((made / "images").iterdir())] == times


def test_other_light_is_another_scene(
    blob_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = capture_scenes.in_changing_light(blob_folder, tmp_path / "light")
    monkeypatch.setattr(capture_scenes, "GAIN_SPREAD", 0.5)
    assert capture_scenes.in_changing_light(blob_folder, tmp_path / "light") != made


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("mcmc.nois=0", "unknown setting 'mcmc.nois'"),
        ("mcmc.noise=much", "--set mcmc.noise=much: write a value as in JSON"),
        ("ssim_weight=7", "setting ssim_weight is 7.0, but must be at most 1"),
    ],
)
def test_a_wrong_setting_is_a_sentence(given: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["quality.py", "--scene", "none", "--set", given])
    with pytest.raises(SystemExit) as left:
        quality.main()
    assert str(left.value.code).startswith(sentence)


def test_weights_that_are_missing_are_told(
    blob_scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> None:
        raise ValueError(f"there are no weights of {name}: put them somewhere")

    monkeypatch.setattr("splatstudio.evaluation.evaluate.load_lpips", missing)
    found = quality.measure(blob_scene, TrainConfig(steps=2), lpips=True)
    told = capsys.readouterr().err
    assert "no weights of alex" in told and "no weights of vgg" in told and "lpips_alex" not in found


def test_passers_by_stand_in_the_training_photos_alone_and_masks_leave_them_out(
    blob_folder: Path, tmp_path: Path
) -> None:
    own = load_scene(blob_folder)
    masked = load_scene(capture_scenes.with_passers_by(blob_folder, tmp_path / "masked", masked=True))
    seen = load_scene(capture_scenes.with_passers_by(blob_folder, tmp_path / "seen", masked=False))
    assert masked.test_indices == own.test_indices
    for index in range(len(own.views)):
        photo, without, before = (scene.photo(index) for scene in (masked, seen, own))
        assert without.mask is None and (photo.rgb == without.rgb).all()
        covered = (photo.rgb != before.rgb).any(axis=2)
        if index in own.test_indices:
            assert photo.mask is None and not covered.any()
        else:
            assert photo.mask is not None and covered.mean() > 0.05
            assert not (covered & photo.mask).any() and photo.mask.mean() > 0.2
