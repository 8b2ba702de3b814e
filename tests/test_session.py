"""A training with its run folder: what is due at which step, and a disk that refuses."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from splatstudio.config import TrainConfig
from splatstudio.run import Run
from splatstudio.scene import Scene
from splatstudio.session import Session
from splatstudio.trainer import Trainer

CONFIG = TrainConfig(steps=6, sh_degree=0, save_steps=(2, 4), eval_steps=(3,))


@pytest.fixture
def session(blob_scene: Scene, tmp_path: Path) -> Iterator[Session]:
    trainer = Trainer(blob_scene, CONFIG)
    yield Session(trainer, Run.create(tmp_path / "run", blob_scene.path, CONFIG))
    trainer.close()


def test_saves_and_evaluates_when_asked_and_at_the_end(session: Session) -> None:
    advances = [session.advance() for _ in range(6)]
    assert session.finished
    assert [a.stats.step for a in advances if a.saved] == [2, 4, 6]
    assert [a.stats.step for a in advances if a.evaluation] == [3, 6]
    assert session.save_if_needed() is None, "the last step was saved already"


def test_a_full_disk_is_told_and_the_training_goes_on(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(run_dir: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    session.advance()
    with monkeypatch.context() as patch:
        patch.setattr(session.trainer, "save", refuse)
        advance = session.advance()
    assert advance.saved is None and advance.problem is not None
    assert "Step 2" in advance.problem and "No space left" in advance.problem
    assert session.advance().stats.step == 3
    saved = session.advance().saved
    assert saved is not None and (saved / "manifest.json").exists()


def test_an_unreadable_test_photograph_does_not_end_the_training(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise ValueError("a.png cannot be decoded")

    monkeypatch.setattr(session, "evaluate", refuse)
    advances = [session.advance() for _ in range(6)]
    assert advances[2].problem is not None and "a.png cannot be decoded" in advances[2].problem
    assert advances[-1].saved is not None
