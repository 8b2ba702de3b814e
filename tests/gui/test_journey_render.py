"""The Render tab in a real browser: keyframes, private previews, videos beside a training, pictures."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import cv2
import imageio.v3 as iio
import numpy as np
import viser.transforms
from gui_parts import TIMEOUT
from studio_page import PAGE_TEST, Screen, likeness

from splatstudio.cameras.path_file import read_camera_path
from splatstudio.checkpoints.checkpoint import newest_checkpoint
from splatstudio.gui.state.viewpoint import read_viewpoint
from splatstudio.gui.tabs.path_preview import PreviewSection
from splatstudio.gui.tabs.render import RenderPanel
from splatstudio.models.model import Model, load_model
from splatstudio.rendering.render import render_image

pytestmark = PAGE_TEST
Open = Callable[..., Screen]


def num_keyframes(screen: Screen) -> int:
    return len(screen.draft.path.keyframes)


def add_keyframes(screen: Screen, num: int) -> None:
    """Turn the camera and press K, so many times."""
    screen.tab("Render")
    for _ in range(num):
        screen.drag(90)
        screen.settle()
        present = num_keyframes(screen)
        screen.page.keyboard.press("k")
        screen.wait(lambda before=present: num_keyframes(screen) == before + 1, "K adds a keyframe")


def positions(screen: Screen) -> dict[int, np.ndarray]:
    """Return where each browser's camera is."""
    clients = screen.studio._server.get_clients()
    return {number: np.array(client.camera.position) for number, client in clients.items()}


def test_from_keyframes_to_videos_and_pictures(
    open_page: Open, blob_folder: Path, browser: Any, tmp_path: Path
) -> None:
    screen = open_page(blob_folder, height=700)
    run = tmp_path / "runs" / "blobs"
    screen.settle()
    start = screen.viewpoint.position
    screen.tab("Render")
    screen.page.get_by_text("Motion and lens").click()
    move_a_keyframe_by_its_handles(screen)
    screen.tab("View")
    screen.seen("Reset the view").click()
    screen.wait(lambda: bool(np.allclose(screen.viewpoint.position, start, atol=1e-3)), "where it began")
    make_paths_ready_made(screen)
    make_and_play_keyframes(screen, browser, run / "camera_paths" / "path-2.json")
    change_keyframes(screen)
    download_and_open_the_path(screen, tmp_path / "other.json")
    screen.button("Start training").click()
    screen.wait(lambda: screen.text("state") == "Training" and screen.step > 100, "it looks like something")
    screen.close_notices()
    video = run / "renders" / "other.mp4"
    model = render_a_video_beside_the_training(screen, video, run)
    cancel_a_video(screen, video)
    take_a_picture(screen, video.parent, model)
    assert screen.errors == []


def make_paths_ready_made(screen: Screen) -> None:
    """Make each path that needs no keyframes, and an empty one in their place."""
    screen.tab("Render")
    for button, name in (("Orbit", "orbit"), ("Spiral", "spiral"), ("Photos", "photos")):
        screen.seen(button).click()
        screen.wait(lambda name=name: screen.draft.name == name, f"{button} makes a path")
        assert num_keyframes(screen) >= 4
        assert max(screen.draft.path.width, screen.draft.path.height) == 1280, "small photos, a whole video"
    assert screen.draft.path.duration > 0
    told = screen.page.get_by_text("Video size set to the photos'", exact=True)
    assert told.count() == 1, "it is said, once: the others have the same"
    screen.choose("Size", "Square (1080 × 1080)")
    screen.wait(lambda: screen.draft.path.width == 1080, "the size is taken")
    screen.seen("Orbit").click()
    screen.wait(lambda: screen.draft.name == "orbit-2", "another orbit")
    assert screen.draft.path.height == screen.draft.path.width == 1080, "a size that was chosen stays"
    screen.seen("Empty").click()
    # The keyframe that was deleted has left a path of the same name.
    screen.wait(lambda: screen.draft.name == "path-2" and num_keyframes(screen) == 0, "a new one")


