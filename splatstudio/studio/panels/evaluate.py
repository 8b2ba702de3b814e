"""The Evaluate tab: the models on the disk by step, and what can be done with them beside the training."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import viser

from splatstudio.checkpoint_catalog import (
    CatalogEntry,
    content_mark,
    delete_entry,
    entries_of,
    folders_with_models,
)
from splatstudio.model import run_folder_of
from splatstudio.scoring import EvaluationTask
from splatstudio.studio.job_bar import can_be_sent, download
from splatstudio.studio.page import Page, Panel
from splatstudio.studio.panels.beside_bar import BesideBar
from splatstudio.studio.panels.file_work import file_to_write, folder_of_model, notice_of_end
from splatstudio.studio.panels.model_rows import PLAIN, facts_html, note_html, row_color, row_label
from splatstudio.studio.panels.scores import ScoresSection
from splatstudio.studio.panels.task_bar import TaskBar
from splatstudio.studio.status import Notice
from splatstudio.studio.theme import ACCENT, size
from splatstudio.typed_path import typed_path
from splatstudio.worker.file_tasks import FileTask, FileWorker, TaskEnd
from splatstudio.worker.messages import Event, Saved

PER_PAGE = 6
OPEN, EXPORT, DELETE = "Open", "Export", "Delete"
RESCAN_SECONDS = 3.0
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
        self._entries: tuple[CatalogEntry, ...] = ()
        self._folders: tuple[Path, ...] = ()
        self._selected: CatalogEntry | None = None
        self._asked: tuple[CatalogEntry, object] | None = None  # whether to delete it, and its mark then
        self._opened: Path | None = None  # the folder of the model that was opened here last
        self._turned = 0  # pages of the list
        self._turned_to: Path | None = None  # the page's own run, once it was chosen by itself
        self._refused = ""  # the folder that was said to be none
        self._scan_due = 0.0
        self._shown: object = None
        self._written: Path | None = None
        self._to_open: FileTask | None = None  # the merge whose model is to be shown
        gui = page.server.gui
        self._root = gui.add_text(
            "Folder", str(self._first_root()), hint="Of runs, or of results of gsplat's trainer."
        )
        self._run = gui.add_dropdown("Run", list[str](["–"]))
        self._rows = [gui.add_button(f"Model {i + 1}", color=PLAIN, visible=False) for i in range(PER_PAGE)]
        self._pager = gui.add_button_group("Page", ("‹ Later", "Earlier ›"), visible=False)
        self._facts = gui.add_html("")
        self._add_actions()
        self._bar = TaskBar(gui, self._worker)
        self._download = gui.add_button("Download", color="gray", visible=False)
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
        self._scores = ScoresSection(page, compare)
        self._connect()
        self._scan()

    def refresh(self) -> None:
        """Look at the disk now and then, and show how far the work is."""
        with self._lock:
            if time.monotonic() >= self._scan_due:
                self._scan()
            self._show_progress()
            self._beside.refresh()
            self._scores.refresh(self._shown_folder())

    def follow(self, event: Event) -> None:
        """Look for a checkpoint that was just written."""
        if isinstance(event, Saved):
            self._scan_due = 0.0

    def close(self) -> None:
        """End the work in progress."""
        self._worker.close()

    # ---- building

    def _first_root(self) -> Path:
        project = self._page.controller.project
        if project.run_dir is not None:
            return project.run_dir.parent
        return project.path if project.path.is_dir() else project.path.parent

    def _add_actions(self) -> None:
        gui = self._page.server.gui
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
        self._question = gui.add_html("", visible=False)
        self._answer = gui.add_button_group("Delete?", ("Keep it", "Delete it"), visible=False)

    def _connect(self) -> None:
        for place, row in enumerate(self._rows):
            row.on_click(lambda _, place=place: self._pick(place))
        self._root.on_update(lambda _: self._look_elsewhere())
        self._run.on_update(lambda _: self._look_elsewhere())
        self._pager.on_click(lambda event: self._turn(event.target.value))
        self._evaluate.on_click(lambda _: self._start_evaluation())
        self._merge.on_click(lambda _: self._start_merge())
        self._more.on_click(lambda event: self._do_more(event.target.value))
        self._answer.on_click(lambda event: self._answered(event.target.value))
        self._download.on_click(self._send)

    # ---- the list

    def _look_elsewhere(self) -> None:
        with self._lock:
            self._turned, self._selected = 0, None
            self._scan()

    def _scan(self) -> None:
        self._scan_due = time.monotonic() + RESCAN_SECONDS
        typed = self._root.value.strip() or "."
        try:
            folders = folders_with_models(typed_path(typed))
        except ValueError as error:
            folders = ()
            if typed != self._refused:  # this is looked at again and again
                self._page.notify(Notice("Nothing to list", str(error), bad=True))
                self._refused = typed
        if folders != self._folders:
            self._folders = folders
            names = tuple(folder.resolve().name for folder in folders) or ("–",)
            if names != self._run.options:
                self._run.options = names
        if folders:
            self._turn_to_own()
        chosen = self._chosen_folder()
        self._entries = () if chosen is None else entries_of(chosen)
        if self._selected is not None:
            same = [entry for entry in self._entries if entry.path == self._selected.path]
            self._select(same[0] if same else None)
        if self._selected is None and self._entries:
            self._select(self._entries[0])
        self._draw()

    def _turn_to_own(self) -> None:
        """Choose the run of this page once there is a model in it; afterwards the user chooses."""
        own = self._page.controller.project.run_dir
        if own is None or own == self._turned_to:
            return
        if own.resolve() in map(Path.resolve, self._folders) and entries_of(own):
            self._turned_to, self._selected, self._turned = own, None, 0
            self._run.value = own.resolve().name

    def _chosen_folder(self) -> Path | None:
        return next((folder for folder in self._folders if folder.resolve().name == self._run.value), None)

    def _turn(self, button: str) -> None:
        with self._lock:
            pages = -(-len(self._entries) // PER_PAGE)
            step = 1 if button.startswith("Earlier") else -1
            self._turned = min(max(self._turned + step, 0), max(pages - 1, 0))
            self._draw()

    def _pick(self, place: int) -> None:
        with self._lock:
            number = self._turned * PER_PAGE + place
            if number < len(self._entries):
                self._select(self._entries[number])
                self._draw()

    def _select(self, entry: CatalogEntry | None) -> None:
        before, self._selected = self._selected, entry
        if entry is None or (before is not None and before.path == entry.path):
            return
        self._hide_question()
        place = entry.owner / "exports"
        name = entry.owner.resolve().name
        self._merged.value = str(place / f"{name}-{entry.step}-merged{'.pt' if entry.is_gsplat else '.ply'}")
        self._exported.value = str(place / f"{name}-{entry.step}.ply")
        self._scores.show_file(entry.scores, entry.owner)

    def _draw(self) -> None:
        shown = (self._entries, self._selected, self._turned, self._worker.task)
        if shown == self._shown:
            return
        self._shown = shown
        page = self._entries[self._turned * PER_PAGE :][:PER_PAGE]
        for number, row in enumerate(self._rows):
            row.visible = number < len(page)
            if row.visible:
                row.label = row_label(page[number])
                row.color = row_color(page[number], page[number] == self._selected)
        self._pager.visible = len(self._entries) > PER_PAGE
        entry = self._selected
        project = self._page.controller.project
        alone = project.path if project.scene is None and project.path.is_file() else None
        self._facts.content = facts_html(entry, alone)
        usable = entry is not None and entry.state == "complete" and self._worker.task is None
        several = entry is not None and entry.num_ranks > 1
        self._merge.visible = several
        self._evaluate.label = "Merge & evaluate" if several else "Evaluate"
        self._evaluate.disabled = self._merge.disabled = not usable
        self._more.visible = entry is not None and self._worker.task is None

    # ---- the actions

    def _start(self, task: FileTask) -> None:
        if not self._worker.start(task):
            self._page.notify(Notice("Not started", "Another task is in progress.", bad=True))
        self._draw()

    def _evaluation_of(self, entry: CatalogEntry) -> EvaluationTask:
        if not entry.is_gsplat:
            return EvaluationTask(entry.path)  # its run knows scene, size and split
        project = self._page.controller.project
        scene, config = None if project.scene is None else project.scene.path, project.config
        split: dict[str, Any] = {"test_every": config.test_every, "images": config.images}
        return EvaluationTask(entry.path, scene, config.downscale, merge=True, **split)

    def _start_evaluation(self) -> None:
        with self._lock:
            entry = self._selected
            if entry is None:
                return
            output = self._output(self._merged.value) if entry.num_ranks > 1 else None
            if entry.num_ranks > 1 and output is None:
                return
            task = FileTask(
                f"Evaluating step {entry.step:,}",
                paths=entry.files if entry.is_gsplat else (entry.path,),
                output=output,
                evaluation=self._evaluation_of(entry),
                lpips=NETWORKS[self._lpips.value],
                color_correct=self._correct.value,
            )
            self._start(task)

    def _start_merge(self) -> None:
        self._write(self._merged.value, "Merging")

    def _do_more(self, button: str) -> None:
        with self._lock:
            entry = self._selected
            if entry is None:
                return
            if button == DELETE:
                self._ask(entry)
            elif entry.state != "complete":
                self._page.notify(Notice(f"Step {entry.step:,} is {entry.state}", entry.reason, bad=True))
            elif button == OPEN:
                self._open_model(entry)
            else:
                self._write(self._exported.value, "Exporting")

    def _write(self, output: str, verb: str) -> None:
        with self._lock:
            entry, path = self._selected, self._output(output)
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

    def _ask(self, entry: CatalogEntry) -> None:
        what = f"step {entry.step:,} of {entry.owner.name} ({size(entry.num_bytes)})"
        self._question.content = note_html(f"Delete {what} for good?")
        self._question.visible = self._answer.visible = True
        self._asked = (entry, content_mark(entry))

    def _answered(self, answer: str) -> None:
        with self._lock:
            asked = self._asked
            self._hide_question()
            if answer != "Delete it":
                return
            if asked is None:
                self._page.notify(Notice("Not deleted", "Another model was chosen: ask again.", bad=True))
                return
            entry, mark = asked
            if content_mark(entry) != mark:
                changed = f"{entry.path} has changed since you were asked: look at it, and ask again."
                self._page.notify(Notice("Not deleted", changed, bad=True))
                self._scan()
                return
            try:
                delete_entry(entry)
            except ValueError as error:
                self._page.notify(Notice("Not deleted", str(error), bad=True))
            else:
                self._page.notify(Notice(f"Deleted step {entry.step:,}", str(entry.path)))
            self._scan()

    def _hide_question(self) -> None:
        self._question.visible = self._answer.visible = False
        self._asked = None

    def _send(self, event: viser.GuiEvent) -> None:
        if event.client is not None and self._written is not None:
            download(event.client, self._written)

    # ---- the work

    def _show_progress(self) -> None:
        self._bar.refresh()
        self._draw()

    def _ended(self, task: FileTask, end: TaskEnd) -> None:
        with self._lock:
            if end.output is not None:
                self._written = end.output
                self._download.visible = can_be_sent(end.output)
                self._download.label = f"Download {end.output.name}"
            if end.scored is not None:
                self._scores.show(end.scored, folder_of_model(task.paths[0]))
            self._scan_due, self._shown = 0.0, None
        if end.scored is not None and end.scored.file is not None:
            self._page.controller.take_scores(end.scored.file)
        notice = notice_of_end(task, end)
        if notice is not None:
            self._page.notify(notice)
        if task is self._to_open and end.output is not None:
            self._show_model(end.output, folder_of_model(task.paths[0]))
