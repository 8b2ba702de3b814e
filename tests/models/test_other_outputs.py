"""Folders that other trainers leave behind are opened like a model, and know their scene."""

from __future__ import annotations

import json
import math
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import CommandLine
from format_models import close, model
from models_of_programs import write_nerfstudio
from scene_builder import tiny_scene, write_colmap, write_transforms

from splatstudio.formats import FileExtras, write_gaussians
from splatstudio.gui.state.project import open_project
from splatstudio.models.model import load_model, origin_of
from splatstudio.models.other_outputs import output_in, scene_of_output
from splatstudio.models.scoring import EvaluationTask, evaluate_task
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
    "nerfstudio": (write_nerfstudio, "", "nerfstudio_models/step-000002000.ckpt"),
    "nerfstudio's checkpoints": (write_nerfstudio, "nerfstudio_models", "step-000002000.ckpt"),
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
    assert "beside that of" not in loaded.notes[0] or loaded.notes[0].endswith(("7000", "6999", "1000"))
    code, told = command("info", folder)
    assert code == 0 and f"{len(loaded)} splats" in told and " is opened" in told
    project = open_project(folder, TrainConfig(), None)
    assert project.model_path == folder / file and project.scene is None
    assert project.notes[0].endswith(".") and " is opened" in project.notes[0]
    code, told = command("export", folder, "-o", tmp_path / "out.ply")
    assert code == 0 and (tmp_path / "out.ply").exists()


