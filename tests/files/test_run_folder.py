"""A run's folder is renamed and deleted as a whole, and nothing else is touched."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from splatstudio.files.run import Run, RunLock
from splatstudio.files.run_folder import OWN, delete_run, rename_run, run_content
from splatstudio.operating_system import hold
from splatstudio.settings.config import TrainConfig


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with two checkpoints and a render, beside the photos of its scene."""
    photo = tmp_path / "scene" / "images" / "1.jpg"
    photo.parent.mkdir(parents=True)
    photo.write_bytes(b"photo")
    folder = Run.create(tmp_path / "runs" / "one", tmp_path / "scene", TrainConfig()).path
    for name in ("ckpts/step_00000300/manifest.json", "ckpts/step_00007000/manifest.json", "renders/a.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(bytes(1000))
    (folder / "metrics.jsonl").write_text("{}\n")
    (folder / ".metrics.jsonl.tmp-12").write_text("left by a write that was killed")
    return folder


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_what_a_run_holds_is_counted_without_following_links(run: Path, tmp_path: Path) -> None:
    (run / "renders" / "away").symlink_to(tmp_path / "scene")
    content = run_content(run)
    assert (content.step, content.scene) == (7000, (tmp_path / "scene").resolve())
    parts = {name: (num, total) for name, num, total in content.parts}
    assert parts["ckpts"] == (2, 2000) and parts["renders"][0] == 1 and content.whole
    assert content.num_bytes > 3000
    (run / "run.json").write_text("{")
    assert run_content(run).scene is None
    for other in (tmp_path / "scene", tmp_path / "none", run / "run.json"):
        with pytest.raises(ValueError, match="is no run folder"):
            run_content(other)


def test_a_run_goes_and_its_photos_and_what_links_lead_to_stay(run: Path, tmp_path: Path) -> None:
    (run / "exports").symlink_to(tmp_path / "scene")
    (run / "renders" / "b.png").symlink_to(tmp_path / "scene" / "images" / "1.jpg")
    other = Run.create(tmp_path / "runs" / "two", tmp_path / "scene", TrainConfig()).path
    delete_run(run)
    assert not run.exists() and (other / "run.json").exists()
    assert (tmp_path / "scene" / "images" / "1.jpg").read_bytes() == b"photo"


def test_a_run_that_is_trained_or_read_is_neither_deleted_nor_renamed(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("splatstudio.files.run.PATIENCE_SECONDS", 0.0)
    before = everything(run)
    lock = RunLock(run)
    for deed in (delete_run, lambda path: rename_run(path, "new")):
        with pytest.raises(ValueError, match="is in use by process"):
            deed(run)
    lock.release()
    held = hold(run / "ckpts" / "step_00007000")
    for deed in (delete_run, lambda path: rename_run(path, "new")):
        with pytest.raises(ValueError, match="is being read by another program"):
            deed(run)
    os.close(held)
    assert everything(run) == before
    delete_run(run)


def test_a_folder_that_is_more_than_a_run_stays(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"holds what no run writes \(thesis.txt\), so nothing is deleted"):
        delete_run(run)
    (run / "thesis.txt").unlink()
    Run(run, run / "exports" / "scene", TrainConfig()).write()
    with pytest.raises(ValueError, match=r"photos of .* lie in it"):
        delete_run(run)
    Run(run, tmp_path / "scene", TrainConfig()).write()
    with monkeypatch.context() as patched:
        patched.chdir(run / "ckpts")
        for deed in (delete_run, lambda path: rename_run(path, "new")):
            with pytest.raises(ValueError, match="in which splatstudio was started"):
                deed(run)
    link = tmp_path / "link"
    link.symlink_to(run)
    with pytest.raises(ValueError, match="is no run folder"):
        delete_run(link)
    with pytest.raises(ValueError, match="is no run folder"):
        delete_run(tmp_path / "scene")
    assert (run / "renders" / "a.png").exists() and "lock" not in everything(run)


def test_what_cannot_be_deleted_wholly_is_told_and_stays_a_run(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = shutil.rmtree

    def refuse(place: Path) -> None:
        if place.name == "renders":
            raise PermissionError(errno.EACCES, "Permission denied", str(place / "a.png"))
        remove(place)

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", refuse)
        with pytest.raises(ValueError, match=r"a.png cannot be deleted \(Permission denied\); what is left"):
            delete_run(run)
    assert (run / "run.json").exists() and "lock" not in everything(run)
    delete_run(run)
    assert not run.exists()


def test_a_renamed_run_is_the_same_run(run: Path) -> None:
    before = everything(run)
    new = rename_run(run, "  bänana 2 ")
    assert new == run.with_name("bänana 2") and not run.exists()
    assert everything(new) == before and RunLock(new).left_by is None
    assert Run.open(new).config == TrainConfig()


@pytest.mark.parametrize(
    "name", ["", " ", ".", "..", ".hidden", "a/b", "../up", "a\\b", "a\0b", "a\nb", "x" * 101]
)
def test_names_that_lead_elsewhere_are_refused(run: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name of a run"):
        rename_run(run, name)
    assert run.exists() and {path.name for path in run.parent.iterdir()} == {"one"}


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, lambda path: path.symlink_to("nowhere")])
def test_nothing_is_replaced_by_renaming(run: Path, make: Callable[[Path], None]) -> None:
    make(run.with_name("two"))
    with pytest.raises(ValueError, match="there is a two beside one already"):
        rename_run(run, "two")
    assert run.exists() and os.path.lexists(run.with_name("two"))


def test_all_that_a_training_and_the_page_write_is_known(saved_run: Path) -> None:
    assert {path.name for path in saved_run.iterdir()} <= OWN
