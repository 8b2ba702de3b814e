"""Videos of camera paths: what is decoded is what was rendered, and nothing half-written stays."""

from __future__ import annotations

import gc
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import av
import imageio.v3 as iio
import numpy as np
import pytest
import torch
from blob_models import blobs
from command_line import CommandLine

from splatstudio import api
from splatstudio.cameras.camera_path import CameraPath, VideoQuality, orbit
from splatstudio.cameras.path_file import write_camera_path
from splatstudio.gaussians.gaussians import Gaussians, central_bounds
from splatstudio.gaussians.transform import transformed
from splatstudio.models.model import Model, load_model, own_orbit
from splatstudio.models.video import render_path, write_frames
from splatstudio.rendering.mode_pictures import draw_mode
from splatstudio.rendering.render import RenderOptions, render_image
from splatstudio.scene.scene import Scene

BANANA = Path(__file__).parents[3] / "shared" / "scenes" / "banana"


@pytest.fixture(scope="module")
def model() -> Model:
    """Return 80 colored blobs around the origin before a gray background."""
    random, num = torch.Generator().manual_seed(0), 80
    gaussians = Gaussians(
        means=torch.randn(num, 3, generator=random) * 0.3,
        quats=torch.randn(num, 4, generator=random),
        scales=torch.randn(num, 3, generator=random) * 0.3 - 2.0,
        opacities=torch.randn(num, generator=random) + 1.0,
        sh0=torch.randn(num, 1, 3, generator=random),
        shN=torch.zeros(num, 0, 3),
    )
    return Model(gaussians, options=RenderOptions(background=(0.4, 0.4, 0.4)))


@pytest.fixture(scope="module")
def path() -> CameraPath:
    """Return an orbit of 12 frames of 97 x 65 pixels: odd sizes, which videos cannot have."""
    return replace(orbit(np.zeros(3), 1.5, 0.5, seconds=0.5), width=97, height=65, fps=24)


def psnr(image: np.ndarray, target: np.ndarray) -> float:
    return float(-10 * np.log10(np.mean((image / 255.0 - target / 255.0) ** 2)))


@pytest.mark.parametrize(("name", "codec"), [("orbit.mp4", "h264"), ("orbit.WEBM", "vp9")])
def test_a_video_shows_the_renders(
    model: Model, path: CameraPath, tmp_path: Path, name: str, codec: str
) -> None:
    output, numbers = tmp_path / "videos" / name, []
    cameras = path.cameras()
    assert render_path(model, cameras, output, fps=24, on_frame=lambda number, image: numbers.append(number))
    assert numbers == list(range(1, 13)) and [p.name for p in output.parent.iterdir()] == [name]
    with av.open(str(output)) as file:
        stream = file.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == (codec, "yuv420p")
        assert stream.average_rate == 24
        assert stream.codec_context.colorspace == 1, "BT.709 is named, so that players need not guess"
    frames = iio.imread(output, plugin="pyav")
    assert frames.shape == (12, 64, 96, 3)
    expected = render_image(model.gaussians, cameras[6].resized(96, 64), model.options)
    assert psnr(frames[6], expected) > 30
    assert psnr(frames[6], frames[5]) < 30, "the frames differ"


@pytest.mark.parametrize("name", ["flat.mp4", "flat.webm"])
def test_colors_are_kept(model: Model, path: CameraPath, tmp_path: Path, name: str) -> None:
    away = replace(model, options=replace(model.options, background=(0.8, 0.1, 0.3), near=100.0))
    render_path(away, path.cameras()[:2], tmp_path / name, fps=24)
    color = iio.imread(tmp_path / name, plugin="pyav")[1].reshape(-1, 3).astype(float)
    # The matrix of BT.601 under the name of BT.709 would be 20 off.
    assert np.abs(color - [204.0, 25.5, 76.5]).max() < 4


