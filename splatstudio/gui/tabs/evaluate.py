"""The Evaluate tab: the models on the disk by step, and what can be done with them beside the training."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import viser

from splatstudio.checkpoints.catalog import (
    CatalogEntry,
    bytes_of,
    content_mark,
    delete_entry,
    entries_of,
    folders_with_models,
)
from splatstudio.files.path_words import path_words
from splatstudio.files.run import Run
from splatstudio.formats import format_to_write
from splatstudio.gui.amounts import size
from splatstudio.gui.dock import TaskBar
from splatstudio.gui.panel import Page, Panel, output_path, when_user
from splatstudio.gui.state.status import Notice
from splatstudio.gui.tabs.compare_runs import RunComparison, of_another_scene
from splatstudio.gui.tabs.folder_choice import browse_button
from splatstudio.gui.tabs.scores import NETWORKS, LpipsWeights, ScoresSection
from splatstudio.gui.theme import ACCENT, note_html, table_html
from splatstudio.models.model import run_folder_of
from splatstudio.models.other_outputs import scene_of_output
from splatstudio.models.scoring import EvaluationTask
from splatstudio.runtime.file_tasks import FileTask, TaskEnd
from splatstudio.runtime.messages import Event, Saved, Started
from splatstudio.settings.setting import typed_path

PER_PAGE = 6
COLORS = {
    "complete": (74, 82, 94),
    "part": (160, 115, 30),
    "damaged": (170, 60, 60),
}  # what is not stands out
KEEP_IT, DELETE_IT = "Cancel", "Delete"

FILES = "evaluate"  # the kind of this tab's tasks
OPEN, EXPORT, DELETE = "Open", "Export", "Delete"


def row_label(entry: CatalogEntry) -> str:
    """Return a model as a row of the list says it."""
    ranks = f" · {entry.num_ranks} ranks" if entry.num_ranks > 1 else ""
    psnr = f" · {entry.psnr:.2f} dB" if entry.psnr is not None else ""
    state = "" if entry.state == "complete" else f" · {entry.state}"
    return f"Step {entry.step:,}{ranks} · {size(entry.num_bytes)}{state}{psnr}"


def facts_html(entry: CatalogEntry | None, file: Path | None = None) -> str:
    """Return what is known of the chosen model as HTML; everything from outside is escaped.

    `file` is the model that is open where it is one alone, of which no scene is known.
    """
    if entry is None and file is not None:
        return note_html(
            f"No runs here. To compare {file.name} with photos, name the folder of its scene below."
        )
    if entry is None:
        return note_html("No models here yet: a checkpoint appears when it is saved.")
    sizes = [(file.name, bytes_of(file)) for file in entry.files]
    files = [f"{name}  {'not readable' if num is None else size(num)}" for name, num in sizes]
    rows = [
        ("Step", f"{entry.step:,}"),
        ("State", f"{entry.state}: {entry.reason}" if entry.reason else entry.state),
        ("Splats", "" if entry.num_gaussians is None else f"{entry.num_gaussians:,}"),
        ("Files", "\n".join(files) or "none"),
        ("Folder", path_words(entry.path if not entry.is_gsplat else entry.owner)),
    ]
    return table_html([row for row in rows if row[1]], mark="entry")


class ModelList(Panel):
    """A folder of runs, one of them, and its models, newest first. `lock` guards it and who acts on it."""

    def __init__(self, page: Page, lock: threading.RLock, on_select: Callable[[CatalogEntry], None]):
        """Build the fields and rows; `on_select` is called when another model is selected."""
        super().__init__(page)
        self._lock, self._on_select = lock, on_select
        self.entries: tuple[CatalogEntry, ...] = ()
        self.selected: CatalogEntry | None = None
        self.stale = True  # whether to look at the disk at the next refresh: something was written
        self.folders: tuple[Path, ...] = ()  # the runs and results in the folder that is listed
        self._turned = 0  # pages of the list
        self.follows = True  # the newest is selected, until the user chooses an older one
        self.held = False  # a newer one takes no question away
        self._turned_to: Path | None = None  # the page's own run, once it was chosen by itself
        self._refused = ""  # the folder that was said to be none
        with self.gui.add_folder("Runs elsewhere", expand_by_default=False):
            self._root = self.gui.add_text(
                "Folder", str(self._first_root()), hint="Of runs, or of results of gsplat's trainer."
            )
            browse_button(self, "Browse for runs", self._root, self._look_elsewhere)
        self._run = self.gui.add_dropdown("Run", list[str](["–"]))
        self._rows = [
            self.button(f"Model {i + 1}", partial(self._pick, i), visible=False) for i in range(PER_PAGE)
        ]
        pager = self.gui.add_button_group("Page", ("‹ Later", "Earlier ›"), visible=False)
        self.keep(pager, visible=lambda: len(self.entries) > PER_PAGE)
        for control in (self._root, self._run):
            when_user(control, lambda *_: self._look_elsewhere())
        when_user(pager, lambda _, button: self._turn(1 if button.startswith("Earlier") else -1))

    def refresh(self) -> None:
        """Show what is there; look at the disk where something was written."""
        super().refresh()
        if self.stale:
            self.scan()
        page = self.entries[self._turned * PER_PAGE :][:PER_PAGE]
        for number, row in enumerate(self._rows):
            row.visible = number < len(page)
            if row.visible:
                row.label = row_label(page[number])
                row.color = ACCENT if page[number] == self.selected else COLORS[page[number].state]

    def let_go(self) -> None:
        """Select the newest model at the next refresh, as before the user chose another one."""
        self.follows, self.stale = True, True

    def scan(self) -> None:
        """Look at the disk; keep what the user selected where it is still there, else turn to the newest."""
        self.stale = False
        self.folders = folders = self._folders_there()
        names = tuple(folder.resolve().name for folder in folders) or ("–",)
        if names != self._run.options:
            self._run.options = names
        self._turn_to_own()
        chosen = next((folder for folder in folders if folder.resolve().name == self._run.value), None)
        self.entries = () if chosen is None else entries_of(chosen)
        before, newest = self.selected, self.entries[0] if self.entries else None
        kept = next(
            (entry for entry in self.entries if before is not None and entry.path == before.path), None
        )
        if kept is None:
            self.follows = True  # who has chosen what is gone has chosen nothing
        if kept is None or (self.follows and not self.held):
            self._select(newest)
            self._turned = 0 if newest != before else self._turned
        else:
            self._select(kept)
        self._turned = min(self._turned, max(0, len(self.entries) - 1) // PER_PAGE)

    def _look_elsewhere(self) -> None:
        """List what is in the folder and the run that are chosen now."""
        with self._lock:
            self._turned, self.selected, self.follows = 0, None, True
            self.scan()

    def _first_root(self) -> Path:
        project = self.controller.project
        if project.run_dir is not None:
            return project.run_dir.parent
        return project.path if project.path.is_dir() else project.path.parent

    def _folders_there(self) -> tuple[Path, ...]:
        typed = self._root.value.strip() or "."
        try:
            place = typed_path(typed)
            if not place.is_dir() and place != self._first_root():  # which a first training makes
                what = "is a file" if place.exists() else "does not exist"
                raise ValueError(f"{place} {what}: name a folder of runs")
            return folders_with_models(place)
        except ValueError as error:
            if typed != self._refused:  # this is looked at again and again
                self.page.refuse("Nothing to list", error)
                self._refused = typed
            return ()

    def _turn_to_own(self) -> None:
        """Choose the run of this page once there is a model in it; afterward the user chooses."""
        own = self.controller.project.run_dir
        if own is None or own == self._turned_to:
            return
        if own.resolve() in map(Path.resolve, self.folders) and entries_of(own):
            self._turned_to, self.selected, self._turned, self.follows = own, None, 0, True
            self._run.value = own.resolve().name

    def _turn(self, step: int) -> None:
        with self._lock:
            self._turned = min(max(self._turned + step, 0), max(0, len(self.entries) - 1) // PER_PAGE)

    def _pick(self, place: int, _: viser.ClientHandle) -> None:
        with self._lock:
            page = self.entries[self._turned * PER_PAGE :]
            if place < len(page):
                self.follows = page[place] == self.entries[0]
                self._select(page[place])

    def _select(self, entry: CatalogEntry | None) -> None:
        before, self.selected = self.selected, entry
        if entry is not None and (before is None or before.path != entry.path):
            self._on_select(entry)


class EvaluatePanel(Panel):
    """Choose a model, merge, evaluate, open, export or delete it; the scores of the last evaluation.

    All browsers share these controls. The work is done by a process of its own.
    """

    look_seconds = 3.0

    def __init__(self, page: Page, compare: Callable[[viser.ClientHandle, int], None]):
        """Build the tab; `compare` brings a browser to a photo and compares it with the model."""
        super().__init__(page)
        gui, self._lock = self.gui, threading.RLock()
        self._opened: Path | None = None  # the folder of the model that was opened here last
        self._described: tuple[CatalogEntry | None, Path | None] | None = None  # what the facts are of
        self._suggested = ("", "")  # names of the files to write
        self._asked: tuple[CatalogEntry, object] | None = None  # about what to delete, and its mark then
        self._list = self.add(ModelList(page, self._lock, self._selected_another))
        self._facts = gui.add_html("")
        self._scene = NamedScene(page, self._evaluate_file) if self.controller.project.scene is None else None
        compares = "Compares with the test photos of its scene."
        self._evaluate = self.button(
            "Evaluate", lambda _: self._start_evaluation(), ACCENT, disabled=True, hint=compares
        )
        joins = "Joins the files of all ranks into one."
        self._merge = self.button("Merge", lambda _: self._join(), visible=False, hint=joins)
        whose = "Of the model that is chosen in the Evaluate tab, where several ranks have saved it"
        self._merge_command = page.hotkeys.add(
            None, "Merge the files of all ranks", lambda _: self._join(), whose
        )
        self._more = gui.add_button_group(
            "Model",
            (OPEN, EXPORT, DELETE),
            visible=False,
            hint="Export writes all splats, also those that a filter hides. Delete asks first.",
        )
        self._question = gui.add_html("", visible=False)
        self._answers = gui.add_button_group("Delete?", (KEEP_IT, DELETE_IT), visible=False)
        self._bar = self.add(TaskBar(page, FILES))
        with gui.add_folder("Measures and files", expand_by_default=False):
            self._lpips = gui.add_dropdown(
                "LPIPS",
                tuple(NETWORKS),
                initial_value="Both",
                hint="Measured if the network's weights are installed.",
            )
            self._weights = self.add(LpipsWeights(page, lambda: NETWORKS[self._lpips.value]))
            self._correct = gui.add_checkbox(
                "Color-corrected PSNR", False, hint="After the affine color map that fits the photo best."
            )
            self._merged = gui.add_text(
                "Merged file", "", hint="The ending chooses the format; none: a checkpoint."
            )
            self._exported = gui.add_text("Export file", "", hint="The ending chooses the format.")
        self._scores = ScoresSection(page, compare)
        self.runs = RunComparison(page, lambda: self._list.folders)
        when_user(self._more, lambda _, button: self._do_more(button))
        when_user(self._answers, lambda _, answer: self._answered(answer))

    def look(self) -> None:
        """Look for models that have come or gone, and for weights."""
        self._list.stale = True
        self._weights.look()

    def follow(self, event: Event) -> None:
        """Look for a checkpoint that was just written; a training that goes on does so from the newest."""
        if isinstance(event, Saved):
            self._list.stale = True
        elif isinstance(event, Started):
            with self._lock:  # a question of before has waited for no answer
                self._ask(None)
            self._list.let_go()

    def refresh(self) -> None:
        """Show what is chosen, and how far the work is."""
        with self._lock:
            super().refresh()
            self._scores.allow(self._shown_folder())
            self._show_choice()

    def _show_choice(self) -> None:
        entry, busy, file = self._list.selected, self.page.tasks.is_busy(FILES), None
        if self._scene is not None:
            listed = any(self._scene.file in each.files for each in self._list.entries)
            file = None if listed else self._scene.file
            self._scene.offer(file, busy=busy)
        if (entry, file) != self._described:
            before, self._described = self._described, (entry, file)
            self._facts.content = facts_html(entry, file)
            if before is not None and before[0] is not None and entry is None:  # the scores were that one's
                self._scores.show_file(None, Path())
        usable = entry is not None and entry.state == "complete" and not busy
        several = entry is not None and entry.num_ranks > 1
        self._merge.visible = several
        self._evaluate.label = "Merge & evaluate" if several else "Evaluate"
        self._evaluate.disabled = self._merge.disabled = not usable
        self._merge_command.disabled = not (usable and several)
        self._evaluate.visible = entry is not None or file is None
        self._more.label = "Model" if entry is None else f"Step {entry.step:,}"
        self._more.visible = entry is not None and not busy and self._asked is None

    def _selected_another(self, entry: CatalogEntry) -> None:
        self._ask(None)
        place = entry.owner / "exports"
        name = entry.owner.resolve().name
        merged = str(place / f"{name}-{entry.step}-merged{'.pt' if entry.is_gsplat else '.ply'}")
        suggested = (merged, str(place / f"{name}-{entry.step}.ply"))
        for field, before, now in zip(
            (self._merged, self._exported), self._suggested, suggested, strict=True
        ):
            if field.value == before:  # what was typed stays
                field.value = now
        self._suggested = suggested
        self._show_scores(entry)

    def _show_scores(self, entry: CatalogEntry) -> None:
        """Show a model's scores; of the newest one the last there are, until it has its own."""
        scored = (e for e in self._list.entries if e.owner == entry.owner and e.scores and e.scores.exists())
        last = next(scored, entry) if self._list.follows else entry
        if last == entry:
            self._scores.show_file(entry.scores, entry.owner)
        else:
            note = f"Step {entry.step:,} is not evaluated yet. These scores are of step {last.step:,}."
            self._scores.show_file(last.scores, entry.owner, note)

    def _shown_folder(self) -> Path | None:
        """Return the run, or the folder of results, of the model in the view."""
        controller = self.controller
        project, other = controller.project, controller.preview.path
        if other is not None:
            return run_folder_of(other) or folder_of_model(other)
        if self._opened is not None and controller.status.state in ("loading", "viewing"):
            return self._opened
        if project.run_dir is not None:
            return project.run_dir
        path = project.model_path or project.path
        return run_folder_of(path) or folder_of_model(path)

    # ---- the actions

    def _start_evaluation(self) -> None:
        with self._lock:
            entry = self._list.selected
            if entry is not None:
                evaluation = self._evaluation_of(entry)
                output = self._output(self._merged.value) if entry.num_ranks > 1 else None
                title = f"Evaluating step {entry.step:,} of {entry.owner.name}"
                self._measure(title, evaluation, _files(entry), output)

    def _evaluation_of(self, entry: CatalogEntry) -> EvaluationTask:
        if not entry.is_gsplat:
            return EvaluationTask(entry.path)  # its run knows scene, size and split
        scene, config = self.controller.project.scene, self.controller.project.config
        typed = None if self._scene is None else self._scene.folder
        folder = typed if scene is None else scene.path
        if folder is None:
            raise ValueError("Type the folder of the scene that this model shows into Scene.")
        split: dict[str, Any] = {"test_every": config.test_every, "images": config.images}
        return EvaluationTask(entry.path, folder, config.downscale, merge=True, **split)

    def _evaluate_file(self, file: Path, scene: Path | None) -> None:
        """Compare the file that is open alone with the scene that was typed, or with that of its run."""
        if scene is None and run_folder_of(file) is None:
            raise ValueError(f"Type the folder of the scene that {file.name} shows into Scene.")
        self._measure(f"Evaluating {file.name}", EvaluationTask(file, scene), (file,), None)

    def _measure(
        self, title: str, evaluation: EvaluationTask, paths: tuple[Path, ...], output: Path | None
    ) -> None:
        lpips, correct = NETWORKS[self._lpips.value], self._correct.value
        self._start(FileTask(title, paths, output, evaluation, lpips, correct))

    def _do_more(self, button: str) -> None:
        with self._lock:
            entry = self._list.selected
            if entry is None:
                return
            if button == DELETE:
                self._ask(entry)
            elif entry.state != "complete":
                raise ValueError(f"Step {entry.step:,} is {entry.state}: {entry.reason}")
            elif button == EXPORT:
                self._write(self._exported.value, "Exporting")
            elif not (entry.is_gsplat and entry.num_ranks > 1):
                self._show_model(entry.path, entry.owner)
            else:
                # A rank's file alone is no model to look at.
                title, output = f"Merging step {entry.step:,} to open it", self._output(self._merged.value)
                self._start(FileTask(title, entry.files, output), then_open=True)

    def _join(self) -> None:
        self._write(self._merged.value, "Merging")

    def _write(self, output: str, verb: str) -> None:
        with self._lock:
            entry = self._list.selected
            if entry is not None:
                self._start(FileTask(f"{verb} step {entry.step:,}", _files(entry), self._output(output)))

    def _output(self, text: str) -> Path:
        """Return what was typed, by a name that is free. Raises ValueError where it cannot be written."""
        path = output_path(text, self._suggested[0])
        if path.suffix:
            format_to_write(path)
        return self.page.free(path)

    def _start(self, task: FileTask, *, then_open: bool = False) -> None:
        self.page.tasks.start(FILES, task, lambda end: self._ended(task, end, then_open))

    def _ended(self, task: FileTask, end: TaskEnd, then_open: bool) -> None:
        owner = folder_of_model(task.paths[0])
        with self._lock:
            if end.scored is not None:
                note = self._of_another(task, end.scored.step)
                self._scores.show(end.scored.evaluation, end.scored.step, owner, note)
            self._list.stale = True
        if end.scored is not None and end.scored.file is not None:
            self.controller.take_scores(end.scored.file)
        if then_open and end.output is not None:
            self._show_model(end.output, owner)

    def _of_another(self, task: FileTask, step: int | None) -> str:
        """Return a sentence on whose scores these are where another model is chosen now, else ""."""
        chosen = self._list.selected
        of_file = self._scene is not None and task.paths == (self._scene.file,)  # by its own button
        if of_file or chosen is None or set(_files(chosen)) == set(task.paths):
            return ""
        model = task.paths[0]
        same_run = step is not None and folder_of_model(model) == chosen.owner
        whose = f"step {step:,}" if same_run else path_words(model)
        return f"These scores are of {whose}: another model was chosen meanwhile."

    def _show_model(self, path: Path, owner: Path) -> None:
        if self.page.keeps_the_view():
            return
        self.controller.view(path)
        if self.controller.preview.path is None:
            self._opened = owner
        if (told := of_another_scene(self.controller.project.scene, owner)) is not None:
            self.page.notify(told)

    def _ask(self, entry: CatalogEntry | None) -> None:
        """Ask whether a model, as it is now, shall be deleted; None: ask no more."""
        self._question.visible = self._answers.visible = entry is not None
        self._asked, self._list.held = None, entry is not None
        if entry is not None:
            self._more.visible = False  # so that there is one button that says Delete
            what = f"step {entry.step:,} of {entry.owner.name} ({size(entry.num_bytes)})"
            others = {each.path for each in entries_of(entry.owner)} - {entry.path}
            last = "" if others else " It is the only model there."
            self._question.content = note_html(f"Delete {what} for good?{last}")
            self._asked = (entry, content_mark(entry))

    def _answered(self, answer: str) -> None:
        with self._lock:
            asked = self._asked
            self._ask(None)
            try:
                if answer == DELETE_IT:
                    self._delete(asked)
            finally:
                self._list.scan()

    def _delete(self, asked: tuple[CatalogEntry, object] | None) -> None:
        if asked is None:
            raise ValueError("Another model was chosen: nothing is deleted. Ask again.")
        entry, mark = asked
        if content_mark(entry) != mark:
            told = path_words(entry.path)
            raise ValueError(f"{told} has changed since you were asked: look at it, and ask again.")
        delete_entry(entry)
        self.page.notify(Notice(f"Deleted step {entry.step:,}", path_words(entry.path)))


