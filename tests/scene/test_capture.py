"""Photos are found under the names that files list, however these and the files are written."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from poses_of_programs import TINY, write_realityscan
from scene_builder import TinyScene, tiny_scene, transforms, write_colmap_text, write_pictures

from splatstudio.scene.capture import ImageFolder
from splatstudio.scene.colmap import visible_points
from splatstudio.scene.load import load_scene


def called(call: Callable[[str], str]) -> TinyScene:
    return replace(TINY, names=tuple(call(name) for name in TINY.names))


def listing(folder: Path, listed: Callable[[str], str], file: Callable[[str], str] = str) -> Path:
    """Write a COLMAP scene whose model lists photos otherwise than they are called."""
    write_colmap_text(folder, called(file))
    names = folder / "sparse/0/images.txt"
    text = names.read_text()
    for here, there in zip(called(file).names, called(listed).names, strict=True):
        assert f" 1 {here}\n" in text
        text = text.replace(f" 1 {here}\n", f" 1 {there}\n")
    names.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("listed", "file"),
    [
        ("/mnt/old/images/{}", "{}"),
        ("D:\\Scan Ä\\images\\{}", "{}"),
        ("cam 1\\{}", "cam 1/{}"),
        ("/old/images/cam 1/{}", "cam 1/{}"),
    ],
)
def test_a_model_of_another_machine_finds_its_photos_by_the_ends_of_their_paths(
    tmp_path: Path, listed: str, file: str
) -> None:
    folder = listing(tmp_path / "a", listed.format, file.format)
    observed = (folder / "sparse/0/images.txt").read_text().replace("\n\n", "\n1.5 2.5 1\n")
    (folder / "sparse/0/images.txt").write_text(observed)
    write_pictures(folder / "masks", called(file.format))
    scene = load_scene(folder)
    assert [view.name for view in scene.views] == list(called(file.format).names)
    assert all(view.mask_path is not None for view in scene.views)
    assert any("the photos are not at the listed paths, as " in note for note in scene.notes)
    assert set(visible_points(scene)) == {view.name for view in scene.views}
    (folder / "images").rename(tmp_path / "moved")
    assert len(load_scene(folder, images_folder=str(tmp_path / "moved")).views) == len(TINY.names)


def test_of_two_cameras_no_photo_is_taken_for_that_of_the_other(tmp_path: Path) -> None:
    cameras = {name: f"/old/cam{i % 2}/{i // 2}.png" for i, name in enumerate(TINY.names)}
    folder = listing(tmp_path, lambda name: cameras[name])
    for file in list((folder / "images").iterdir()):
        file.unlink()
    write_pictures(folder / "images", replace(TINY, names=tuple(f"{i}.png" for i in range(len(TINY.names)))))
    scene = load_scene(folder)
    # Of nine photos, 4.png is the only name of one camera alone.
    assert [view.name for view in scene.views] == ["4.png"]


def test_a_table_with_paths_of_windows_finds_its_photos(tmp_path: Path) -> None:
    folder = write_realityscan(tmp_path / "a")
    table = folder / "cameras.csv"
    table.write_text(table.read_text().replace("view_", "D:\\scan\\view_"))
    assert [view.name for view in load_scene(folder).views] == list(TINY.names)
    places = [f"cam{i % 2}/{name}" for i, name in enumerate(TINY.names)]
    for name, place in zip(TINY.names, places, strict=True):
        (folder / "images" / place).parent.mkdir(exist_ok=True)
        (folder / "images" / name).rename(folder / "images" / place)
    assert len(load_scene(folder).views) == len(TINY.names)


@pytest.mark.parametrize(("listed", "file"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_letters_with_accents_may_be_written_either_way(tmp_path: Path, listed: str, file: str) -> None:
    def written(form: str) -> Callable[[str], str]:
        return lambda name: unicodedata.normalize(form, f"Küche/é {name}")  # type: ignore[arg-type]

    folder = listing(tmp_path / "a", written(listed), written(file))
    assert len(load_scene(folder).views) == len(TINY.names)
    tiny = called(written(file))
    other = tmp_path / "b"
    write_pictures(other / "images", tiny)
    (other / "transforms.json").write_text(json.dumps(transforms(called(written(listed)))))
    assert len(load_scene(other).views) == len(TINY.names)


def test_a_name_of_another_case_goes_before_one_of_another_ending(tmp_path: Path) -> None:
    for name in ("a.JPG", "a.png", "b.webp"):
        (tmp_path / name).touch()
    folder = ImageFolder(tmp_path)
    assert folder.find("a.jpg") == tmp_path / "a.JPG"
    assert folder.find("B.jpg") == tmp_path / "b.webp"
    assert folder.find("a.tif") is None, "either may be meant"


def test_a_folder_of_photos_may_be_of_another_case(tmp_path: Path) -> None:
    folder = write_colmap_text(tmp_path / "a", TINY)
    (folder / "images").rename(folder / "Images")
    assert len(load_scene(folder).views) == len(TINY.names) and load_scene(folder / "Images").path == folder
    other = tmp_path / "b"
    write_pictures(other / "Images/Cam 1", tiny_scene(10))
    content = transforms(TINY, "images/cam 1")
    (other / "transforms.json").write_text(json.dumps(content))
    scene = load_scene(other)
    assert len(scene.views) == len(TINY.names) and scene.unposed == ("view_009.png",)
