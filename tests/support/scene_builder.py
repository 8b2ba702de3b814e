"""Write tiny scenes in each format: colored balls seen by a ring of cameras, the same from every side."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from splatstudio.cameras.camera import look_at

MODEL_IDS = {
    "SIMPLE_PINHOLE": 0,
    "PINHOLE": 1,
    "SIMPLE_RADIAL": 2,
    "RADIAL": 3,
    "OPENCV": 4,
    "OPENCV_FISHEYE": 5,
    "FULL_OPENCV": 6,
    "FOV": 7,
    "THIN_PRISM_FISHEYE": 10,
    "DIVISION": 13,
    "EUCM": 16,
}


@dataclass(frozen=True, eq=False)
class TinyScene:
    """Cameras on a ring around the origin (z is up) and the balls they see."""

    names: tuple[str, ...]
    viewmats: np.ndarray  # [C, 4, 4] world to camera
    width: int
    height: int
    focal: float
    points: np.ndarray  # [P, 3]
    colors: np.ndarray  # [P, 3] uint8


def tiny_scene(num_views: int = 9, width: int = 48, height: int = 32, num_points: int = 60) -> TinyScene:
    """Return a scene whose ring has radius 4; always the same for the same arguments."""
    random = np.random.default_rng(7)
    viewmats = []
    for i in range(num_views):
        angle = 2 * math.pi * i / max(num_views, 1)
        position = np.array([4 * math.cos(angle), 4 * math.sin(angle), 1.0 + 0.5 * (i % 2)])
        viewmats.append(look_at(position, np.zeros(3), np.array([0.0, 0.0, 1.0])))
    return TinyScene(
        names=tuple(f"view_{i:03d}.png" for i in range(num_views)),
        viewmats=np.stack(viewmats),
        width=width,
        height=height,
        focal=1.2 * width,
        points=random.uniform(-1, 1, (num_points, 3)),
        colors=random.integers(40, 255, (num_points, 3)).astype(np.uint8),
    )


def picture(scene: TinyScene, index: int, *, radius: float = 0.15) -> np.ndarray:
    """Return view `index` as [H, W, 4] uint8 RGBA: balls in front of transparent black."""
    image = np.zeros((scene.height, scene.width, 4), np.uint8)
    viewmat = scene.viewmats[index]
    camera = scene.points @ viewmat[:3, :3].T + viewmat[:3, 3]
    camera = np.where(np.abs(camera) < 100, camera, 50.0)  # points that tests have damaged
    for i in np.argsort(-camera[:, 2]):
        x, y, z = camera[i]
        # cv2 counts from pixel centers; 4 fractional bits.
        u = scene.focal * x / z + 0.5 * scene.width - 0.5
        v = scene.focal * y / z + 0.5 * scene.height - 0.5
        color = (*(int(c) for c in scene.colors[i]), 255)
        pixels = max(1, round(16 * scene.focal * radius / z))
        cv2.circle(image, (round(16 * u), round(16 * v)), pixels, color, -1, cv2.LINE_AA, 4)
    return image


def write_picture(path: Path, pixels: np.ndarray) -> None:
    """Write RGB or RGBA pixels; the ending says how."""
    path.parent.mkdir(parents=True, exist_ok=True)
    code = cv2.COLOR_RGB2BGR if pixels.shape[-1] == 3 else cv2.COLOR_RGBA2BGRA
    assert cv2.imwrite(str(path), cv2.cvtColor(pixels, code))


def write_pictures(folder: Path, scene: TinyScene, *, alpha: bool = False) -> None:
    """Write all views into `folder`, on black unless `alpha`."""
    for i, name in enumerate(scene.names):
        rgba = picture(scene, i)
        write_picture(folder / name, rgba if alpha else rgba[..., :3])


def quaternion(rotation: np.ndarray) -> np.ndarray:
    """Return the unit quaternion wxyz of a rotation matrix."""
    # The eigenvector of Bar-Itzhack's symmetric matrix: no case distinctions.
    r = rotation
    matrix = np.array(
        [
            [r[0, 0] - r[1, 1] - r[2, 2], r[1, 0] + r[0, 1], r[2, 0] + r[0, 2], r[2, 1] - r[1, 2]],
            [r[1, 0] + r[0, 1], r[1, 1] - r[0, 0] - r[2, 2], r[2, 1] + r[1, 2], r[0, 2] - r[2, 0]],
            [r[2, 0] + r[0, 2], r[2, 1] + r[1, 2], r[2, 2] - r[0, 0] - r[1, 1], r[1, 0] - r[0, 1]],
            [r[2, 1] - r[1, 2], r[0, 2] - r[2, 0], r[1, 0] - r[0, 1], r[0, 0] + r[1, 1] + r[2, 2]],
        ]
    )
    x, y, z, w = np.linalg.eigh(matrix)[1][:, -1]
    return np.array([w, x, y, z])


def camera_params(scene: TinyScene, model: str, distortion: tuple[float, ...] = ()) -> list[float]:
    """Return the parameters of a COLMAP camera model with the scene's focal length."""
    simple = model in ("SIMPLE_PINHOLE", "SIMPLE_RADIAL", "RADIAL")
    focal = [scene.focal] if simple else [scene.focal, scene.focal]
    return [*focal, 0.5 * scene.width, 0.5 * scene.height, *distortion]


