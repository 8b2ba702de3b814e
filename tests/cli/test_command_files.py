"""What export, merge and eval do with files: nothing is written over unasked, parts may lie anywhere."""

from __future__ import annotations

import errno
import json
import os
import queue
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from blob_models import blobs
from command_line import CommandLine
from format_models import Precision, assert_kept, model, precision_of
from model_parts import STEP_OF_PARTS as STEP
from scipy.spatial.transform import Rotation

from splatstudio.cameras.placement import Z_UP_TO_Y_DOWN, Placement
from splatstudio.checkpoints.rank_parts import part_of
from splatstudio.cli import eval as eval_command
from splatstudio.cli import export as exporting
from splatstudio.cli.export import export_model
from splatstudio.cli.json_output import CommandResult
from splatstudio.cli.main import run_command
from splatstudio.evaluation.evaluate import ImageScore
from splatstudio.formats import FORMATS, read_splats
from splatstudio.formats.ply import read_ply, write_ply
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.gaussians.transform import transformed
from splatstudio.gaussians.trimming import Trim
from splatstudio.models.merging import merge
from splatstudio.models.model import Model
from splatstudio.models.scoring import EvaluationTask
from splatstudio.runtime.messages import Event, Export, JobDone, JobFailed
from splatstudio.runtime.tasks import _WORK, Task, Tasks, output_of
from splatstudio.scene.scene import Scene

KINDS = ("renders", "photos")


def test_an_export_writes_over_nothing_unasked(tmp_path: Path, command: CommandLine) -> None:
    write_ply(tmp_path / "a.ply", blobs(num=30))
    (tmp_path / "b.ply").write_text("mine")
    code, printed = command("export", tmp_path / "a.ply", "-o", tmp_path / "b.ply")
    assert code == 2 and "b.ply is there already" in printed and "--overwrite" in printed
    assert (tmp_path / "b.ply").read_text() == "mine"
    code, _ = command("export", tmp_path / "a.ply", "-o", tmp_path / "b.ply", "--overwrite")
    assert code == 0 and len(read_ply(tmp_path / "b.ply")) == 30


def test_cameras_beside_an_export_write_over_nothing_unasked(
    tmp_path: Path, blob_folder: Path, command: CommandLine
) -> None:
    write_ply(tmp_path / "a.ply", blobs(num=30))
    (tmp_path / "cameras.json").write_text("mine")
    arguments = ("export", tmp_path / "a.ply", "-o", tmp_path / "b.ply", "--scene", blob_folder)
    cameras = ("--cameras", tmp_path / "cameras.json")
    code, printed = command(*arguments, *cameras)
    assert code == 2 and "cameras.json is there already" in printed
    assert (tmp_path / "cameras.json").read_text() == "mine" and not (tmp_path / "b.ply").exists()
    assert command(*arguments, *cameras, "--overwrite")[0] == 0
    assert (tmp_path / "cameras.json").read_text().startswith("[")


def test_a_link_to_nowhere_is_not_written_through(tmp_path: Path, command: CommandLine) -> None:
    write_ply(tmp_path / "a.ply", blobs(num=30))
    (tmp_path / "b.ply").symlink_to(tmp_path / "elsewhere.ply")
    assert command("export", tmp_path / "a.ply", "-o", tmp_path / "b.ply")[0] == 2
    assert (tmp_path / "b.ply").is_symlink()


def test_a_merge_writes_over_nothing_unasked(
    parts: Path,
    tmp_path: Path,
    command: CommandLine,
) -> None:
    (tmp_path / "whole.ply").write_text("mine")
    code, printed = command("merge", parts, "-o", tmp_path / "whole.ply")
    assert code == 2 and "whole.ply is there already" in printed and "--overwrite" in printed
    assert (tmp_path / "whole.ply").read_text() == "mine"
    assert command("merge", parts, "-o", tmp_path / "whole.ply", "--overwrite")[0] == 0
    assert len(read_ply(tmp_path / "whole.ply")) == 41
    # Not even then one of the parts.
    before = (parts / f"ckpt_{STEP}_rank0.pt").read_bytes()
    code, printed = command("merge", parts, "-o", parts / f"ckpt_{STEP}_rank0.pt", "--overwrite")
    assert code == 2 and "is one of the parts" in printed
    assert (parts / f"ckpt_{STEP}_rank0.pt").read_bytes() == before


