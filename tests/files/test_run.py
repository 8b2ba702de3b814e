"""The run folder: what is written is read again, what is damaged is said and does no harm."""

from __future__ import annotations

import errno
import json
import math
import resource
import signal
from pathlib import Path

import pytest

from splatstudio.files import run as run_files
from splatstudio.files.run import Run, new_run_path
from splatstudio.settings.config import TrainConfig


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A new run of a scene folder called garden."""
    return Run.create(tmp_path / "runs" / "garden", tmp_path / "garden", TrainConfig(steps=123))


def test_a_created_run_opens_again(run: Run, tmp_path: Path) -> None:
    opened = Run.open(run.path)
    assert opened == run
    assert opened.config.steps == 123 and opened.scene_path == tmp_path / "garden"
    assert sorted(path.name for path in run.path.iterdir()) == ["run.json"]


def test_a_folder_with_something_in_it_is_not_taken(run: Run, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not empty: resume it \(--resume, in Python resume=True\)"):
        Run.create(run.path, tmp_path, TrainConfig())
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be made"):
        Run.create(tmp_path / "file", tmp_path, TrainConfig())


def test_the_next_free_name_is_taken(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    names = []
    for _ in range(3):
        path = new_run_path(Path("/data/garden/"), root)
        Run.create(path, tmp_path, TrainConfig())
        names.append(path.name)
    assert names == ["garden", "garden-2", "garden-3"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read"),
        ("{", "is damaged: it is not JSON"),
        ("\x80", "is damaged"),
        ("[]", "is damaged: it names no scene"),
        ('{"scene": "a", "format_version": 9}', "has format version 9; this program reads 1"),
        ('{"scene": "a", "format_version": 1, "config": {"stepz": 1}}', "unknown setting 'stepz'"),
    ],
)
def test_a_damaged_run_file_is_named(run: Run, content: str | None, reason: str) -> None:
    (run.path / "run.json").unlink()
    if content is not None:
        (run.path / "run.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=reason) as caught:
        Run.open(run.path)
    assert "run.json" in str(caught.value)


def test_a_run_that_does_not_fit_on_the_disk_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: Path, values: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run_files, "write_json_durably", full)
    with pytest.raises(
        ValueError, match=r"garden cannot be written to \(No space left on device\): make room"
    ):
        Run.create(tmp_path / "garden", tmp_path, TrainConfig())
    assert not (tmp_path / "garden").exists()
    (tmp_path / "garden").mkdir()
    with pytest.raises(ValueError, match="cannot be written to"):
        Run.create(tmp_path / "garden", tmp_path, TrainConfig())
    assert (tmp_path / "garden").exists(), "that was there before"


def test_metrics_come_back_in_order(run: Run) -> None:
    assert run.metrics().rows == ()
    run.append_metrics({"step": 1, "loss": 0.5})
    run.append_metrics({"step": 1, "test_psnr": math.inf})
    run.append_metrics({"step": 2, "loss": 0.25})
    assert run.metrics().rows == (
        {"step": 1, "loss": 0.5},
        {"step": 1, "test_psnr": None},
        {"step": 2, "loss": 0.25},
    )
    assert run.metrics().notes == ()


def test_a_half_written_line_is_said_and_swallows_nothing(run: Run) -> None:
    run.append_metrics({"step": 1, "loss": 0.5})
    file = run.path / "metrics.jsonl"
    file.write_bytes(file.read_bytes() + b'{"step": 2, "lo')
    assert [row["step"] for row in run.metrics().rows] == [1]
    assert run.metrics().notes == (f"{file}: line 2 is damaged and left out",)
    run.append_metrics({"step": 3, "loss": 0.1})
    assert [row["step"] for row in run.metrics().rows] == [1, 3]
    assert run.metrics().notes == (), "what was cut off is gone: other programs would stop at it"
    assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == [1, 3]


def test_a_whole_line_without_an_end_stays(run: Run) -> None:
    (run.path / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}')
    run.append_metrics({"step": 2, "loss": 0.25})
    assert [row["step"] for row in run.metrics().rows] == [1, 2]


def test_of_lines_that_do_not_fit_on_the_disk_none_is_left(run: Run) -> None:
    run.append_metrics({"step": 1, "loss": 0.5})
    file = run.path / "metrics.jsonl"
    before, limits = file.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
        with pytest.raises(OSError):
            run.append_metrics({"step": 2, "loss": 0.4}, {"step": 3, "loss": 0.3})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert file.read_bytes() == before
    run.append_metrics({"step": 2, "loss": 0.4}, {"step": 3, "loss": 0.3})
    assert [row["step"] for row in run.metrics().rows] == [1, 2, 3]


def test_steps_made_again_after_a_resume_replace_the_old_ones(run: Run) -> None:
    for step, loss in [(10, 0.5), (20, 0.4), (30, 0.3), (20, 0.41)]:
        run.append_metrics({"step": step, "loss": loss})
    assert [(row["step"], row["loss"]) for row in run.metrics().rows] == [(10, 0.5), (20, 0.4), (20, 0.41)]


def test_the_run_file_is_plain_json_with_the_scene_and_every_setting(run: Run) -> None:
    values = json.loads((run.path / "run.json").read_text())
    assert set(values) == {"format_version", "scene", "config"}
    assert values["config"]["densify"]["grow_grad"] == 2e-4
