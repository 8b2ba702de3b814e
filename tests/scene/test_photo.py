"""Photos arrive upright, undistorted, masked and reduced, from files of every kind."""

import os
import struct
import threading
import time
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps
from scene_builder import picture, tiny_scene, write_blender, write_colmap, write_picture

from splatstudio.scene import photo_cache
from splatstudio.scene.images import PhotoLoader
from splatstudio.scene.lens import Lens, distort, pinhole, undistort
from splatstudio.scene.load import load_scene
from splatstudio.scene.photo import (
    TAIL,
    DamagedPhoto,
    PictureHeader,
    decode,
    oriented,
    picture_header,
    refuse_cut_off,
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def pattern(x, y):
    """Return smooth colors [..., 3] of a direction (x/z, y/z), 0..255: a world at infinity."""
    rgb = [np.sin(9 * x + 1), np.cos(11 * y), np.sin(7 * (x + y))]
    return 127.5 + 110 * np.stack(rgb, axis=-1)


def seen_through(lens: Lens) -> np.ndarray:
    """Return what `lens` sees of the pattern; its distortion is inverted by OpenCV, not by our code."""
    u, v = np.meshgrid(np.arange(lens.width) + 0.5, np.arange(lens.height) + 0.5)
    pixels = np.stack([u, v], -1).reshape(-1, 1, 2)
    coefficients = np.array(lens.distortion)
    if lens.kind == "fisheye":
        plane = cv2.fisheye.undistortPoints(pixels, lens.K, coefficients)
    else:
        criteria = (cv2.TERM_CRITERIA_EPS + cv2.TERM_CRITERIA_COUNT, 100, 1e-12)
        plane = cv2.undistortPoints(pixels, lens.K, coefficients, R=np.eye(3), P=np.eye(3), criteria=criteria)
    plane = plane.reshape(lens.height, lens.width, 2)
    return np.rint(pattern(plane[..., 0], plane[..., 1])).astype(np.uint8)


LENSES = {
    "barrel": ("OPENCV", (-0.25, 0.08, 0.002, -0.001)),
    "pincushion": ("OPENCV", (0.2, 0.05, -0.001, 0.002)),
    "radial": ("RADIAL", (-0.15, 0.02)),
    "fisheye": ("OPENCV_FISHEYE", (0.03, -0.01, 0.002, 0.0)),
}


@pytest.mark.parametrize("name", LENSES)
@pytest.mark.parametrize("downscale", [1, 3])
def test_undistorted_photo_shows_what_its_camera_says(tmp_path, name, downscale):
    model, coefficients = LENSES[name]
    tiny = tiny_scene(1, width=240, height=160)
    write_colmap(tmp_path, tiny, model=model, distortion=coefficients)
    lens = load_scene(tmp_path).views[0].lens
    write_picture(tmp_path / "images/view_000.png", seen_through(lens))
    scene = load_scene(tmp_path, downscale=downscale)
    camera = scene.cameras[0]
    photo = scene.photo(0)
    assert photo.rgb.shape == (camera.height, camera.width, 3)
    assert photo.mask is None  # no black borders
    # The pattern at our pixels, averaged over each pixel's area as the reduction does.
    fine = (np.arange(camera.width * 8) + 0.5) / 8, (np.arange(camera.height * 8) + 0.5) / 8
    x, y = np.meshgrid(
        (fine[0] - camera.K[0, 2]) / camera.K[0, 0], (fine[1] - camera.K[1, 2]) / camera.K[1, 1]
    )
    expected = pattern(x, y).reshape(camera.height, 8, camera.width, 8, 3).mean(axis=(1, 3))
    error = np.abs(photo.rgb - expected)
    # An error of half a pixel would be about 5 levels on average.
    assert error.mean() < 0.6 and error.max() < 6
    # Most of the picture is kept: the crop is the largest that has no empty border.
    assert camera.width * downscale > 0.8 * tiny.width


def test_undistort_inverts_distort():
    lens = Lens(400, 300, 300, 300, 200, 150, "brown", (-0.2, 0.05, 0.001, -0.002, 0.01))
    points = np.random.default_rng(0).uniform(-0.5, 0.5, (200, 2))
    np.testing.assert_allclose(undistort(lens, distort(lens, points)), points, atol=1e-9)
    fisheye = Lens(400, 300, 200, 200, 200, 150, "fisheye", (0.02, -0.003, 0.0, 0.0))
    np.testing.assert_allclose(undistort(fisheye, distort(fisheye, 3 * points)), 3 * points, atol=1e-8)


def test_fisheye_wider_than_a_half_space_is_cropped_to_a_finite_picture():
    plain = pinhole(Lens(1000, 1000, 300, 300, 500, 500, "fisheye", (0.0, 0.0, 0.0, 0.0)))
    assert 600 < plain.width < 2000 and 600 < plain.height < 2000


def test_distortion_that_folds_back_never_shows_pixels_from_outside(tmp_path):
    tiny = tiny_scene(1, width=240, height=160)
    write_colmap(tmp_path, tiny, model="SIMPLE_RADIAL", distortion=(-3.0,))
    scene = load_scene(tmp_path)
    photo = scene.photo(0)
    assert photo.rgb.shape == (scene.cameras[0].height, scene.cameras[0].width, 3)
    assert scene.cameras[0].width < 240
    assert scene.notes[-1] == "no view is held out for the test: too few photos"
    write_colmap(tmp_path / "two", tiny_scene(2))
    assert load_scene(tmp_path / "two", test_every=1).notes[-1].endswith("for the test: test_every is 1")
    assert scene.notes[0].startswith("1 photos show more than 130 degrees or bend too much")


def test_undistorted_photo_is_cached_and_a_bad_cache_file_is_made_again(tmp_path):
    tiny = tiny_scene(1)
    write_colmap(tmp_path, tiny, model="SIMPLE_RADIAL", distortion=(-0.2,))
    scene = load_scene(tmp_path)
    first = scene.photo(0)
    (cached,) = photo_cache.cache_folder().rglob("*.pixels")
    good = cached.read_bytes()
    np.testing.assert_array_equal(scene.photo(0).rgb, first.rgb)
    assert cached.read_bytes() == good
    # The cache is what is read: a picture put there under the same key comes out.
    photo_cache.store(cached.stem, 255 - first.rgb, None, None)
    np.testing.assert_array_equal(scene.photo(0).rgb, 255 - first.rgb)
    for bad in (b"", good[: len(good) // 2], good[:60] + b"\0\0\0\0" + good[64:], b"not a picture"):
        cached.write_bytes(bad)
        np.testing.assert_array_equal(scene.photo(0).rgb, first.rgb)
        assert cached.read_bytes() == good
    # Another file at the same path is another picture.
    rgb = 255 - picture(tiny, 0)[..., :3]
    write_picture(tmp_path / "images/view_000.png", rgb)
    os.utime(tmp_path / "images/view_000.png", ns=(1, 1))
    assert (scene.photo(0).rgb.astype(int).mean()) > first.rgb.mean() + 20


def test_photo_is_read_without_a_writable_cache(tmp_path, monkeypatch):
    write_colmap(tmp_path, tiny_scene(1), model="SIMPLE_RADIAL", distortion=(-0.2,))
    (tmp_path / "file").write_text("a file where the cache folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert load_scene(tmp_path).photo(0).rgb.shape[2] == 3


def test_cache_keeps_mask_and_alpha(tmp_path):
    rgb = np.random.default_rng(0).integers(0, 255, (6, 9, 3)).astype(np.uint8)
    mask, alpha = rgb[..., 0] > 90, rgb[..., 1].copy()
    camera = load_scene(write_colmap(tmp_path, tiny_scene(1, width=9, height=6))).cameras[0]
    photo_cache.store("ab" * 32, rgb, mask, alpha)
    stored = photo_cache.load("ab" * 32, camera)
    assert stored is not None
    for ours, theirs in zip((rgb, mask, alpha), stored, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_cache_is_pruned_from_its_oldest_end(tmp_path, monkeypatch):
    rgb = np.random.default_rng(0).integers(0, 255, (40, 40, 3)).astype(np.uint8)
    names = [f"{i:02d}" * 32 for i in range(4)]
    for age, name in enumerate(names):
        photo_cache.store(name, rgb, None, None)
        os.utime(photo_cache.cache_folder() / name[:2] / f"{name}.pixels", (1e9 - age, 1e9 - age))
    monkeypatch.setattr(photo_cache, "MAX_BYTES", 12_000)  # two files of about 5 kB
    photo_cache.prune()
    assert sorted(p.stem for p in photo_cache.cache_folder().rglob("*.pixels")) == names[:2]


def test_downscale_averages_areas_and_scales_the_intrinsics(tmp_path):
    tiny = tiny_scene(1, width=48, height=32)
    write_colmap(tmp_path, tiny)
    rgb = np.random.default_rng(3).integers(0, 255, (32, 48, 3)).astype(np.uint8)
    write_picture(tmp_path / "images/view_000.png", rgb)
    scene = load_scene(tmp_path, downscale=4)
    expected = rgb.reshape(8, 4, 12, 4, 3).mean(axis=(1, 3))
    assert np.abs(scene.photo(0).rgb - expected).max() <= 0.51
    np.testing.assert_allclose(scene.cameras[0].K, [[14.4, 0, 6], [0, 14.4, 4], [0, 0, 1]])
    # 48 x 32 over 5 has no whole size: the field of view stays, each axis by its own factor.
    odd = load_scene(tmp_path, downscale=5).cameras[0]
    assert (odd.width, odd.height) == (10, 6)
    np.testing.assert_allclose([odd.K[0, 0] / 10, odd.K[1, 1] / 6], [57.6 / 48, 57.6 / 32])


def write_jpeg_turned(path, rgb, orientation):
    """Write `rgb` as a JPEG that stores it turned, so that viewers who honor EXIF show it upright."""
    inverse = {1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 8, 7: 7, 8: 6}[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(oriented(rgb, inverse)).save(path, quality=98, subsampling=0, exif=exif)


@pytest.mark.parametrize("orientation", [5, 6, 7, 8])
@pytest.mark.parametrize("upright", [True, False])
def test_exif_orientation_is_decided_by_the_camera_size(tmp_path, orientation, upright):
    tiny = tiny_scene(1, width=48, height=32)
    rgb = cv2.resize(picture(tiny, 0)[..., :3], (48, 32))
    if upright:  # the camera was computed from the picture as viewers show it
        write_colmap(tmp_path, tiny)
        expected = rgb
    else:  # the camera was computed from the stored picture
        write_colmap(tmp_path, tiny_scene(1, width=32, height=48))
        inverse = {5: 5, 6: 8, 7: 7, 8: 6}[orientation]
        expected = oriented(rgb, inverse)
    (tmp_path / "images/view_000.png").unlink()
    write_jpeg_turned(tmp_path / "images/view_000.jpg", rgb, orientation)
    scene = load_scene(tmp_path)  # the model lists .png: the ending may differ
    # Sideways or not, the scene stands upright: the camera that took it looked level.
    up = (
        -scene.cameras[0].viewmat[1, :3]
        if upright
        else {
            6: -scene.cameras[0].viewmat[0, :3],
            8: scene.cameras[0].viewmat[0, :3],
        }.get(orientation, np.array([0, 0, 1.0]))
    )
    assert up[2] > 0.9
    photo = scene.photo(0)
    assert photo.rgb.shape == expected.shape
    assert np.abs(photo.rgb.astype(int) - expected).mean() < 4
    assert scene.views[0].orientation == (orientation if upright else 1)


def test_oriented_agrees_with_pillow():
    rgb = np.random.default_rng(0).integers(0, 255, (5, 7, 3)).astype(np.uint8)
    for orientation in range(1, 9):
        image = Image.fromarray(rgb)
        image.getexif()[0x0112] = orientation
        np.testing.assert_array_equal(oriented(rgb, orientation), np.asarray(ImageOps.exif_transpose(image)))


def test_files_of_every_kind_of_pixel(tmp_path):
    tiny = tiny_scene(1)
    write_colmap(tmp_path, tiny)
    path = tmp_path / "images/view_000.png"
    rgb = picture(tiny, 0)[..., :3]
    scene = load_scene(tmp_path)
    np.testing.assert_array_equal(scene.photo(0).rgb, rgb)
    cv2.imwrite(str(path), rgb[..., ::-1].astype(np.uint16) * 257)
    np.testing.assert_array_equal(scene.photo(0).rgb, rgb)
    cv2.imwrite(str(path), rgb[..., 0])
    np.testing.assert_array_equal(scene.photo(0).rgb, np.repeat(rgb[..., :1], 3, axis=2))
    Image.fromarray(rgb[..., 0]).convert("LA").save(path)
    np.testing.assert_array_equal(scene.photo(0).rgb, np.repeat(rgb[..., :1], 3, axis=2))
    Image.fromarray(rgb).quantize(200).save(path)
    assert np.abs(scene.photo(0).rgb.astype(int) - rgb).mean() < 8
    Image.fromarray(rgb).convert("CMYK").save(tmp_path / "images/view_000.jpg")
    path.unlink()
    assert load_scene(tmp_path).photo(0).rgb.shape == rgb.shape


def test_alpha_does_not_bleed_into_colors(tmp_path):
    tiny = tiny_scene(4)
    write_blender(tmp_path, tiny)
    rgba = np.zeros((32, 48, 4), np.uint8)
    rgba[:, :25] = (200, 100, 50, 255)  # right of it: transparent black
    write_picture(tmp_path / "train/view_000.png", rgba)
    photo = load_scene(tmp_path, downscale=2).photo(2)
    assert photo.alpha is not None
    assert (photo.alpha[:, :12] == 255).all() and (photo.alpha[:, 13:] == 0).all()
    assert (np.abs(photo.alpha[:, 12].astype(int) - 128) <= 1).all()
    assert (photo.rgb[:, 12] == (200, 100, 50)).all()


@pytest.mark.parametrize("name", ["view_000.png", "view_000.png.png", "view_000.webp"])
def test_masks_beside_images_are_found_and_reduced_strictly(tmp_path, name):
    write_colmap(tmp_path, tiny_scene(2))
    mask = np.full((32, 48, 3), 255, np.uint8)
    mask[:, 25:] = 0
    (tmp_path / "masks").mkdir()
    Image.fromarray(mask).save(tmp_path / "masks" / name, lossless=True)
    scene = load_scene(tmp_path, downscale=2)
    photo = scene.photo(0)
    assert photo.mask is not None and photo.mask.shape == (16, 24)
    # Column 12 is half ignored: it does not count.
    assert photo.mask[:, :12].all() and not photo.mask[:, 12:].any()
    assert scene.photo(1).mask is None


@pytest.mark.parametrize("kind", ["labels of 16 bits", "labels of 8 bits", "clear", "gray and clear"])
def test_labels_of_objects_and_what_is_clear_are_masks(tmp_path, kind):
    counted = np.zeros((32, 48), bool)
    counted[:, :25] = True
    mask = {
        "labels of 16 bits": counted.astype(np.uint16),
        "labels of 8 bits": counted.astype(np.uint8),
        "clear": np.dstack([np.full((32, 48, 3), 255, np.uint8), counted * np.uint8(255)]),
        "gray and clear": np.dstack([np.full((32, 48), 255, np.uint8), counted * np.uint8(255)]),
    }[kind]
    write_colmap(tmp_path, tiny_scene(2))
    (tmp_path / "masks").mkdir()
    Image.fromarray(mask).save(tmp_path / "masks/view_000.png")
    found = load_scene(tmp_path).photo(0).mask
    np.testing.assert_array_equal(found, counted)


def test_mask_is_undistorted_with_its_photo(tmp_path):
    tiny = tiny_scene(1, width=240, height=160)
    write_colmap(tmp_path, tiny, model="SIMPLE_RADIAL", distortion=(-0.25,))
    stripes = np.zeros((160, 240, 3), np.uint8)
    stripes[40:120, 60:180] = 255
    write_picture(tmp_path / "images/view_000.png", stripes)
    write_picture(tmp_path / "masks/view_000.png", stripes)
    scene = load_scene(tmp_path)
    for photo in (scene.photo(0), scene.photo(0)):  # the second from the cache
        assert photo.mask is not None
        np.testing.assert_array_equal(photo.mask, photo.rgb[..., 0] == 255)


def test_damaged_photos_are_named(tmp_path):
    tiny = tiny_scene(3)
    write_colmap(tmp_path, tiny)
    rgb = np.random.default_rng(0).integers(0, 255, (32, 48, 3)).astype(np.uint8)
    jpeg = cv2.imencode(".jpg", rgb)[1].tobytes()
    path = tmp_path / "images/view_001.png"
    whole, before = path.read_bytes(), load_scene(tmp_path)
    for damaged in (jpeg[: len(jpeg) * 4 // 5], whole[:-40]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"view_001\.png is cut off"):
            before.photo(1)
        scene = load_scene(tmp_path)
        assert [view.name for view in scene.views] == ["view_000.png", "view_002.png"]
        assert any("1 photo is no picture or damaged" in note for note in scene.notes)
    write_picture(path, rgb)
    scene = load_scene(tmp_path)
    write_picture(path, rgb[:20])
    with pytest.raises(ValueError, match=r"view_001\.png has changed: it is 48 x 20"):
        scene.photo(1)
    path.unlink()
    with pytest.raises(ValueError, match=r"view_001\.png cannot be read"):
        scene.photo(1)


@pytest.mark.parametrize("behind", [b"", b"\0" * 100_000], ids=["photo", "with a video behind it"])
def test_a_large_photo_is_whole_by_its_end(tmp_path: Path, behind: bytes) -> None:
    rgb = np.random.default_rng(0).integers(0, 255, (500, 700, 3)).astype(np.uint8)
    jpeg, path = cv2.imencode(".jpg", rgb, [cv2.IMWRITE_JPEG_QUALITY, 98])[1].tobytes(), tmp_path / "a.jpg"
    assert len(jpeg) > 4 * TAIL
    path.write_bytes(jpeg + behind)
    refuse_cut_off(path)
    path.write_bytes(jpeg[:-500] + behind)
    with pytest.raises(DamagedPhoto, match="is cut off"):
        refuse_cut_off(path)


def test_jpeg_with_a_thumbnail_is_whole(tmp_path):
    tiny = tiny_scene(1)
    write_colmap(tmp_path, tiny)
    rgb = picture(tiny, 0)[..., :3]
    whole = cv2.imencode(".jpg", rgb[..., ::-1])[1].tobytes()
    # A second JPEG inside an application segment, as cameras store their thumbnail.
    inner = b"Exif\0\0" + whole
    path = tmp_path / "images/view_000.png"
    with_thumbnail = whole[:2] + b"\xff\xe9" + (len(inner) + 2).to_bytes(2, "big") + inner + whole[2:]
    path.write_bytes(with_thumbnail)
    assert load_scene(tmp_path).photo(0).rgb.shape == (32, 48, 3)
    path.write_bytes(with_thumbnail[:-50])
    with pytest.raises(ValueError, match="cut off"):
        load_scene(tmp_path).photo(0)


def test_a_photo_with_a_video_behind_it_is_whole(tmp_path):
    """Phones write a video behind the picture, in which any two bytes occur."""
    whole = cv2.imencode(".jpg", picture(tiny_scene(1), 0)[..., 2::-1])[1].tobytes()
    path = tmp_path / "PXL.MP.jpg"
    for seed in range(10):
        video = b"\0\0\0\x18ftypmp42" + np.random.default_rng(seed).bytes(200_000) + b"\xff\xda"
        path.write_bytes(whole + video)
        assert decode(path).shape == (32, 48, 3)
    path.write_bytes(whole[:-60])
    with pytest.raises(ValueError, match="cut off"):
        decode(path)


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("orientation", [1, 2, 3, 4, 6, 8])
def test_tiff_is_decoded_as_it_is_stored(tmp_path, orientation, big):
    rgb = picture(tiny_scene(1), 0)[..., :3]
    path = tmp_path / "a.tif"
    Image.fromarray(rgb).save(path, tiffinfo={274: orientation}, big_tiff=big)
    np.testing.assert_array_equal(decode(path), rgb)
    assert picture_header(path) == PictureHeader(48, 32, orientation)


@pytest.mark.parametrize("order", ["II", "MM"])
def test_colors_of_a_tiff_are_multiplied_by_alpha_at_most_as_they_are_stored(tmp_path, order):
    straight = np.full((8, 8, 4), (50, 100, 76, 130), np.uint8)
    stored = straight.copy()
    stored[..., :3] = np.rint(straight[..., :3] * (130 / 255))
    for samples, pixels in ((2, straight), (1, stored)):
        tags = [(256, 8), (257, 8), (258, 8), (259, 1), (262, 2), (273, 200), (277, 4), (278, 8), (279, 256)]
        sign = "<" if order == "II" else ">"
        head = order.encode() + struct.pack(f"{sign}HIH", 42, 8, len(tags) + 1)
        body = b"".join(
            struct.pack(f"{sign}HHIHH", tag, 3, 1, value, 0) for tag, value in [*tags, (338, samples)]
        )
        path = tmp_path / "a.tif"
        path.write_bytes((head + body + bytes(4)).ljust(200, b"\0") + pixels.tobytes())
        assert np.abs(decode(path).astype(int) - straight).max() <= 1, samples


def test_a_tiff_that_is_cut_off_in_its_tags_is_told(tmp_path):
    path = tmp_path / "a.tif"
    Image.new("RGB", (16, 16)).save(path)
    whole = path.read_bytes()
    for end in (3, 7, 9, 12, len(whole) - 3):
        path.write_bytes(whole[:end])
        with pytest.raises(ValueError, match=r"a\.tif cannot be decoded"):
            decode(path)


def test_a_png_with_a_length_that_leads_out_of_it_is_cut_off(tmp_path):
    """OpenCV takes as much memory as such a length says before it looks: a gigabyte for a kilobyte."""
    write_colmap(tmp_path, tiny_scene(1))
    path = tmp_path / "images/view_000.png"
    whole = path.read_bytes()
    at = whole.index(b"IDAT") - 4
    for place, length in ((at, 2**30), (len(whole) - 12, 2**30), (at, 2**32 - 1), (8, 2**31)):
        path.write_bytes(whole[:place] + length.to_bytes(4, "big") + whole[place + 4 :])
        with pytest.raises(ValueError, match="is cut off"):
            decode(path)
    path.write_bytes(whole + b"what other programs add" * 1000)
    assert decode(path).shape == (32, 48, 3)


def test_loader_decodes_each_photo_once_and_in_threads(tmp_path, monkeypatch):
    scene = load_scene(write_colmap(tmp_path, tiny_scene(6)))
    calls: list[tuple[int, str]] = []
    plain = type(scene).photo

    def counted(self, index):
        calls.append((index, threading.current_thread().name))
        time.sleep(0.01)
        return plain(self, index)

    monkeypatch.setattr(type(scene), "photo", counted)
    with PhotoLoader(scene) as loader:
        for index in (3, 1, 3):
            loader.prefetch(index)
        for index in (3, 1, 3, 0):
            np.testing.assert_array_equal(loader.get(index).rgb, plain(scene, index).rgb)
    assert sorted(index for index, _ in calls) == [0, 1, 3]
    assert all(name.startswith("photo") for _, name in calls)


def test_loader_keeps_no_more_than_its_budget(tmp_path):
    scene = load_scene(write_colmap(tmp_path, tiny_scene(6)))
    each = scene.photo(0).num_bytes
    with PhotoLoader(scene, memory_bytes=2 * each + 1) as loader:
        first = loader.get(0)
        for index in range(6):
            loader.get(index)
        assert loader.kept_bytes == 2 * each
        assert loader.get(0) is first and loader.get(5) is not loader.get(5)


def test_loader_may_be_used_by_many_threads_and_raises_the_files_error(tmp_path):
    scene = load_scene(write_colmap(tmp_path, tiny_scene(6)))
    broken = scene.views[2].image_path
    broken.write_bytes(broken.read_bytes()[:-40])
    errors, wrong = [], []

    def use(loader):
        for index in [0, 1, 2, 3, 4, 5] * 5:
            loader.prefetch((index + 1) % 6)
            try:
                if not np.array_equal(loader.get(index).rgb, expected[index]):
                    wrong.append(index)
            except ValueError as error:
                errors.append((index, str(error)))

    expected = {i: scene.photo(i).rgb for i in (0, 1, 3, 4, 5)}
    with PhotoLoader(scene, memory_bytes=0) as loader:
        threads = [threading.Thread(target=use, args=(loader,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong and len(errors) == 20
    assert all(index == 2 and "view_002.png" in text for index, text in errors)


def test_closed_loader_refuses(tmp_path):
    scene = load_scene(write_colmap(tmp_path, tiny_scene(2)))
    loader = PhotoLoader(scene)
    loader.get(0)
    loader.close()
    with pytest.raises(RuntimeError, match="closed"):
        loader.get(0)


def test_a_picture_that_is_too_large_is_told_with_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    path = tmp_path / "large.png"  # its header alone
    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    )
    told = "is too large: it has 900 megapixels, and 178 are allowed; .* set SPLATSTUDIO_MAX_MEGAPIXELS to"
    with pytest.raises(ValueError, match=told):
        picture_header(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)  # put back afterwards
    monkeypatch.setenv("SPLATSTUDIO_MAX_MEGAPIXELS", "1000")
    assert picture_header(path) == PictureHeader(30_000, 30_000)


@pytest.mark.parametrize("ending", [".avif", ".jp2"])
@pytest.mark.parametrize("by_pillow", [False, True])
def test_newer_picture_files_are_read(tmp_path, monkeypatch, ending, by_pillow):
    write_colmap(tmp_path, tiny_scene(1))
    rgb = cv2.GaussianBlur(picture(tiny_scene(1), 0)[..., :3], (5, 5), 2)
    (tmp_path / "images/view_000.png").unlink()
    lossless = {"quality": 100, "subsampling": "4:4:4"} if ending == ".avif" else {}
    Image.fromarray(rgb).save(tmp_path / f"images/view_000{ending}", **lossless)
    if by_pillow:  # as where OpenCV was built without it
        monkeypatch.setattr(cv2, "imdecode", lambda *_: None)
    shown = load_scene(tmp_path).photo(0).rgb
    assert np.abs(shown.astype(int) - rgb).max() < 8
    (tmp_path / f"images/view_000{ending}").write_bytes(b"no picture at all")
    with pytest.raises(ValueError, match="it is no picture or is damaged"):
        load_scene(tmp_path)
