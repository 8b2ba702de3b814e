"""A camera path as a video file or as a folder of PNG frames: complete, or not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import imageio.v3 as iio
import numpy as np

from splatstudio.cameras.camera import Camera
from splatstudio.cameras.camera_path import VideoQuality
from splatstudio.files.durable import partial_path, remove_partial, sync_file
from splatstudio.files.outputs import make_folder
from splatstudio.models.model import Model
from splatstudio.operating_system import put_in_place, sync_folder
from splatstudio.rendering.mode_pictures import draw_mode
from splatstudio.rendering.modes import DrawnMode

Draw = Callable[[Camera], np.ndarray]
OnFrame = Callable[[int, np.ndarray], None]
Write = Callable[[int, np.ndarray], None]

CODECS = {".mp4": "libx264", ".webm": "libvpx-vp9"}
OPTIONS = {
    ("libx264", "full"): {"crf": "16", "preset": "slow"},
    ("libx264", "small"): {"crf": "25", "preset": "medium"},
    # Constant quality needs the bit rate to be named as 0.
    ("libvpx-vp9", "full"): {"crf": "18", "b": "0", "row-mt": "1", "deadline": "good", "cpu-used": "2"},
    ("libvpx-vp9", "small"): {"crf": "34", "b": "0", "row-mt": "1", "deadline": "good", "cpu-used": "4"},
}
ENCODER_THREADS = 4  # left alone it would take all cores, also beside a training
BT709, SRGB_TRANSFER, LIMITED_RANGE = 1, 13, 1  # ITU-T H.273, so that players show the colors as they are


def check_output(output: Path) -> None:
    """Raise ValueError when `output` names no format that can be written, or something that is in the way."""
    if output.suffix.lower() not in CODECS and output.suffix:
        raise ValueError(
            f"cannot write {output.name}: the known endings are {' and '.join(CODECS)}, none gives PNG frames"
        )
    if output.suffix and output.is_dir():
        raise ValueError(f"{output} is a folder; name a file")
    if not output.suffix and output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output} exists already and is no empty folder; name a new one for the frames")


def render_path(
    model: Model,
    cameras: Sequence[Camera],
    output: Path,
    *,
    fps: float,
    quality: VideoQuality = "full",
    on_frame: OnFrame = lambda number, image: None,
    should_stop: Callable[[], bool] = lambda: False,
    mode: DrawnMode = "color",
) -> bool:
    """Draw `model` from `cameras`, which are in its frame, and write `output` as `write_frames` does."""

    def draw(camera: Camera) -> np.ndarray:
        return draw_mode(mode, model.gaussians, camera, model.options).image

    return write_frames(
        draw, cameras, output, fps=fps, quality=quality, on_frame=on_frame, should_stop=should_stop
    )


def write_frames(
    draw: Draw,
    cameras: Sequence[Camera],
    output: Path,
    *,
    fps: float,
    quality: VideoQuality = "full",
    on_frame: OnFrame = lambda number, image: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Write what `draw` returns for each camera, [H, W, 3] uint8, to `output`; return whether it was done.

    The ending says what is written: `.mp4` (H.264), `.webm` (VP9), both 4:2:0 with even sizes (an odd one is
    rendered a pixel smaller), or without an ending a folder 00000.png, 00001.png ... `on_frame` is called
    after each frame with its number from 1 on and its image; `should_stop` is asked before each and at the
    end. A file of that name is replaced when the new one is complete. When stopped (False) and after an
    error nothing of it stays. Raises ValueError when it cannot be written, and for cameras of several sizes.
    """
    check_output(output)
    if not cameras:
        raise ValueError("the camera path has no keyframes: there is nothing to render")
    codec = CODECS.get(output.suffix.lower())
    first = _even(cameras[0]) if codec else cameras[0]
    partial = partial_path(output)
    try:
        make_folder(output.parent)
        remove_partial(output)
        writer = _frames(partial) if codec is None else _video(partial, codec, first, fps, quality)
        with writer as write:
            for number, camera in enumerate(cameras):
                if should_stop():
                    return False
                camera = _even(camera) if codec else camera
                if (camera.width, camera.height) != (first.width, first.height):
                    raise ValueError("the frames of one video must be of one size")
                image = draw(camera)
                write(number, image)
                on_frame(number + 1, image)
        for path in [partial] if codec else sorted(partial.iterdir()):
            sync_file(path)
        if codec is None:
            sync_folder(partial)
        if should_stop():
            return False
        put_in_place(partial, output)
        sync_folder(output.parent)
    except OSError as error:
        raise ValueError(
            f"{output} could not be written ({_reason(error)}); nothing of it was kept"
        ) from error
    finally:
        remove_partial(output)
    return True


