"""Photos as people have them: EXIF, masks, HEIC, spaces, subfolders, raw files; no poses yet."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from PIL import Image
from textured_rooms import draw_photo, ring, table_with_boxes, write_photos

from splatstudio.poses import input as pose_input
from splatstudio.poses.estimate import lacks_poses, refuse_without_colmap
from splatstudio.poses.input import changes, find_sources, manifest_of
from splatstudio.poses.records import InputPhoto, Manifest, write_record
from splatstudio.poses.store import PoseStore
from splatstudio.poses.video import sharpness_of
from splatstudio.scene.colmap import read_model

CAMERA, SIDEWAYS = 272, 6


def silent(done: int, total: int, what: str) -> None:
    """Hear of progress, and do nothing."""


def read(folder: Path) -> tuple[PoseStore, dict[str, InputPhoto], Manifest]:
    """Return the store of a folder, its photos by their files, and the manifest, which is kept."""
    store = PoseStore(folder)
    store.path.mkdir(parents=True, exist_ok=True)
    manifest = manifest_of(store, None, silent)
    write_record(store.manifest_file, manifest)
    return store, {photo.source: photo for photo in manifest.photos}, manifest


def with_exif(file: Path, **values: object) -> None:
    """Write a photo with EXIF values again."""
    exif = Image.Exif()
    for tag, value in values.items():
        exif[int(tag.removeprefix("t"))] = value
    with Image.open(file) as image:
        image.save(file, quality=95, exif=exif)


def test_photos_of_one_lens_share_a_camera_and_others_do_not(tmp_path: Path) -> None:
    walls = table_with_boxes()
    phone = write_photos(tmp_path / "phone", walls, ring(20)[:2])
    other = write_photos(tmp_path / "other", walls, ring(20)[2:4])
    plain = write_photos(tmp_path / "plain", walls, ring(20)[4:5])
    for file, orientation in zip(phone, (1, SIDEWAYS), strict=True):
        with_exif(file, t272="Phone 7", t274=orientation)
    with_exif(other[0], t272="Phone 7")
    with_exif(other[1], t272="Camera 3")
    _, photos, _ = read(tmp_path)
    cameras = [photos[f.relative_to(tmp_path).as_posix()].camera for f in (*phone, *other, *plain)]
    assert cameras[0] == cameras[1] == cameras[2], "a phone turned sideways is the same phone"
    assert len(set(cameras)) == 3
    assert photos["phone/room_001.jpg"].orientation == SIDEWAYS


def test_names_with_spaces_are_linked_under_names_that_colmap_takes(tmp_path: Path) -> None:
    files = write_photos(tmp_path, table_with_boxes(), ring(20)[:3], prefix="my photo")
    store, photos, _ = read(tmp_path)
    assert photos["my photo_000.jpg"].name == "my_photo_000.jpg"
    link = store.images / "my_photo_000.jpg"
    assert link.is_symlink() and link.read_bytes() == files[0].read_bytes()
    moved = shutil.move(tmp_path, tmp_path.with_name("moved"))
    assert (Path(moved) / ".splatstudio/poses/images/my_photo_000.jpg").read_bytes(), "links survive a move"


def test_folders_of_masks_and_smaller_copies_are_no_photos(tmp_path: Path) -> None:
    walls = table_with_boxes()
    write_photos(tmp_path / "images", walls, ring(20)[:3])
    write_photos(tmp_path / "images_2", walls, ring(20)[:3])
    (tmp_path / "masks").mkdir()
    Image.new("L", (480, 360), 255).save(tmp_path / "masks" / "room_001.png")
    store, photos, _ = read(tmp_path)
    assert set(photos) == {f"room_{i:03d}.jpg" for i in range(3)}
    assert [photos[name].mask is not None for name in sorted(photos)] == [False, True, False]
    assert (store.masks / "room_001.jpg.png").exists()


def test_masks_that_colmap_would_read_otherwise_are_written_in_black_and_white(tmp_path: Path) -> None:
    write_photos(tmp_path / "images", table_with_boxes(), ring(20)[:3])
    (tmp_path / "masks").mkdir()
    half = np.zeros((360, 480), np.uint16)
    half[:, :200] = 1  # the number of an object, in 16 bits
    Image.fromarray(half).save(tmp_path / "masks" / "room_000.png")
    clear = np.dstack([np.full((360, 480, 3), 255), half * 255]).astype(np.uint8)
    Image.fromarray(clear).save(tmp_path / "masks" / "room_001.png")
    store, _, _ = read(tmp_path)
    for name in ("room_000.jpg.png", "room_001.jpg.png"):
        with Image.open(store.masks / name) as written:
            assert written.mode == "L" and (np.asarray(written) == half * 255).all()
    store, _, _ = read(tmp_path)
    assert not (store.masks / "room_000.jpg.png").is_symlink() and (tmp_path / "masks/room_000.png").exists()


def test_a_mask_of_another_size_is_brought_to_that_of_the_photo_as_it_is_stored(tmp_path: Path) -> None:
    files = write_photos(tmp_path / "images", table_with_boxes(), ring(20)[:3])
    with_exif(files[1], t274=SIDEWAYS)
    with_exif(files[2], t274=3)
    (tmp_path / "masks").mkdir()
    whole = np.zeros((360, 480), np.uint8)
    whole[:, :200] = 255
    Image.fromarray(whole[::-1, ::-1]).save(tmp_path / "masks" / "room_002.png")  # it stands on its head
    half = np.zeros((180, 240), np.uint8)
    half[:, :100] = 255
    Image.fromarray(half).save(tmp_path / "masks" / "room_000.png")
    Image.fromarray(np.rot90(half, -1)).save(tmp_path / "masks" / "room_001.png")  # as the photo is seen
    store, _, _ = read(tmp_path)
    assert np.array_equal(np.repeat(np.repeat(half, 2, axis=0), 2, axis=1), whole)
    for name in ("room_000.jpg.png", "room_001.jpg.png", "room_002.jpg.png"):
        with Image.open(store.masks / name) as written:
            assert np.array_equal(np.asarray(written), whole), name
    Image.new("L", (100, 50)).save(tmp_path / "masks" / "room_002.png")
    with pytest.raises(ValueError, match=r"room_002.png is 100 x 50 pixels and its photo 480 x 360"):
        read(tmp_path)


def test_a_number_sign_before_a_name_is_not_given_to_colmap(tmp_path: Path) -> None:
    write_photos(tmp_path, table_with_boxes(), ring(20)[:3], prefix="#")
    store, photos, _ = read(tmp_path)
    assert photos["#_000.jpg"].name == "_#_000.jpg" and (store.images / "_#_000.jpg").exists()


def test_a_photo_that_could_not_be_read_for_a_while_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_photos(tmp_path, table_with_boxes(), ring(20)[:5])
    header = pose_input.picture_header

    def locked(path: Path) -> object:
        if path.name == "room_001.jpg":
            raise ValueError(f"the photo {path} cannot be read") from PermissionError(13, "Permission denied")
        if path.name == "room_002.jpg":  # no time mends it
            raise ValueError(f"the photo {path} cannot be decoded") from MemoryError()
        return header(path)

    monkeypatch.setattr(pose_input, "picture_header", locked)
    store, photos, _ = read(tmp_path)
    assert photos["room_001.jpg"].left_out == "cannot be read"
    monkeypatch.setattr(pose_input, "picture_header", header)
    assert changes(store) == "1 that can be read now"
    store, photos, _ = read(tmp_path)
    assert not photos["room_001.jpg"].left_out and changes(store) is None
    assert photos["room_002.jpg"].left_out


def test_a_disk_that_is_full_is_no_fault_of_the_photos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_without_colmap()
    for file in write_photos(tmp_path, table_with_boxes(), ring(20)[:3]):
        with Image.open(file) as image:
            image.save(file.with_suffix(".avif"))
        file.unlink()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pose_input, "write_durably", full)
    with pytest.raises(OSError, match="No space left"):
        read(tmp_path)
    monkeypatch.undo()
    _, photos, _ = read(tmp_path)
    assert not any(photo.left_out for photo in photos.values())


def test_folders_whose_names_begin_like_those_of_copies_are_the_users_own(tmp_path: Path) -> None:
    walls = table_with_boxes()
    ours = ("images_day1", "images_2", "masked ball", "depth of field")
    for name in ours:
        write_photos(tmp_path / name, walls, ring(20)[:1])
    for name in ("masks_png", "depth_maps", "normals"):
        write_photos(tmp_path / name, walls, ring(20)[1:2])
    assert {path.parent.name for path in find_sources(tmp_path).photos} == set(ours)
    write_photos(tmp_path, walls, ring(20)[2:3])
    assert {path.parent.name for path in find_sources(tmp_path).photos} == {*ours, tmp_path.name} - {
        "images_2"
    }


def test_heic_is_converted_and_raw_files_are_named(tmp_path: Path) -> None:
    heif = pytest.importorskip("pillow_heif")
    heif.register_heif_opener()
    walls = table_with_boxes()
    for number, camera in enumerate(ring(20)[:3]):
        Image.fromarray(draw_photo(walls, camera)).save(tmp_path / f"IMG_{number}.HEIC", quality=95)
    (tmp_path / "IMG_9.CR2").write_bytes(b"raw")
    store, photos, _ = read(tmp_path)
    with Image.open(store.images / "IMG_0.HEIC.jpg") as image:
        difference = np.abs(np.asarray(image).astype(int) - draw_photo(walls, ring(20)[0])).mean()
    assert difference < 8
    assert photos["IMG_9.CR2"].left_out.startswith(("cannot be decoded: ", "a raw file: "))


def test_what_did_not_change_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_photos(tmp_path, table_with_boxes(), ring(20)[:4])
    _, before, _ = read(tmp_path)
    measured: list[Path] = []
    from splatstudio.poses import input as module

    real = module._measured
    monkeypatch.setattr(module, "_measured", lambda path, to: (measured.append(path), real(path, to))[1])
    os.utime(files[2])
    store, after, _ = read(tmp_path)
    assert measured == [files[2]]
    assert {name for name in after if after[name] != before[name]} == {"room_002.jpg"}
    measured.clear()
    manifest = store.manifest()
    assert manifest is not None
    write_record(store.manifest_file, msgspec.structs.replace(manifest, measuring=1))
    read(tmp_path)
    assert len(measured) == 4, "measured by earlier rules"
    files[3].unlink()
    read(tmp_path)
    assert not (store.images / "room_003.jpg").is_symlink(), "the link of what is gone is gone"


def test_two_names_that_spaces_alone_tell_apart_stay_two(tmp_path: Path) -> None:
    files = write_photos(tmp_path, table_with_boxes(), ring(20)[:4])
    for file, name in zip(files, ("a b.jpg", "a_b.jpg", "a  b.jpg", "c.jpg"), strict=True):
        file.rename(tmp_path / name)
    store, photos, _ = read(tmp_path)
    assert photos["a_b.jpg"].name == "a_b.jpg", "whose name needs no change keeps it"
    for name, photo in photos.items():
        assert (store.images / photo.name).read_bytes() == (tmp_path / name).read_bytes()
    assert len({photo.name for photo in photos.values()}) == 4
    _, again, _ = read(tmp_path)
    assert again == photos


def test_an_equal_photo_takes_the_place_of_one_that_is_gone(tmp_path: Path) -> None:
    files = write_photos(tmp_path, table_with_boxes(), ring(20)[:4])
    double = shutil.copy2(files[0], tmp_path / "z.jpg")
    _, photos, _ = read(tmp_path)
    assert photos["z.jpg"].left_out == "the same file as room_000.jpg"
    files[0].unlink()
    store, photos, _ = read(tmp_path)
    assert not photos["z.jpg"].left_out
    assert (store.images / "z.jpg").read_bytes() == Path(double).read_bytes()


def test_a_name_that_is_no_text_is_told(tmp_path: Path) -> None:
    files = write_photos(tmp_path, table_with_boxes(), ring(20)[:4])
    os.rename(files[3], os.fsencode(tmp_path) + b"/tabl\xe9.jpg")
    _, photos, _ = read(tmp_path)
    assert photos["tabl\\xe9.jpg"].left_out == "its name is no text in UTF-8: rename it"
    assert sum(not photo.left_out for photo in photos.values()) == 3


def test_which_folders_lack_poses(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    write_photos(photos / "day 1", table_with_boxes(), ring(20)[:1])
    assert lacks_poses(photos) and len(find_sources(photos)) == 1
    assert not lacks_poses(Path("assets/demo")) and not lacks_poses(tmp_path / "nowhere")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    assert not lacks_poses(tmp_path / "run")
    shutil.copytree("assets/demo/sparse", photos / "sparse")
    assert not lacks_poses(photos)
    assert read_model(photos / "sparse" / "0").images
    refuse_without_colmap()


def test_a_blurred_picture_is_less_sharp_also_before_a_plain_background() -> None:
    sharp = np.zeros((120, 160), np.uint8)
    sharp[40:80:2, 60:100] = 255
    soft = sharp.astype(float)
    for _ in range(12):
        soft = (soft + np.roll(soft, 1, 0) + np.roll(soft, 1, 1) + np.roll(soft, -1, 0)) / 4
    assert sharpness_of(soft.astype(np.uint8)) < 0.1 * sharpness_of(sharp)
