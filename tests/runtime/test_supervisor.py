"""The parts of the supervision, each alone: heartbeats, blame, the limit to restarts, orders that hold."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
from multiprocessing import heap, util
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from blob_models import blobs
from started_programs import run_program

from splatstudio.models.model import Model
from splatstudio.runtime import fork_server, messages
from splatstudio.runtime.channel.codec import encode
from splatstudio.runtime.channel.mailbox import Mailbox
from splatstudio.runtime.headless_controller import keep_token, token_file
from splatstudio.runtime.heartbeat import Heartbeats, Limits, Phase, SilenceWatch
from splatstudio.runtime.messages import (
    Close,
    Command,
    Event,
    Export,
    JobFailed,
    Save,
    UpdateSettings,
)
from splatstudio.runtime.rank import setting_key
from splatstudio.runtime.root_cause import Cause, ErrorReport, RankEnd, read_report, root_cause, write_report
from splatstudio.runtime.supervisor import RestartPolicy, WorkerClient
from splatstudio.runtime.tasks import Tasks
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig


def settings(path: str, value: Any) -> UpdateSettings:
    return UpdateSettings(((path, value),))


def test_a_message_is_taken_only_while_it_is_the_next() -> None:
    mailbox: Mailbox[str] = Mailbox()
    mailbox.put("old settings", key="settings")
    mailbox.put("pause")
    seen = mailbox.peek()
    mailbox.put("new settings", key="settings")  # in the place of what was seen, and at the end
    assert seen == "old settings" and not mailbox.take_if(seen)
    assert mailbox.take_if("pause") and mailbox.messages() == ["new settings"]


def test_of_changes_of_one_setting_only_the_newest_is_kept() -> None:
    mailbox: Mailbox[Command] = Mailbox()
    both = UpdateSettings((("a", 3), ("b", 1)))
    for order in (settings("a", 1), settings("a", 2), both, settings("c", 1), Save(), settings("c", 2)):
        mailbox.put(order, setting_key(order))
    assert mailbox.peek() == settings("a", 2)
    taken = [mailbox.take() for _ in range(5)]
    assert taken == [settings("a", 2), both, Save(), settings("c", 2), None]
    mailbox.put(Close())
    mailbox.wait(10.0)
    assert mailbox.take() == Close()


def test_a_signal_handler_may_put_while_its_thread_holds_the_mailbox() -> None:
    mailbox: Mailbox[Command] = Mailbox()
    with mailbox.changed:
        mailbox.put(Close())
    assert mailbox.take() == Close()


class Ranks:
    """Heartbeats that a test writes, and the watch that reads them."""

    def __init__(self, num_ranks: int = 2):
        self.heartbeats = Heartbeats(multiprocessing.get_context("spawn"), num_ranks)
        self.num_ranks = num_ranks
        self.beat = 0
        for rank in range(num_ranks):
            self.phase(rank, Phase.TRAINING)
        limits = Limits(frozen=3.0, stuck={Phase.TRAINING: 6.0, Phase.LOADING: 60.0})
        self.watch = SilenceWatch(self.heartbeats, num_ranks, limits)

    def phase(self, rank: int, phase: Phase) -> None:
        self.heartbeats.write(rank, 2, int(phase))

    def seconds(self, count: int, *, alive: set[int], moving: set[int], order_waits: bool = False) -> Any:
        """Let time pass; return what the watch says, at the latest after that."""
        for _ in range(4 * count):
            self.beat += 1
            for rank in alive:
                self.heartbeats.write(rank, 0, self.beat)
            for rank in moving:
                self.heartbeats.write(rank, 1, self.beat)
            silence = self.watch.check(0.25, order_waits=order_waits)
            if silence is not None:
                return silence
        return None


def test_a_rank_is_silent_when_its_process_or_its_main_thread_stands_still() -> None:
    ranks = Ranks()
    assert ranks.seconds(20, alive={0, 1}, moving={0, 1}) is None
    silence = ranks.seconds(20, alive={0}, moving={0})
    assert (silence.rank, silence.frozen) == (1, True) and 3.0 < silence.seconds < 3.6
    ranks = Ranks()
    silence = ranks.seconds(20, alive={0, 1}, moving={1})
    assert (silence.rank, silence.frozen) == (0, False) and 6.0 < silence.seconds < 6.6


def test_a_long_task_has_a_limit_of_its_own() -> None:
    ranks = Ranks(1)
    ranks.phase(0, Phase.LOADING)
    assert ranks.seconds(50, alive={0}, moving=set()) is None
    assert not ranks.seconds(20, alive={0}, moving=set()).frozen


def test_a_rank_that_waits_owes_nothing_but_an_answer() -> None:
    ranks = Ranks(1)
    ranks.phase(0, Phase.WAITING)
    assert ranks.seconds(100, alive=set(), moving=set()) is None
    assert ranks.seconds(100, alive={0}, moving=set(), order_waits=True) is None
    assert ranks.seconds(10, alive=set(), moving=set(), order_waits=True).frozen


def test_a_studio_that_slept_itself_blames_nobody() -> None:
    ranks = Ranks(1)
    assert ranks.watch.check(3600.0, order_waits=False) is None
    assert ranks.watch.check(3600.0, order_waits=False) is None


def report(rank: int, when: int, text: str, *, final: bool = False) -> ErrorReport:
    return ErrorReport(rank, 7, "RuntimeError", text, f"It said: {text}.", final, when)


def test_a_signal_is_to_blame_before_any_error() -> None:
    ends = [
        RankEnd(0, 7, 1, report(0, 10, "Connection closed by peer [127.0.0.1]:4711")),
        RankEnd(1, 7, -9),
    ]
    cause = root_cause(ends, 2)
    assert (cause.rank, cause.kind) == (1, "SIGKILL") and cause.sentence.startswith("Rank 1 was killed")
    silent = [ends[0], RankEnd(1, 7, -9, silence="stood still for 10 s")]
    assert root_cause(silent, 2).sentence == "Rank 1 stood still for 10 s."


def test_the_earliest_error_of_a_ranks_own_is_to_blame() -> None:
    ends = [
        RankEnd(0, 8, 1, report(0, 10, "[gloo] Connection closed by peer")),
        RankEnd(1, 7, 1, report(1, 30, "the second")),
        RankEnd(2, 7, 1, report(2, 20, "the first")),
        RankEnd(3, 7, 1, report(3, 5, "of all alike", final=True)),
    ]
    cause = root_cause(ends[:3], 4)
    assert (cause.rank, cause.final) == (2, False) and cause.sentence == "Rank 2: It said: the first."
    cause = root_cause(ends, 4)
    assert cause.final and cause.sentence == "It said: of all alike."
    assert root_cause(ends[:1], 3).rank == 0, "a peer's error is better than none"
    alone = root_cause([RankEnd(0, 7, 1, report(0, 1, "x"))], 1)
    assert alone.sentence == "It said: x.", "one rank alone has no number"
    assert "exit code 3" in root_cause([RankEnd(0, 0, 3)], 1).sentence
    assert root_cause([RankEnd(0, 0, 0)], 1).sentence == "The background process was told to end (SIGTERM)."


def test_a_report_comes_back_as_it_was_written(tmp_path: Path) -> None:
    write_report(tmp_path, 1, 42, ValueError("no such photo\nmore"), "No such photo.")
    back = read_report(tmp_path, 1)
    assert back is not None and (back.step, back.text, back.final) == (42, "no such photo", True)
    assert read_report(tmp_path, 0) is None
    (tmp_path / "error-0.json").write_text("{")
    assert read_report(tmp_path, 0) is None
    new = tmp_path / "new"  # a rank that a launcher started makes its folder for this alone
    write_report(new, 0, 7, ValueError("x"), "X.")
    assert read_report(new, 0) is not None
    write_report(
        tmp_path / "error-1.json", 0, 7, ValueError("x"), "X."
    )  # a disk on which nothing can be made


def test_a_task_for_which_there_is_no_thread_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    told: list[Event] = []
    jobs = Tasks(told.append, lambda: True)
    monkeypatch.setattr(threading.Thread, "start", no_more)
    for job in (1, 2):  # the first is not in the way of the second, which writes the same file
        jobs.start(Export(Path("a.ply"), job=job), lambda: Model(blobs()))
        assert told[-1] == JobFailed(job, "This task could not be started: can't start new thread.")
    jobs.close()


def test_a_token_that_cannot_be_kept_leaves_no_file_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = token_file(tmp_path / "run")
    file.mkdir(parents=True)
    with pytest.raises(OSError):
        keep_token(tmp_path / "run", "a" * 22)
    assert list(file.parent.iterdir()) == [file]


def test_restarts_are_counted_over_ten_minutes() -> None:
    now = [0.0]
    policy = RestartPolicy(lambda: now[0])
    for step in (1, 2, 3):
        assert policy.refuse_or_count(Cause(0, step, "SIGKILL", "")) is None
    assert "3 times within 10 minutes" in (policy.refuse_or_count(Cause(0, 4, "SIGKILL", "")) or "")
    now[0] = 601.0
    assert policy.refuse_or_count(Cause(0, 5, "SIGKILL", "")) is None


def test_the_same_end_at_the_same_step_is_not_tried_again() -> None:
    policy = RestartPolicy()
    first = Cause(0, 57, "RuntimeError: bad", "")
    assert policy.refuse_or_count(first) is None
    assert "at step 57 for the second time" in (policy.refuse_or_count(first) or "")
    policy = RestartPolicy()
    assert policy.refuse_or_count(first) is None
    assert policy.refuse_or_count(Cause(0, 57, "RuntimeError: other", "")) is None
    assert RestartPolicy().refuse_or_count(Cause(0, 57, "ValueError: nan", "", final=True)) == ""


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
    ended = run_program("-c", program, blob_folder, cwd=tmp_path)
    assert ended.returncode == 1 and "RuntimeError: an error" in ended.stderr
    assert list((tmp_path / "temporary").glob("splatstudio-*")) == []


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_no_stop_signal_ends_the_fork_server() -> None:
    script = """