def test_a_model_of_nerfstudio_lies_in_the_coordinates_of_its_scene(tmp_path: Path, scene: Path) -> None:
    loaded = load_model(write_nerfstudio(tmp_path / "output", scene))
    origin = origin_of(tmp_path / "output")
    assert origin is not None and origin.scene_path == scene
    trained = model(9, 1)
    expected = (trained.means / 0.5 - torch.tensor([1.0, 2.0, 3.0])) @ torch.tensor(
        [[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    )
    in_files = loaded.in_frame(np.eye(4)).gaussians
    close(in_files.means, expected, 1e-5)
    close(in_files.scales, trained.scales + math.log(2), 1e-5)
    # Where its transforms.json says what was applied to COLMAP's world, the model is told of from there on.
    applied = [[1, 0, 0, 0], [0, 0, 1, 0], [0, -1, 0, 0]]
    write_transforms(scene, tiny_scene())
    top = json.loads((scene / "transforms.json").read_text())
    (scene / "transforms.json").write_text(json.dumps(top | {"applied_transform": applied}))
    shutil.rmtree(scene / "sparse")
    turned = load_model(tmp_path / "output").in_frame(np.eye(4)).gaussians
    close(turned.means, expected @ torch.tensor(applied)[:, :3].T.float(), 1e-5)
    # As it comes from another machine: who opens it says where the scene is.
    moved = scene.rename(tmp_path / "moved")
    unknown = load_model(tmp_path / "output")
    assert "export, render and mesh take --scene FOLDER" in unknown.notes[-1]
    named = load_model(tmp_path / "output", scene=moved)
    close(named.in_frame(np.eye(4)).gaussians.means, turned.means, 1e-5)
    assert not any("--scene" in note for note in named.notes)
    # COLMAP's own files are read before a transforms.json that lies beside them.
    write_colmap(moved, tiny_scene())
    of_colmap = load_model(tmp_path / "output", scene=moved).in_frame(np.eye(4)).gaussians
    close(of_colmap.means, expected, 1e-5)


@pytest.mark.parametrize("kind", ["PosixPath", "_local.PosixPath"])
@pytest.mark.parametrize("within", [False, True])
def test_nerfstudio_names_its_scene_in_several_ways(
    tmp_path: Path, scene: Path, kind: str, within: bool
) -> None:
    folder = write_nerfstudio(tmp_path / "output", scene)
    parts = "".join(f"{'  ' * within}- {part}\n" for part in scene.parts)
    path = f"data: !!python/object/apply:pathlib.{kind}\n{parts}"
    reader = f"data: null\ndataparser:\n  {path}  downscale_factor: 4\n"
    text = reader if within else path
    (folder / "config.yml").write_bytes(text.rstrip().replace("\n", "\r\n").encode())  # as Windows has it
    origin = origin_of(folder)
    assert origin is not None and origin.scene_path == scene
    assert origin.config.downscale == (4 if within else 1)


def test_a_model_of_nerfstudio_without_view_dependent_color_keeps_its_colors(tmp_path: Path) -> None:
    loaded = load_model(write_nerfstudio(tmp_path / "output", flat=True)).gaussians
    close(loaded.sh0, model(9, 0).sh0.clamp(-1, 1), 1e-5)


def test_what_nerfstudio_left_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    folder = write_nerfstudio(tmp_path / "output", rows=[[0, 0, 0, 1]] * 3)
    with pytest.raises(ValueError, match=r"does not tell how the model lies .* no rotation .* copy it again"):
        load_model(folder)
    other = tmp_path / "step-000000001.ckpt"
    torch.save({"step": 1, "pipeline": {"_model.field.weight": torch.ones(3)}}, other)
    with pytest.raises(ValueError, match="not of its splatfacto: it has no splats"):
        load_model(other)


def test_a_model_with_splats_to_leave_out_is_refused_where_strict_is_asked_for(
    tmp_path: Path, blob_folder: Path, command: CommandLine
) -> None:
    made = model(9, 1)
    write_gaussians(tmp_path / "a.splat", made)
    content = bytearray((tmp_path / "a.splat").read_bytes())
    content[:4] = np.float32("nan").tobytes()
    (tmp_path / "a.splat").write_bytes(content)
    assert len(load_model(tmp_path / "a.splat")) == 8
    for arguments in (
        ("info", tmp_path / "a.splat"),
        ("export", tmp_path / "a.splat", "-o", tmp_path / "b.ply"),
        ("render", tmp_path / "a.splat", "--orbit", "-o", tmp_path / "b.mp4"),
        ("eval", tmp_path / "a.splat", "--scene", blob_folder),
    ):
        code, told = command(*arguments, "--strict")
        assert code != 0 and "is refused: 1 of its splats have a value that is not finite" in told
    assert not list(tmp_path.glob("b.*"))
    code, told = command("eval", tmp_path / "a.splat", "--scene", blob_folder, "--strict", "--merge")
    assert code != 0 and "omit one" in told


def test_a_meta_json_is_opened_by_its_name(tmp_path: Path) -> None:
    file = unpacked(tmp_path / "output") / "meta.json"
    assert open_project(file, TrainConfig(), None).model_path == file


def test_a_folder_of_parts_is_opened_with_the_offer_to_merge(tmp_path: Path) -> None:
    folder = gsplat(tmp_path / "results", num_ranks=2)
    for path in (folder, folder / "ckpts"):
        project = open_project(path, TrainConfig(), None)
        assert project.model_path is not None and project.model_path.name == "ckpt_29999_rank0.pt"
        assert any("--merge" in note for note in project.notes), project.notes


@pytest.mark.parametrize(
    ("settings", "downscale"),
    [("resolution=2", 2), ("resolution=-1", 1), ("resolution=1600", 1), ("data_factor=2", 2)],
)
def test_photos_are_compared_in_the_size_that_was_trained_on(
    tmp_path: Path, scene: Path, settings: str, downscale: int
) -> None:
    text = SETTINGS.format(source=str(scene), images="images").replace("resolution=-1", settings)
    folder = original(tmp_path / "output", text)
    origin = origin_of(folder)
    assert origin is not None and origin.config.downscale == downscale
    scored = evaluate_task(EvaluationTask(folder))
    assert scored.evaluation.against is not None and scored.evaluation.against.downscale == downscale
    assert any("compared at 1/" in note for note in scored.evaluation.notes) == (downscale > 1)
    asked = evaluate_task(EvaluationTask(folder, downscale=1))
    assert asked.evaluation.against is not None and asked.evaluation.against.downscale == 1


def test_a_model_beside_the_cameras_is_explained_by_who_made_it(tmp_path: Path, scene: Path) -> None:
    folder = gsplat(tmp_path / "results")
    (folder / "cfg.yml").write_text(f"data_dir: {scene}\ndata_factor: 1\n")
    for path in (folder, folder / "ckpts" / "ckpt_29999_rank0.pt"):
        notes = evaluate_task(EvaluationTask(path)).evaluation.notes
        assert any("--no-normalize-world-space" in note for note in notes), (path, notes)


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
    assert code == 0 and "2 test photos" in told
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
