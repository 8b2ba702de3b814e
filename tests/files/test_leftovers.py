"""What killed processes left among the temporary files goes at the next start; what is in use stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from blob_models import blobs

from splatstudio.files.leftovers import clear_leftovers, keep
from splatstudio.formats import write_gaussians
from splatstudio.operating_system import hold
from splatstudio.runtime.messages import ViewJob
from splatstudio.runtime.supervisor import WorkerClient

HOLDER = """
import sys, time
from pathlib import Path
from splatstudio.operating_system import hold
held = [hold(Path(path)) for path in sys.argv[1:]]
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def made(folder: Path, name: str, *, seconds: float = 60.0) -> Path:
    """Return a file or folder of that age."""
    path = folder / name
    path.write_text("rank 0 starts") if name.endswith(("log", "txt")) else path.mkdir()
    if path.is_dir():
        (path / "error-0.json").write_text("{}")
    then = time.time() - seconds
    os.utime(path, (then, then))
    return path


def test_what_nobody_uses_is_removed_and_nothing_else(temporary: Path) -> None:
    gone = {made(temporary, name) for name in ("splatstudio-ab12.log", "splatstudio-ranks-cd34")}
    kept = made(temporary, "splatstudio-failed.log")
    keep(kept)
    made(temporary, "splatstudio-notes.txt")
    made(temporary, "other-ab12.log")
    made(temporary, "splatstudio-test-ab12")
    made(temporary, "splatstudio-new.log", seconds=0.0)
    elsewhere = made(temporary.parent, "precious.log")
    (temporary / "splatstudio-link.log").symlink_to(elsewhere)
    held = hold(made(temporary, "splatstudio-used.log"))
    before = set(temporary.iterdir())
    assert set(clear_leftovers()) == gone
    assert set(temporary.iterdir()) == before - gone and elsewhere.exists()
    os.close(held)
    assert clear_leftovers() == [temporary / "splatstudio-used.log"]


@pytest.fixture
def holder(temporary: Path) -> Iterator[subprocess.Popen[str]]:
    paths = [str(made(temporary, name)) for name in ("splatstudio-ab12.log", "splatstudio-ranks-cd34")]
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, *paths], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_what_another_process_uses_stays_until_it_is_killed(
    temporary: Path, holder: subprocess.Popen[str]
) -> None:
    assert clear_leftovers() == [] and len(list(temporary.iterdir())) == 2
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert len(clear_leftovers()) == 2 and list(temporary.iterdir()) == []


def test_the_next_worker_clears_up_and_a_running_one_keeps_its_own(temporary: Path, tmp_path: Path) -> None:
    left = [made(temporary, name) for name in ("splatstudio-ab12.log", "splatstudio-ranks-cd34")]
    write_gaussians(tmp_path / "a.ply", blobs())
    client = WorkerClient(ViewJob(tmp_path / "a.ply"))
    assert not any(path.exists() for path in left)
    client.start()
    try:
        deadline = time.monotonic() + 120.0
        while client.state != "viewing":
            assert time.monotonic() < deadline and client.state != "failed"
            client.poll(0.1)
        own = list(temporary.glob("splatstudio-*"))
        assert len(own) == 2, "a log and a folder"
        for path in own:
            os.utime(path, (0, 0))
        assert clear_leftovers() == []
    finally:
        client.close()
    assert list(temporary.glob("splatstudio-*")) == []