def write_picture(path: Path, image: np.ndarray) -> None:
    """Write an image [H, W, 3] uint8 as a PNG file; raises OSError when the disk refuses."""
    # The usual level, 6, saves a tenth and takes two and a half times as long.
    iio.imwrite(path, image, compress_level=3)


def _reason(error: BaseException) -> str:
    # imageio wraps what the system said.
    while not getattr(error, "strerror", None) and isinstance(error.__cause__ or error.__context__, OSError):
        error = error.__cause__ or error.__context__ or error
    return getattr(error, "strerror", None) or str(error)


def fitting(camera: Camera, output: Path) -> Camera:
    """Return a camera with the size that frames of `output` have: even sides where it is a video."""
    return _even(camera) if output.suffix.lower() in CODECS else camera


def _even(camera: Camera) -> Camera:
    return camera.resized(max(2, camera.width // 2 * 2), max(2, camera.height // 2 * 2))


@contextmanager
def _frames(folder: Path) -> Iterator[Write]:
    folder.mkdir()

    def write(number: int, image: np.ndarray) -> None:
        iio.imwrite(folder / f"{number:05d}.png", image)

    yield write


@contextmanager
def _video(path: Path, codec: str, camera: Camera, fps: float, quality: VideoQuality) -> Iterator[Write]:
    # Here alone: a training does not need the encoders, nor wait for them to be loaded.
    from av.error import FFmpegError
    from imageio.plugins.pyav import PyAVPlugin

    # The index goes before the pictures, so that a browser shows the video while it loads.
    container = {"movflags": "+faststart"} if path.suffix.lower() == ".mp4" else {}
    file = iio.imopen(path, "w", plugin=PyAVPlugin, options=container)
    try:
        file.init_video_stream(codec, fps=float(fps), pixel_format="yuv420p")
        # imageio has no public way to these; left alone, its streams have low quality and unnamed colors.
        stream = file._video_stream
        assert stream is not None, "the stream that was just made"
        stream.width, stream.height = camera.width, camera.height
        context = stream.codec_context
        context.thread_count = ENCODER_THREADS
        context.options = dict(OPTIONS[codec, quality])
        context.colorspace = context.color_primaries = BT709
        context.color_trc, context.color_range = SRGB_TRANSFER, LIMITED_RANGE
        to_bt709 = ("scale", "out_color_matrix=bt709:out_range=tv:flags=accurate_rnd+full_chroma_int")
        file.set_video_filter([to_bt709, ("format", "yuv420p")])
        yield lambda number, image: file.write_frame(image)
        file.close()
    except BaseException as error:
        # The plugin would flush again when it is collected, into a file that is gone. What it still holds
        # of the file goes with it: why there is no video is what is raised here.
        file._video_stream = file._container = None
        with suppress(OSError):
            file.close()
        if isinstance(error, FFmpegError) and not isinstance(error, OSError):
            size = f"{camera.width} x {camera.height}"
            why = f"a {path.suffix} video of {size} pixels cannot be encoded"
            raise ValueError(f"{why}: choose a smaller size, or PNG frames in a folder") from error
        raise
