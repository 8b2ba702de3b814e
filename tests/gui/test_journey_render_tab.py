"""The Render tab in a real browser: keyframes, private previews, videos beside a training, pictures."""

from __future__ import annotations

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


def train(screen: Screen) -> None:
    screen.button("Start training").click()
    screen.wait(lambda: screen.text("state") == "Training" and screen.step > 5, "training")
    screen.close_notices()


def positions(screen: Screen) -> dict[int, np.ndarray]:
    """Return where each browser's camera is."""
    clients = screen.studio._server.get_clients()
    return {number: np.array(client.camera.position) for number, client in clients.items()}


def test_keyframes_are_made_kept_and_played_in_one_browser(
    open_page: Open, blob_folder: Path, browser: Any, tmp_path: Path
) -> None:
    screen = open_page(blob_folder, height=700)
    (first,) = positions(screen)
    second = browser.new_page(viewport={"width": 560, "height": 240})
    second.goto(screen.studio.url, timeout=1000 * TIMEOUT)
    screen.wait(lambda: len(positions(screen)) == 2, "a second browser comes")
    add_keyframes(screen, 3)
    viewpoint = read_viewpoint(screen.studio._server.get_clients()[first].camera)
    assert viewpoint is not None
    keys = screen.draft.path.keyframes
    assert np.allclose(keys[2].camera_to_world[:3, 3], viewpoint.position, atol=1e-6)
    rotation = viser.transforms.SO3(viewpoint.wxyz).as_matrix()
    assert np.allclose(keys[2].camera_to_world[:3, :3], rotation, atol=1e-6)
    # Every change is in a file, in the coordinates of the scene's own files.
    file = tmp_path / "runs" / "blobs" / "camera_paths" / "path.json"
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

    def played() -> bool:
        seen.append(positions(screen)[first])
        if len(seen) % 100 == 0:  # on a busy machine it may be over before it was seen
            screen.button("Play").click()
        far = max(np.linalg.norm(place - before[first]) for place in seen)
        return len({tuple(np.round(place, 3)) for place in seen}) >= 5 and bool(far > 0.2)

    screen.wait(played, "it is played")
    (other,) = before.keys() - {first}
    assert np.array_equal(positions(screen)[other], before[other]), "the other browser was moved"
    screen.button("Stop").locator("visible=true").last.click()
    screen.wait(
        lambda: bool(np.allclose(positions(screen)[first], before[first])), "it stands where it stood"
    )
    second.close()

    screen.button("Earlier").click()
    screen.wait(lambda: screen.draft.path.keyframes[1] is keys[2], "the last one comes earlier")
    screen.button("Delete").click()
    screen.wait(lambda: num_keyframes(screen) == 2, "it is deleted")
    screen.page.get_by_text("Motion and lens").click()
    screen.button("Undo").click()
    screen.wait(lambda: num_keyframes(screen) == 3, "that is taken back")
    screen.enter("Duration (s)", "10")
    screen.wait(lambda: screen.draft.path.duration == 10.0, "all times are stretched")
    screen.button("Go to").click()
    wanted = screen.draft.path.keyframes[1].camera_to_world[:3, 3]
    screen.wait(lambda: bool(np.allclose(positions(screen)[first], wanted, atol=1e-3)), "it goes there")
    assert screen.errors == []


def test_a_video_is_rendered_while_the_training_goes_on_another_cancelled_and_a_picture_taken(
    open_page: Open, blob_folder: Path, tmp_path: Path
) -> None:
    screen = open_page(blob_folder, height=700)
    train(screen)
    add_keyframes(screen, 2)
    screen.choose("Size", "As the photographs")
    screen.wait(lambda: screen.draft.path.width == 48, "the size is taken")
    screen.wait(lambda: screen.step > 100, "it looks like what it will be")
    step = screen.step
    screen.button("Render 61 frames").click()
    screen.page.get_by_text("Rendered path.mp4").first.wait_for()
    video = tmp_path / "runs" / "blobs" / "renders" / "path.mp4"
    screen.page.get_by_text("runs/blobs/renders/path.mp4").first.wait_for()
    screen.wait(lambda: screen.step > step, "the training went on")
    with screen.page.expect_download() as download:
        screen.page.get_by_role("button", name="Download path.mp4").click()
    assert Path(download.value.path()).read_bytes() == video.read_bytes()
    frames = iio.imread(video, plugin="pyav")
    assert frames.shape == (61, 40, 48, 3) and frames.std() > 10
    # Frames of this path: like the present model from there, and unlike each other.
    screen.button("Pause").click()
    screen.wait(lambda: screen.text("state") == "Paused", "paused")
    screen.button("Save").click()
    run = tmp_path / "runs" / "blobs"
    screen.wait(lambda: newest_checkpoint(run) is not None, "saved")
    model = load_model(run)
    cameras = screen.draft.path.cameras()
    for number in (0, 30, 60):
        expected = render_image(model.gaussians, cameras[number], model.options)
        assert likeness(frames[number], expected) > 0.7, f"frame {number} shows something else"
    assert np.abs(frames[0].astype(int) - frames[60]).mean() > 2
    # The next one does not take its place.
    screen.wait(
        lambda: screen.page.locator('input[value$="path-2.mp4"]').count() > 0, "another name is offered"
    )
    screen.close_notices()
    cancel_a_video(screen, video)
    take_a_picture(screen, video.parent, model)
    assert screen.errors == []


def cancel_a_video(screen: Screen, video: Path) -> None:
    """Cancel a long video: no file of it is left beside the one that is there."""
    screen.page.get_by_text("Motion and lens").click()
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


def test_handles_move_a_keyframe(open_page: Open, blob_folder: Path) -> None:
    screen = open_page(blob_folder, height=700)
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
    screen.page.get_by_text("Motion and lens").click()
    seen = screen.picture().astype(int)
    screen.switch("Show the path").click()
    screen.wait(lambda: np.abs(screen.picture() - seen).max() > 60, "the path is hidden")
