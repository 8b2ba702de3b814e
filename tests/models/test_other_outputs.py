"""Folders that other trainers leave behind are opened like a model, and know their scene."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest
from command_line import CommandLine
from format_models import model
from scene_builder import tiny_scene, write_colmap

from splatstudio.formats import FileExtras, write_gaussians
from splatstudio.gui.state.project import open_project
from splatstudio.models.model import load_model, origin_of
from splatstudio.models.other_outputs import output_in, scene_of_output
from splatstudio.settings.config import TrainConfig

SETTINGS = (
    "Namespace(sh_degree=3, source_path={source!r}, model_path='output/a', images={images!r}, resolution=-1,"
    " white_background=False, data_device='cuda', eval=True)"
)


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    return write_colmap(tmp_path / "data" / "scene", tiny_scene())


def original(folder: Path, settings: str = "") -> Path:
    """Write what the original trainer leaves: models of 5 splats at 7000 and of 9 at 30,000 iterations."""
    for number, num in ((7000, 5), (30000, 9)):
        place = folder / f"point_cloud/iteration_{number}"
        place.mkdir(parents=True)
        write_gaussians(place / "point_cloud.ply", model(num, 1))
    (folder / "cfg_args").write_text(settings)
    shutil.copy(place / "point_cloud.ply", folder / "input.ply")
    return folder


def gsplat(folder: Path, num_ranks: int = 1) -> Path:
    """Write what gsplat's trainer leaves: checkpoints of 5 splats at step 6999 and of 9 at 29999."""
    (folder / "ckpts").mkdir(parents=True)
    for step, num in ((6999, 5), (29999, 9)):
        for rank in range(num_ranks):
            file = folder / f"ckpts/ckpt_{step}_rank{rank}.pt"
            write_gaussians(file, model(num, 1), FileExtras(step=step))
    return folder


def unpacked(folder: Path) -> Path:
    write_gaussians(folder.with_suffix(".sog"), model(9, 1))
    with zipfile.ZipFile(folder.with_suffix(".sog")) as archive:
        archive.extractall(folder)
    return folder


def plys_of_gsplat(folder: Path) -> Path:
    (folder / "ply").mkdir(parents=True)
    for step, num in ((6999, 5), (29999, 9)):
        write_gaussians(folder / f"ply/point_cloud_{step}.ply", model(num, 1))
    return folder


OUTPUTS = {
    "original": (original, "", "point_cloud/iteration_30000/point_cloud.ply"),
    "its models": (original, "point_cloud", "iteration_30000/point_cloud.ply"),
    "one of its models": (original, "point_cloud/iteration_7000", "point_cloud.ply"),
    "gsplat": (gsplat, "", "ckpts/ckpt_29999_rank0.pt"),
    "gsplat's checkpoints": (gsplat, "ckpts", "ckpt_29999_rank0.pt"),
    "gsplat's plys": (plys_of_gsplat, "", "ply/point_cloud_29999.ply"),
    "unpacked SOG": (unpacked, "", "meta.json"),
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_the_newest_model_is_opened(tmp_path: Path, kind: str, command: CommandLine) -> None:
    write, below, file = OUTPUTS[kind]
    folder = write(tmp_path / "output") / below
    loaded = load_model(folder)
    assert len(loaded) == (5 if "7000" in below else 9) and str(folder / file) in loaded.notes[0].replace(
        f"SOG in {folder}", str(folder / file)
    )
    assert "beside that of" not in loaded.notes[0] or loaded.notes[0].endswith(("7000", "6999"))
    code, told = command("info", folder)
    assert code == 0 and f"{len(loaded)} splats" in told and " is opened" in told
    project = open_project(folder, TrainConfig(), None)
    assert project.model_path == folder / file and project.scene is None
    assert project.notes[0].endswith(".") and " is opened" in project.notes[0]
    code, told = command("export", folder, "-o", tmp_path / "out.ply")
    assert code == 0 and (tmp_path / "out.ply").exists()


def test_a_meta_json_is_opened_by_its_name(tmp_path: Path) -> None:
    file = unpacked(tmp_path / "output") / "meta.json"
    assert open_project(file, TrainConfig(), None).model_path == file


def test_parts_of_gsplat_are_still_to_be_merged(tmp_path: Path) -> None:
    folder = gsplat(tmp_path / "output", num_ranks=2)
    assert output_in(folder) is None
    with pytest.raises(ValueError, match="splatstudio merge"):
        load_model(folder)


@pytest.mark.parametrize("images", ["images", "images_2"])
@pytest.mark.parametrize("relative", [False, True])
def test_the_settings_tell_the_scene(
    scene: Path, tmp_path: Path, images: str, relative: bool, command: CommandLine
) -> None:
    shutil.copytree(scene / "images", scene / "images_2")
    source = "data/scene" if relative else str(scene)
    folder = original(tmp_path / "output/a", SETTINGS.format(source=source, images=images))
    for path in (folder, folder / "point_cloud/iteration_7000/point_cloud.ply"):
        origin = origin_of(path)
        assert origin is not None and origin.scene_path == scene
        assert origin.config.images == ("" if images == "images" else images)
    code, told = command("eval", folder, "--lpips")
    assert code == 0 and "2 test photographs" in told
    code, told = command("info", folder)
    assert code == 0 and f"trained on the scene {scene}" in told
    assert "It was trained on" in open_project(folder, TrainConfig(), None).notes[1]


def test_gsplat_tells_its_scene_too(scene: Path, tmp_path: Path) -> None:
    folder = gsplat(tmp_path / "results")
    (folder / "cfg.yml").write_text(
        f"!!python/object:__main__.Config\nckpt: null\ndata_dir: {scene}\ndata_factor: 4\n"
    )
    found = scene_of_output(folder)
    assert found is not None and found.path == scene


@pytest.mark.parametrize(
    "settings",
    [
        "",
        "Namespace(",
        "print('no')",
        SETTINGS.format(source="/nowhere/at/all", images="images"),
        "Namespace(source_path=__import__('os').getcwd())",
        "Namespace(source_path='a\\0b')",
        "(" * 100_000,
    ],
)
def test_settings_that_name_no_scene_are_passed_over(tmp_path: Path, settings: str) -> None:
    folder = original(tmp_path / "output", settings)
    assert scene_of_output(folder) is None and origin_of(folder) is None
    assert len(load_model(folder)) == 9