def test_parts_merge_from_the_folders_where_the_machines_left_them(
    parts: Path,
    tmp_path: Path,
    command: CommandLine,
) -> None:
    whole = merge(parts)
    for rank in range(2):
        (tmp_path / f"node{rank}" / "ckpts").mkdir(parents=True)
        shutil.move(parts / f"ckpt_{STEP}_rank{rank}.pt", tmp_path / f"node{rank}" / "ckpts")
    files = [tmp_path / f"node{rank}" / "ckpts" / f"ckpt_{STEP}_rank{rank}.pt" for rank in (1, 0)]
    folders = [tmp_path / "node1", tmp_path / "node0" / "ckpts"]
    for given in (files, folders, [tmp_path / "node*" / "ckpts" / "*.pt"]):
        merged = merge(given)
        for name, tensor in whole.gaussians.tensors().items():
            assert torch.equal(merged.gaussians.tensors()[name], tensor)
    code, printed = command("merge", *files, "-o", tmp_path / "whole.ply")
    assert code == 0 and "20 + 21 = 41 splats of 2 ranks" in printed
    with pytest.raises(ValueError, match=rf"missing rank 0: ckpt_{STEP}_rank0.pt"):
        merge(files[:1])


def test_the_same_rank_in_two_folders_is_not_guessed_at(parts: Path, tmp_path: Path) -> None:
    shutil.copytree(parts, tmp_path / "other")
    with pytest.raises(ValueError, match="rank 0 is there twice"):
        merge([parts, tmp_path / "other"])
    (parts / f"ckpt_{STEP}_rank1.pt").unlink()
    given = [parts / f"ckpt_{STEP}_rank0.pt", tmp_path / "other" / f"ckpt_{STEP}_rank1.pt"]
    with pytest.raises(ValueError, match=r"different trainings: .*other has a ckpt_9_rank0\.pt of its own"):
        merge(given)


def test_an_evaluation_names_a_part_once(
    parts: Path,
    blob_folder: Path,
    command: CommandLine,
) -> None:
    part = parts / f"ckpt_{STEP}_rank0.pt"
    code, printed = command(
        "eval",
        part,
        "--alone",
        "--scene",
        blob_folder,
        "--test-every",
        4,
        "--lpips",
        "--csv",
        parts / "a.csv",
    )
    assert code == 0 and " ".join(printed.split()).count(str(part_of(part))) == 1
    # The file of the scores says it as well, where nobody sees the terminal.
    assert str(part_of(part)) in (parts / "a.csv").read_text()


@pytest.fixture
def asked(blob_scene: Scene, tmp_path: Path) -> tuple[object, ...]:
    """Return the command that evaluates a model of the scene, without the files."""
    write_ply(tmp_path / "a.ply", blobs())
    return ("eval", tmp_path / "a.ply", "--scene", blob_scene.path, "--lpips")


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[EvaluationTask]:
    """Return the evaluations that have been begun, which then end."""
    begun: list[EvaluationTask] = []

    def begin(task: EvaluationTask, *_: object) -> None:
        begun.append(task)
        raise AssertionError("the work began")

    monkeypatch.setattr(eval_command, "evaluate_task", begin)
    return begun


def test_what_was_compared_is_written_as_pictures_of_the_same_score(
    blob_folder: Path, tmp_path: Path, command: CommandLine
) -> None:
    write_ply(tmp_path / "a.ply", blobs(num=30))
    arguments = ("eval", tmp_path / "a.ply", "--scene", blob_folder, "--lpips", "--no-flip")
    scores = ("--json-file", tmp_path / "scores.json")
    code, printed = command(*arguments, *scores, "--pictures", tmp_path / "pictures")
    assert code == 0 and "renders and the photos that they were compared with are in" in printed
    for image in json.loads((tmp_path / "scores.json").read_text())["images"]:
        render, photo = (cv2.imread(str(tmp_path / "pictures" / kind / image["name"])) for kind in KINDS)
        assert render is not None and photo is not None
        assert cv2.PSNR(render, photo) == pytest.approx(image["psnr"], abs=0.05)
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == sorted(KINDS)
    code, printed = command(*arguments, "--pictures", tmp_path / "pictures", "--overwrite")
    assert code == 0, printed


