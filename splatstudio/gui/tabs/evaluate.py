"""The Evaluate tab: the models on the disk by step, and what can be done with them beside the training."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import viser

from splatstudio.checkpoints.catalog import CatalogEntry
from splatstudio.gui.dock.job_bar import can_be_sent, download
from splatstudio.gui.dock.preview_bar import BesideBar
from splatstudio.gui.dock.task_bar import TaskBar
from splatstudio.gui.panel_context import Page, Panel
from splatstudio.gui.state.status import Notice
from splatstudio.gui.tabs.delete_question import DeleteQuestion
from splatstudio.gui.tabs.file_work import file_to_write, folder_of_model, notice_of_end
from splatstudio.gui.tabs.model_list import ModelList
from splatstudio.gui.tabs.model_rows import facts_html
from splatstudio.gui.tabs.named_scene import NamedScene
from splatstudio.gui.tabs.scores import ScoresSection
from splatstudio.gui.theme import ACCENT
from splatstudio.models.model import run_folder_of
from splatstudio.models.scoring import EvaluationTask
from splatstudio.runtime.file_tasks import FileTask, FileWorker, TaskEnd
from splatstudio.runtime.messages import Event, Saved

OPEN, EXPORT, DELETE = "Open", "Export", "Delete"
NETWORKS: dict[str, tuple[str, ...]] = {
    "AlexNet": ("alex",),
    "VGG": ("vgg",),
    "Both": ("alex", "vgg"),
    "None": (),
}


class EvaluatePanel(Panel):
    """Choose a model, merge, evaluate, open, export or delete it; the scores of the last evaluation.

    All browsers share these controls. The work is done by a process of its own.
    """

    def __init__(self, page: Page, compare: Callable[[viser.ClientHandle, int], None]):
        """Build the tab; `compare` brings a browser to a photograph and compares it with the model."""
        self._page = page
        self._lock = threading.RLock()
        self._worker = FileWorker(self._ended)
        self._opened: Path | None = None  # the folder of the model that was opened here last
        self._shown: object = None
        self._written: Path | None = None
        self._to_open: FileTask | None = None  # the merge whose model is to be shown
        gui = page.server.gui
        self._list = ModelList(page, self._lock, self._selected_another)
        self._facts = gui.add_html("")
        self._add_actions()
        self._bar = TaskBar(gui, self._worker)
        self._download = gui.add_button("Download", color="gray", visible=False)
        self._add_measures()
        self._scores = ScoresSection(page, compare)
        self._connect()
        self._list.scan()
        self._draw()

    def refresh(self) -> None:
        """Look at the disk now and then, and show how far the work is."""
        with self._lock:
            self._list.refresh()
            self._bar.refresh()
            self._draw()
            self._beside.refresh()
            self._scores.refresh(self._shown_folder())

    def follow(self, event: Event) -> None:
        """Look for a checkpoint that was just written."""
        if isinstance(event, Saved):
            self._list.look_soon()

    def close(self) -> None:
        """End the work in progress."""
        self._worker.close()

    # ---- building

    def _add_actions(self) -> None:
        gui = self._page.server.gui
        without_scene = self._page.controller.project.scene is None
        self._scene = NamedScene(self._page) if without_scene else None
        self._evaluate = gui.add_button(
            "Evaluate", color=ACCENT, disabled=True, hint="Compares with the test photos of its scene."
        )
        self._merge = gui.add_button(
            "Merge", visible=False, color="gray", hint="Joins the files of all ranks into one."
        )
        self._more = gui.add_button_group(
            "Model", (OPEN, EXPORT, DELETE), visible=False, hint="Delete asks first."
        )
        self._beside = BesideBar(self._page)
        self._question = DeleteQuestion(self._page)

    def _add_measures(self) -> None:
        gui = self._page.server.gui
        with gui.add_folder("Measures and files", expand_by_default=False):
            self._lpips = gui.add_dropdown(
                "LPIPS", tuple(NETWORKS), initial_value="Both", hint="Where the network's weights are there."
            )
            self._correct = gui.add_checkbox(
                "Color-corrected PSNR", False, hint="After the affine map of colors that fits a photo best."
            )
            self._merged = gui.add_text(
                "Merged file", "", hint="Its ending says the format; none: a checkpoint."
            )
            self._exported = gui.add_text("Export file", "", hint="Its ending says the format.")

    def _connect(self) -> None:
        self._evaluate.on_click(lambda _: self._start_evaluation())
        if (named := self._scene) is not None:
            named.button.on_click(lambda _: self._evaluate_file(named))
        self._merge.on_click(lambda _: self._start_merge())
        self._more.on_click(lambda event: self._do_more(event.target.value))
        self._question.buttons.on_click(lambda event: self._answered(event.target.value))
        self._download.on_click(self._send)

    # ---- what is chosen

    def _selected_another(self, entry: CatalogEntry) -> None:
        self._question.withdraw()
        place = entry.owner / "exports"
        name = entry.owner.resolve().name
        self._merged.value = str(place / f"{name}-{entry.step}-merged{'.pt' if entry.is_gsplat else '.ply'}")
        self._exported.value = str(place / f"{name}-{entry.step}.ply")
        self._scores.show_file(entry.scores, entry.owner)

    def _draw(self) -> None:
        entry, busy, file = self._list.selected, self._worker.task is not None, None
        if self._scene is not None:
            listed = any(self._scene.file in each.files for each in self._list.entries)
            file = None if listed else self._scene.file
            self._scene.offer(file, busy=busy)
        shown = (entry, busy, file)
        if shown == self._shown:
            return
        self._shown = shown
        self._facts.content = facts_html(entry, file)
        usable = entry is not None and entry.state == "complete" and not busy
        several = entry is not None and entry.num_ranks > 1
        self._merge.visible = several
        self._evaluate.label = "Merge & evaluate" if several else "Evaluate"
        self._evaluate.disabled = self._merge.disabled = not usable
        self._evaluate.visible = entry is not None or file is None
        self._more.visible = entry is not None and not busy

    # ---- the actions

    def _start(self, task: FileTask) -> None:
        if not self._worker.start(task):
            self._page.notify(Notice("Not started", "Another task is in progress.", bad=True))
        self._draw()

    def _evaluation_of(self, entry: CatalogEntry) -> EvaluationTask:
        if not entry.is_gsplat:
            return EvaluationTask(entry.path)  # its run knows scene, size and split
        project = self._page.controller.project
        scene, config = project.scene, project.config
        typed = None if self._scene is None else self._scene.folder
        folder = typed if scene is None else scene.path
        if folder is None:
            raise ValueError("Type the folder of the scene that this model shows into Scene.")
        split: dict[str, Any] = {"test_every": config.test_every, "images": config.images}
        return EvaluationTask(entry.path, folder, config.downscale, merge=True, **split)

    def _start_evaluation(self) -> None:
        with self._lock:
            entry = self._list.selected
            if entry is None:
                return
            try:
                evaluation = self._evaluation_of(entry)
            except ValueError as error:
                self._page.notify(Notice("Not started", str(error), bad=True))
                return
            output = self._output(self._merged.value) if entry.num_ranks > 1 else None
            if entry.num_ranks > 1 and output is None:
                return
            paths = entry.files if entry.is_gsplat else (entry.path,)
            self._start_measuring(f"Evaluating step {entry.step:,}", evaluation, paths, output)

    def _evaluate_file(self, named: NamedScene) -> None:
        """Compare the file that is open alone with the scene that was typed, or with that of its run."""
        with self._lock:
            file = named.file
            if file is None:
                return
            try:
                scene = named.folder
                if scene is None and run_folder_of(file) is None:
                    raise ValueError(f"Type the folder of the scene that {file.name} shows into Scene.")
            except ValueError as error:
                self._page.notify(Notice("Not started", str(error), bad=True))
                return
            self._start_measuring(f"Evaluating {file.name}", EvaluationTask(file, scene), (file,))

    def _start_measuring(
        self, title: str, evaluation: EvaluationTask, paths: tuple[Path, ...], output: Path | None = None
    ) -> None:
        lpips, correct = NETWORKS[self._lpips.value], self._correct.value
        self._start(FileTask(title, paths, output, evaluation, lpips, correct))

    def _start_merge(self) -> None:
        self._write(self._merged.value, "Merging")

    def _do_more(self, button: str) -> None:
        with self._lock:
            entry = self._list.selected
            if entry is None:
                return
            if button == DELETE:
                self._question.ask(entry)
            elif entry.state != "complete":
                self._page.notify(Notice(f"Step {entry.step:,} is {entry.state}", entry.reason, bad=True))
            elif button == OPEN:
                self._open_model(entry)
            else:
                self._write(self._exported.value, "Exporting")

    def _write(self, output: str, verb: str) -> None:
        with self._lock:
            entry, path = self._list.selected, self._output(output)
            if entry is None or path is None:
                return
            paths = entry.files if entry.is_gsplat else (entry.path,)
            self._start(FileTask(f"{verb} step {entry.step:,}", paths, path))

    def _output(self, text: str) -> Path | None:
        try:
            path, free = file_to_write(text)
        except ValueError as error:
            self._page.notify(Notice("Not started", str(error), bad=True))
            return None
        if free != path:
            self._page.notify(Notice(f"Writing {free.name}", f"{path} exists and stays as it is."))
        return free

    def _open_model(self, entry: CatalogEntry) -> None:
        if entry.is_gsplat and entry.num_ranks > 1:
            # A rank's file alone is no model to look at.
            output = self._output(self._merged.value)
            if output is not None:
                task = FileTask(f"Merging step {entry.step:,} to open it", entry.files, output)
                self._to_open = task
                self._start(task)
            return
        self._show_model(entry.path, entry.owner)

    def _show_model(self, path: Path, owner: Path) -> None:
        try:
            self._page.controller.view(path)
        except ValueError as error:
            self._page.notify(Notice("Not opened", str(error), bad=True))
            return
        if self._page.controller.beside.path is None:
            self._opened = owner

    def _shown_folder(self) -> Path | None:
        """Return the run, or the folder of results, of the model in the view."""
        controller = self._page.controller
        project, beside = controller.project, controller.beside.path
        if beside is not None:
            return run_folder_of(beside) or folder_of_model(beside)
        if self._opened is not None and controller.status.state in ("loading", "viewing"):
            return self._opened
        if project.run_dir is not None:
            return project.run_dir
        path = project.model_path or project.path
        return run_folder_of(path) or folder_of_model(path)

    def _answered(self, answer: str) -> None:
        with self._lock:
            self._question.answer(answer)
            self._list.scan()
            self._draw()

    def _send(self, event: viser.GuiEvent) -> None:
        if event.client is not None and self._written is not None:
            download(event.client, self._written)

    # ---- the work

    def _ended(self, task: FileTask, end: TaskEnd) -> None:
        with self._lock:
            if end.output is not None:
                self._written = end.output
                self._download.visible = can_be_sent(end.output)
                self._download.label = f"Download {end.output.name}"
            if end.scored is not None:
                self._scores.show(end.scored, folder_of_model(task.paths[0]))
            self._list.look_soon()
            self._shown = None
        if end.scored is not None and end.scored.file is not None:
            self._page.controller.take_scores(end.scored.file)
        notice = notice_of_end(task, end)
        if notice is not None:
            self._page.notify(notice)
        if task is self._to_open and end.output is not None:
            self._show_model(end.output, folder_of_model(task.paths[0]))