def make_and_play_keyframes(screen: Screen, browser: Any, file: Path) -> None:
    """Add three keyframes, see them kept in a file, and play them in one of two browsers."""
    (first,) = positions(screen)
    second = browser.new_page(viewport={"width": 560, "height": 240})
    second.goto(screen.studio.url, timeout=1000 * TIMEOUT)
    screen.wait(lambda: len(positions(screen)) == 2, "a second browser comes")
    add_keyframes(screen, 2)
    screen.drag(60)
    screen.settle()
    screen.seen("Add keyframe (K)").click()
    screen.wait(lambda: num_keyframes(screen) == 3, "the button adds one, too")
    viewpoint = read_viewpoint(screen.studio._server.get_clients()[first].camera)
    assert viewpoint is not None
    keys = screen.draft.path.keyframes
    assert np.allclose(keys[2].camera_to_world[:3, 3], viewpoint.position, atol=1e-6)
    rotation = viser.transforms.SO3(viewpoint.wxyz).as_matrix()
    assert np.allclose(keys[2].camera_to_world[:3, :3], rotation, atol=1e-6)
    # Every change is in a file, in the coordinates of the scene's own files.
    screen.wait(file.exists, "the path is saved by itself")
    scene = screen.studio.controller.project.scene
    assert scene is not None
    screen.wait(lambda: len(read_camera_path(file).keyframes) == 3, "all of it is saved")
    kept = read_camera_path(file, scene.transform)
    for one, other in zip(kept.keyframes, keys, strict=True):
        assert np.allclose(one.camera_to_world, other.camera_to_world, atol=1e-6)

    before = positions(screen)
    screen.button("Play").click()
    seen: list[np.ndarray] = []
    percents: set[str] = set()

    def played() -> bool:
        seen.append(positions(screen)[first])
        percents.add(place_on_the_path(screen.page))
        if len(seen) % 100 == 0:  # on a busy machine it may be over before it was seen
            screen.button("Play").click()
        far = max(np.linalg.norm(place - before[first]) for place in seen)
        return len({tuple(np.round(place, 3)) for place in seen}) >= 5 and bool(far > 0.2)

    screen.wait(played, "it is played")
    frame = screen.page.locator(".ss-framing div")
    box, size = screen.box(frame), screen.draft.path
    assert abs(box["width"] / box["height"] - size.width / size.height) < 0.02, "the video's part is bright"
    assert len(percents) >= 3, "the slider follows"
    (section,) = (part for part in screen.panel(RenderPanel)._parts if isinstance(part, PreviewSection))
    assert section._place.value == 0.0, "and nobody else's: each browser has a preview of its own"
    (other,) = before.keys() - {first}
    assert np.array_equal(positions(screen)[other], before[other]), "the other browser was moved"
    screen.button("Stop").locator("visible=true").last.click()
    screen.wait(
        lambda: bool(np.allclose(positions(screen)[first], before[first])), "it stands where it stood"
    )
    screen.wait(lambda: place_on_the_path(screen.page) == "0", "and so does the slider")
    screen.wait(lambda: frame.count() == 0, "all of the picture is bright again")
    second.close()
    screen.wait(lambda: len(positions(screen)) == 1, "the second browser is gone")


def place_on_the_path(page: Any) -> str:
    """Return the per cent of the path that the slider shows in a browser."""
    row = "//label[normalize-space()='Position']/ancestor::*[.//*[@role='slider']][1]//*[@role='slider']"
    return page.locator(row).first.get_attribute("aria-valuenow")


def change_keyframes(screen: Screen) -> None:
    """Change the order of the keyframes, delete one and take that back, stretch the times, move one."""
    keys = screen.draft.path.keyframes
    screen.seen("Earlier").click()
    screen.wait(lambda: screen.draft.path.keyframes[1] is keys[2], "the last one comes earlier")
    screen.seen("Later").click()
    screen.wait(lambda: screen.draft.path.keyframes[2] is keys[2], "and goes back")
    shown, duration = screen.field("Duration (s)"), screen.draft.path.duration

    def shows_the_duration() -> bool:
        return float(shown.input_value()) == round(screen.draft.path.duration, 3)

    # The page shows each change before the next: what is still on its way would be drawn over what is typed.
    screen.button("Delete").click()
    screen.wait(lambda: num_keyframes(screen) == 2, "it is deleted")
    assert screen.draft.path.duration < duration
    screen.wait(shows_the_duration, "the page shows what is left")
    screen.button("Undo").click()
    screen.wait(lambda: num_keyframes(screen) == 3, "that is taken back")
    screen.wait(shows_the_duration, "the page shows all of it")
    screen.enter("Duration (s)", "2")
    screen.wait(lambda: screen.draft.path.duration == 2.0 != duration, "all times are scaled")
    screen.button("Go to").click()

    def is_here(index: int) -> bool:
        place = screen.draft.path.keyframes[index].camera_to_world[:3, 3]
        return bool(np.allclose(screen.viewpoint.position, place, atol=1e-3))

    screen.wait(lambda: any(is_here(index) for index in range(3)), "it goes there")
    screen.settle()
    (index,) = (index for index in range(3) if is_here(index))
    screen.drag(40)
    screen.settle()
    assert not is_here(index)
    screen.seen("Set here").click()
    screen.wait(lambda: is_here(index), "the keyframe is where the camera is")


