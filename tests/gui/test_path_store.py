"""The files of the camera paths: a slow or full disk keeps nobody who moves a camera waiting."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gui_parts import wait_until
from path_builder import random_keys

from splatstudio.cameras.camera_path import CameraPath
from splatstudio.gui.state import camera_paths
from splatstudio.gui.state.camera_paths import PathStore
from splatstudio.gui.state.project import open_project
from splatstudio.settings.config import TrainConfig

Write = Callable[..., Any]


@pytest.fixture
def store(told: list[str], blob_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PathStore:
    monkeypatch.chdir(tmp_path)
    return PathStore(open_project(blob_folder, TrainConfig(), None), told.append)


@pytest.fixture
def told() -> list[str]:
    return []


def test_changes_do_not_wait_for_the_disk_and_the_newest_is_written(
    store: PathStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, release = threading.Event(), threading.Event()
    write, written = camera_paths.write_camera_path, []

    def slow(file: Path, path: CameraPath, *rest: Any, **options: Any) -> None:
        writing.set()
        assert release.wait(120)
        written.append((file.stem, len(path.keyframes)))
        write(file, path, *rest, **options)

    monkeypatch.setattr(camera_paths, "write_camera_path", slow)
    monkeypatch.setattr(camera_paths, "SAVE_SECONDS", 0.05)
    store.save_soon(CameraPath(random_keys(1, 2)), "one")
    assert writing.wait(120)
    start = time.monotonic()
    for count in range(3, 8):
        store.save_soon(CameraPath(random_keys(1, count)), "one")
    store.save_soon(CameraPath(random_keys(1, 2)), "two")
    assert time.monotonic() - start < 60.0, "a change waited for the disk"
    release.set()
    store.close()
    assert written[0] == ("one", 2) and sorted(written[1:]) == [("one", 7), ("two", 2)]
    assert len(store.read("one").keyframes) == 7 and sorted(store.names()) == ["one", "two"]


def test_what_is_not_on_the_disk_yet_is_there_for_who_asks(
    store: PathStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, release = threading.Event(), threading.Event()
    write = camera_paths.write_camera_path

    def slow(*arguments: Any, **options: Any) -> None:
        writing.set()
        assert release.wait(120)
        write(*arguments, **options)

    store.write(CameraPath(random_keys(1, 2)), "one", with_frames=False)
    monkeypatch.setattr(camera_paths, "write_camera_path", slow)
    monkeypatch.setattr(camera_paths, "SAVE_SECONDS", 0.1)
    store.save_soon(CameraPath(random_keys(1, 3)), "one")
    store.save_soon(CameraPath(random_keys(1, 4)), "two")
    store.save_soon(CameraPath(()), "three")  # is not kept

    def all_there() -> None:
        assert sorted(store.names()) == ["one", "two"] and store.unused("two") == "two-2"
        assert len(store.read("one").keyframes) == 3 and len(store.read("two").keyframes) == 4

    all_there()
    assert writing.wait(120)
    all_there()
    store.save_soon(CameraPath(random_keys(1, 5)), "two")
    assert len(store.read("two").keyframes) == 5 and store.unused("three") == "three"
    release.set()
    store.close()
    assert len(store.read("two").keyframes) == 5 and sorted(store.names()) == ["one", "two"]


def test_what_a_full_disk_did_not_take_is_told_and_tried_again(
    store: PathStore, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = camera_paths.write_camera_path

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(camera_paths, "write_camera_path", full)
    monkeypatch.setattr(camera_paths, "RETRY_SECONDS", 0.1)
    store.save_soon(CameraPath(random_keys(1, 3)), "one")
    store.flush()
    wait_until(lambda: told == ["The camera path one is not saved: No space left on device."])
    time.sleep(0.5)
    assert len(told) == 1, "once, however often it is tried"
    monkeypatch.setattr(camera_paths, "write_camera_path", write)
    wait_until((store.folder / "one.json").exists, "it is written")
    assert store.names() == ["one"]
    store.close()
    assert store._thread is not None
    store._thread.join(120.0)
    assert not store._thread.is_alive()
