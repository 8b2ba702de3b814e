"""Variants of a COLMAP scene, and of a model of it, as other programs and people leave them, for wild.py."""

from __future__ import annotations

import gzip
import json
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from splatstudio.formats import write_gaussians
from splatstudio.models.model import Model
from splatstudio.scene.colmap import read_model
from splatstudio.scene.colmap_model import CAMERA_MODELS, MODELS_BY_NAME, colmap_lens
from splatstudio.scene.lens import Lens, undistort

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123456\n"
COEFFICIENTS = {
    "brown": (-0.08, 0.02, 0.001, -0.002),
    "rational": (0.2, 0.05, 0.001, -0.002, 0.01, 0.25, 0.06, 0.005),
    "fisheye": (0.03, -0.01, 0.002, -0.0005),
    "thin_prism_fisheye": (0.05, -0.02, 0.002, -0.003, 0.004, -0.001, 0.003, -0.002),
    "rad_tan_thin_prism_fisheye": (0.05, -0.02, 0.004, -0.001, 0.0005, -0.0001, 0.002, -0.003, *[0.002] * 4),
    "fov": (0.6,),
    "division": (-0.1,),
    "eucm": (0.5, 1.1),
}


class Scenes:
    """Makes variants of the scene in `source` below `folder`, each in a folder of its own."""

    def __init__(self, source: Path, folder: Path):
        self.source, self.folder = source, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.model = read_model(source / "sparse/0")

    def all(self) -> None:
        """Make every variant."""
        self.layouts()
        self.archives()
        self.pictures()
        self.lenses()
        self.broken()

    def copy(self, name: str) -> Path:
        return shutil.copytree(self.source, self.folder / name, copy_function=_copy)

    def layouts(self) -> None:
        def moved(name: str, *pairs: tuple[str, str]) -> None:
            folder = self.copy(name)
            for old, new in pairs:
                (folder / new).parent.mkdir(parents=True, exist_ok=True)
                shutil.move(folder / old, folder / new)

        moved("layout in data", ("images", "data/images"), ("sparse", "data/sparse"))
        moved("layout dense-0", ("images", "dense/0/images"), ("sparse", "dense/0/sparse"))
        moved("layout dense", ("images", "dense/images"), ("sparse/0", "dense/sparse"))
        moved("layout distorted", ("images", "input"), ("sparse", "distorted/sparse"))
        moved("layout model beside images", *((f"sparse/0/{p}", p) for p in _model_files(self.source)))
        moved("layout colmap", ("sparse", "colmap/sparse"))
        pictures = [path.name for path in (self.source / "images").iterdir()]
        moved("layout photos at the root", *((f"images/{name}", name) for name in pictures))
        moved("layout photos elsewhere", ("images", "photos"))
        moved("layout sparse only", ("images", "../unused pictures/images"))
        shutil.rmtree(self.folder / "unused pictures")
        folder = self.copy("layout two models")
        shutil.copytree(folder / "sparse/0", folder / "sparse/1")
        folder = self.copy("layout two scenes")
        for name in ("a", "b"):
            shutil.copytree(self.source, folder / name, copy_function=_copy)
        shutil.rmtree(folder / "images")
        shutil.rmtree(folder / "sparse")
        self.copy("layout images_8 lacks photos")
        few = self.folder / "layout images_8 lacks photos/images_8"
        few.mkdir()
        for path in sorted((self.source / "images").iterdir())[:3]:
            image = Image.open(path)
            image.resize((image.width // 8, image.height // 8)).save(few / path.name)

    def archives(self) -> None:
        with zipfile.ZipFile(self.folder / "archive.zip", "w") as archive:
            for file in _files(self.source):
                archive.write(file, Path("scene") / file.relative_to(self.source))
        with tarfile.open(self.folder / "archive.tar.gz", "w:gz", compresslevel=1) as archive:
            archive.add(self.source, "scene")
        with zipfile.ZipFile(self.folder / "archive that leads elsewhere.zip", "w") as archive:
            archive.writestr("../../x.jpg", b"1")
        data = (self.folder / "archive.zip").read_bytes()
        (self.folder / "archive cut off.zip").write_bytes(data[: len(data) // 2])

    def pictures(self) -> None:
        endings: dict[str, dict[str, object]] = {
            ".png": {},
            ".webp": {"quality": 95},
            ".tif": {},
            ".bmp": {},
            ".avif": {"quality": 95},
            ".jp2": {},
            ".JPG": {},
        }
        for ending, options in endings.items():
            folder = self.copy(f"pictures {ending[1:]}")
            for path in _files(folder / "images"):
                Image.open(path).save(path.with_suffix(".new" + ending), **options)  # type: ignore[arg-type]
                path.unlink()
                path.with_suffix(".new" + ending).rename(path.with_suffix(ending))
        changes: dict[str, Callable[[np.ndarray], np.ndarray]] = {
            "gray": lambda rgb: rgb[..., :1],
            "16 bits": lambda rgb: rgb.astype(np.uint16) * 257,
            "with alpha": lambda rgb: np.dstack([rgb, np.full(rgb.shape[:2], 200, np.uint8)]),
        }
        for name, change in changes.items():
            folder = self.copy(f"pictures {name}")
            for path in _files(folder / "images"):
                cv2.imwrite(str(path.with_suffix(".png")), change(_pixels(path)))
                path.unlink()
        folder = self.copy("pictures turned by EXIF")
        for path in _files(folder / "images"):
            image = Image.open(path)
            exif = image.getexif()
            exif[0x0112] = 6
            image.rotate(90, expand=True).save(path, exif=exif, quality=95)

    def lenses(self) -> None:
        (camera,) = self.model.lenses.values()
        for number, known in CAMERA_MODELS.items():
            if known.kind == "equirectangular":
                continue  # of a panorama a pinhole's picture shows too little
            folder = self.copy(f"lens {known.name}")
            focal = [camera.fx, camera.fy][: known.num_focal]
            coefficients = COEFFICIENTS[known.kind][: known.num_coefficients]
            params = [*focal, camera.cx, camera.cy, *coefficients]
            text = f"1 {known.name} {camera.width} {camera.height} {' '.join(map(str, params))}\n"
            (folder / "sparse/0/cameras.bin").write_bytes(
                struct.pack("<QIiQQ", 1, *[1, number, camera.width, camera.height])
                + struct.pack(f"<{len(params)}d", *params)
            )
            (folder / "lens.txt").write_text(text)
            lens = colmap_lens(known, (camera.width, camera.height), params, known.name)
            maps = _seen_through(lens, camera)
            for path in _files(folder / "images"):
                shown = cv2.remap(_pixels(path), *maps, cv2.INTER_LINEAR)
                cv2.imwrite(str(path), shown)

    def broken(self) -> None:
        for part in ("cameras.bin", "images.bin", "points3D.bin"):
            (self.copy(f"broken pointer {part}") / "sparse/0" / part).write_bytes(POINTER)
            self._cut(self.copy(f"broken cut {part}") / "sparse/0" / part)
            (self.copy(f"broken without {part}") / "sparse/0" / part).unlink()
        folder = self.copy("broken pointers of photos")
        for path in _files(folder / "images"):
            path.write_bytes(POINTER)
        self._cut(_files(self.copy("broken cut photo") / "images")[0])
        folder = self.copy("broken photos of another size")
        for path in _files(folder / "images"):
            Image.open(path).crop((0, 0, 300, 300)).save(path)
        for path in _files(self.copy("broken photos missing") / "images")[3:]:
            path.unlink()
        shutil.rmtree(self.copy("broken no photos") / "images")
        (self.folder / "broken empty").mkdir()
        folder = self.copy("broken poses missing")
        photo = _files(folder / "images")[0]
        for number in range(3):
            shutil.copy(photo, photo.with_name(f"more_{number}.jpg"))

    def _cut(self, file: Path) -> None:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def make_models(model: Model, folder: Path) -> None:
    """Write the model in every format and in broken forms below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    in_files = model.in_frame(np.eye(4)).gaussians
    for ending in (".ply", ".compressed.ply", ".spz", ".sog", ".splat", ".pt", ".glb", ".points.ply"):
        write_gaussians(folder / f"model{ending}", in_files)
    output = folder / "original trainer/point_cloud/iteration_7000"
    output.mkdir(parents=True)
    shutil.copy(folder / "model.ply", output / "point_cloud.ply")
    with zipfile.ZipFile(folder / "model.sog") as archive:
        archive.extractall(folder / "unpacked sog")
    content = bytearray((folder / "model.ply").read_bytes())
    start = content.index(b"end_header\n") + 11
    content[start : start + 4] = np.float32("nan").tobytes()
    (folder / "one value is no number.ply").write_bytes(content)
    for name in ("model.ply", "model.spz", "model.sog", "model.pt", "model.compressed.ply"):
        data = (folder / name).read_bytes()
        (folder / f"cut {name}").write_bytes(data[: len(data) // 2])
        (folder / f"pointer {name}").write_bytes(POINTER)
    np.savez(folder / "arrays.npz", np.zeros(3))
    (folder / "page.ply").write_bytes(b"<!DOCTYPE html><html>404</html>")
    (folder / "text.splat").write_bytes(b"hello")
    (folder / "empty.ply").write_bytes(b"")
    (folder / "packed.ply.gz").write_bytes(gzip.compress((folder / "model.ply").read_bytes(), 1))
    (folder / "empty of OpenSfM").mkdir()
    nothing = json.dumps([{"cameras": {}, "shots": {}, "points": {}}])
    (folder / "empty of OpenSfM/reconstruction.json").write_text(nothing)


def _seen_through(lens: Lens, camera: Lens) -> tuple[np.ndarray, np.ndarray]:
    """Return for each pixel of a picture through `lens` its place in that of the pinhole `camera`."""
    u, v = np.meshgrid(np.arange(lens.width) + 0.5, np.arange(lens.height) + 0.5)
    plane = np.stack([(u - lens.cx) / lens.fx, (v - lens.cy) / lens.fy], axis=-1)
    points = undistort(lens, plane.reshape(-1, 2)).reshape(plane.shape)
    x, y = points[..., 0] * camera.fx + camera.cx - 0.5, points[..., 1] * camera.fy + camera.cy - 0.5
    return x.astype(np.float32), y.astype(np.float32)


def _pixels(path: Path) -> np.ndarray:
    pixels = cv2.imread(str(path))
    assert pixels is not None, f"{path} is no picture"
    return pixels


def _copy(source: str, target: str) -> str:
    return shutil.copyfile(source, target)  # without the source's permissions, which may be to read alone


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _model_files(source: Path) -> list[str]:
    return [path.name for path in _files(source / "sparse/0")]


assert {*COEFFICIENTS, "equirectangular"} == {model.kind for model in MODELS_BY_NAME.values()}
