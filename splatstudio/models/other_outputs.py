"""Folders that other programs leave behind a training: which file in them is the model, and what it shows."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from splatstudio.error_text import first_line
from splatstudio.files.inputs import read_input
from splatstudio.models.gsplat_frame import frame_of_gsplat
from splatstudio.scene.colmap import read_model
from splatstudio.scene.colmap_model import ColmapModel
from splatstudio.scene.layout import SeveralScenes, pose_files, poses_below

ITERATION = re.compile(r"iteration_(\d+)")
GSPLAT_PLY = re.compile(r"point_cloud_(\d+)\.ply")
INRIA_CHECKPOINT = re.compile(r"chkpnt(\d+)\.pth")
NERFSTUDIO_CHECKPOINT = re.compile(r"step-(\d+)\.ckpt")
NERFSTUDIO_FRAME = "dataparser_transforms.json"
MODEL = "point_cloud.ply"  # of the original trainer, in a folder for each iteration
SETTINGS = ("cfg_args", "cfg.yml", "config.yml")  # of the original trainer, gsplat's and nerfstudio
SOG = "meta.json"
LARGEST_SETTINGS = 1 << 20  # bytes
FRAME_OF_GSPLAT = (
    "{} lies in the normalized coordinates of gsplat's trainer: it is brought to those of its scene"
)


@dataclass(frozen=True)
class OtherOutput:
    """The model in a folder of another program, and a sentence on why it is that one."""

    file: Path
    note: str


@dataclass(frozen=True, eq=False)
class OtherFrame:
    """The similarity [4, 4] from a scene's coordinates to those of a model, and a note on it."""

    transform: np.ndarray
    note: str = ""


@dataclass(frozen=True)
class OtherScene:
    """The scene that another program's settings name, and its folder of photos, "": its own."""

    path: Path
    images: str = ""
    downscale: int = 1  # by what its photos were made smaller


def output_in(folder: Path) -> OtherOutput | None:
    """Return the newest model in a folder of the original trainer, gsplat, nerfstudio, or an unpacked SOG.

    None where it is no such folder, and where the newest of gsplat is in parts, which need merging.
    """
    if not folder.is_dir():
        return None
    if (folder / MODEL).is_file():
        return OtherOutput(folder / MODEL, f"{folder / MODEL} is opened")
    if _is_unpacked_sog(folder):
        return OtherOutput(folder / SOG, f"the unpacked SOG in {folder} is opened")
    clouds = [place for base in (folder / "point_cloud", folder) for place in base.glob("iteration_*")]
    found = _numbered((place / MODEL, ITERATION.fullmatch(place.name)) for place in clouds)
    if not found and [*folder.glob("ckpt_*_rank*.pt"), *folder.glob("ckpts/ckpt_*_rank*.pt")]:
        # Here, as it needs torch, which takes seconds to load.
        from splatstudio.checkpoints.rank_parts import gsplat_steps, part_of

        steps = gsplat_steps(folder)
        if not steps or any(part_of(file) is not None for file in steps[max(steps)]):
            return None
        found = {step: files[0] for step, files in steps.items()}
    for name, places in (
        (GSPLAT_PLY, ("ply/*.ply", "point_cloud_*.ply")),
        (INRIA_CHECKPOINT, ("chkpnt*.pth",)),
        (NERFSTUDIO_CHECKPOINT, ("nerfstudio_models/step-*.ckpt", "step-*.ckpt")),
    ):
        files = (file for place in places for file in folder.glob(place))
        found = found or _numbered((file, name.fullmatch(file.name)) for file in files)
    if not found:
        return None
    newest = max(found)
    older = ", ".join(str(number) for number in sorted(found) if number != newest)
    note = f"{found[newest]} is opened" + (f": the newest, beside that of {older}" if older else "")
    return OtherOutput(found[newest], note)


def _numbered(files: Iterable[tuple[Path, re.Match[str] | None]]) -> dict[int, Path]:
    return {int(match[1]): file for file, match in files if match is not None and file.is_file()}


def _is_unpacked_sog(folder: Path) -> bool:
    file = folder / SOG
    try:
        meta = json.loads(read_input(file)) if file.is_file() else None
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(meta, dict) and {"means", "quats", "scales"} <= meta.keys()


def scene_of_output(path: Path) -> OtherScene | None:
    """Return the scene that the settings beside another program's model name, None where it is not there.

    `path` is a folder as of `output_in`, or a file in it.
    """
    path = path.resolve()
    folders = [path, *path.parents[:3]]
    file = next((folder / name for folder in folders for name in SETTINGS if (folder / name).is_file()), None)
    if file is None or file.stat().st_size > LARGEST_SETTINGS:
        return None
    try:
        text = read_input(file).decode(errors="replace")
    except OSError:
        return None
    settings = _of_namespace(text) if file.name == "cfg_args" else _of_yaml(text)
    source = settings.get("source_path") or settings.get("data_dir") or settings.get("data")
    if not isinstance(source, str) or not source or "\0" in source:
        return None
    # A relative path begins where the training was started, which is often here or above the output.
    for start in (Path(), *file.parents[:4]):
        place = start / source
        try:
            if place.is_dir() and pose_files(place) is not None:
                images = settings.get("images")
                named = isinstance(images, str) and images != "images" and (place / images).is_dir()
                return OtherScene(place.resolve(), str(images) if named else "", _downscale(settings))
        except OSError:
            continue
    return None