def test_an_mp4_can_be_shown_while_it_loads(model: Model, path: CameraPath, tmp_path: Path) -> None:
    render_path(model, path.cameras(), tmp_path / "a.mp4", fps=24)
    data = (tmp_path / "a.mp4").read_bytes()
    assert 0 < data.find(b"moov") < data.find(b"mdat")


@pytest.mark.parametrize("ending", [".mp4", ".webm"])
def test_quality_changes_the_size(model: Model, path: CameraPath, tmp_path: Path, ending: str) -> None:
    sizes: list[int] = []
    qualities: tuple[VideoQuality, ...] = ("full", "small")
    for quality in qualities:
        output = tmp_path / f"{quality}{ending}"
        render_path(model, path.cameras(), output, fps=24, quality=quality)
        sizes.append(output.stat().st_size)
    assert sizes[1] < 0.75 * sizes[0]


def test_a_folder_holds_the_exact_frames(model: Model, path: CameraPath, tmp_path: Path) -> None:
    output, cameras = tmp_path / "frames", path.cameras()[:3]
    output.mkdir()
    assert render_path(model, cameras, output, fps=24)
    assert sorted(p.name for p in output.iterdir()) == ["00000.png", "00001.png", "00002.png"]
    expected = render_image(model.gaussians, cameras[2], model.options)
    assert np.array_equal(iio.imread(output / "00002.png"), expected)
    assert expected.shape == (65, 97, 3)


@pytest.mark.parametrize("name", ["new.mp4", "new.webm", "frames"])
def test_a_stopped_render_leaves_nothing(model: Model, path: CameraPath, tmp_path: Path, name: str) -> None:
    seen: list[int] = []
    done = render_path(
        model,
        path.cameras(),
        tmp_path / name,
        fps=24,
        on_frame=lambda number, image: seen.append(number),
        should_stop=lambda: len(seen) == 3,
    )
    assert not done and seen == [1, 2, 3] and list(tmp_path.iterdir()) == []


def test_a_stopped_render_keeps_the_video_that_was_there(
    model: Model, path: CameraPath, tmp_path: Path
) -> None:
    output = tmp_path / "orbit.mp4"
    output.write_bytes(b"before")
    assert not render_path(model, path.cameras(), output, fps=24, should_stop=lambda: True)
    assert output.read_bytes() == b"before"
    assert render_path(model, path.cameras()[:2], output, fps=24)
    assert iio.imread(output, plugin="pyav").shape[0] == 2 and len(list(tmp_path.iterdir())) == 1


