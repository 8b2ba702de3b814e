"""What the buttons do: decides what is possible in each state, and gives the worker its orders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from splatstudio.gui.state.history import History
from splatstudio.gui.state.new_training import with_preset, with_settings
from splatstudio.gui.state.project import Project
from splatstudio.gui.state.status import Choice, Notice, Status, choice_of
from splatstudio.gui.state.worker_session import WorkerSession
from splatstudio.runtime.client import plan_for
from splatstudio.runtime.messages import Pause, Resume, Save, Start, Stop, TrainJob, UpdateSettings, ViewJob


class Controller(WorkerSession):
    """The studio's side of the worker. Methods may be called from any thread."""

    def __init__(self, project: Project, notify: Callable[[Notice], None]):
        self._untrained = False  # whether another model is on view before the training was ever started
        self._to_set: dict[str, Any] = {}  # live settings for when the training goes on
        super().__init__(project, notify)

    # ---- what the user can do

    def choice(self) -> Choice:
        """Return what the primary button says and whether it can be pressed."""
        return choice_of(self.status, self._resume_step, self._untrained, self._will_pause)

    @property
    def can_order(self) -> bool:
        """Say whether a training can be told to save, to pause or to stop, now or as soon as it is back."""
        return self.status.state in ("training", "paused") or self._will_pause is not None

    @property
    def _will_pause(self) -> bool | None:
        """Say of a training that is being started again whether it will stand still; else None."""
        job, state = self._worker.job, self.status.state
        retried = isinstance(job, TrainJob) and job.attempt > 0
        again = state == "restarting" or (state == "loading" and retried)
        return self._worker.will_pause if again else None

    def press_primary(self) -> None:
        """Start, pause or resume, whatever `choice` offers."""
        with self._lock:
            state = self.status.state
            if not self.choice().enabled:
                return
            if state == "training" or self._will_pause is False:
                self._worker.send(Pause())
            elif state in ("paused", "finished") or self._will_pause:
                self._worker.send(Resume())
            elif state == "ready":
                self._start_first()
            elif self._resume_step is not None:
                self._begin(resume=True)
            elif self.project.run_folder_taken:
                # What a failed training left behind is neither gone on with nor overwritten.
                self._start_anew()
            else:
                self._begin(resume=False)

    @property
    def can_start_over(self) -> bool:
        """Say whether there is something that a new run could leave behind."""
        return self.project.can_train and self.status.state in ("viewing", "finished", "failed", "ended")

    def start_over(self) -> None:
        """Make a new run ready to start, with all its settings to choose; the old one stays as it is."""
        with self._lock:
            if self.can_start_over:
                old = self._worker
                self._turn_to_new_run()
                if self._replace_worker(self.project.first_job(), "A new run was begun with Start over"):
                    old.close()

    def train_at_once(self) -> None:
        """Start or resume without waiting for the page; a run whose steps are all done is started over.

        Raises ValueError when there is nothing that could be trained.
        """
        if not self.project.can_train:
            raise ValueError(f"{self.project.path} is a finished model, which cannot be trained")
        with self._lock:
            if isinstance(self._worker.job, TrainJob):
                self._start_first()
            elif self._resume_step is not None:
                self._begin(resume=True)
            else:
                self._start_anew()

    @property
    def can_set_up(self) -> bool:
        """Say whether the training has not begun, so that every setting can still be chosen."""
        lost = self.status.state in ("failed", "ended") and self._resume_step is None
        return self.project.can_train and (self.status.state == "ready" or lost)

    def change_settings(self, values: Mapping[str, Any]) -> None:
        """Change settings, given by their dotted paths.

        A running training takes them from its next step on, which a SettingChanged confirms; what is still
        to be started or resumed begins with them. Raises ValueError, and changes nothing, where one is wrong.
        """
        with self._lock:
            if not self.can_set_up:
                self._change_later(values)
                return
            project, notice = with_settings(self.project, values)
            self._set_up(project)
        self._tell(notice)

    def choose_preset(self, name: str) -> None:
        """Take the settings of a preset, but for those that the user asked for.

        Raises ValueError, and changes nothing, after the start.
        """
        with self._lock:
            if not self.can_set_up:
                raise ValueError("a preset is chosen before the start, and this training has begun")
            project, notice = with_preset(self.project, name)
            self._set_up(project)
        self._tell(notice)

    def _set_up(self, project: Project) -> None:
        self.project = project
        self.status = replace(self.status, total_steps=project.config.steps)

    def _tell(self, notice: Notice | None) -> None:
        if notice is not None:
            self._notify(notice)

    def _change_later(self, values: Mapping[str, Any]) -> None:
        config = self.project.config_later(values, self.status.step)
        if self._trains:
            self._worker.send(UpdateSettings(tuple(values.items())))
            return
        self.project = replace(self.project, config=config, given=self.project.given | values.keys())
        self.status = replace(self.status, total_steps=config.steps)
        self._to_set |= values
        self._resume_step = self.project.resume_step

    @property
    def can_train_more(self) -> bool:
        """Say whether all steps that were planned are done, and their model is the one on view."""
        status = self.status
        done = status.state in ("viewing", "finished") and status.step >= status.total_steps
        own = self.project.can_train and self.project.owns(self._worker.job)
        return done and status.total_steps > 0 and own

    def train_more(self, num_steps: int) -> None:
        """Go on with a training that has done all its steps."""
        with self._lock:
            if self.can_train_more:
                self.change_settings({"steps": self.status.step + num_steps})
                if self._trains:
                    self._worker.send(Resume())
                else:
                    self._begin(resume=True)

    @property
    def _trains(self) -> bool:
        """Say whether the worker has a training that can take new settings."""
        under_way = self.status.state in ("loading", "training", "paused", "finished", "restarting")
        return under_way and isinstance(self._worker.job, TrainJob)

    @property
    def shown_path(self) -> Path | None:
        """Return which model from the disk is in the view, or is about to be; None: that of the training."""
        job = self._worker.job
        return self.beside.path or (job.model_path if isinstance(job, ViewJob) else None)

    @property
    def other_model(self) -> Path | None:
        """Return the model in the view where it is not of this project's run, None where it is."""
        job = self._worker.job
        if not isinstance(job, ViewJob) or not self.project.can_train or self.project.owns(job):
            return None
        return job.model_path

    def view(self, path: Path) -> None:
        """Show a model from the disk in place of the present one; a training in progress goes on behind it.

        Raises ValueError when its process cannot be started.
        """
        with self._lock:
            scene = self.project.scene
            frame = None if scene is None else tuple(map(tuple, scene.transform.tolist()))
            if self._trains and self.status.state != "finished":
                job = ViewJob(path, frame)
                self.beside.show(job, plan_for(job, self.project.devices))
                return
            self.beside.leave()
            old = self._worker
            self._resume_step = self.project.resume_step
            self._untrained = self.project.can_train and not self.project.run_folder_taken
            self.status = replace(self.status, state="loading", message="", has_model=False)
            if not self._replace_worker(ViewJob(path, frame), "Another model was opened"):
                return
            if not self.project.can_train:
                self.project = replace(self.project, path=path, model_path=path)
        old.close()

    def stop(self) -> None:
        """Save and end the training."""
        self.send(Stop())

    def save(self) -> None:
        """Write a checkpoint now."""
        self.send(Save())

    # ---- the worker

    def _begin(self, *, resume: bool) -> None:
        """Train in a new process; the one before, which only shows a model or has died, leaves."""
        old = self._worker
        self.status = replace(self.status, state="loading", message="", has_model=False)
        if not resume:
            job = self.project.training_job(resume=False)
        else:
            job, damaged = self.project.resumed_job()
            self._tell_damaged(damaged)
            job = replace(job, settings=(*job.settings, *self._to_set.items()))
        why = "The training was resumed" if resume else "The training was started anew"
        if not self._replace_worker(job, why):
            return
        self._to_set, self._untrained = {}, False
        self._worker.send(Start())
        old.close()

    def _start_first(self) -> None:
        """Start the training that the worker waits with, or another one if its settings have been changed."""
        job = self._worker.job
        if isinstance(job, TrainJob) and job.config == self.project.config:
            self._worker.send(Start())
        else:
            self._begin(resume=False)

    def _turn_to_new_run(self) -> None:
        self.project = self.project.started_over()
        self.history = History()
        self.status = Status(total_steps=self.project.config.steps)
        self._anew, self.last_step = True, None
        self._resume_step, self._to_set, self._untrained = None, {}, False

    def _start_anew(self) -> None:
        self._turn_to_new_run()
        self._begin(resume=False)