def download_and_open_the_path(screen: Screen, copy: Path) -> None:
    """Download the path as a file and open it under another name."""
    keyframes = screen.draft.path.keyframes
    screen.page.get_by_text("Path file", exact=True).click()
    with screen.page.expect_download() as download:
        screen.seen("Download the path file").click()
    assert download.value.suggested_filename == "path-2.json"
    copy.write_bytes(Path(download.value.path()).read_bytes())
    assert len(read_camera_path(copy).keyframes) == 3
    assert len(json.loads(copy.read_text())["camera_path"]) == len(screen.draft.path.frame_times)
    with screen.page.expect_file_chooser() as chooser:
        screen.seen("Open a path file").click()
    chooser.value.set_files(copy)
    screen.wait(lambda: screen.draft.name == copy.stem, "the file is opened")
    for mine, its in zip(keyframes, screen.draft.path.keyframes, strict=True):
        assert np.allclose(mine.camera_to_world, its.camera_to_world, atol=1e-5)
    screen.close_notices()


def render_a_video_beside_the_training(screen: Screen, video: Path, run: Path) -> Model:
    """Render a video while the training goes on, then pause, and return the model."""
    screen.choose("Size", "As the photos")
    screen.wait(lambda: screen.draft.path.width == 48, "the size is taken")
    step = screen.step
    screen.button("Render 61 frames").click()
    screen.page.get_by_text(f"Rendered {video.name}").first.wait_for()
    screen.page.get_by_text(f"runs/blobs/renders/{video.name}").first.wait_for()
    screen.wait(lambda: screen.step > step, "the training went on")
    with screen.page.expect_download() as download:
        screen.page.get_by_role("button", name=f"Download {video.name}").click()
    assert Path(download.value.path()).read_bytes() == video.read_bytes()
    frames = iio.imread(video, plugin="pyav")
    assert frames.shape == (61, 40, 48, 3) and frames.std() > 10
    # Frames of this path: like the model from there, trained on since, more than from elsewhere.
    screen.button("Pause").click()
    screen.wait(lambda: screen.text("state") == "Paused", "paused")
    screen.button("Save").click()
    screen.wait(lambda: newest_checkpoint(run) is not None, "saved")
    model = load_model(run)
    cameras = screen.draft.path.cameras()
    expected = {n: render_image(model.gaussians, cameras[n], model.options) for n in (0, 30, 60)}
    for number in expected:
        alike = {n: likeness(frames[number], picture) for n, picture in expected.items()}
        assert max(alike, key=alike.__getitem__) == number, f"frame {number} shows something else: {alike}"
    assert np.abs(frames[0].astype(int) - frames[60]).mean() > 2
    # The next one does not take its place.
    offered = screen.page.locator(f'input[value$="{video.stem}-2.mp4"]')
    screen.wait(lambda: offered.count() > 0, "another name is offered")
    screen.close_notices()
    return model


def cancel_a_video(screen: Screen, video: Path) -> None:
    """Cancel a long video: no file of it is left beside the one that is there."""
    screen.enter("Duration (s)", "600")
    screen.button("Render 18,001 frames").click()
    screen.wait(lambda: "of 18,001" in screen.text("job"), "it tells how far it is")
    # The dock is scrolled down to the button: its own head stays in sight, and tells of it.
    label = screen.page.get_by_text(re.compile(r"· Rendering \d+ %$")).first
    label.wait_for()
    screen.wait(lambda: 0 <= (label.bounding_box() or {"y": -1})["y"] < 100, "it is at the top of the window")
    (other,) = (file for file in video.parent.iterdir() if file != video)
    assert other.name.startswith(".tmp-")
    screen.button("Cancel").click()
    screen.page.get_by_text("cancelled").first.wait_for()
    assert list(video.parent.iterdir()) == [video]
    label.wait_for(state="detached")
    screen.close_notices()


