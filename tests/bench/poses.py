"""Camera poses from photos alone: how many are placed, how exactly, how long it takes, what it is worth.

    python tests/bench/poses.py SCENES [--only NAME ...] [--steps 2000] [--colmap 300] [--colmap-alone]

SCENES holds `fox/images/`, `fox-colmap/`, `raw-photos/banana/` and `raw-photos/drone/`; what is not
there is passed over. The demo's cameras are known, so are those of the drawn rooms; photos are copied.
`large-` are drawn at 1600 x 1200. `made-up-` have no pictures: pycolmap's synthesize_dataset makes features
and matches with 0.5 px of noise and a tenth of false ones, and the last stage alone is measured. `--colmap`
gives the seconds that `colmap automatic_reconstructor` may take on the same photos, where it is there; how
far it came by then is printed, too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "support"))

from pose_errors import pose_errors  # noqa: E402
from textured_rooms import WIDTH, ring, table_with_boxes, write_photos, write_video  # noqa: E402

import splatstudio as ss  # noqa: E402
from splatstudio.poses.estimate import EndRequest, _run  # noqa: E402
from splatstudio.poses.records import InputPhoto, Manifest, PoseReport, write_record  # noqa: E402
from splatstudio.poses.store import PoseStore  # noqa: E402
from splatstudio.scene.colmap import read_model  # noqa: E402
from splatstudio.scene.colmap_model import num_registered  # noqa: E402

LARGE = 1600  # pixels of the longer side


@dataclass(frozen=True)
class Case:
    """Photos, what is known of their cameras, and what they are trained against."""

    source: Path
    known: dict[str, np.ndarray] | None = None
    other_poses: Path | None = None


def demo(folder: Path, scenes: Path) -> Case:
    """Return the 48 views of the demo."""
    source = shutil.copytree(ROOT / "assets" / "demo" / "images", folder / "demo")
    model = read_model(ROOT / "assets" / "demo" / "sparse" / "0")
    return Case(source, {image.name: image.viewmat for image in model.images})


def rooms(num: int) -> Callable[[Path, Path], Case]:
    """Return what draws `num` photos of a room."""

    def draw(folder: Path, scenes: Path) -> Case:
        files = write_photos(folder / "rooms", table_with_boxes(), ring(num))
        return Case(folder / "rooms", {f.name: c for f, c in zip(files, ring(num), strict=True)})

    return draw


def large(num: int) -> Callable[[Path, Path], Case]:
    """Return what draws `num` photos of 1600 x 1200 of a room, from two heights."""

    def draw(folder: Path, scenes: Path) -> Case:
        low, high = num - num // 2, num // 2
        cameras = np.concatenate([ring(low), ring(high, radius=3.8, height=3.0)])
        scale = LARGE / WIDTH
        files = write_photos(folder / "large", table_with_boxes(), cameras, scale=scale)
        return Case(folder / "large", {f.name: c for f, c in zip(files, cameras, strict=True)})

    return draw


def made_up(num: int, folder: Path) -> str:
    """Return a line of the table on cameras and points that COLMAP makes up, without pictures."""
    store = PoseStore(folder / "made up")
    store.images.mkdir(parents=True)
    known = subprocess.run(
        [sys.executable, "-c", MADE_UP, str(store.database), str(num)],
        check=True,
        capture_output=True,
        text=True,
    )
    cameras = {name: np.array(pose) for name, pose in json.loads(known.stdout).items()}
    photos = tuple(
        InputPhoto(name=name, source=name, num_bytes=0, mtime_ns=0, camera="one", sharpness=1.0)
        for name in sorted(cameras)
    )
    write_record(store.manifest_file, Manifest(source=str(store.source), photos=photos))
    began = time.monotonic()
    peak = _run("poses", store, None, None, EndRequest())
    report = store.report()
    assert report is not None, "the stage has written it"
    report = msgspec.structs.replace(
        report,
        seconds={"features": 0.0, "matches": 0.0, "poses": time.monotonic() - began},
        peak_bytes=peak,
    )
    return row(f"made-up-{num}", report, Case(store.source, cameras))


MADE_UP = """
import json, sys
import pycolmap
pycolmap.set_random_seed(0)
database = pycolmap.Database.open(sys.argv[1])
options = pycolmap.SyntheticDatasetOptions()
options.num_rigs, options.num_cameras_per_rig = 1, 1
options.num_frames_per_rig, options.num_points3D = int(sys.argv[2]), 2000
options.camera_model_id = pycolmap.CameraModelId.SIMPLE_RADIAL
options.camera_params = [1280.0, 512.0, 384.0, 0.05]
options.inlier_match_ratio = 0.9
model = pycolmap.synthesize_dataset(options, database)
noise = pycolmap.SyntheticNoiseOptions()
noise.point2D_stddev = 0.5
pycolmap.synthesize_noise(noise, model, database)
poses = {i.name: [*i.cam_from_world().matrix().tolist(), [0, 0, 0, 1]] for i in model.images.values()}
print(json.dumps(poses))
"""


def of_debian(source: Path, folder: Path, limit: int) -> str:
    """Return how many photos Debian's COLMAP places within `limit` seconds, or how far it came."""
    (folder / "colmap").mkdir()
    command = ["colmap", "automatic_reconstructor", "--workspace_path", str(folder / "colmap")]
    command += ["--image_path", str(source), "--dense", "0", "--use_gpu", "0", "--single_camera", "1"]
    said = folder / "colmap.txt"
    began = time.monotonic()
    with said.open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    timer = threading.Timer(limit, process.kill)
    timer.start()
    _, status, used = os.wait4(process.pid, 0)
    timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    told = f"in {time.monotonic() - began:.0f} s ({used.ru_utime + used.ru_stime:.0f} of the processor)"
    told += f", peak {used.ru_maxrss * 1024 / 1e9:.2f} GB"
    if process.returncode == -signal.SIGKILL:
        return f"colmap automatic_reconstructor: ended, not ready {told}; {how_far(said.read_text())}"
    if process.returncode:
        return f"colmap automatic_reconstructor failed with the exit code {process.returncode}"
    models = [num_registered(path) for path in (folder / "colmap" / "sparse").iterdir()]
    return f"colmap automatic_reconstructor: {max(models)} placed {told}"


