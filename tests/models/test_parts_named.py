"""A part of a model, as one rank of several wrote it, is named as one wherever it comes out."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from command_line import CommandLine

from splatstudio.cli.export import export_model
from splatstudio.evaluation.evaluate import evaluation_from_json
from splatstudio.formats.ply import read_ply
from splatstudio.gui.state.project import open_project
from splatstudio.models.merging import merge
from splatstudio.models.model import load_model
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.training.starting_model import gaussians_to_start_from

HALF = "is rank 0 of 2: about half of the scene"


def test_the_python_interface_says_it(part: Path, shard: Path, blob_scene: Scene) -> None:
    for file in (part, shard):
        model = load_model(file)
        assert model.part is not None and HALF in model.part
        evaluation = model.evaluate(blob_scene)
        assert evaluation.notes == (model.part,) == (evaluation.part,)
        assert model.part in evaluation.to_json()["notes"]
        assert evaluation_from_json(evaluation.to_json()).to_csv() == evaluation.to_csv()
        assert evaluation.to_csv().splitlines()[-1].strip('"') == f"# {model.part}"
        exported = export_model(file, part.parent / "half.ply")
        assert exported.part == model.part and exported.num_gaussians == len(model)
    whole = merge(part.parent)
    assert whole.part is None and whole.evaluate(blob_scene).notes == ()
    assert "#" not in whole.evaluate(blob_scene).to_csv()
    assert load_model(shard.parent).part is None


def test_the_scores_in_files_say_it(
    part: Path, blob_folder: Path, tmp_path: Path, command: CommandLine
) -> None:
    files = ("--json-file", tmp_path / "a.json", "--csv", tmp_path / "a.csv")
    arguments = ("eval", part, "--scene", blob_folder, "--test-every", 4, "--lpips", *files)
    assert command(*arguments, "--alone")[0] == 0
    assert HALF in json.loads((tmp_path / "a.json").read_text())["notes"][0]
    assert HALF in (tmp_path / "a.csv").read_text().splitlines()[-1]
    assert command(*arguments, "--merge", "--overwrite")[0] == 0
    assert "half" not in (tmp_path / "a.json").read_text() + (tmp_path / "a.csv").read_text()


@pytest.mark.parametrize("others", ["beside it", "elsewhere"])
def test_the_scores_of_a_part_alone_must_be_asked_for(
    part: Path, others: str, blob_folder: Path, command: CommandLine
) -> None:
    if others == "elsewhere":
        (part.parent / "ckpt_9_rank1.pt").unlink()
        (part.parent / "ckpt_8_rank1.pt").touch()
    code, output = command("eval", part, "--scene", blob_folder)
    error = " ".join(output.split())
    assert code == 2 and HALF in error and ", or --alone to judge this part." in error
    assert ("copy it there and add --merge" in error) == (others == "elsewhere")


def test_render_and_train_say_it(part: Path, blob_folder: Path, tmp_path: Path, command: CommandLine) -> None:
    frames = ("--orbit", "--seconds", 1, "--fps", 2, "--width", 32, "--height", 32)
    run = ("--run", tmp_path / "trained", "--steps", 1, "--test-every", 0)
    for arguments in (
        ("render", part, "-o", tmp_path / "frames", "--scene", blob_folder, *frames),
        ("train", blob_folder, "--init", part, *run),
    ):
        code, output = command(*arguments)
        assert code == 0 and HALF in output


def test_a_training_from_python_logs_it(
    part: Path, blob_scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        gaussians_to_start_from(blob_scene, TrainConfig(init=str(part)))
    assert HALF in caplog.text


def test_the_studio_opens_a_shard_and_says_what_it_is(part: Path, shard: Path, blob_folder: Path) -> None:
    project = open_project(shard, TrainConfig(), None)
    assert project.model_path == shard and not project.can_train
    assert HALF in project.notes[0] and str(shard.parent) in project.notes[0]
    # Nothing of the user's goes into the checkpoint's folder.
    for place in (project.folder_of("renders"), project.export_path(None)):
        assert place.parent == shard.parent.parent.resolve()
    other = open_project(blob_folder, TrainConfig(init=str(part)), part.parent / "new")
    assert any(HALF in note for note in other.notes)


def test_an_export_of_a_part_is_that_part(part: Path, tmp_path: Path) -> None:
    export_model(part, tmp_path / "half.ply")
    assert len(read_ply(tmp_path / "half.ply")) == len(load_model(part))
