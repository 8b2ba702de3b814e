"""A scene is read while an estimation beside it puts other poses in place of those that it has."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from splatstudio.poses.store import PoseStore
from splatstudio.scene import load
from splatstudio.scene.load import load_scene

DEMO = Path(__file__).parents[2] / "assets" / "demo"


@pytest.fixture
def store(tmp_path: Path) -> PoseStore:
    """Return the poses of the demo's photos as if they had been estimated, and others in `mapping`."""
    store = PoseStore(tmp_path / "photos")
    shutil.copytree(DEMO / "images", store.images)
    shutil.copytree(DEMO / "images", store.source / "images")
    for folder in (store.sparse, store.mapping):
        shutil.copytree(DEMO / "sparse", folder)
    return store


def meanwhile(monkeypatch: pytest.MonkeyPatch, *events: Callable[[], Any]) -> list[str]:
    """Let each event happen after one of the next readings; return the list of what these came to."""
    real, left, told = load._read, list(events), list[str]()

    def read(*given: Any) -> Any:
        try:
            found = real(*given)
            told.append("read")
            return found
        except ValueError as error:
            told.append(str(error))
            raise
        finally:
            if left:
                left.pop(0)()

    monkeypatch.setattr(load, "_read", read)
    return told


def test_poses_that_are_away_for_a_moment_are_waited_for(
    store: PoseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.sparse.rename(store.replaced)
    told = meanwhile(monkeypatch, lambda: store.mapping.rename(store.sparse))
    assert len(load_scene(store.source).views) == 48
    assert len(told) == 2 and "no camera poses" in told[0] and told[1] == "read"


def test_what_was_read_of_poses_that_were_replaced_amid_it_is_read_again(
    store: PoseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace_poses() -> None:
        store.sparse.rename(store.replaced)
        store.mapping.rename(store.sparse)

    told = meanwhile(monkeypatch, replace_poses)
    assert len(load_scene(store.source).views) == 48
    assert told == ["read", "read"]


def test_a_scene_without_poses_says_so_at_once_and_after_a_crash_amid_a_change(
    store: PoseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "REPLACING_SECONDS", 0.1)
    store.sparse.rename(store.replaced)
    told = meanwhile(monkeypatch)
    with pytest.raises(ValueError, match="no camera poses"):
        load_scene(store.source)
    assert len(told) > 1
    shutil.rmtree(store.replaced)
    told.clear()
    with pytest.raises(ValueError, match="no camera poses"):
        load_scene(store.source)
    assert len(told) == 1