def cameras_bin(scene: TinyScene, model: str = "PINHOLE", distortion: tuple[float, ...] = ()) -> bytes:
    """Return cameras.bin with one camera."""
    params = camera_params(scene, model, distortion)
    head = struct.pack("<QIiQQ", 1, 1, MODEL_IDS[model], scene.width, scene.height)
    return head + struct.pack(f"<{len(params)}d", *params)


def images_bin(scene: TinyScene, num_observations: int = 2) -> bytes:
    """Return images.bin; observations have the point id -1, as COLMAP writes unmatched keypoints."""
    parts = [struct.pack("<Q", len(scene.names))]
    for i, name in enumerate(scene.names):
        q, t = quaternion(scene.viewmats[i][:3, :3]), scene.viewmats[i][:3, 3]
        parts.append(struct.pack("<I7dI", i + 1, *q, *t, 1) + name.encode() + b"\0")
        parts.append(
            struct.pack("<Q", num_observations) + struct.pack("<ddq", 1.5, 2.5, -1) * num_observations
        )
    return b"".join(parts)


def points_bin(scene: TinyScene) -> bytes:
    """Return points3D.bin; every point has a track of two images."""
    parts = [struct.pack("<Q", len(scene.points))]
    for i, (p, c) in enumerate(zip(scene.points, scene.colors, strict=True)):
        parts.append(struct.pack("<Q3d3BdQ4I", i + 1, *p, *(int(x) for x in c), 0.5, 2, 1, 0, 2, 1))
    return b"".join(parts)


def write_colmap(
    folder: Path, scene: TinyScene, *, model: str = "PINHOLE", distortion: tuple[float, ...] = ()
) -> Path:
    """Write a binary COLMAP scene into `folder` and return it."""
    sparse = folder / "sparse" / "0"
    sparse.mkdir(parents=True)
    (sparse / "cameras.bin").write_bytes(cameras_bin(scene, model, distortion))
    (sparse / "images.bin").write_bytes(images_bin(scene))
    (sparse / "points3D.bin").write_bytes(points_bin(scene))
    write_pictures(folder / "images", scene)
    return folder


