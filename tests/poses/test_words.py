"""The report of an estimation in words: what opens what has come out."""

from __future__ import annotations

from pathlib import Path

from estimations import report_of
from scene_builder import tiny_scene, write_colmap

from splatstudio.poses.records import PoseGroup
from splatstudio.poses.store import PoseStore
from splatstudio.poses.words import note_on_own_poses, report_lines


def words(folder: Path) -> list[str]:
    return report_lines(report_of(folder, groups=(PoseGroup(2, ("a.jpg", "b.jpg")),)))


def test_another_group_is_opened_by_its_number(tmp_path: Path) -> None:
    write_colmap(PoseStore(tmp_path).path, tiny_scene(3))
    assert note_on_own_poses(tmp_path) is None, "those estimated are the only ones"
    assert "Another group: 2 photos, a.jpg to b.jpg; --model 2 opens it" in words(tmp_path)


def test_poses_that_a_scene_has_already_go_before_those_estimated(tmp_path: Path) -> None:
    scene = write_colmap(tmp_path / "my scene", tiny_scene(3))
    note, opens = note_on_own_poses(scene), f"splatstudio open '{PoseStore(scene).path}'"
    assert note is not None and "has poses of its own (COLMAP)" in note and f"`{opens}`" in note
    assert f"Another group: 2 photos, a.jpg to b.jpg; {opens} --model 2 opens it" in words(scene)
