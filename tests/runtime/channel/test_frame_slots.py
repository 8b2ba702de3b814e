"""The memory of the frames, 33 MB a worker: nothing is left of it, however one ends or does not begin."""

from __future__ import annotations

import errno
import os
import signal
import tempfile
import textwrap
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from started_programs import run_program
from worker_faults import counting
from worker_watcher import MANY, Launch, alive, wait_until

from splatstudio.runtime.channel.frame_slots import FrameSlots
from splatstudio.runtime.messages import Close, Event, Start, StateChanged, TrainJob
from splatstudio.runtime.rank import rank_main
from splatstudio.runtime.supervisor import Plan, WorkerClient


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[FrameSlots]:
    """Return all frames that are made, of which none has a name at any time."""
    files: list[FrameSlots] = []
    create = FrameSlots.create

    def noted() -> FrameSlots:
        files.append(create())
        assert os.fstat(files[-1].file.opened.fileno()).st_nlink == 0
        return files[-1]

    monkeypatch.setattr(FrameSlots, "create", noted)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return files


def folders(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "temporary").glob("splatstudio-ranks-*"))


def test_a_worker_that_is_never_started_takes_nothing(made: list[FrameSlots], tmp_path: Path) -> None:
    client = WorkerClient(TrainJob(tmp_path, tmp_path / "run", MANY))
    client.kill()
    client.close()
    assert made == [] and folders(tmp_path) == []


def test_ranks_that_cannot_all_be_started_leave_nothing(
    made: list[FrameSlots], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[BaseProcess] = []
    start = BaseProcess.start

    def first_only(process: BaseProcess) -> None:
        if started:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        start(process)
        started.append(process)

    monkeypatch.setattr(BaseProcess, "start", first_only)
    client = WorkerClient(TrainJob(tmp_path, tmp_path / "run", MANY), Plan(rank_main, counting, 2))
    with pytest.raises(OSError, match="temporarily unavailable"):
        client.start()
    assert len(made) == 1 and made[0].file.opened.closed and folders(tmp_path) == []
    pid = started[0].pid
    assert pid is not None
    wait_until(lambda: not alive(pid), "the first rank is gone too")


def test_who_closes_while_it_restarts_leaves_nothing(
    launch: Launch, made: list[FrameSlots], blob_folder: Path, tmp_path: Path
) -> None:
    worker = launch(TrainJob(blob_folder, tmp_path / "run", MANY))
    client = worker.client

    def close(event: Event) -> None:
        if event == StateChanged("restarting"):
            client.send(Close())

    client.subscribe(close)
    client.send(Start())
    worker.reach("training")
    assert len(made) == 1 and made[0].file.opened.closed, "both have mapped it"
    os.kill(client.pid, signal.SIGKILL)
    wait_until(lambda: not client.alive, "it ends")
    assert all(slots.file.opened.closed for slots in made) and folders(tmp_path) == []


DIE_AT_ONCE = """
    import os, signal, sys
    from pathlib import Path
    from multiprocessing.process import BaseProcess
    from splatstudio.settings.config import TrainConfig
    from splatstudio.runtime.channel.frame_slots import FrameSlots
    from splatstudio.runtime.supervisor import WorkerClient
    from splatstudio.runtime.messages import TrainJob

    if __name__ == "__main__":
        create = FrameSlots.create
        def told():
            slots = create()
            print(os.readlink(f"/proc/self/fd/{slots.file.opened.fileno()}"), flush=True)
            return slots
        FrameSlots.create = told
        if sys.argv[2] == "before":
            BaseProcess.start = lambda _: os.kill(os.getpid(), signal.SIGKILL)
        folder = Path(sys.argv[1])
        WorkerClient(TrainJob(folder, folder / "run", TrainConfig())).start()
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="asks Linux for the name of a file")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_studio_killed_while_it_starts_its_worker_leaves_no_frames(tmp_path: Path, when: str) -> None:
    program = tmp_path / "die.py"
    program.write_text(textwrap.dedent(DIE_AT_ONCE))
    done = run_program(program, tmp_path, when, timeout=200)
    assert done.returncode == -signal.SIGKILL
    (line,) = done.stdout.splitlines()
    assert line.endswith(" (deleted)") and not Path(line.removesuffix(" (deleted)")).exists()