def _files(entry: CatalogEntry) -> tuple[Path, ...]:
    return entry.files if entry.is_gsplat else (entry.path,)


def folder_of_model(path: Path) -> Path:
    """Return the run or the folder of results to which a checkpoint or a file of gsplat's belongs."""
    folder = path.parent
    return folder.parent if folder.name == "ckpts" else folder


class NamedScene(Panel):
    """The scene that a page without one compares its models with, and a button for the file that is open."""

    def __init__(self, page: Page, evaluate: Callable[[Path, Path | None], None]):
        """Build both; `evaluate` is given the open file and the scene, None where none was typed."""
        super().__init__(page)
        self._offered: Path | None = None
        shows = "The folder of the scene that the models show; its test photos are used for comparison."
        self._field = self.gui.add_text("Scene", "", hint=shows)
        browse_button(self, "Browse for the scene", self._field, lambda: None)
        self.button_of_file = self.button(
            "Evaluate the open file",
            lambda _: evaluate(self.file, self.folder) if self.file is not None else None,
            ACCENT,
            visible=False,
        )

    @property
    def file(self) -> Path | None:
        """Return the file that is open alone, as a .ply of another program; None: something else is."""
        path = self.controller.project.path
        return path if path.is_file() else None

    @property
    def folder(self) -> Path | None:
        """Return the scene that was typed, None where none was. Raises ValueError for what cannot be one."""
        text = self._field.value.strip()
        return typed_path(text) if text else None

    def offer(self, file: Path | None, *, busy: bool) -> None:
        """Offer to evaluate the open `file`, where there is one and nothing else is under way."""
        self.button_of_file.visible = file is not None and not busy
        if file is None or file == self._offered:
            return
        self._offered = file
        self.button_of_file.label = f"Evaluate {file.name}"
        if not self._field.value:
            self._field.value = _scene_of(file)


def _scene_of(file: Path) -> str:
    """Return where the scene of a file in a run lies, "" where that is not known."""
    run_dir = run_folder_of(file)
    if run_dir is None:
        other = scene_of_output(file)
        return "" if other is None else str(other.path)
    try:
        return str(Run.open(run_dir).scene_path)
    except ValueError:
        return ""  # the user can say it
