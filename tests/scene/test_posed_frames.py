"""Poses of OpenSfM, Metashape, RealityScan, Polycam, Record3D and 3D Scanner App, of one tiny scene."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image
from poses_of_programs import (
    CENTER,
    TINY,
    WRITERS,
    write_json,
    write_metashape,
    write_opensfm,
    write_scanner_app,
)

from splatstudio.files.run import new_run_path
from splatstudio.scene.capture import CapturedPhoto
from splatstudio.scene.layout import OTHERS, pose_files
from splatstudio.scene.lens import Lens
from splatstudio.scene.lens_models import project
from splatstudio.scene.load import READERS, load_scene, measured_lens
from splatstudio.scene.photo import PictureHeader
from splatstudio.scene.realityscan import read_realityscan
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig, with_whole_paths


def check(scene: Scene) -> None:
    """Check that a scene is the tiny one, in the coordinates of its files."""
    back = np.linalg.inv(scene.transform)
    assert len(scene.views) == len(TINY.names)
    for view, expected in zip(scene.views, TINY.viewmats, strict=True):
        camera = view.camera.transformed(back)
        np.testing.assert_allclose(camera.viewmat, expected, atol=1e-6)
        np.testing.assert_allclose(
            camera.K, [[TINY.focal, 0, CENTER[0]], [0, TINY.focal, CENTER[1]], [0, 0, 1]]
        )


@pytest.mark.parametrize("program", WRITERS)
def test_the_poses_of_each_program_are_read(tmp_path: Path, program: str) -> None:
    folder = WRITERS[program](tmp_path / "scene")
    scene = load_scene(folder)
    check(scene)
    assert scene.format == ("OpenSfM" if program == "OpenDroneMap" else program)
    if scene.format == "OpenSfM":
        moved = (
            scene.points @ np.linalg.inv(scene.transform)[:3, :3].T + np.linalg.inv(scene.transform)[:3, 3]
        )
        np.testing.assert_allclose(moved, TINY.points, atol=1e-5)
        np.testing.assert_array_equal(scene.colors, TINY.colors)
        assert "2 reconstructions of 1, 9 photos: the largest is used" in scene.notes[0]
    else:
        assert any("training starts from random points" in note for note in scene.notes)
    if scene.format == "Metashape":
        assert "1 cameras in" in scene.notes[0] and "not aligned" in scene.notes[0]
    else:  # z is up in their worlds, and stays so
        up = scene.transform[:3, :3] @ [0, 0, 1.0]
        np.testing.assert_allclose(up / np.linalg.norm(up), [0, 0, 1], atol=1e-6)
    files = pose_files(folder)
    assert files is not None and files.file is not None and files.size == scene.format
    if files.file.is_file() and program != "3D Scanner App":
        check(load_scene(files.file))  # as a file that is named


def test_every_format_of_the_table_has_a_reader() -> None:
    assert {form for form, *_ in OTHERS} == set(READERS)


def test_a_rotation_of_realityscan_is_that_of_its_own_metadata(tmp_path: Path) -> None:
    # Heading, pitch and roll of a camera, and its rotation in the XMP of the same export, as a user of
    # RealityCapture published them.
    file = tmp_path / "a.csv"
    header = "#name,x,y,alt,heading,pitch,roll,f,px,py,k1,k2,k3,k4,t1,t2\n"
    angles = "163.736597399311,83.4154313461628,174.386496244756"
    file.write_text(f"{header}a.png,0,0,0,{angles},28,0,0,0,0,0,0,0,0\n")
    (frame,) = read_realityscan(file).frames
    xmp = [0.982594073038806, 0.185426733553445, -0.0112166890261935, -0.032113633044729, 0.11008102707942]
    xmp += [-0.993403685341366, -0.18296885582437, 0.976472781986697, 0.114]
    np.testing.assert_allclose(frame.viewmat[:3, :3].ravel(), xmp, atol=2e-4)


def distorted(folder: Path, program: str) -> CapturedPhoto:
    """Write a file with distortion, and return the first photo with its lens."""
    WRITERS[program](folder)
    if program == "Metashape":
        file = folder / "cameras.xml"
        told = "<k1>0.1</k1><k2>0.02</k2><p1>0.003</p1><p2>0.004</p2><b1>5</b1></calibration>"
        file.write_text(file.read_text().replace("</calibration>", told))
    else:
        file = folder / "cameras.csv"
        file.write_text(file.read_text().replace(",0,0,0,0,0,0", ",0.1,0.02,0,0,0.003,0.004"))
    files = pose_files(folder)
    assert files is not None and files.file is not None
    frame = READERS[program](files.file).frames[0]
    return CapturedPhoto(frame.name, frame.viewmat, files.file, frame.lens_of(TINY.width, TINY.height))


def test_distortion_is_told_in_the_order_of_each_program(tmp_path: Path) -> None:
    lens = distorted(tmp_path / "a", "Metashape").lens
    # Metashape's p1 is what OpenCV calls p2, and b1 widens the picture.
    assert lens is not None and lens.distortion == (0.1, 0.02, 0.004, 0.003, 0.0)
    assert lens.fx == pytest.approx(TINY.focal + 5) and lens.fy == pytest.approx(TINY.focal)
    lens = distorted(tmp_path / "b", "RealityScan").lens
    # RealityScan's t1 is what OpenCV calls p2, too.
    assert lens is not None and lens.distortion == (0.1, 0.02, 0.004, 0.003, 0.0)


def test_a_fisheye_of_each_program_is_one_of_colmap_s(tmp_path: Path) -> None:
    folder = write_metashape(tmp_path / "a")
    text = (folder / "cameras.xml").read_text().replace('type="frame"', 'type="fisheye"')
    (folder / "cameras.xml").write_text(text)
    assert load_scene(folder).views[0].lens.kind == "thin_prism_fisheye"
    folder = write_opensfm(tmp_path / "b")
    content = json.loads((folder / "reconstruction.json").read_text())
    camera = {"projection_type": "fisheye", "focal": 0.6, "k1": 0.01, "k2": 0.002}
    content[1]["cameras"]["v2 a b"] = camera | {"width": TINY.width, "height": TINY.height}
    write_json(folder / "reconstruction.json", content)
    lens = load_scene(folder).views[0].lens
    assert (lens.kind, lens.distortion) == ("fisheye", (0.01, 0.002)) and math.isclose(lens.fx, 0.6 * 48)


@pytest.mark.parametrize("kind", ["frame", "fisheye"])
def test_skewed_pixels_of_metashape_are_where_its_manual_says(tmp_path: Path, kind: str) -> None:
    folder = write_metashape(tmp_path / "a")
    told = "<k1>0.05</k1><p1>0.003</p1><b1>2</b1>"
    file = folder / "cameras.xml"
    text = file.read_text().replace('type="frame"', f'type="{kind}"')
    file.write_text(text.replace("</calibration>", f"{told}</calibration>"))
    straight = load_scene(folder).views[0].lens
    file.write_text(text.replace("</calibration>", f"{told}<b2>1.5</b2></calibration>"))
    scene = load_scene(folder)
    leaning = scene.views[0].lens
    directions = np.random.default_rng(0).normal(size=(50, 3)) * [0.2, 0.2, 0.0] + [0, 0, 1]
    points = project(straight.kind, straight.distortion, directions)
    bent = project(leaning.kind, leaning.distortion, directions)
    # u = w / 2 + cx + x f + x B1 + y B2, and v knows nothing of it.
    expected = points * [straight.fx, straight.fy] + points[:, 1:] * [1.5, 0.0]
    np.testing.assert_allclose(bent * [leaning.fx, leaning.fy], expected, atol=1e-9)
    camera = scene.views[0].camera  # the photo that is trained is a pinhole's, with square columns
    assert camera.K[0, 1] == 0 and leaning.distorted and camera.width > 0.7 * TINY.width


def test_each_frame_of_record3d_may_have_a_focus_of_its_own(tmp_path: Path) -> None:
    folder = WRITERS["Record3D"](tmp_path / "scene")
    content = json.loads((folder / "metadata").read_text())
    each = [[TINY.focal + i, TINY.focal + i, CENTER[0], CENTER[1] + 0.1 * i] for i in range(len(TINY.names))]
    write_json(folder / "metadata", content | {"perFrameIntrinsicCoeffs": each})
    for i, view in enumerate(load_scene(folder).views):
        assert view.camera.K[0, 0] == view.camera.K[1, 1] == TINY.focal + i
        assert view.camera.K[1, 2] == pytest.approx(CENTER[1] + 0.1 * i)
    write_json(folder / "metadata", content | {"perFrameIntrinsicCoeffs": []})
    check(load_scene(folder))


def test_frames_of_3d_scanner_app_without_a_picture_are_no_damage(tmp_path: Path) -> None:
    folder = write_scanner_app(tmp_path)
    for number in range(len(TINY.names)):
        if number % 3:
            (folder / f"frame_{number:05}.png").unlink()
    scene = load_scene(folder)
    assert len(scene.views) == 3 and not any("not exist" in note for note in scene.notes)
    assert scene.notes[0].startswith("6 of 9 frames are not used: 3D Scanner App keeps a pose and a depth of")


def text_with(folder: Path, file: str, old: str, new: str) -> None:
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))


RECONSTRUCTION, XML, CSV = "reconstruction.json", "cameras.xml", "cameras.csv"
BROKEN: dict[str, tuple[str, str, str, str, str]] = {
    "no JSON": ("OpenSfM", RECONSTRUCTION, "[{", "[[{", "is not valid JSON"),
    "panorama": ("OpenSfM", RECONSTRUCTION, '"brown"', '"dual"', "'dual', which is not supported"),
    "camera": ("OpenSfM", RECONSTRUCTION, '"camera": "v2', '"camera": "v3', "camera that the file does not"),
    "shot": ("OpenSfM", RECONSTRUCTION, '"rotation": [', '"rotation": [9, ', "rotation that is not 3 num"),
    "huge": ("OpenSfM", RECONSTRUCTION, '"k1": 0.0', f'"k1": 1{400 * "0"}', "which is not a number"),
    "cut": ("Metashape", XML, "</document>", "", "is not valid XML"),
    "encoding": ("Metashape", XML, "UTF-8", "UTkF-8", "is not valid XML: unknown encoding"),
    "sensor": ("Metashape", XML, 'sensor_id="0"', 'sensor_id="7"', "a sensor that the file does not hold"),
    "cylinder": ("Metashape", XML, 'type="frame"', 'type="cylindrical"', "'cylindrical', which is not"),
    "skew": ("Metashape", XML, "<cx>", "<b2>x</b2><cx>", "b2 = 'x', which is not a number"),
    "transform": ("Metashape", XML, "<transform>", "<transform>x ", "transform that is not 16 numbers"),
    "focal": ("Metashape", XML, f"<f>{TINY.focal}", "<f>-1", "focal length -1 x -1, which is not positive"),
    "column": ("RealityScan", CSV, "heading", "reading", "has no column heading: export"),
    "row": ("RealityScan", CSV, "view_000.png,", "view_000.png\r\nview_000.png,", "line 2, has no"),
    "number": ("RealityScan", CSV, "view_000.png,", "view_000.png,x", "line 2, has x = 'x"),
    "poses": ("Record3D", "metadata", '"poses"', '"roses"', "has no list of poses"),
    "size": ("Record3D", "metadata", '"w": 48', '"w": 0', "image size 0 x 32, which is impossible"),
    "frames": ("Record3D", "metadata", '"fps"', '"perFrameIntrinsicCoeffs": [[1]], "fps"', "as many per"),
    "matrix": ("3D Scanner App", "frame_00001.json", "[", "[1, ", "ARFrame that is not 16 numbers"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_what_is_wrong_is_told_in_a_sentence(tmp_path: Path, fault: str) -> None:
    program, file, old, new, sentence = BROKEN[fault]
    folder = WRITERS[program](tmp_path / "scene")
    text_with(folder, file, old, new)
    with pytest.raises(ValueError, match=sentence) as told:
        load_scene(folder)
    assert str(folder) in str(told.value)


@pytest.mark.parametrize("program", WRITERS)
def test_photos_that_are_elsewhere_or_missing_are_told(tmp_path: Path, program: str) -> None:
    folder = WRITERS[program](tmp_path / "scene")
    pictures = sorted(folder.rglob("*.png"))
    pictures[0].unlink()
    scene = load_scene(folder)
    assert len(scene.views) == 8
    missing = "1 of 9 frames is not used" if program == "3D Scanner App" else "1 listed image does not exist"
    assert any(missing in note for note in scene.notes)
    away = tmp_path / "away"
    away.mkdir()
    for path in pictures[1:]:
        path.rename(away / path.name)
    with pytest.raises(ValueError, match=r"none of the 9 photos .* their folder with --images FOLDER"):
        load_scene(folder)
    (away / "other.png").write_bytes((away / pictures[1].name).read_bytes())
    scene = load_scene(folder, images_folder=str(away))
    assert len(scene.views) == 8 and scene.unposed == ("other.png",)


def test_what_metashape_tells_and_is_not_used_is_said(tmp_path: Path) -> None:
    folder = write_metashape(tmp_path / "a")
    file = folder / "cameras.xml"
    text = file.read_text().replace("<cx>1.5", "<p3>1e-3</p3><cx>1.5")
    file.write_text(text.replace("</cameras>", '<camera id="100" master_id="0" label="b"/></cameras>'))
    notes = load_scene(folder).notes
    assert any("'a', has the coefficients p3 and p4" in note for note in notes)
    assert any(note.startswith("1 cameras in") and "in a rig" in note for note in notes)
    assert any("1 cameras in" in note and "not aligned" in note for note in notes)


@pytest.mark.parametrize("program", ["Metashape", "RealityScan", "OpenSfM"])
def test_photos_in_several_folders_are_found_by_their_labels(tmp_path: Path, program: str) -> None:
    folder = WRITERS[program](tmp_path / "scene")
    for i, photo in enumerate(sorted((folder / "images").iterdir())):
        (folder / f"images/day{i % 2}").mkdir(exist_ok=True)
        photo.rename(folder / f"images/day{i % 2}/{photo.name}")
    scene = load_scene(folder)
    back = np.linalg.inv(scene.transform)
    where = dict(zip(TINY.names, TINY.viewmats, strict=True))
    assert len(scene.views) == 9 and not scene.unposed
    for view in scene.views:
        np.testing.assert_allclose(
            view.camera.transformed(back).viewmat, where[view.image_path.name], atol=1e-6
        )


def test_two_poses_of_one_photo_are_not_guessed_between(tmp_path: Path) -> None:
    folder = write_metashape(tmp_path / "scene")
    cameras = folder / "cameras.xml"
    text = cameras.read_text()
    # Two flights, whose photos were called alike, and only one of them lies here.
    cameras.write_text(text.replace('label="view_001"', 'label="view_000"').replace("view_003", "view_002"))
    scene = load_scene(folder)
    assert sorted(view.name for view in scene.views) == [f"view_{i:03}.png" for i in (4, 5, 6, 7, 8)]
    (note,) = (note for note in scene.notes if "several poses name one photo" in note)
    assert note.startswith("4 frames are left out") and "view_000.png, view_002.png" in note
    for i in range(9):
        text = text.replace(f'label="view_{i:03}"', 'label="view_000"')
    cameras.write_text(text)
    with pytest.raises(ValueError, match=r"cameras\.xml cannot be used: 9 frames are left out"):
        load_scene(folder)


def test_the_table_of_realityscan_is_read_by_its_present_names_and_below_other_lines(tmp_path: Path) -> None:
    folder = WRITERS["RealityScan"](tmp_path / "scene")
    header = "#name,x,y,alt,heading,pitch,roll,f,px,py,"
    text_with(folder, CSV, header, "#cameras 9\r\n#name,x,y,alt,yaw,pitch,roll,f_35mm,px_norm,py_norm,")
    check(load_scene(folder))
    (folder / CSV).write_text((folder / CSV).read_text(), encoding="utf-16")
    check(load_scene(folder))
    (folder / CSV).write_text((folder / CSV).read_text(encoding="utf-16"))
    text_with(folder, CSV, "view_004.png,", "view_004.png,x")
    with pytest.raises(ValueError, match="line 7, has x = 'x"):
        load_scene(folder)


def test_photoscan_wrote_the_center_itself(tmp_path: Path) -> None:
    folder = write_metashape(tmp_path / "scene")
    calibration = f"<f>{TINY.focal}</f><cx>1.5</cx><cy>-1</cy>"
    focal = f"<fx>{TINY.focal}</fx><fy>{TINY.focal}</fy>"
    text_with(folder, XML, calibration, f"{focal}<cx>{CENTER[0]}</cx><cy>{CENTER[1]}</cy><skew>0</skew>")
    check(load_scene(folder))
    text_with(folder, XML, "<skew>0</skew>", "<skew>0</skew><p1>1e-9</p1><p2>2e-9</p2>")
    assert load_scene(folder).views[0].lens.distortion[2:4] == (1e-9, 2e-9)


def test_a_fisheye_of_metashape_is_one_by_both_of_its_names(tmp_path: Path) -> None:
    former, present = write_metashape(tmp_path / "a"), write_metashape(tmp_path / "b")
    text_with(former, XML, 'type="frame"', 'type="fisheye"')
    text_with(present, XML, 'type="frame"', 'type="equidistant_fisheye"')
    lens, same = (load_scene(folder).views[0].lens for folder in (former, present))
    assert lens == same and lens.kind == "thin_prism_fisheye"


MASKS = {
    "of the label": ("masks", "{stem}.png"),
    "of Metashape": ("masks", "{stem}_mask.png"),
    "of RealityScan": ("masks", "{stem}.png.mask.png"),
    "beside": ("images", "{stem}.png.mask.png"),
}


@pytest.mark.parametrize("called", MASKS)
@pytest.mark.parametrize("below", ["", "day1"])
def test_masks_are_found_by_the_names_that_programs_give_them(
    tmp_path: Path, called: str, below: str
) -> None:
    folder = write_metashape(tmp_path / "scene")
    where, name = MASKS[called]
    for place in (folder / where / below, folder / "images" / below):
        place.mkdir(parents=True, exist_ok=True)
    for photo in sorted((folder / "images").glob("*.png")):
        cv2.imwrite(
            str(folder / where / below / name.format(stem=photo.stem)),
            np.zeros((TINY.height, TINY.width), np.uint8),
        )
        photo.rename(folder / "images" / below / photo.name)
    scene = load_scene(folder)
    assert len(scene.views) == 9 and not scene.unposed
    assert all(view.mask_path is not None and "mask" in str(view.mask_path) for view in scene.views)
    mask = scene.photo(0).mask
    assert mask is not None and not mask.any()


def test_a_folder_of_masks_that_fit_no_photo_is_told(tmp_path: Path) -> None:
    folder = write_metashape(tmp_path / "scene")
    (folder / "masks").mkdir()
    cv2.imwrite(str(folder / "masks/sky 1.png"), np.zeros((TINY.height, TINY.width), np.uint8))
    assert any(note.startswith("no photo is masked") for note in load_scene(folder).notes)


def with_exif(folder: Path, orientation: int) -> None:
    """Write an EXIF orientation into all photos."""
    for path in [*folder.rglob("view_*.png"), *folder.rglob("frame_*.png")]:
        exif = Image.Exif()
        exif[0x0112] = orientation
        with Image.open(path) as picture:
            picture.load()
            picture.save(path, exif=exif)


def test_photos_on_their_side_whose_file_of_poses_tells_no_size_are_noted(tmp_path: Path) -> None:
    folder = WRITERS["RealityScan"](tmp_path / "scene")
    with_exif(folder, 6)
    scene = load_scene(folder)
    assert {view.orientation for view in scene.views} == {1}
    assert any(note.startswith("9 photos have an EXIF orientation of which nothing") for note in scene.notes)


@pytest.mark.parametrize("turned", [False, True])
def test_a_center_in_pixels_tells_whether_photos_are_turned(tmp_path: Path, turned: bool) -> None:
    folder = WRITERS["3D Scanner App"](tmp_path / "scene")
    with_exif(folder, 6)
    if turned:
        for path in folder.glob("*.json"):
            values = json.loads(path.read_text())
            values["intrinsics"][2], values["intrinsics"][5] = CENTER[1], CENTER[0]
            write_json(path, values)
    scene = load_scene(folder)
    view = scene.views[0]
    size = (TINY.height, TINY.width) if turned else (TINY.width, TINY.height)
    assert view.orientation == (6 if turned else 1) and (view.camera.width, view.camera.height) == size
    assert not any("EXIF" in note for note in scene.notes)


def test_a_photo_that_is_no_picture_is_left_out(tmp_path: Path) -> None:
    folder = write_metashape(tmp_path / "scene")
    (folder / "images/view_002.png").write_text("no picture")
    scene = load_scene(folder)
    assert len(scene.views) == 8
    assert any("1 photo is no picture or damaged" in note and "view_002" in note for note in scene.notes)


def test_labels_that_name_several_photos_are_told(tmp_path: Path) -> None:
    folder = write_metashape(tmp_path / "scene")
    for below in ("cam0", "cam1"):
        shutil.copytree(folder / "images", folder / f"photos/{below}")
    shutil.rmtree(folder / "images")
    with pytest.raises(ValueError, match=r"9 photos cannot be used.*cam0/view_000\.png, cam1/view_000\.png"):
        load_scene(folder)
    (folder / "photos/cam0/view_000.png").unlink()
    scene = load_scene(folder)
    assert [view.image_path.name for view in scene.views] == ["view_000.png"]
    (note,) = (note for note in scene.notes if "are called so" in note)
    assert note.startswith("8 photos cannot be used") and "cam0/view_001.png, cam1/view_001.png" in note
    assert not any("not exist" in note for note in scene.notes)


def test_points_of_opensfm_without_a_color_are_gray(tmp_path: Path) -> None:
    folder = write_opensfm(tmp_path / "scene")
    content = json.loads((folder / "reconstruction.json").read_text())
    for point in content[1]["points"].values():
        del point["color"]
    write_json(folder / "reconstruction.json", content)
    scene = load_scene(folder)
    assert len(scene.points) == len(TINY.points) and (scene.colors == 128).all()


def test_an_empty_folder_of_better_poses_hides_no_others(tmp_path: Path) -> None:
    folder = WRITERS["Polycam"](tmp_path / "scene")
    for name in ("cameras", "images"):
        (folder / f"keyframes/corrected_{name}").rename(folder / f"keyframes/{name}")
    (folder / "keyframes/corrected_cameras").mkdir()
    check(load_scene(folder))


def test_what_cannot_be_undistorted_is_told_when_it_is_opened(tmp_path: Path) -> None:
    lens = Lens(33_000, 600, 2e4, 2e4, 16_500, 300, distortion=(0.1,))
    shot = CapturedPhoto("a.png", np.eye(4), tmp_path / "a.png", lens)
    with pytest.raises(ValueError, match=r"is 33000 x 600 pixels, .* less than 32,767 on a side: make the"):
        measured_lens(shot, PictureHeader(33_000, 600, 1))


def test_scenes_of_other_programs_are_found_and_listed(tmp_path: Path) -> None:
    write_metashape(tmp_path / "metashape")
    assert len(load_scene(tmp_path).views) == len(TINY.names)
    write_opensfm(tmp_path / "odm", "opensfm/reconstruction.json")
    with pytest.raises(ValueError, match=r"metashape \(Metashape\), odm \(OpenSfM\)"):
        load_scene(tmp_path)


def test_a_file_that_is_named_is_the_one_that_is_trained_and_gone_on_with(tmp_path: Path) -> None:
    folder = write_metashape(tmp_path / "scene")
    text = (folder / "cameras.xml").read_text()
    (folder / "cameras_new.xml").write_text(text.replace(f"<f>{TINY.focal}", f"<f>{TINY.focal + 3}"))
    assert load_scene(folder / "cameras.xml").path == folder
    new = load_scene(folder / "cameras_new.xml")
    assert load_scene(new.path).views[0].lens.fx == pytest.approx(TINY.focal + 3)
    assert new_run_path(new.path, tmp_path).name == "scene-cameras_new"
    photos = with_whole_paths(TrainConfig(images="images"), new.path).images
    assert photos == "images"