import multiprocessing, multiprocessing.forkserver as server
from multiprocessing import heap, util
from pathlib import Path
from splatstudio.runtime.fork_server import guarded_start
multiprocessing.set_forkserver_preload([])
process = multiprocessing.get_context("forkserver").Process(target=int)
with guarded_start():
    process.start()
status = Path(f"/proc/{server._forkserver._forkserver_pid}/status").read_text()
blocked = next(line for line in status.splitlines() if line.startswith("SigBlk"))
mask = int(blocked.split()[1], 16)
print("blocked:", [number for number in (1, 2, 15) if mask & 1 << number - 1])
process.join()
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert "blocked: [1, 2, 15]" in told.stdout, told.stderr


def test_an_event_that_cannot_be_read_keeps_none_from_being_heard(
    blob_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = WorkerClient(messages.TrainJob(blob_folder, tmp_path / "run", TrainConfig()))
    heard: list[object] = []
    client.subscribe(heard.append)
    sent = [b"no event", encode(LOADED)]
    group = SimpleNamespace(
        wait=lambda: bool(sent), connection=SimpleNamespace(recv_bytes=lambda: sent.pop(0))
    )
    cast(Any, client._supervisor)._forward_events(group)
    assert heard == [LOADED] and "could not be read" in caplog.text


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/shm is Linux's")
def test_memory_is_shared_by_files_where_none_lie_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap.Arena, "_dir_candidates", ["/dev/shm"])
    arena: Any = heap.Arena(4096)
    if fork_server.memory_folder() is not None:
        assert arena._choose_dir(4096) == "/dev/shm", "as long as it can be written to"
    monkeypatch.setattr(fork_server, "memory_folder", lambda: None)
    fork_server.process_context()
    assert arena._choose_dir(4096) == util.get_temp_dir()
