"""One tiny scene as OpenSfM, Metashape, RealityScan, Polycam, Record3D and 3D Scanner App tell its poses.

The files are written as those programs' documentation has them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scene_builder import tiny_scene, write_pictures
from scipy.spatial.transform import Rotation

TINY = tiny_scene(9)
CENTER = (0.5 * TINY.width + 1.5, 0.5 * TINY.height - 1.0)
FROM_Z_UP = np.linalg.inv([[0.0, 0, 1], [1, 0, 0], [0, 1, 0]])  # ARKit's world has y up


def camera_to_world(index: int) -> np.ndarray:
    return np.linalg.inv(TINY.viewmats[index])


def arkit(index: int) -> np.ndarray:
    """Return the pose [4, 4] as ARKit has it."""
    pose = camera_to_world(index) @ np.diag([1.0, -1.0, -1.0, 1.0])
    pose[:3] = FROM_Z_UP @ pose[:3]
    return pose


def write_opensfm(folder: Path, where: str = "reconstruction.json") -> Path:
    longer = max(TINY.width, TINY.height)
    camera = {
        "projection_type": "brown",
        "width": TINY.width,
        "height": TINY.height,
        "focal_x": TINY.focal / longer,
        "focal_y": TINY.focal / longer,
        "c_x": 1.5 / longer,
        "c_y": -1.0 / longer,
        **{name: 0.0 for name in ("k1", "k2", "k3", "p1", "p2")},
    }
    shots = {
        name: {
            "rotation": Rotation.from_matrix(viewmat[:3, :3]).as_rotvec().tolist(),
            "translation": viewmat[:3, 3].tolist(),
            "camera": "v2 a b",
        }
        for name, viewmat in zip(TINY.names, TINY.viewmats, strict=True)
    }
    points = {
        str(n): {"coordinates": point.tolist(), "color": color.tolist()}
        for n, (point, color) in enumerate(zip(TINY.points, TINY.colors, strict=True))
    }
    whole = {"cameras": {"v2 a b": camera}, "shots": shots, "points": points}
    few = {"cameras": {"v2 a b": camera}, "shots": {"view_000.png": shots["view_000.png"]}, "points": {}}
    write_json(folder / where, [few, whole])
    write_pictures(folder / "images", TINY)
    return folder


def write_metashape(folder: Path) -> Path:
    cameras = "".join(
        f'<camera id="{i}" sensor_id="0" component_id="0" label="{name[:-4]}"><transform>'
        f"{' '.join(map(str, camera_to_world(i).ravel()))}</transform></camera>"
        for i, name in enumerate(TINY.names)
    )
    size = f'<resolution width="{TINY.width}" height="{TINY.height}"/>'
    folder.mkdir()
    (folder / "cameras.xml").write_text(
        '<?xml version="1.0" encoding="UTF-8"?><document version="2.0.0"><chunk label="Chunk 1">'
        f'<sensors><sensor id="0" label="a" type="frame">{size}<calibration type="frame" class="adjusted">'
        f"{size}<f>{TINY.focal}</f><cx>1.5</cx><cy>-1</cy></calibration></sensor></sensors>"
        f'<cameras><group id="0" label="g">{cameras}</group>'
        '<camera id="99" sensor_id="0" label="not aligned"/></cameras></chunk></document>'
    )
    write_pictures(folder / "images", TINY)
    return folder


def write_realityscan(folder: Path) -> Path:
    longer = max(TINY.width, TINY.height)
    lines = ["#name,x,y,alt,heading,pitch,roll,f,px,py,k1,k2,k3,k4,t1,t2"]
    for i, name in enumerate(TINY.names):
        pose = camera_to_world(i) @ np.diag([1.0, -1.0, -1.0, 1.0])
        heading, pitch, roll = Rotation.from_matrix(pose[:3, :3]).as_euler("ZXY", degrees=True)
        numbers = [*pose[:3, 3], -heading, pitch, roll, TINY.focal * 36 / longer, 1.5 / longer, -1 / longer]
        lines.append(",".join([name, *map(str, [*numbers, 0, 0, 0, 0, 0, 0])]))
    folder.mkdir()
    (folder / "cameras.csv").write_text("\r\n".join(lines) + "\r\n")
    write_pictures(folder / "images", TINY)
    return folder


def write_polycam(folder: Path) -> Path:
    for i, name in enumerate(TINY.names):
        pose = arkit(i)
        values = {f"t_{row}{column}": pose[row, column] for row in range(3) for column in range(4)}
        values |= {"fx": TINY.focal, "fy": TINY.focal, "cx": CENTER[0], "cy": CENTER[1]}
        values |= {"width": TINY.width, "height": TINY.height, "blur_score": 90.0}
        write_json(folder / f"keyframes/corrected_cameras/{name[:-4]}.json", values)
    write_pictures(folder / "keyframes/corrected_images", TINY)
    return folder


def write_record3d(folder: Path) -> Path:
    poses = [
        [*Rotation.from_matrix(arkit(i)[:3, :3]).as_quat(), *arkit(i)[:3, 3]] for i in range(len(TINY.names))
    ]
    k = [TINY.focal, 0, 0, 0, TINY.focal, 0, *CENTER, 1]
    write_json(folder / "metadata", {"w": TINY.width, "h": TINY.height, "K": k, "poses": poses, "fps": 60})
    write_pictures(folder / "rgb", TINY)
    for i, name in enumerate(TINY.names):
        (folder / "rgb" / name).rename(folder / f"rgb/{i}.png")
    return folder


def write_scanner_app(folder: Path) -> Path:
    k = [TINY.focal, 0, CENTER[0], 0, TINY.focal, CENTER[1], 0, 0, 1]
    write_pictures(folder, TINY)
    for i, name in enumerate(TINY.names):
        (folder / name).rename(folder / f"frame_{i:05}.png")
        pose = arkit(i).ravel().tolist()
        write_json(folder / f"frame_{i:05}.json", {"cameraPoseARFrame": pose, "intrinsics": k, "time": i})
    return folder


def write_json(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values))


WRITERS: dict[str, Callable[[Path], Path]] = {
    "OpenSfM": write_opensfm,
    "OpenDroneMap": lambda folder: write_opensfm(folder, "opensfm/reconstruction.json"),
    "Metashape": write_metashape,
    "RealityScan": write_realityscan,
    "Polycam": write_polycam,
    "Record3D": write_record3d,
    "3D Scanner App": write_scanner_app,
}