def how_far(said: str) -> str:
    """Return what the log of a COLMAP that was ended says of its stages: photos, blocks of pairs, poses."""
    extracted = re.findall(r"Processed file \[(\d+)/(\d+)\]", said)
    blocks = re.findall(r"Matching block \[\d+/(\d+), \d+/\d+\] in ([0-9.]+)s", said)
    placed = said.count("Registering image #")
    far = f"features of {len(extracted)} of {extracted[0][1]} photos" if extracted else "no features"
    if blocks:
        seconds = sum(float(block[1]) for block in blocks)
        far += f", {len(blocks)} of {int(blocks[0][0]) ** 2} blocks of pairs in {seconds:.0f} s"
    return far + (f", {placed} photos placed" if placed else "")


def video(folder: Path, scenes: Path) -> Case:
    """Return a video of 12 seconds, drawn."""
    return Case(write_video(folder / "clip.mp4", table_with_boxes(), ring(180)))


def fox(folder: Path, scenes: Path) -> Case:
    """Return the fox's 50 photos, and a COLMAP model of the same."""
    return Case(shutil.copytree(scenes / "fox" / "images", folder / "fox"), None, scenes / "fox-colmap")


def raw(name: str) -> Callable[[Path, Path], Case]:
    """Return what copies photos with their EXIF."""
    return lambda folder, scenes: Case(shutil.copytree(scenes / "raw-photos" / name, folder / name))


CASES = {
    "demo": demo,
    "rooms-40": rooms(40),
    "rooms-100": rooms(100),
    "rooms-300": rooms(300),
    "large-50": large(50),
    "large-100": large(100),
    "large-300": large(300),
    "video": video,
    "banana": raw("banana"),
    "drone": raw("drone"),
    "fox": fox,
}


MADE_UP_SIZES = {"made-up-50": 50, "made-up-100": 100, "made-up-300": 300}


def row(name: str, report: PoseReport, case: Case) -> str:
    """Return a line of the table."""
    degrees = share = ""
    if case.known is not None:
        rotation, center = pose_errors(Path(report.store) / "sparse" / "0", case.known)
        degrees, share = f"{rotation:.3f}", f"{100 * center:.3f}"
    seconds = " + ".join(f"{report.seconds[stage]:.0f}" for stage in ("features", "matches", "poses"))
    placed = f"{len(report.posed)} of {report.num_photos}"
    return (
        f"| {name} | {placed} | {report.error:.2f} | {degrees} | {share} | {sum(report.seconds.values()):.0f}"
        f" ({seconds}) | {report.peak_bytes / 1e9:.2f} |"
    )


def psnr(scene: Path, steps: int) -> float:
    """Return the PSNR that a training reaches on the photos that are held out."""
    loaded = ss.load_scene(scene, downscale=4)
    return ss.train(loaded, preset="fast", steps=steps).evaluate(loaded).psnr


def main() -> None:
    """Print a table of all cases, and what is trained on the poses."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scenes", type=Path)
    parser.add_argument("--only", nargs="*", default=[*MADE_UP_SIZES, *CASES])
    parser.add_argument("--colmap", type=int, default=0)
    parser.add_argument("--colmap-alone", action="store_true")
    parser.add_argument("--steps", type=int, default=2000)
    arguments = parser.parse_args()
    print("| photos | placed | error px | rotation ° | center % | seconds (features + ...) | peak GB |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    told: list[str] = []
    for name in arguments.only:
        with tempfile.TemporaryDirectory(prefix="poses-") as folder:
            if name in MADE_UP_SIZES:
                print(made_up(MADE_UP_SIZES[name], Path(folder)), flush=True)
                continue
            try:
                case = CASES[name](Path(folder), arguments.scenes)
            except FileNotFoundError:
                print(f"{name} is not there", file=sys.stderr)
                continue
            if arguments.colmap_alone:
                print(f"{name}: {of_debian(case.source, Path(folder), arguments.colmap)}", flush=True)
                continue
            began = time.monotonic()
            report = ss.estimate_poses(case.source)
            print(row(name, report, case), flush=True)
            told += [f"{name}: {photo.name}: {photo.reason}" for photo in report.left_out]
            told.append(
                f"{name}: {time.monotonic() - began:.0f} s; up by {report.up}; {'; '.join(report.notes)}"
            )
            if arguments.colmap and shutil.which("colmap") and case.source.is_dir():
                shutil.rmtree(case.source / ".splatstudio")
                told.append(f"{name}: {of_debian(case.source, Path(folder), arguments.colmap)}")
                print(told[-1], flush=True)
            if case.other_poses is not None:
                ours, theirs = psnr(case.source, arguments.steps), psnr(case.other_poses, arguments.steps)
                told.append(
                    f"{name}: PSNR {ours:.2f} dB, with the COLMAP model that lies there {theirs:.2f} dB"
                )
    print("\n".join(["", *told]))


if __name__ == "__main__":
    main()
