"""What is no file is told at once, wherever it is named: nothing waits for a pipe or reads a device."""

from __future__ import annotations

import ast
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from scene_builder import tiny_scene, write_colmap, write_transforms

import splatstudio
from splatstudio.cameras.path_file import read_camera_path
from splatstudio.files.inputs import open_input, read_input
from splatstudio.files.run import Run, read_metrics
from splatstudio.formats import FORMATS, read_splats
from splatstudio.gui.state.project import open_project
from splatstudio.models.merging import merge
from splatstudio.models.model import load_model
from splatstudio.scene.load import load_scene
from splatstudio.settings.config import TrainConfig

TINY = tiny_scene(3, num_points=4)
ENDLESS = Path("/dev/zero")
PIPE = "it is a named pipe, not a regular file"
DEVICE = "it is a device, not a regular file"

# These read what belongs to the system, to the package or to this process, not what a user names.
OWN_FILES = {
    "operating_system",
    "files.inputs",
    "training.precision",
    "gui.server.opening_page",
    "gui.server.viser_private",
}
OWN_FILES |= {"formats.viewer_page", "devices.monitor"}  # the system's own, below /sys


def pipe_at(path: Path) -> Path:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


def test_only_regular_files_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "file"
    file.write_bytes(b"abc")
    (tmp_path / "link").symlink_to(file)
    assert read_input(tmp_path / "link") == b"abc"
    with open_input(file) as opened:
        assert opened.read(2) == b"ab"
    (tmp_path / "other").symlink_to(pipe_at(tmp_path / "pipe"))
    for path in (tmp_path / "pipe", tmp_path / "other"):
        with pytest.raises(OSError, match=PIPE) as caught:
            read_input(path)
        assert caught.value.filename == str(path)
    with pytest.raises(OSError, match=DEVICE):
        read_input(ENDLESS)
    with pytest.raises(IsADirectoryError):
        read_input(tmp_path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")  # the whole path may be longer than a socket's can be
        with pytest.raises(OSError, match="it is a socket"):
            read_input(tmp_path / "socket")


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", ["ply_file_path", "mask_path", "file_path"])
def test_what_a_scene_names_is_a_file(tmp_path: Path, name: str, kind: str) -> None:
    folder = write_transforms(tmp_path / "scene", TINY)
    values = json.loads((folder / "transforms.json").read_text())
    place = folder / "images" / "endless.png"
    os.mkfifo(place) if kind == "pipe" else place.symlink_to(ENDLESS)
    where = values if name == "ply_file_path" else values["frames"][1]
    where[name] = "images/endless.png"
    (folder / "transforms.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=f"endless.png cannot be read: {PIPE if kind == 'pipe' else DEVICE}"):
        load_scene(folder)


def test_a_mask_that_is_a_folder_is_told_as_the_scene_is_opened(tmp_path: Path) -> None:
    folder = write_transforms(tmp_path / "scene", TINY)
    values = json.loads((folder / "transforms.json").read_text())
    values["frames"][2]["mask_path"] = "images"
    (folder / "transforms.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"the mask .*images cannot be read: Is a directory; name a picture"):
        load_scene(folder)


def test_a_mask_found_by_its_name_is_a_file(tmp_path: Path) -> None:
    folder = write_colmap(tmp_path / "scene", TINY)
    (folder / "masks").mkdir()
    pipe_at(folder / "masks" / f"{TINY.names[0]}.png")
    with pytest.raises(ValueError, match=rf"the mask .* cannot be read: {PIPE}"):
        load_scene(folder)


@pytest.mark.parametrize("name", ["cameras", "images", "points3D"])
def test_a_model_of_colmap_is_of_files(tmp_path: Path, name: str) -> None:
    folder = write_colmap(tmp_path / "scene", TINY)
    pipe_at(folder / "sparse" / "0" / f"{name}.bin")
    with pytest.raises(ValueError, match=f"{name}.bin cannot be read: {PIPE}"):
        load_scene(folder)


@pytest.mark.parametrize("read", [read_splats, load_model])
@pytest.mark.parametrize("ending", [form.endings[0] for form in FORMATS if form.read])
def test_a_model_is_a_file(tmp_path: Path, ending: str, read: Callable[[Path], object]) -> None:
    with pytest.raises(ValueError, match=f"model{ending} cannot be read: {PIPE}"):
        read(pipe_at(tmp_path / f"model{ending}"))


def test_a_part_of_a_model_is_a_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"ckpt_1_rank0.pt cannot be read: {PIPE}"):
        merge(pipe_at(tmp_path / "ckpt_1_rank0.pt"))


def test_a_run_and_a_camera_path_are_of_files(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", tmp_path, TrainConfig())
    pipe_at(run.path / "metrics.jsonl")
    with pytest.raises(OSError, match=PIPE):
        read_metrics(run.path)
    pipe_at(run.path / "run.json")
    with pytest.raises(ValueError, match=PIPE):
        Run.open(run.path)
    with pytest.raises(ValueError, match=f"cannot be read: {PIPE}"):
        read_camera_path(pipe_at(tmp_path / "path.json"))


@pytest.mark.parametrize("do", [load_scene, lambda path: open_project(path, TrainConfig(), None)])
def test_a_pipe_in_place_of_a_scene_is_no_folder(tmp_path: Path, do: Callable[[Path], object]) -> None:
    with pytest.raises(ValueError, match=r"pipe is a named pipe, not a regular file; give the folder"):
        do(pipe_at(tmp_path / "pipe"))


def test_files_are_read_in_one_place() -> None:
    root = Path(splatstudio.__file__).parent
    others: list[str] = []
    for path in sorted(root.rglob("*.py")):
        if ".".join(path.relative_to(root).with_suffix("").parts) in OWN_FILES:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called, words = ast.unparse(node.func), [ast.unparse(word) for word in node.args]
                reads = called.endswith((".read_bytes", ".read_text"))
                if reads or ((called == "open" or called.endswith(".open")) and "'rb'" in words):
                    others.append(f"{path.relative_to(root)}:{node.lineno}: {ast.unparse(node)}")
    assert not others, "\n".join(others)