def test_an_interrupt_leaves_nothing(model: Model, path: CameraPath, tmp_path: Path) -> None:
    def interrupt(number: int, image: np.ndarray) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        render_path(model, path.cameras(), tmp_path / "a.mp4", fps=24, on_frame=interrupt)
    assert list(tmp_path.iterdir()) == []


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """Let the system refuse to write files beyond `size` bytes, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("name", ["a.mp4", "a.webm", "frames"])
def test_a_full_disk_gives_one_sentence(model: Model, path: CameraPath, tmp_path: Path, name: str) -> None:
    with files_limited_to(1000), pytest.raises(ValueError, match="could not be written") as error:
        render_path(model, path.cameras(), tmp_path / name, fps=24)
    assert "\n" not in str(error.value) and name in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", ["a.mp4", "a.webm"])
def test_what_a_full_disk_left_open_does_not_fail_again(
    model: Model, path: CameraPath, tmp_path: Path, name: str
) -> None:
    with files_limited_to(1000):
        with pytest.raises(ValueError, match="could not be written") as error:
            render_path(model, path.cameras(), tmp_path / name, fps=24)
        del error
        gc.collect()


def test_outputs_that_cannot_be_written_give_one_sentence(
    model: Model, path: CameraPath, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept.txt").write_text("kept")
    (tmp_path / "folder.mp4").mkdir()
    wrong = {
        "a.avi": "known endings",
        "full": "exists already",
        "folder.mp4": "folder",
        "full/kept.txt": "known",
    }
    for name, reason in wrong.items():
        with pytest.raises(ValueError, match=reason):
            render_path(model, path.cameras(), tmp_path / name, fps=24)
    with pytest.raises(ValueError, match="could not be written"):
        render_path(model, path.cameras(), tmp_path / "full" / "kept.txt" / "a.mp4", fps=24)
    with pytest.raises(ValueError, match="No such file or directory"):
        render_path(model, path.cameras(), Path("/proc/a.mp4"), fps=24)
    with pytest.raises(ValueError, match="no keyframes"):
        render_path(model, [], tmp_path / "a.mp4", fps=24)
    wide, pixels = path.cameras()[0].resized(70_000, 16), np.zeros((16, 70_000, 3), np.uint8)
    with pytest.raises(ValueError, match=r"70000 x 16 pixels cannot be encoded: choose a smaller size"):
        write_frames(lambda camera: pixels, [wide], tmp_path / "a.mp4", fps=24)
    mixed = [path.cameras()[0], path.cameras()[1].resized(50, 50)]
    with pytest.raises(ValueError, match="one size"):
        render_path(model, mixed, tmp_path / "a.mp4", fps=24)
    assert (tmp_path / "full" / "kept.txt").read_text() == "kept"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder.mp4", "full"]


def test_videos_are_written_outside_the_main_thread(model: Model, path: CameraPath, tmp_path: Path) -> None:
    done: list[bool] = []
    arguments = (model, path.cameras()[:3], tmp_path / "a.mp4")
    thread = threading.Thread(target=lambda: done.append(render_path(*arguments, fps=24)))
    thread.start()
    thread.join(200)
    assert done == [True] and iio.imread(tmp_path / "a.mp4", plugin="pyav").shape[0] == 3


# ---- the command


@pytest.fixture(scope="module")
def ply(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the model as a file."""
    return model.save_ply(tmp_path_factory.mktemp("model") / "model.ply")


def test_the_command_renders_a_path_file(
    ply: Path, path: CameraPath, tmp_path: Path, command: CommandLine
) -> None:
    write_camera_path(tmp_path / "path.json", path)
    options = ("--path", tmp_path / "path.json", "--fps", 8, "--width", 64, "--seconds", 1)
    code, printed = command("render", ply, *options, "-o", tmp_path / "out.mp4")
    assert code == 0 and "8 frames" in printed and "out.mp4" in printed
    assert "of 64 x 42 px: a video has even sides" in " ".join(printed.split())
    code, printed = command("render", ply, *options, "-o", tmp_path / "out.mp4")
    assert code == 2 and "out.mp4 is there already" in printed
    assert command("render", ply, *options, "-o", tmp_path / "out.mp4", "--overwrite")[0] == 0
    frames = iio.imread(tmp_path / "out.mp4", plugin="pyav")
    assert frames.shape == (8, 42, 64, 3)  # 64 x 43 as the path's shape has it, made even
    camera = replace(path, width=64, height=43).cameras()[6].resized(64, 42)  # frame 6 of 12: half way
    loaded = api.load_model(ply)
    assert psnr(frames[4], render_image(loaded.gaussians, camera, loaded.options)) > 30


def test_the_command_says_what_is_missing(ply: Path, tmp_path: Path, command: CommandLine) -> None:
    output = ("-o", tmp_path / "out.mp4")
    for options, reason in [
        ((), "one of --path FILE, --orbit, --spiral"),
        (("--orbit", "--spiral"), "one of --path FILE, --orbit, --spiral"),
        (("--spiral",), "--scene"),
        (("--orbit", "--path-scale", "3"), "--path-scale is for the positions of a file"),
        (("--path", tmp_path / "absent.json"), "absent.json"),
    ]:
        code, printed = command("render", ply, *options, *output)
        assert code == 2 and reason in printed and "Traceback" not in printed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("units", [1.0, 1e-5, 1e3])