def take_a_picture(screen: Screen, renders: Path, model: Model) -> None:
    """Take a large picture of what is seen: it is the model from there, and sent to this browser."""
    there = set(renders.iterdir())
    screen.page.get_by_text("Picture", exact=True).click()
    with screen.page.expect_download() as download:
        screen.button("Take a picture").click()
    (file,) = set(renders.iterdir()) - there
    assert Path(download.value.path()).read_bytes() == file.read_bytes()
    picture = iio.imread(file)
    assert max(picture.shape) == 3840 and download.value.suggested_filename == file.name
    (client,) = screen.studio._server.get_clients().values()
    viewpoint = read_viewpoint(client.camera)
    assert viewpoint is not None
    camera = viewpoint.camera(1.0).resized(picture.shape[1], picture.shape[0])
    expected = render_image(model.gaussians, camera, model.options)
    assert picture.shape == expected.shape and cv2.absdiff(picture, expected).max() <= 1


def shift_of(screen: Screen, before: np.ndarray) -> float:
    """Return how far the first keyframe has been moved, once it rests."""
    screen.settle()
    return float(np.linalg.norm(screen.draft.path.keyframes[0].camera_to_world[:3, 3] - before[:3, 3]))


def pull_an_arrow(screen: Screen, keyframe: np.ndarray, box: dict[str, float]) -> int:
    """Drag the arrow of a keyframe that is seen best, and return its axis.

    A browser that has not drawn the arrow yet turns the camera instead.
    """
    screen.settle()
    camera = screen.viewpoint.camera(1.0)

    def spot(point: np.ndarray) -> np.ndarray:
        x, y, z = camera.K @ (camera.viewmat @ [*point, 1.0])[:3]
        assert z > 0
        return np.array([x / z + box["x"], y / z + box["y"]])

    place = keyframe[:3, 3]
    origin = spot(place)
    axis = max(range(3), key=lambda i: np.linalg.norm(spot(place + 0.01 * keyframe[:3, i]) - origin))
    along = spot(place + 0.01 * keyframe[:3, axis]) - origin
    along /= np.linalg.norm(along)
    start = origin + 70 * along  # on the arrow's head
    screen.page.mouse.move(*start)
    time.sleep(0.5)
    screen.page.mouse.down()
    for i in range(1, 11):
        screen.page.mouse.move(*(start + 6 * i * along))
        time.sleep(0.05)
    screen.page.mouse.up()
    return axis


def move_a_keyframe_by_its_handles(screen: Screen) -> None:
    """Pull a keyframe by one of its arrows, put it out of sight, and delete it."""
    add_keyframes(screen, 1)
    box = screen.page.locator("canvas").first.bounding_box()
    screen.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    for _ in range(8):
        screen.page.mouse.wheel(0, 400)
        time.sleep(0.1)
    screen.settle()
    screen.switch("Move by handles").click()
    screen.settle()
    screen.drag(160)  # so that the arrows are seen from the side
    before = screen.draft.path.keyframes[0].camera_to_world
    axis = 0

    def moved() -> bool:
        nonlocal axis
        axis = pull_an_arrow(screen, before, box)
        return shift_of(screen, before) > 0.01

    screen.wait(moved, "it is moved")
    after = cast(np.ndarray, screen.draft.path.keyframes[0].camera_to_world)
    shift = after[:3, 3] - before[:3, 3]
    assert shift @ before[:3, axis] > 0.99 * np.linalg.norm(shift), "it moves along its arrow"
    assert np.allclose(after[:3, :3], before[:3, :3], atol=1e-6)
    # The keyframe, its handles with it, can be put out of sight.
    seen = screen.picture().astype(int)
    screen.switch("Show the path").click()
    screen.wait(lambda: np.abs(screen.picture() - seen).max() > 60, "the path is hidden")
    screen.switch("Show the path").click()
    screen.switch("Move by handles").click()
    screen.button("Delete").click()
    screen.wait(lambda: num_keyframes(screen) == 0, "it is deleted")
