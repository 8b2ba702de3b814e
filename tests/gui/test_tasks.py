"""The board of long tasks and the bars that show them: of a worker, and of a process of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gui_parts import Steered, evaluate_panel, fake_camera, scores, wait_until

from splatstudio.cameras.camera_path import CameraPath
from splatstudio.files.run import Run
from splatstudio.gui import dock
from splatstudio.gui.dock import PreviewBar, TaskBar, header_html, panel_label
from splatstudio.gui.panel import Page
from splatstudio.gui.state.status import Notice, Status
from splatstudio.gui.state.tasks import TaskBoard, notice_of_end
from splatstudio.gui.tabs.export import ExportPanel
from splatstudio.gui.tabs.render import PictureSection
from splatstudio.models.scoring import Scored
from splatstudio.runtime.file_tasks import FileTask, FileWorker, TaskEnd, TaskProgress
from splatstudio.runtime.messages import (
    CancelJob,
    Command,
    Event,
    Export,
    JobCancelled,
    JobDone,
    JobFailed,
    JobProgress,
    ModelLoaded,
    RenderPath,
    Snapshot,
    ViewJob,
)
from splatstudio.settings.config import TrainConfig


def text_of(page: Page, kind: object) -> str:
    status = page.tasks.newest(kind)
    assert status is not None
    return status.text


def test_the_board_follows_each_task_to_its_end(
    page: Page, notices: list[Notice], sent: list[Any], tmp_path: Path
) -> None:
    board, done, controller = page.tasks, list[JobDone](), page.controller

    def video(name: str) -> RenderPath:
        return RenderPath(CameraPath(()), tmp_path / name)

    first, second = board.submit(video("a.mp4"), done.append), board.submit(video("b.mp4"))
    third = board.submit(Export(tmp_path / "a.ply"))
    assert first and second and third
    jobs = [first.number, second.number, third.number]
    assert len(set(jobs)) == 3 and [command.job for command in sent] == jobs
    assert text_of(page, RenderPath) == "Rendering b.mp4 …"
    board.follow(JobProgress(jobs[1], 3, 1200, 61.0))
    assert text_of(page, RenderPath) == "Rendering b.mp4: 3 of 1,200, 1:01 min left"
    board.follow(JobProgress(jobs[1], 1200, 1200, 0.0))
    assert text_of(page, RenderPath) == "Rendering b.mp4: finishing …"
    board.follow(JobFailed(jobs[1], "The disk is full."))
    assert notices[-1].bad and "b.mp4" in notices[-1].title and "disk" in notices[-1].text
    newest = board.newest(RenderPath)
    assert newest and newest.number == jobs[0], "the one in progress is shown"
    board.follow(JobDone(jobs[0], tmp_path / "a.mp4", 2_000_000))
    assert notices[-1].title == "Rendered a.mp4 (2.0 MB)" and [event.job for event in done] == jobs[:1]
    board.cancel(jobs[2])
    assert sent[-1] == CancelJob(jobs[2])
    controller.replacements.append("The training was resumed")
    board.follow(JobCancelled(jobs[2]))
    assert "cancelled" in notices[-1].title and not notices[-1].bad
    assert notices[-1].text == "Nothing of it was kept.", "the user has cancelled it"
    board.follow(JobDone(99, tmp_path, 1))  # of somebody else
    assert len(notices) == 3
    fourth = board.submit(video("a.mp4"))
    controller.replacements.extend(["A new training was begun", "Another model was opened"])
    assert fourth is not None
    board.follow(JobFailed(fourth.number, "The process ended."))  # it had no time to cancel
    told = "A new training was begun, which put the model away; nothing of the file was kept."
    assert notices[-1] == Notice("Rendering a.mp4: cancelled", told)
    assert text_of(page, RenderPath) == f"Rendering a.mp4: cancelled. {told}"
    controller.status = Status()
    assert board.submit(video("a.mp4")) is None and notices[-1].bad


def test_a_file_that_is_gone_before_it_is_sent_is_told(
    page: Page, notices: list[Notice], tmp_path: Path
) -> None:
    video = page.tasks.submit(
        RenderPath(CameraPath(()), tmp_path / "a.mp4"), lambda done: print((tmp_path / "a.mp4").stat())
    )
    assert video is not None
    page.tasks.follow(JobDone(video.number, tmp_path / "a.mp4", 2_000_000))
    assert notices[-1] == Notice("Not done", f"{tmp_path / 'a.mp4'}: No such file or directory", bad=True)


@pytest.mark.parametrize(
    ("end", "words", "bad"),
    [
        (JobDone(1, Path("/data/a.ply"), 2_000_000), "Exported a.ply (2.0 MB). /data/a.ply", False),
        (JobFailed(1, "The disk is full."), "Exporting a.ply: failed. The disk is full.", True),
        (JobCancelled(1), "Exporting a.ply: cancelled. Nothing of it was kept.", False),
    ],
)
def test_the_end_of_a_task_stays_below_its_button(page: Page, end: Event, words: str, bad: bool) -> None:
    bar = TaskBar(page, Export)
    page.tasks.submit(Export(Path("/data/a.ply")))
    page.tasks.follow(end)
    bar.refresh()
    assert text_of(page, Export) == words and words in bar._text.content and bar._text.visible
    assert ("ss-bad" in bar._text.content) == bad and not bar._bar.visible


@pytest.mark.parametrize("end", [None, JobFailed(2, "no"), JobCancelled(2)])
def test_a_download_belongs_to_the_task_that_is_shown(page: Page, tmp_path: Path, end: Any) -> None:
    board, bar = page.tasks, TaskBar(page, Export)
    board.submit(Export(tmp_path / "a.ply"))
    board.follow(JobDone(1, tmp_path / "a.ply", 100))
    bar.refresh()
    assert bar._download.visible and "a.ply" in bar._download.label
    board.submit(Export(tmp_path / "b.ply"))
    if end is not None:
        board.follow(end)
    bar.refresh()
    assert not bar._download.visible
    board.submit(Export(tmp_path / "c.ply"))
    board.follow(JobDone(3, tmp_path / "c.ply", 100))
    if end is None:
        board.follow(JobDone(2, tmp_path / "b.ply", 100))
    bar.refresh()
    last = "b.ply" if end is None else "c.ply"
    assert bar._download.visible and last in bar._download.label


@pytest.mark.parametrize(("num_bytes", "offered"), [(499_999_999, True), (500_000_000, False)])
def test_only_what_a_browser_can_hold_is_offered(page: Page, num_bytes: int, offered: bool) -> None:
    bar = TaskBar(page, Export)
    page.tasks.submit(Export(Path("/data/a.ply")))
    page.tasks.follow(JobDone(1, Path("/data/a.ply"), num_bytes))
    bar.refresh()
    assert bar._download.visible == offered


def test_what_grew_since_it_was_offered_is_not_sent(tmp_path: Path) -> None:
    told: list[str] = []
    client: Any = type("Client", (), {"add_notification": lambda _, title, text, color: told.append(text)})()
    with open(tmp_path / "a.ply", "wb") as file:
        file.truncate(dock.MAX_DOWNLOAD_BYTES)  # takes no room on the disk
    dock.download(client, tmp_path / "a.ply")
    assert told == [f"{tmp_path / 'a.ply'}: it has become too large to be sent"]


class FakeFiles(FileWorker):
    """A process that goes on until it is told to end."""

    made: list[FakeFiles] = []  # noqa: RUF012 - of all tests

    def __init__(self, on_end: Callable[[FileTask, TaskEnd], None]):
        super().__init__(on_end)
        self.made.append(self)

    def start(self, task: FileTask) -> bool:
        """Begin nothing."""
        busy, self._task = self._task is not None, self._task or task
        return not busy

    def end(self, end: TaskEnd) -> None:
        """End it."""
        task, self._task, self.progress = self._task, None, None
        assert task is not None
        self._on_end(task, end)


def test_a_task_on_files_is_on_the_same_board_and_bar(
    page: Page, notices: list[Notice], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("splatstudio.gui.state.tasks.FileWorker", FakeFiles)
    board, bar, ends = page.tasks, evaluate_panel(page)._bar, list[TaskEnd]()
    bar.refresh()
    assert not bar._bar.visible and not bar._text.visible
    board.start("evaluate", FileTask("Evaluating step 20"), ends.append)
    with pytest.raises(ValueError, match="in progress"):
        board.start("evaluate", FileTask("Evaluating step 30"), ends.append)
    board.start("merge", FileTask("Merging 2 parts"), ends.append)  # somebody else's goes on beside it
    files = FakeFiles.made[-2]
    for done, total, percent in ((0, 0, 100.0), (3, 4, 75.0), (4, 4, 100.0)):
        files.progress = TaskProgress(done, total, "compared view_03.png")
        count = f", {done} of {total}" if total else ""
        wait_until(lambda count=count: text_of(page, "evaluate").endswith(f"compared view_03.png{count}"))
        bar.refresh()
        assert bar._bar.visible and bar._cancel.visible and not bar._download.visible
        assert bar._bar.value == percent and bar._bar.animated == (total == 0)
    assert board.in_progress is not None and panel_label(Status(), 0.0, board.in_progress).endswith("100 %")
    files.end(TaskEnd(cancelled=True))
    assert notices[-1] == Notice("Evaluating step 20: cancelled", "Nothing of it was kept.")
    (tmp_path / "a.ply").write_bytes(bytes(2000))
    board.start("evaluate", FileTask("Exporting step 20", output=tmp_path / "a.ply"), ends.append)
    files.end(TaskEnd(output=tmp_path / "a.ply", num_gaussians=1200))
    bar.refresh()
    assert bar._download.visible and bar._download.label == "Download a.ply (2 kB)" and len(ends) == 2
    board.start("evaluate", FileTask("Merging", output=tmp_path / "gone.ply"), ends.append)
    files.end(TaskEnd(output=tmp_path / "gone.ply", error="Why."))
    bar.refresh()
    assert not bar._download.visible and not bar._bar.visible


def test_the_end_of_a_task_on_files_is_told_as_done(tmp_path: Path) -> None:
    scored = Scored(scores(25.0), 10, tmp_path / "step_10.json")
    notice = notice_of_end(FileTask("Evaluating step 10"), TaskEnd(scored=scored))
    assert notice.title == "Evaluated step 10: PSNR 25.00 dB"
    written = TaskEnd(output=tmp_path / "a.ply", num_gaussians=1200)
    assert notice_of_end(FileTask("Merging"), written).title == "Written a.ply (1,200 splats)"
    stays = TaskEnd(cancelled=True, output=tmp_path / "merged.ply")
    assert notice_of_end(FileTask("Evaluating step 10"), stays).text.endswith("is complete and stays.")
    failed = notice_of_end(FileTask("Merging"), TaskEnd(error="Why."))
    assert failed == Notice("Merging: failed", "Why.", bad=True)


def test_a_process_that_dies_is_told(page: Page, notices: list[Notice], tmp_path: Path) -> None:
    if sys.platform == "win32":
        pytest.skip("the workers need a POSIX system")
    task = FileTask("Merging step 5", (tmp_path / "none.ply",), tmp_path / "a.ply")
    page.tasks.start("evaluate", task, lambda end: None)
    wait_until(lambda: not page.tasks.is_busy("evaluate"), "it ends")
    assert notices[-1].title == "Merging step 5: failed" and notices[-1].bad
    page.tasks.close()


def test_the_head_tells_of_a_task_until_it_has_ended(idle: Steered, tmp_path: Path) -> None:
    board = TaskBoard(idle.controller, lambda _: None)
    assert board.in_progress is None and "task" not in header_html("demo", Status(), 1, board.in_progress)
    idle.controller._worker.receive(ModelLoaded(0, 60, (0.0, 0.0, 0.0), 1.0))
    for name in ("<b>.ply", "c.ply"):
        assert board.submit(Export(tmp_path / name)) is not None
    board.follow(JobProgress(1, 3, 12, 2.0))
    head = header_html("demo", Status(), 1, board.in_progress)
    assert "Exporting &lt;b&gt;.ply: 3 of 12, 2 s left" in head
    without = header_html("demo", Status(), 2)
    assert "2 viewers" in without and head.count("<div") == without.count("<div"), "no line more"
    assert panel_label(Status(), 0.0, board.in_progress) == "splatstudio · Starting · Exporting 25 %"
    board.follow(JobDone(1, tmp_path / "b.ply", 10))
    assert "Exporting c.ply" in header_html("demo", Status(), 1, board.in_progress), "the next one"
    board.follow(JobDone(2, tmp_path / "c.ply", 10))
    assert board.in_progress is None


class Worker:
    """What a task is sent to."""

    def __init__(self) -> None:
        self.job = ViewJob(Path("other.ply"))
        self.sent: list[Command] = []
        self.hearers: list[Callable[[Event], None]] = []

    def send(self, command: Command) -> None:
        self.sent.append(command)

    def subscribe(self, hearer: Callable[[Event], None]) -> None:
        self.hearers.append(hearer)


def test_a_picture_is_of_the_model_that_is_shown(
    page: Page, notices: list[Notice], sent: list[Command]
) -> None:
    controller: Any = page.controller
    shown, board, section = Worker(), page.tasks, PictureSection(page)
    client: Any = type("Client", (), {"camera": fake_camera()})()
    section._shoot(client)
    assert len(sent) == 1 and shown.sent == []
    # Another model beside a training that has none of its own left.
    other = ModelLoaded(9, 7, (0.0, 0.0, 0.0), 1.0)
    controller.preview.shown = shown, other
    controller.status = Status(state="failed", has_model=False)
    section.refresh()
    assert not section._take.disabled
    section._shoot(client)
    section._shoot(client)
    assert len(sent) == 1 and len(shown.sent) == 2 and len(shown.hearers) == 1
    taken = board.newest(Snapshot)
    assert taken is not None and taken.end is None
    board.cancel(taken.number)
    assert shown.sent[-1] == CancelJob(taken.number) and len(sent) == 1
    shown.hearers[0](JobCancelled(taken.number))
    assert "cancelled" in notices[-1].title and notices[-1].text == "Nothing of it was kept."
    first: Any = shown.sent[0]
    shown.hearers[0](JobCancelled(first.job))
    assert notices[-1].text == "Its model was taken out of the view; nothing of the file was kept."
    controller.preview.shown = None
    section.refresh()
    assert section._take.disabled


def test_an_export_is_of_the_model_that_is_shown_and_called_so(
    page: Page, sent: list[Command], tmp_path: Path
) -> None:
    controller: Any = page.controller
    other = Run.create(tmp_path / "runs" / "other", tmp_path, TrainConfig()).path
    shown, panel = Worker(), ExportPanel(page)
    controller.status = Status(state="paused", step=40, num_gaussians=60, has_model=True)
    panel.refresh()
    assert panel._path.value == str(controller.project.run_dir / "exports" / "blobs-40.ply")
    controller.shown_path = other / "ckpts" / "step_00000009"
    panel.refresh()
    assert "blobs-40" in panel._path.value, "it is still being read"
    shown.job = ViewJob(controller.shown_path)
    controller.preview.shown = shown, ModelLoaded(9, 7, (0.0, 0.0, 0.0), 1.0)
    panel.refresh()
    assert panel._path.value == str(other / "exports" / "other-9.ply")
    assert "<div>Splats</div><div>7</div>" in panel._facts.content
    panel._write()
    assert sent == [] and isinstance(shown.sent[0], Export)


def test_the_task_that_ended_last_is_shown(page: Page, tmp_path: Path) -> None:
    first, second = (page.tasks.submit(RenderPath(CameraPath(()), tmp_path / "a.mp4")) for _ in range(2))
    assert first is not None and second is not None
    page.tasks.follow(JobFailed(second.number, "It is being written already."))
    page.tasks.follow(JobDone(first.number, tmp_path / "a.mp4", 10))
    newest = page.tasks.newest(RenderPath)
    assert newest is not None and newest.number == first.number and newest.file is not None


def test_what_is_behind_another_model_is_said_as_it_is(page: Page) -> None:
    controller: Any = page.controller
    controller.preview.path = Path("other.ply")
    bar = PreviewBar(page)
    said = {
        Status(state="training", has_model=True): "continues behind it",
        Status(state="paused", has_model=True): "is paused",
        Status(state="finished", has_model=True): "has stopped",
        Status(state="ended"): "has ended",
        Status(state="failed"): "has failed",
    }
    for status, words in said.items():
        controller.status = status
        bar.refresh()
        text = bar._text.content
        assert bar._text.visible and "other.ply" in text and words in text, text
        assert ("continues" in text) == (status.state == "training")
    assert "is being read" in bar._text.content and "exports" not in bar._text.content
    controller.preview.loaded = ModelLoaded(9, 1234, (0.0, 0.0, 0.0), 1.0)
    bar.refresh()
    assert "1,234 splats; pictures, videos and exports use it" in bar._text.content
    controller.preview.path = None
    bar.refresh()
    assert not bar._text.visible


def test_which_task_ends_with_the_model_in_the_view(page: Any, tmp_path: Path) -> None:
    board, controller, video = page.tasks, page.controller, RenderPath(CameraPath(()), tmp_path / "a.mp4")
    of_training = board.submit(video)
    assert board.of_the_view == of_training, "of a model from the disk"
    controller.can_order = True
    assert board.of_the_view is None, "a training goes on behind another model, and its tasks"
    worker = SimpleNamespace(subscribe=lambda hear: None, send=lambda command: None)
    controller.preview.worker = worker
    assert board.of_the_view is None
    of_preview = board.submit(video, worker=worker)
    assert board.of_the_view == of_preview
    board.follow(JobDone(of_preview.number, tmp_path / "a.mp4", 1))
    assert board.of_the_view is None