def write_colmap_text(folder: Path, scene: TinyScene) -> Path:
    """Write a COLMAP scene of text files into `folder` and return it; images have no observations."""
    sparse = folder / "sparse" / "0"
    sparse.mkdir(parents=True)
    params = " ".join(repr(p) for p in camera_params(scene, "PINHOLE"))
    (sparse / "cameras.txt").write_text(f"# Camera list\n1 PINHOLE {scene.width} {scene.height} {params}\n")
    lines = ["# Image list with two lines of data per image:"]
    for i, name in enumerate(scene.names):
        pose = [*quaternion(scene.viewmats[i][:3, :3]), *scene.viewmats[i][:3, 3]]
        lines += [f"{i + 1} {' '.join(repr(float(x)) for x in pose)} 1 {name}", ""]
    (sparse / "images.txt").write_text("\n".join(lines) + "\n")
    lines = ["# 3D point list"]
    for i, (p, c) in enumerate(zip(scene.points, scene.colors, strict=True)):
        position, color = " ".join(repr(float(x)) for x in p), " ".join(str(int(x)) for x in c)
        lines.append(f"{i + 1} {position} {color} 0.5 1 0 2 1")
    (sparse / "points3D.txt").write_text("\n".join(lines) + "\n")
    write_pictures(folder / "images", scene)
    return folder


def opengl_pose(viewmat: np.ndarray) -> list[list[float]]:
    """Return the camera-to-world matrix with OpenGL axes, as transforms.json holds it."""
    return (np.linalg.inv(viewmat) @ np.diag([1.0, -1.0, -1.0, 1.0])).tolist()


def transforms(scene: TinyScene, folder: str = "images", *, ending: bool = True) -> dict:
    """Return the content of a transforms.json."""
    frames = []
    for i, name in enumerate(scene.names):
        stem = name if ending else Path(name).stem
        frames.append({"file_path": f"./{folder}/{stem}", "transform_matrix": opengl_pose(scene.viewmats[i])})
    return {
        "fl_x": scene.focal,
        "fl_y": scene.focal,
        "cx": 0.5 * scene.width,
        "cy": 0.5 * scene.height,
        "w": scene.width,
        "h": scene.height,
        "frames": frames,
    }


def write_transforms(folder: Path, scene: TinyScene, *, ply: bool = True) -> Path:
    """Write an instant-ngp scene (with nerfstudio's `ply_file_path` if `ply`) into `folder` and return it."""
    content = transforms(scene)
    write_pictures(folder / "images", scene)
    if ply:
        content["ply_file_path"] = "sparse_pc.ply"
        (folder / "sparse_pc.ply").write_bytes(points_ply(scene))
    (folder / "transforms.json").write_text(json.dumps(content))
    return folder


def points_ply(scene: TinyScene) -> bytes:
    """Return the scene's points as a binary PLY."""
    header = f"ply\nformat binary_little_endian 1.0\nelement vertex {len(scene.points)}\n"
    header += "".join(f"property float {axis}\n" for axis in "xyz")
    header += "".join(f"property uchar {c}\n" for c in ("red", "green", "blue")) + "end_header\n"
    rows = [
        struct.pack("<3f3B", *p, *(int(x) for x in c))
        for p, c in zip(scene.points, scene.colors, strict=True)
    ]
    return header.encode() + b"".join(rows)


def write_blender(folder: Path, scene: TinyScene) -> Path:
    """Write a Blender scene with alpha: the last two views are the test, the one before them is val."""
    splits = {"train": slice(0, -3), "val": slice(-3, -2), "test": slice(-2, None)}
    for split, part in splits.items():
        frames = []
        for i in range(len(scene.names))[part]:
            write_picture(folder / split / scene.names[i], picture(scene, i))
            stem = Path(scene.names[i]).stem
            frames.append(
                {"file_path": f"./{split}/{stem}", "transform_matrix": opengl_pose(scene.viewmats[i])}
            )
        angle = 2 * math.atan(0.5 * scene.width / scene.focal)
        (folder / f"transforms_{split}.json").write_text(
            json.dumps({"camera_angle_x": angle, "frames": frames})
        )
    return folder