def test_an_orbit_needs_no_scene(model: Model, tmp_path: Path, command: CommandLine, units: float) -> None:
    shift = np.diag([units] * 3 + [1.0])
    shift[:3, 3] = [5.0 * units, -7.0 * units, 30.0 * units]
    far = replace(model, gaussians=transformed(model.gaussians, shift))
    options = ("--orbit", "--width", 48, "--height", 48, "--seconds", 1, "--fps", 4)
    code, printed = command("render", far.save_ply(tmp_path / "far.ply"), *options, "-o", tmp_path / "frames")
    assert code == 0 and "around the center of the splats" in printed
    frames = [iio.imread(file) for file in sorted((tmp_path / "frames").iterdir())]
    assert len(frames) == 4
    for frame in frames:  # the splats fill the middle, from every side
        assert (frame[18:30, 18:30].max(axis=2) > 20).mean() > 0.5
    path = own_orbit(far)
    for camera in path.cameras():
        assert camera.viewmat[1, 1] > 0.9, "y points down, as in most programs' files"


def test_a_file_opened_alone_is_cut_as_near_as_its_units_ask_and_in_a_scene_as_there(tmp_path: Path) -> None:
    splats = transformed(blobs(), np.diag([1e-4] * 3 + [1.0]))
    alone = load_model(Model(splats).save_ply(tmp_path / "small.ply"))
    assert alone.options.near == pytest.approx(1e-2 * central_bounds(splats)[1])
    scene = np.diag([1e4] * 3 + [1.0])
    assert alone.in_frame(scene).options.near == 0.01
    assert load_model(Model(blobs()).save_ply(tmp_path / "usual.ply")).options.near <= 0.01


def test_one_splat_is_seen_as_large_as_it_is() -> None:
    _, radius = central_bounds(blobs(num=1))
    assert radius == pytest.approx(3 * float(blobs(num=1).scales.max().exp()))


@pytest.mark.skipif(not BANANA.exists(), reason="the scene is not here")
@pytest.mark.parametrize("route", ["--orbit", "--spiral", "--through-photos"])
def test_the_command_goes_around_a_scene(ply: Path, tmp_path: Path, route: str, command: CommandLine) -> None:
    # The file's coordinates are the scene's; the model lies at the files' origin, wherever that is.
    options = (route, "--scene", BANANA, "--width", 48, "--seconds", 0.5, "--fps", 8)
    code, printed = command("render", ply, *options, "-o", tmp_path / "frames")
    assert code == 0, printed
    assert len(list((tmp_path / "frames").iterdir())) == (5 if "photos" in route else 4)  # with its last
    assert iio.imread(tmp_path / "frames" / "00000.png").shape == (32, 48, 3)


def test_a_way_through_the_photos_begins_at_the_first_and_ends_at_the_last(
    blob_folder: Path, blob_scene: Scene, tmp_path: Path, command: CommandLine
) -> None:
    ply, frames = Model(blobs()).save_ply(tmp_path / "blobs.ply"), tmp_path / "frames"
    options = ("--through-photos", "--scene", blob_folder, "--width", 48, "--fps", 4)
    assert command("render", ply, *options, "--seconds", 1, "-o", frames)[0] == 0
    first, *_, last = sorted(frames.iterdir())
    loaded = load_model(ply).in_frame_of(blob_scene)
    for frame, camera in ((first, blob_scene.cameras[0]), (last, blob_scene.cameras[-1])):
        expected = render_image(loaded.gaussians, camera, loaded.options)
        assert np.abs(iio.imread(frame).astype(int) - expected).max() <= 2


def test_a_path_can_show_the_depth(model: Model, path: CameraPath, tmp_path: Path) -> None:
    cameras = path.cameras()[:1]
    assert render_path(model, cameras, tmp_path / "depth", fps=24, mode="depth")
    expected = draw_mode("depth", model.gaussians, cameras[0], model.options).image
    assert (iio.imread(tmp_path / "depth" / "00000.png") == expected).all()
    assert (expected != draw_mode("color", model.gaussians, cameras[0], model.options).image).mean() > 0.2
