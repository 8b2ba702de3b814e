"""The small pictures on the start page: of what they are, that they are kept, and that none of them fails."""

from __future__ import annotations

import html
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gate_client import get
from PIL import Image
from scene_builder import tiny_scene, write_colmap
from start_visitor import ANY_PORT, Visitor

from splatstudio.files.run import Run
from splatstudio.gui.server import start_page, thumbnails
from splatstudio.gui.server.start_page import StartPage
from splatstudio.gui.server.start_views import Entry, StartContent
from splatstudio.gui.server.thumbnails import PLACEHOLDER, SIDE, picture_of, thumbnail_of
from splatstudio.scene import scaling
from splatstudio.settings.config import TrainConfig

RED, GREEN = (200, 30, 30), (30, 200, 30)


def write_flat(
    path: Path, color: tuple[int, ...], size: tuple[int, int] = (600, 400), **settings: object
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB" if len(color) == 3 else "RGBA", size, color).save(path, **settings)  # type: ignore[arg-type]
    return path


def decoded(data: bytes | None) -> np.ndarray:
    assert data is not None
    with Image.open(io.BytesIO(data)) as image:
        assert image.format == "JPEG"
        return np.asarray(image)


def has_color(picture: np.ndarray, color: tuple[int, ...]) -> bool:
    return bool(np.abs(picture.reshape(-1, 3).mean(axis=0) - color[:3]).max() < 12)


@pytest.fixture(autouse=True)
def own(own_list: Path) -> None:
    """What is kept lies in a folder of the test's own."""


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    folder = tmp_path / "scene"
    write_flat(folder / "images" / "b.jpg", GREEN)
    write_flat(folder / "images" / "a.jpg", RED)
    return folder


@pytest.fixture
def page(tmp_path: Path, scene: Path) -> Iterator[StartPage]:
    lists = [("Opened before", [Entry(scene), Entry(tmp_path / "model.ply")])]
    made = StartPage(ANY_PORT, lambda: StartContent(lists, tmp_path / "demo", tmp_path))
    yield made
    made.close()


def addresses(visitor: Visitor) -> list[str]:
    return re.findall(r'<img src="(/thumbnail[^"]+)"', visitor.get()[1])


def test_a_scene_is_shown_by_its_first_photo_and_a_run_by_its_newest_render(
    scene: Path, tmp_path: Path
) -> None:
    picture = decoded(thumbnail_of(scene))
    assert has_color(picture, RED) and picture.shape == (160, SIDE, 3)
    run = Run.create(tmp_path / "runs" / "one", scene, TrainConfig()).path
    assert picture_of(run) == scene / "images" / "a.jpg"
    old = write_flat(run / "renders" / "z.png", RED)
    os.utime(old, (1, 1))
    new = write_flat(run / "renders" / "picture-300.png", GREEN)
    (run / "renders" / "video.mp4").write_bytes(b"")
    (run / "renders" / "away.png").symlink_to(scene / "images" / "b.jpg")
    assert picture_of(run) == new and has_color(decoded(thumbnail_of(run)), GREEN)


@pytest.mark.parametrize("folder", ["images", "input", "images_8", "", "train", "keyframes/images"])
def test_photos_are_found_where_scenes_have_them(tmp_path: Path, folder: str) -> None:
    photo = write_flat(tmp_path / "some" / folder / "1.png", RED)
    (photo.parent / ".0.png").write_bytes(b"")
    (photo.parent / "0.txt").write_bytes(b"")
    assert picture_of(tmp_path / "some") == photo


def test_a_photo_is_upright_and_what_is_transparent_is_black(tmp_path: Path) -> None:
    tags = Image.Exif()
    tags[0x0112] = 6
    turned = write_flat(tmp_path / "turned" / "1.jpg", RED, exif=tags)
    assert decoded(scaling.small_jpeg(turned, SIDE)).shape == (SIDE, 160, 3)
    clear = write_flat(tmp_path / "clear.png", (255, 255, 255, 0))
    assert decoded(scaling.small_jpeg(clear, SIDE)).max() < 8
    small = write_flat(tmp_path / "small.png", RED, size=(3, 2))
    assert decoded(scaling.small_jpeg(small, SIDE)).shape == (2, 3, 3)


def test_it_is_made_once_and_again_when_the_photo_has_changed(
    scene: Path, own_list: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = thumbnail_of(scene)
    (kept,) = (own_list.parent / "thumbnails").iterdir()
    assert kept.read_bytes() == first and kept.stat().st_mode & 0o777 == 0o600
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    with monkeypatch.context() as patched:
        patched.setattr(thumbnails, "small_jpeg", None)
        assert thumbnail_of(scene) == first
    write_flat(scene / "images" / "a.jpg", GREEN, size=(500, 400))
    assert has_color(decoded(thumbnail_of(scene)), GREEN)


@pytest.mark.parametrize("damage", [b"", b"\xff\xd8\xff no end", bytes(1 << 18)])
def test_one_that_was_damaged_where_it_is_kept_is_made_anew(
    scene: Path, own_list: Path, damage: bytes
) -> None:
    first = thumbnail_of(scene)
    (kept,) = (own_list.parent / "thumbnails").iterdir()
    kept.write_bytes(damage)
    assert thumbnail_of(scene) == first == kept.read_bytes()


def test_few_are_kept_and_none_where_that_cannot_be(
    tmp_path: Path, own_list: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thumbnails, "MOST_KEPT", 3)
    for number in range(6):
        assert thumbnail_of(write_flat(tmp_path / f"s{number}" / "1.png", RED).parent)
    kept = own_list.parent / "thumbnails"
    assert len(list(kept.iterdir())) == 3
    for file in kept.iterdir():
        file.unlink()
    kept.rmdir()
    kept.write_text("a file where the folder should be")
    assert thumbnail_of(tmp_path / "s1")


def test_the_page_shows_them_by_names_that_tell_no_path(page: StartPage, scene: Path) -> None:
    visitor = Visitor(page)
    shown, plain = addresses(visitor)
    answer = visitor.data(shown)
    assert (answer.status, answer.headers["Content-Type"]) == (200, "image/jpeg")
    assert has_color(decoded(answer.read()), RED) and "scene" not in shown
    assert "img-src 'self'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    answer = visitor.data(plain)
    assert (answer.status, answer.headers["Content-Type"], answer.read()) == (
        200,
        "image/svg+xml",
        PLACEHOLDER,
    )
    for wrong in ("", "x", "%ff", str(scene), "../" * 9 + "etc/passwd"):
        assert visitor.ask("/thumbnail", of=wrong)[0] == 404, wrong
    for headers in (
        {},
        {"Cookie": "splatstudio_80=x"},
        {"Cookie": visitor.cookie, "Origin": "http://evil.example"},
    ):
        assert get(page.port, shown, **headers)[0] == 403


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xd8\xff\xe0 half", b"\x89PNG\r\n\x1a\n" + bytes(50), b"GIF89a"]
)
def test_a_damaged_photo_gives_a_plain_picture(page: StartPage, scene: Path, content: bytes) -> None:
    (scene / "images" / "a.jpg").write_bytes(content)
    visitor = Visitor(page)
    answer = visitor.data(addresses(visitor)[0])
    assert (answer.status, answer.headers["Content-Type"]) == (200, "image/svg+xml")


def test_a_cut_off_photo_and_a_pipe_give_none(scene: Path, tmp_path: Path) -> None:
    photo = scene / "images" / "a.jpg"
    photo.write_bytes(photo.read_bytes()[:-500])
    assert thumbnail_of(scene) is None
    photo.unlink()
    os.mkfifo(photo)
    assert has_color(decoded(thumbnail_of(scene)), GREEN), "what is no file is passed over"
    run = Run.create(tmp_path / "runs" / "one", tmp_path / "gone", TrainConfig()).path
    assert thumbnail_of(run) is None
    (run / "run.json").write_text("{")
    assert thumbnail_of(run) is None


def test_the_page_does_not_wait_for_them(page: StartPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_page, "thumbnail_of", None)
    status, text = Visitor(page).get()
    assert status == 200 and 'loading="lazy"' in text


def test_a_whole_scene_has_one(tmp_path: Path) -> None:
    assert thumbnail_of(write_colmap(tmp_path / "tiny", tiny_scene(3, num_points=4)))


def test_rows_of_a_folder_have_pictures_of_what_is_listed_there_alone(
    page: StartPage, scene: Path, tmp_path: Path
) -> None:
    write_flat(scene / "images" / "c.jpg", GREEN)  # fewer are no scene
    Run.create(tmp_path / "runs" / "one", scene, TrainConfig())
    (tmp_path / "empty").mkdir()
    visitor = Visitor(page)
    (of_scene,) = re.findall(r'<img src="(/thumbnail[^"]+)"', visitor.get("/browse")[1])
    address = html.unescape(of_scene)
    assert has_color(decoded(visitor.data(address).read()), RED)
    (of_run,) = re.findall(r'<img src="([^"]+)"', visitor.ask("/browse", folder=str(tmp_path / "runs"))[1])
    assert has_color(decoded(visitor.data(html.unescape(of_run)).read()), RED)
    assert visitor.data(address.replace("scene", "empty")).status == 404, "the name is of that path"
    scene.rename(tmp_path.parent / "away")
    scene.symlink_to(tmp_path.parent / "away")
    assert visitor.data(address).status == 404, "it leads out of what is shown now"
