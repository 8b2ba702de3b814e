"""An export as it was asked for in every format, and what is told where it cannot be written."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from blob_models import blobs
from format_models import Precision, assert_kept, model, precision_of
from scipy.spatial.transform import Rotation
from test_cli import command

from splatstudio.cameras.placement import Z_UP_TO_Y_DOWN, Placement
from splatstudio.cli import export as exporting
from splatstudio.cli.export import export_model
from splatstudio.formats import FORMATS, read_splats
from splatstudio.formats.ply import read_ply, write_ply
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.gaussians.transform import transformed
from splatstudio.gaussians.trimming import Trim
from splatstudio.models.model import Model
from splatstudio.runtime.messages import Event, Export, JobDone, JobFailed
from splatstudio.runtime.tasks import _WORK, Task, Tasks, output_of

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
    monkeypatch.setattr(exporting, "load_model", lambda _: whole)
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
    tmp_path: Path, blob_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_ply(tmp_path / "a.ply", blobs(num=30))
    (tmp_path / "here").symlink_to(tmp_path)
    both = ("-o", tmp_path / "b.ply", "--cameras", tmp_path / "here" / "b.ply")
    code, printed = command(capsys, "export", tmp_path / "a.ply", *both, "--scene", blob_folder)
    assert code == 2 and "name two files" in printed
    assert not (tmp_path / "b.ply").exists()


def test_a_folder_that_is_not_there_is_told_before_anything_is_written(
    tmp_path: Path, blob_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_ply(tmp_path / "a.ply", blobs(num=30))
    files = ("-o", tmp_path / "no" / "b.ply", "--cameras", tmp_path / "c.json")
    code, printed = command(capsys, "export", tmp_path / "a.ply", *files, "--scene", blob_folder)
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
