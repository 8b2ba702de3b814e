"""The studio's end of the worker: listeners that fail, frames nobody waits for, what is left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from splatstudio.runtime import messages
from splatstudio.runtime.supervisor import WorkerClient
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig

LOADED = messages.ModelLoaded(7, 100, (0.0, 0.0, 0.0), 1.0)


def test_a_listener_that_fails_keeps_no_event_from_the_others(
    blob_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = WorkerClient(messages.TrainJob(blob_folder, tmp_path / "run", TrainConfig()))
    heard: list[object] = []

    def fail(event: object) -> None:
        raise IndexError(event)

    client.subscribe(fail)
    client.subscribe(heard.append)
    client.receive(LOADED)
    client.receive(LOADED)
    assert heard == [LOADED, LOADED]
    assert "IndexError" in caplog.text and "ModelLoaded" in caplog.text


def test_frames_that_nobody_waits_for_are_not_kept(
    blob_folder: Path, blob_scene: Scene, tmp_path: Path
) -> None:
    client = WorkerClient(messages.TrainJob(blob_folder, tmp_path / "run", TrainConfig()))
    image = np.zeros((4, 4, 3), np.uint8)
    frame = cast(messages.Frame, SimpleNamespace(view=5, seq=1))
    client.send(messages.SetView(5, 1, blob_scene.cameras[0], messages.ViewOptions()))
    client.take_frame(frame, image)
    assert client.wait_for_frame(5, 1, 0.0) is not None
    client.drop_view(5)
    client.take_frame(frame, image)
    assert client.wait_for_frame(5, 1, 0.0) is None


def test_a_studio_that_ends_by_an_error_leaves_nothing_in_the_temporary_folder(
    blob_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    program = (
        "import sys; from pathlib import Path\n"
        "from splatstudio.settings.config import TrainConfig\n"
        "from splatstudio.runtime.supervisor import WorkerClient\n"
        "from splatstudio.runtime.rank_group import RankGroup\n"
        "from splatstudio.runtime.messages import TrainJob\n"
        "client = WorkerClient(TrainJob(Path(sys.argv[1]), Path('run'), TrainConfig()))\n"
        "def fail(*_): raise RuntimeError('an error')\n"
        "group = RankGroup(print, client.job, 1, client.log_path, None)\n"
        "group._new_processes = fail; group.abandon = lambda: None\n"
        "group.start()\n"
    )
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    ended = subprocess.run(
        [sys.executable, "-c", program, str(blob_folder)], capture_output=True, text=True, cwd=tmp_path
    )
    assert ended.returncode == 1 and "RuntimeError: an error" in ended.stderr
    assert list((tmp_path / "temporary").glob("splatstudio-*")) == []


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_ctrl_c_right_after_the_start_does_not_end_the_fork_server() -> None:
    script = """
import multiprocessing, multiprocessing.forkserver as server
from pathlib import Path
from splatstudio.runtime.rank_group import _no_ctrl_c
multiprocessing.set_forkserver_preload([])
process = multiprocessing.get_context("forkserver").Process(target=int)
with _no_ctrl_c():
    process.start()
status = Path(f"/proc/{server._forkserver._forkserver_pid}/status").read_text()
blocked = next(line for line in status.splitlines() if line.startswith("SigBlk"))
print("SIGINT is blocked:", bool(int(blocked.split()[1], 16) & 2))
process.join()
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert "SIGINT is blocked: True" in told.stdout, told.stderr
