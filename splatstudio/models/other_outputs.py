"""Folders that other programs leave behind a training: which file in them is the model, and what it shows."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from splatstudio.files.inputs import read_input
from splatstudio.scene.layout import pose_files

ITERATION = re.compile(r"iteration_(\d+)")
GSPLAT_PLY = re.compile(r"point_cloud_(\d+)\.ply")
INRIA_CHECKPOINT = re.compile(r"chkpnt(\d+)\.pth")
MODEL = "point_cloud.ply"  # of the original trainer, in a folder for each iteration
SETTINGS = ("cfg_args", "cfg.yml")  # of the original trainer, and of gsplat's
SOG = "meta.json"
LARGEST_SETTINGS = 1 << 20  # bytes


@dataclass(frozen=True)
class OtherOutput:
    """The model in a folder of another program, and a sentence on why it is that one."""

    file: Path
    note: str


@dataclass(frozen=True)
class OtherScene:
    """The scene that another program's settings name, and its folder of photographs, "": its own."""

    path: Path
    images: str = ""


def output_in(folder: Path) -> OtherOutput | None:
    """Return the newest model in a folder of the original trainer, of gsplat, or of an unpacked SOG.

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
    if not found:
        plys = [*folder.glob("ply/*.ply"), *folder.glob("point_cloud_*.ply")]
        found = _numbered((file, GSPLAT_PLY.fullmatch(file.name)) for file in plys)
    if not found:
        checkpoints = folder.glob("chkpnt*.pth")
        found = _numbered((file, INRIA_CHECKPOINT.fullmatch(file.name)) for file in checkpoints)
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
    source = settings.get("source_path") or settings.get("data_dir")
    if not isinstance(source, str) or not source or "\0" in source:
        return None
    # A relative path begins where the training was started, which is often here or above the output.
    for start in (Path(), *file.parents[:4]):
        place = start / source
        try:
            if place.is_dir() and pose_files(place) is not None:
                images = settings.get("images")
                named = isinstance(images, str) and images != "images" and (place / images).is_dir()
                return OtherScene(place.resolve(), str(images) if named else "")
        except OSError:
            continue
    return None


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
    """Return the texts at the top level of a YAML file, which are all that is needed of it."""
    lines = re.findall(r"^(\w+):[ \t]+([^!&*\s][^\n]*?)[ \t]*$", text, re.MULTILINE)
    return {name: value.strip("'\"") for name, value in lines}
