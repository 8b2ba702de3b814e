"""Camera poses from photographs alone: how many are placed, how exactly, how long it takes, what it is worth.

    python tests/bench/poses.py SCENES [--only NAME ...] [--steps 2000]

SCENES holds `fox/images/`, `fox-colmap/`, `raw-photos/banana/` and `raw-photos/drone/`; what is not
there is passed over. The demo's cameras are known, so are those of the drawn rooms; photographs are copied.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "support"))

from pose_errors import pose_errors  # noqa: E402
from textured_rooms import ring, table_with_boxes, write_photographs, write_video  # noqa: E402

import splatstudio as ss  # noqa: E402
from splatstudio.poses.records import PoseReport  # noqa: E402
from splatstudio.scene.colmap import read_model  # noqa: E402


@dataclass(frozen=True)
class Case:
    """Photographs, what is known of their cameras, and what they are trained against."""

    source: Path
    known: dict[str, np.ndarray] | None = None
    other_poses: Path | None = None


def demo(folder: Path, scenes: Path) -> Case:
    """Return the 48 views of the demo."""
    source = shutil.copytree(ROOT / "assets" / "demo" / "images", folder / "demo")
    model = read_model(ROOT / "assets" / "demo" / "sparse" / "0")
    return Case(source, {image.name: image.viewmat for image in model.images})


def rooms(num: int) -> Callable[[Path, Path], Case]:
    """Return what draws `num` photographs of a room."""

    def draw(folder: Path, scenes: Path) -> Case:
        files = write_photographs(folder / "rooms", table_with_boxes(), ring(num))
        return Case(folder / "rooms", {f.name: c for f, c in zip(files, ring(num), strict=True)})

    return draw


def video(folder: Path, scenes: Path) -> Case:
    """Return a video of 12 seconds, drawn."""
    return Case(write_video(folder / "clip.mp4", table_with_boxes(), ring(180)))


def fox(folder: Path, scenes: Path) -> Case:
    """Return the fox's 50 photographs, and a COLMAP model of the same."""
    return Case(shutil.copytree(scenes / "fox" / "images", folder / "fox"), None, scenes / "fox-colmap")


def raw(name: str) -> Callable[[Path, Path], Case]:
    """Return what copies photographs with their EXIF."""
    return lambda folder, scenes: Case(shutil.copytree(scenes / "raw-photos" / name, folder / name))


CASES = {
    "demo": demo,
    "rooms-40": rooms(40),
    "rooms-100": rooms(100),
    "rooms-300": rooms(300),
    "video": video,
    "banana": raw("banana"),
    "drone": raw("drone"),
    "fox": fox,
}


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
    """Return the PSNR that a training reaches on the photographs that are held out."""
    loaded = ss.load_scene(scene, downscale=4)
    return ss.train(loaded, preset="fast", steps=steps).evaluate(loaded).psnr


def main() -> None:
    """Print a table of all cases, and what is trained on the poses."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scenes", type=Path)
    parser.add_argument("--only", nargs="*", default=list(CASES))
    parser.add_argument("--steps", type=int, default=2000)
    arguments = parser.parse_args()
    print("| photographs | placed | error px | rotation ° | center % | seconds (features + ...) | peak GB |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    told: list[str] = []
    for name in arguments.only:
        with tempfile.TemporaryDirectory(prefix="poses-") as folder:
            try:
                case = CASES[name](Path(folder), arguments.scenes)
            except FileNotFoundError:
                print(f"{name} is not there", file=sys.stderr)
                continue
            began = time.monotonic()
            report = ss.estimate_poses(case.source)
            print(row(name, report, case), flush=True)
            told += [f"{name}: {photo.name}: {photo.reason}" for photo in report.left_out]
            told.append(
                f"{name}: {time.monotonic() - began:.0f} s; up by {report.up}; {'; '.join(report.notes)}"
            )
            if case.other_poses is not None:
                ours, theirs = psnr(case.source, arguments.steps), psnr(case.other_poses, arguments.steps)
                told.append(
                    f"{name}: PSNR {ours:.2f} dB, with the COLMAP model that lies there {theirs:.2f} dB"
                )
    print("\n".join(["", *told]))


if __name__ == "__main__":
    main()