def test_names_of_a_scene_lead_out_of_no_folder_and_write_over_nothing(tmp_path: Path) -> None:
    pictures, gray = eval_command.ComparedPictures(tmp_path / "a" / "b"), torch.full((2, 3, 3), 0.5)
    for name in (r"..\..\x.jpg", "/etc/y.jpg", "../w.jpg", "left/z.jpg", "left/z.png"):
        pictures.add(ImageScore(name, 10.0, 0.5), gray, gray)
    pictures.conclude()
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    names = ("x.png", "w.png", "etc/y.png", "left/z.png", "left/z.png.png")
    assert found == {f"a/b/{kind}/{name}" for kind in KINDS for name in names}


def test_a_disk_that_takes_no_picture_ends_no_evaluation(
    blob_folder: Path, tmp_path: Path, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(eval_command, "write_picture", full)
    write_ply(tmp_path / "a.ply", blobs(num=30))
    arguments = ("eval", tmp_path / "a.ply", "--scene", blob_folder, "--lpips", "--no-flip")
    code, printed = command(*arguments, "--pictures", tmp_path / "pictures")
    assert code == 2 and "PSNR" in printed and "not all pictures could be written" in printed
    result = run_command("eval", *map(str, arguments[1:]), "--json", "--pictures", str(tmp_path / "others"))
    assert isinstance(result, CommandResult) and result.exit_code == 1 and result.values["psnr"] > 0
    assert any("No space left" in note for note in result.values["notes"])


def test_a_file_that_cannot_be_written_is_told_before_the_work(
    asked: tuple[object, ...],
    evaluated: list[EvaluationTask],
    tmp_path: Path,
    command: CommandLine,
) -> None:
    (tmp_path / "taken.csv").write_text("mine")
    for option, file, why in (
        ("--json-file", tmp_path / "missing" / "x.json", "the folder"),
        ("--csv", tmp_path / "taken.csv", "is there already"),
        ("--csv", tmp_path / "a.ply" / "x.csv", "the folder"),
        ("--pictures", tmp_path, "is there already"),
        ("--pictures", tmp_path / "missing" / "pictures", "the folder"),
    ):
        code, printed = command(*asked, option, file)
        assert code == 2 and why in " ".join(printed.split()) and not evaluated, printed
    assert (tmp_path / "taken.csv").read_text() == "mine"
    code, printed = command(*asked, "--json-file", tmp_path / "x", "--csv", tmp_path / "x")
    assert code == 2 and "cannot both" in printed and not evaluated


def test_files_are_replaced_where_that_was_asked(
    asked: tuple[object, ...], tmp_path: Path, command: CommandLine
) -> None:
    files = tmp_path / "a.json", tmp_path / "a.csv"
    for file in files:
        file.write_text("old")
        os.link(file, file.with_name(file.name + ".kept"))
    code, printed = command(*asked, "--json-file", files[0], "--csv", files[1], "--overwrite")
    assert code == 0, printed
    assert json.loads(files[0].read_text())["psnr"] > 20.0
    assert len(files[1].read_text().splitlines()) > 1
    # Another file took the name of the old one, which was whole until then.
    assert [file.with_name(file.name + ".kept").read_text() for file in files] == ["old", "old"]


READ_AND_WRITTEN = [form.endings[0] for form in FORMATS if form.read and form.write]
BOX = (-3.0, -3.5, -2.5, 3.5, 3.0, 3.0)  # in the coordinates of the files
LEAST = 0.2
Exporter = Callable[[Model, Path, bool], object]


def a_model() -> Model:
    """Return Gaussians of a training: its frame is moved, turned and scaled."""
    transform = np.eye(4)
    transform[:3, :3] = 0.25 * Rotation.from_rotvec([0.3, -0.8, 0.5]).as_matrix()
    transform[:3, 3] = 0.1, 0.2, -0.3
    return Model(transformed(model(500), transform), transform, step=7)


def kept_of(whole: Model) -> Gaussians:
    """Return what is left in the training's frame, found without the code that trims."""
    places = transformed(whole.gaussians, np.linalg.inv(whole.transform)).means.numpy()
    inside = ((places >= BOX[:3]) & (places <= BOX[3:])).all(axis=1)
    kept = torch.from_numpy(inside) & (torch.sigmoid(whole.gaussians.opacities) >= LEAST)
    assert 50 < int(kept.sum()) < 400
    return whole.gaussians[kept]


def by_the_command(whole: Model, output: Path, upright: bool) -> None:
    export_model(Path("run"), output, Trim(LEAST, BOX), Placement(upright))


def ended(task: Export, whole: Model) -> Event:
    """Let the page's task run and return its end."""
    events: queue.Queue[Event] = queue.Queue()
    Tasks(events.put, lambda: False).start(task, lambda: whole)
    while not isinstance(event := events.get(timeout=60), (JobDone, JobFailed)):
        pass
    return event


def by_the_page(whole: Model, output: Path, upright: bool) -> None:
    # A box of the page lies in the model's frame: what is in the files' box is chosen before.
    whole = replace(whole, gaussians=kept_of(whole))
    assert isinstance(ended(Export(output, Trim(LEAST), upright), whole), JobDone)


@pytest.mark.parametrize("exporter", [by_the_command, by_the_page])
@pytest.mark.parametrize("ending", READ_AND_WRITTEN)
def test_every_format_is_trimmed_and_upright(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, exporter: Exporter
) -> None:
    whole = a_model()
    monkeypatch.setattr(exporting, "load_model", lambda _, **__: whole)
    kept = kept_of(whole)
    for upright in (False, True):
        output = tmp_path / f"{upright}{ending}"
        exporter(whole, output, upright)
        expected = transformed(kept, Z_UP_TO_Y_DOWN if upright else np.linalg.inv(whole.transform))
        exact = precision_of(ending, expected)
        # Being turned once or twice rounds, too.
        rounded = {
            "means": exact.means + 1e-5,
            "scale": exact.scale + 1e-5,
            "rotation": exact.rotation + 1e-5,
        }
        sh = None if exact.sh is None else exact.sh + 1e-5
        precision: Precision = replace(exact, **rounded, sh=sh)
        assert_kept(read_splats(output).gaussians, expected, precision)


def test_the_cameras_are_not_written_over_the_model(
    tmp_path: Path, blob_folder: Path, command: CommandLine
) -> None:
    write_ply(tmp_path / "a.ply", blobs(num=30))
    (tmp_path / "here").symlink_to(tmp_path)
    both = ("-o", tmp_path / "b.ply", "--cameras", tmp_path / "here" / "b.ply")
    code, printed = command("export", tmp_path / "a.ply", *both, "--scene", blob_folder)
    assert code == 2 and "name two files" in printed
    assert not (tmp_path / "b.ply").exists()


def test_a_folder_that_is_not_there_is_told_before_anything_is_written(
    tmp_path: Path, blob_folder: Path, command: CommandLine
) -> None:
    write_ply(tmp_path / "a.ply", blobs(num=30))
    files = ("-o", tmp_path / "no" / "b.ply", "--cameras", tmp_path / "c.json")
    code, printed = command("export", tmp_path / "a.ply", *files, "--scene", blob_folder)
    assert code == 2 and "cannot be written: the folder" in printed
    assert [path.name for path in tmp_path.iterdir()] == ["a.ply"]


def test_cameras_that_fail_leave_the_model_and_say_so(
    tmp_path: Path, blob_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    write_ply(tmp_path / "a.ply", blobs(num=30))
    monkeypatch.setattr("splatstudio.models.exporter.write_durably", full)
    with pytest.raises(ValueError, match=r"b\.ply is written, but not .*c\.json: No space left"):
        placement = Placement(cameras=tmp_path / "c.json", scene=blob_folder)
        export_model(tmp_path / "a.ply", tmp_path / "b.ply", placement=placement)
    assert len(read_ply(tmp_path / "b.ply")) == 30


def test_the_page_s_task_names_the_file_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("splatstudio.formats.model_arrays.write_durably", full)
    end = ended(Export(tmp_path / "b.spz"), a_model())
    assert isinstance(end, JobFailed)
    assert end.sentence == f"{tmp_path / 'b.spz'} cannot be written: No space left on device"
    assert list(tmp_path.iterdir()) == []


def test_tasks_that_came_with_one_number_all_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = {name: threading.Event() for name in ("a.ply", "b.ply")}

    def work(task: Task, _: object) -> bool:
        path = output_of(task.command)
        path.touch()
        return may_end[path.name].wait(60)

    monkeypatch.setitem(_WORK, Export, work)
    events: queue.Queue[Event] = queue.Queue()
    jobs = Tasks(events.put, lambda: False)
    for name in may_end:
        jobs.start(Export(tmp_path / name, job=3), a_model)
    for name, event in may_end.items():
        event.set()  # the first one is still among the tasks, as others of its number are
        while not isinstance(end := events.get(timeout=60), JobDone):
            pass
        assert end.path == tmp_path / name