def _downscale(settings: Mapping[str, Any]) -> int:
    """Return by what photos were made smaller; 1 where settings do not say it, or choose it by the photos."""
    for name in ("resolution", "data_factor", "downscale_factor"):
        try:
            factor = int(settings.get(name) or 1)
        except (TypeError, ValueError, OverflowError):
            continue
        if 1 < factor <= 64:
            return factor
    return 1


def _of_namespace(text: str) -> dict[str, Any]:
    """Return the values of a printed argparse.Namespace; nothing in it is run."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    if not isinstance(call, ast.Call):
        return {}
    constants = {word.arg: word.value for word in call.keywords if word.arg is not None}
    return {name: value.value for name, value in constants.items() if isinstance(value, ast.Constant)}


def _of_yaml(text: str) -> dict[str, Any]:
    """Return the texts at the top level of a YAML file, and what nerfstudio has further in for its scene."""
    text = "\n".join([*text.splitlines(), ""])
    lines = re.findall(
        r"^(?: +(?=downscale_factor:))?(\w+):[ \t]+([^!&*\s][^\n]*?)[ \t]*$", text, re.MULTILINE
    )
    # nerfstudio's paths are lists of the names of folders.
    paths = re.findall(r"^ *(\w+):[^\n]*pathlib\.[\w.]*Path\n((?:[ ]*- [^\n]+\n)+)", text, re.MULTILINE)
    joined = {
        name: str(PurePath(*re.findall(r"- ['\"]?(.*?)['\"]?\n", parts))) for name, parts in reversed(paths)
    }
    return {name: value.strip("'\"") for name, value in lines if value != "null"} | joined


def frame_of_output(file: Path, means: np.ndarray, scene: Path | None = None) -> OtherFrame | None:
    """Return the similarity from a scene's coordinates to those of the model in `file`.

    `means` [N, 3] are those of its splats. The scene is `scene`, or else the one that the settings beside the
    file name. None: the coordinates are the same.
    nerfstudio tells its frame beside its checkpoints. gsplat tells none (see `gsplat_frame`), and its files
    carry no mark, so any file whose splats lie away from the scene's points is tried. Raises ValueError
    where what is told makes no sense.
    """
    if NERFSTUDIO_CHECKPOINT.fullmatch(file.name) is not None:
        told = file.parent.parent / NERFSTUDIO_FRAME
        return OtherFrame(_frame_of_nerfstudio(told, file, scene)) if told.is_file() else None
    if scene is None:
        named = scene_of_output(file)
        scene = None if named is None else named.path
    if scene is None or (model := _colmap_model(scene)) is None:
        return None
    found = frame_of_gsplat(model, means)
    return None if found is None else OtherFrame(found, FRAME_OF_GSPLAT.format(file.name))


def _colmap_model(scene: Path) -> ColmapModel | None:
    """Return COLMAP's model of a scene, of several the first as gsplat does; None where it has none."""
    try:
        files = (pose_files(scene) or poses_below(scene)) if scene.is_dir() else None
        if files is None or files.format != "COLMAP":
            return None
        return read_model(min(files.models, key=lambda model: model.name))
    except (OSError, ValueError):  # who reads the scene says so
        return None


def _frame_of_nerfstudio(told: Path, file: Path, scene: Path | None) -> np.ndarray:
    """Return the frame that the file `told` tells of the checkpoint `file`.

    It counts from the frame of COLMAP where its transforms.json says what it has `applied` to that.
    """
    try:
        values = json.loads(read_input(told))
        frame = _similarity(values["transform"], values["scale"])
        transforms = _transforms_of(file, scene)
        if transforms is not None:
            top = json.loads(read_input(transforms))
            if "applied_transform" in top:
                applied = _similarity(top["applied_transform"], top.get("applied_scale", 1.0))
                frame = frame @ np.linalg.inv(applied)
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{told} does not tell how the model lies in its scene: {first_line(error)}; copy it again, or"
            " remove it to open the model as it lies"
        ) from error
    return frame


def _transforms_of(file: Path, scene: Path | None) -> Path | None:
    """Return the transforms.json of a scene, or of that of an output, None where it has none."""
    if scene is None:
        named = scene_of_output(file)
        scene = None if named is None else named.path
    if scene is None or scene.is_file():
        return scene if scene is not None and scene.suffix == ".json" else None
    try:
        files = pose_files(scene) or poses_below(scene)
    except SeveralScenes:  # who reads it says so
        files = None
    # One may lie beside the files of COLMAP that are read.
    return files.folder / "transforms.json" if files and files.format == "transforms.json" else None


def _similarity(rows: Any, scale: Any) -> np.ndarray:
    """Return the [4, 4] matrix of a rotation and shift [3, 4] and a scale behind them."""
    matrix = np.eye(4)
    matrix[:3] = float(scale) * np.array(rows, np.float64)[:3]
    if not (np.isfinite(matrix).all() and np.linalg.det(matrix[:3, :3]) > 0):
        raise ValueError("it is no rotation with a scale")
    return matrix
