"""A training gives way to other programs, and more so as soon as somebody looks at its model."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from worker_watcher import MANY, TIMEOUT, Launch, front_camera, wait_until

from splatstudio.distributed.rank_devices import choose_devices
from splatstudio.runtime.messages import Progress, SetView, Start, TrainJob
from splatstudio.runtime.process_setup import ALONE, WATCHED, TrainingPriority
from splatstudio.runtime.supervisor import plan_for
from splatstudio.scene.scene import Scene

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="a priority belongs to the whole process"),
    pytest.mark.skipif(
        sys.platform == "linux" and os.getpriority(os.PRIO_PROCESS, 0) > 13,
        reason="the tests themselves give way as much as anything can",
    ),
]


def niceness(thread: int = 0) -> int:
    return os.getpriority(os.PRIO_PROCESS, thread)


def test_threads_that_yield_do_so_even_more_and_no_others() -> None:
    own = niceness(threading.get_native_id())
    seen: list[tuple[int, int, int]] = []

    def train() -> None:
        priority, me = TrainingPriority(), threading.get_native_id()
        priority.yield_to_others()
        over, started = threading.Event(), threading.Event()
        helper = threading.Thread(target=lambda: (started.set(), over.wait(TIMEOUT)))
        helper.start()
        assert started.wait(TIMEOUT) and helper.native_id is not None
        for _ in range(2):  # the second time nothing is left to do
            seen.append((niceness(me), niceness(helper.native_id), own))
            priority.yield_to_views()
        seen.append((niceness(me), niceness(helper.native_id), own))
        over.set()
        helper.join()

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    alone, watched = min(19, own + ALONE), min(19, own + WATCHED)
    assert seen == [(alone, alone, own), (watched, watched, own), (watched, watched, own)]
    assert niceness(threading.get_native_id()) == own


def test_a_look_that_comes_first_counts_too() -> None:
    seen: list[int] = []

    def train() -> None:
        priority = TrainingPriority()
        priority.yield_to_views()
        seen.append(niceness(threading.get_native_id()))
        priority.yield_to_others()
        seen.append(niceness(threading.get_native_id()))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    own = niceness(threading.get_native_id())
    assert seen == [own, min(19, own + WATCHED)]


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_training_yields_to_pictures_from_the_first_look_on(
    launch: Launch, blob_folder: Path, blob_scene: Scene, tmp_path: Path, num_ranks: int
) -> None:
    job = TrainJob(blob_folder, tmp_path / "run", MANY)
    worker = launch(job, plan_for(job, choose_devices(ranks=num_ranks)))

    def yielding(pid: int) -> set[int]:
        """Return by how much the threads of a rank that give way do so."""
        found: set[int] = set()
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):  # it has ended
                found.add(niceness(int(task.name)) - own)
        return found - {0}

    worker.send(Start())
    worker.wait(Progress)
    pids = worker.client.pids
    assert len(pids) == num_ranks
    # Of what the ranks were forked from: another test may have made this process give way meanwhile.
    own = niceness(psutil.Process(pids[0]).ppid())
    alone, watched = min(19, own + ALONE) - own, min(19, own + WATCHED) - own
    assert [yielding(pid) for pid in pids] == num_ranks * [{alone}]
    worker.send(SetView(1, 1, front_camera(blob_scene)))
    assert worker.client.wait_for_frame(1, 1, TIMEOUT) is not None
    for pid in pids:
        wait_until(lambda pid=pid: yielding(pid) == {watched}, "all that trains yields more")
    step = worker.of(Progress)[-1].step
    worker.wait(Progress, lambda event: event.step > step + 5)
