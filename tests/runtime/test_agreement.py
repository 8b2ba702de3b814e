"""Ranks of a launcher compare what they are about to train before the first step."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from splatstudio.distributed.failures import FailedTogether
from splatstudio.distributed.ranks import Ranks
from splatstudio.files.run import Run, RunLock
from splatstudio.runtime import agreement
from splatstudio.runtime.agreement import Facts, agree, wait_for_run
from splatstudio.runtime.messages import TrainJob
from splatstudio.scene.load import load_scene
from splatstudio.settings.config import TrainConfig


class TwoRanks(Ranks):
    """Rank 0 of two; the other says the same but for `other`."""

    def __init__(self, **other: Any) -> None:
        super().__init__()
        self.other = other

    def all_gather_bytes(self, message: bytes) -> list[bytes]:
        own = msgspec.json.decode(message, type=Facts)
        return [message, msgspec.json.encode(msgspec.structs.replace(own, host="b", **self.other))]


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"release": "0.1"}, r"has splatstudio 0.1, rank 0 has .*install the same"),
        ({"settings": {"steps": "7"}}, r"was started otherwise.* more\): give all ranks the same command"),
        ({"num_photos": 99, "scene": "/there"}, r"has another scene at /there \(99 photos and \d+ points\)"),
        ({"names": "x"}, r"has another scene"),
        ({"checkpoint": "x"}, r"would go on from another checkpoint than rank 0"),
    ],
)
def test_a_rank_that_has_something_else_is_named(
    other: dict[str, Any], told: str, blob_folder: Path, tmp_path: Path
) -> None:
    job, scene = TrainJob(blob_folder, tmp_path / "run"), load_scene(blob_folder)
    with pytest.raises(FailedTogether, match=f"rank 1 on b {told}"):
        agree(TwoRanks(**other), job, scene)


def test_photos_may_lie_in_different_places(blob_folder: Path, tmp_path: Path) -> None:
    scene = load_scene(blob_folder)
    jobs = [TrainJob(blob_folder, tmp_path / "run", TrainConfig(images=name)) for name in ("", "/b/photos")]
    first, second = (agree(TwoRanks(scene="/elsewhere"), job, scene) for job in jobs)
    assert first == second and (first.process, first.host) == (os.getpid(), socket.gethostname())


def test_a_folder_of_another_machine_is_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blob_folder: Path
) -> None:
    monkeypatch.setattr(agreement, "SEEN_SECONDS", 0.1)
    run_dir = tmp_path / "run"
    leader = agree(TwoRanks(), TrainJob(blob_folder, run_dir), load_scene(blob_folder))
    with pytest.raises(ValueError, match=r"does not see .*a disk that all machines share"):
        wait_for_run(run_dir, leader)
    Run.create(run_dir, blob_folder, TrainConfig())
    with pytest.raises(ValueError, match=r"has another folder at .*run than rank 0"):
        wait_for_run(run_dir, leader)
    lock = RunLock(run_dir)
    wait_for_run(run_dir, leader)
    with pytest.raises(ValueError, match="another folder"):
        wait_for_run(run_dir, msgspec.structs.replace(leader, host="b"))
    lock.release()

    def refused(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(agreement, "lock_holder", refused)
    wait_for_run(run_dir, leader)  # a disk that keeps others from reading what is locked tells nothing
