"""The folder of a run: run.json, metrics.jsonl, ckpts/, eval/, exports/, logs/."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import socket
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from splatstudio.error_text import remedy, shown
from splatstudio.files.durable import write_json_durably
from splatstudio.files.inputs import read_input
from splatstudio.files.outputs import make_folder, open_output
from splatstudio.operating_system import NO_LOCKS, content, remove_locked, rewrite, take_lock
from splatstudio.settings.config import TrainConfig, from_json, to_json

FORMAT_VERSION = 1
# What a user may have made before the first step.
PATHS_FOLDER = "camera_paths"
CROP_FILE = "crop.json"
ORDERS_FILE = "orders.json"  # for a launcher that starts the ranks again
LONGEST_ROW = 1 << 16  # bytes of a line of metrics.jsonl
STEP_FOLDER = re.compile(r"step_(\d{8,})")  # of a complete checkpoint, in ckpts/

MOST_BYTES = 4096  # of a lock file
PATIENCE_SECONDS = 2.0  # for a process that is just ending, as when a training starts again after a crash


@dataclass(frozen=True)
class Metrics:
    """The lines of metrics.jsonl that are whole, by rising step, and a sentence for each that is not."""

    rows: tuple[dict[str, Any], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """A run folder that exists: where it lies, which scene it trains, and how."""

    path: Path
    scene_path: Path
    config: TrainConfig

    @classmethod
    def create(cls, path: Path, scene_path: Path, config: TrainConfig) -> Run:
        """Make the folder and its run.json.

        Raises ValueError when `path` already holds something, or one of them cannot be made.
        """
        path, scene_path = Path(path), Path(scene_path).resolve()
        is_new = not path.exists()
        try:
            make_folder(path)
            taken = is_taken(path)
        except OSError as error:
            raise ValueError(f"the run folder {path} cannot be made: {error.strerror}") from error
        if taken:
            raise ValueError(
                f"the run folder {path} is not empty: resume it (--resume, in Python resume=True), or name"
                " another one"
            )
        run = cls(path, scene_path, config)
        try:
            run.write()
        except OSError as error:
            if is_new:
                with suppress(OSError):
                    path.rmdir()
            raise ValueError(
                f"the run folder {path} cannot be written to ({error.strerror}): {remedy(error)}, or name"
                " another one"
            ) from error
        return run

    @classmethod
    def open(cls, path: Path) -> Run:
        """Read the run.json of an existing run.

        Raises ValueError, naming the file, when there is none or it cannot be understood.
        """
        file = Path(path) / "run.json"
        try:
            values = json.loads(read_input(file))
        except OSError as error:
            raise ValueError(f"{path} is no run folder: {file} cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise ValueError(f"{file} is damaged: it is not JSON ({error})") from error
        if not isinstance(values, dict) or not isinstance(values.get("scene"), str):
            raise ValueError(f"{file} is damaged: it names no scene")
        version = values.get("format_version")
        if version != FORMAT_VERSION:
            raise ValueError(
                f"{file} has format version {shown(version)}; this program reads {FORMAT_VERSION}"
            )
        try:
            config = from_json(TrainConfig, values.get("config", {}))
        except ValueError as error:
            raise ValueError(
                f"{file}: {error}; another version of splatstudio may have written it"
            ) from error
        return cls(Path(path), Path(values["scene"]), config)

    def write(self) -> None:
        """Write run.json, and make its folder where that was deleted; OSError where that is not possible."""
        make_folder(self.path)
        values = {
            "format_version": FORMAT_VERSION,
            "scene": str(self.scene_path),
            "config": to_json(self.config),
        }
        write_json_durably(self.path / "run.json", values)

    def with_scene(self, scene: Path) -> Run:
        """Note in run.json that the scene lies there now, and return the run with it.

        Raises OSError where the file cannot be written.
        """
        self._rewrite("scene", str(scene))
        return dataclasses.replace(self, scene_path=scene)

    def with_images(self, folder: str) -> Run:
        """Note in run.json that the photos lie in `folder` now, and return the run with it.

        Raises OSError where the file cannot be written.
        """
        config = dataclasses.replace(self.config, images=folder)
        self._rewrite("config", to_json(config))
        return dataclasses.replace(self, config=config)

    def _rewrite(self, name: str, value: object) -> None:
        """Change one value of run.json."""
        file = self.path / "run.json"
        write_json_durably(file, {**json.loads(read_input(file)), name: value})

    def append_metrics(self, *rows: dict[str, Any]) -> None:
        """Append lines to metrics.jsonl, all of them or none; numbers that are not finite become null.

        A last line that a crash has cut off is dropped. Raises OSError where they cannot be written.
        """
        lines = [
            json.dumps({name: finite_or_none(value) for name, value in row.items()}) + "\n" for row in rows
        ]
        data = "".join(lines).encode()
        with os.fdopen(
            open_output(self.path / "metrics.jsonl", os.O_RDWR | os.O_APPEND), "rb+", buffering=0
        ) as file:
            end = file.seek(0, os.SEEK_END)
            tail_at = file.seek(max(0, end - LONGEST_ROW))
            tail = file.read()
            torn = tail[tail.rfind(b"\n") + 1 :]
            if torn and _parsed(torn) is not None:
                data = b"\n" + data  # somebody else wrote it
            elif torn:
                end = tail_at + len(tail) - len(torn)
                file.truncate(end)
            try:
                while data:
                    data = data[file.write(data) or 0 :]
            except OSError:
                file.truncate(end)
                raise

    def metrics(self) -> Metrics:
        """Return what `read_metrics` does."""
        return read_metrics(self.path)

    @property
    def planned_steps(self) -> int | None:
        """Return how many steps the run was last told to make, None where its settings alone tell."""
        told = (row.get("value") for row in reversed(self.metrics().rows) if row.get("setting") == "steps")
        return next((steps for steps in told if type(steps) is int and steps > 0), None)

    def replanned(self, config: TrainConfig) -> TrainConfig:
        """Return the settings of a checkpoint with `planned_steps`: it may be of before they were changed."""
        return dataclasses.replace(config, steps=self.planned_steps or config.steps)


def finite_or_none(value: Any) -> Any:
    """Return `value`, or None for a number that JSON has no word for."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_metrics(run_dir: Path) -> Metrics:
    """Return the lines of metrics.jsonl; steps made again after a resume replace the old ones."""
    file = run_dir / "metrics.jsonl"
    if not file.exists():
        return Metrics(())
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for number, line in enumerate(read_input(file).split(b"\n"), start=1):
        if not line.strip():
            continue
        row = _parsed(line)
        if row is None:
            notes.append(f"{file}: line {number} is damaged and left out")
            continue
        while rows and rows[-1].get("step", 0) > row.get("step", 0):
            rows.pop()
        rows.append(row)
    return Metrics(tuple(rows), tuple(notes))


def newest_step(run_dir: Path) -> int | None:
    """Return the step of the last checkpoint by the names of their folders, None where there is none."""
    return next((step for step, _ in _saved_steps(run_dir)), None)


def refuse_gone_on(run_dir: Path, known: int | None) -> None:
    """Raise ValueError where a run has a later step than `known`, its newest when it was decided to go on.

    Another process trained it meanwhile: to go on from `known` would train the same steps once more.
    """
    newest = newest_step(run_dir)
    if newest is not None and newest > (known or 0):
        raise ValueError(
            f"the run {run_dir} was trained by another process meanwhile and is at step {newest:,}: resume it"
            " again"
        )


def score_files(run_dir: Path, last_step: int | None = None) -> dict[int, Path]:
    """Return the files in eval/ by rising step, those of steps until `last_step`, None: all.

    What a later step left there is of a model that is lost: the training had to go back behind it.
    """
    named = ((file.stem.removeprefix("step_"), file) for file in (run_dir / "eval").glob("step_*.json"))
    steps = {int(digits): file for digits, file in named if digits.isdecimal()}
    return {step: steps[step] for step in sorted(steps) if last_step is None or step <= last_step}


def newest_scores(run_dir: Path, last_step: int | None = None) -> Path | None:
    """Return the newest of `score_files`; None: there is none."""
    files = [*score_files(run_dir, last_step).values()]
    return files[-1] if files else None


def newest_psnr(run_dir: Path, last_step: int | None = None) -> float | None:
    """Return the mean test PSNR, dB, of the newest evaluation until `last_step`; None where there is none."""
    file = newest_scores(run_dir, last_step)
    try:
        psnr = None if file is None else json.loads(read_input(file))["psnr"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return float(psnr) if isinstance(psnr, (int, float)) and math.isfinite(psnr) else None


def newest_scored(run_dir: Path) -> dict[str, Any]:
    """Return step, mean PSNR (dB) and mean SSIM of the newest evaluation by name; empty: there is none."""
    return _means_in(newest_scores(run_dir))


def scored_at(run_dir: Path, step: int) -> dict[str, Any]:
    """Return the same of the evaluation of a step."""
    return _means_in(score_files(run_dir).get(step))


def _means_in(file: Path | None) -> dict[str, Any]:
    try:
        values = {} if file is None else json.loads(read_input(file))
        means = {name: values[name] for name in ("step", "psnr", "ssim")} if values else {}
        sound = all(isinstance(value, (int, float)) and math.isfinite(value) for value in means.values())
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return {}
    return means if sound else {}


def figures_of_run(run_dir: Path) -> str:
    """Return the last saved step and the test PSNR of a run, with its step where that is an earlier one."""
    step, words = saved_step(run_dir)
    if step is None:
        return words
    psnr, file = newest_psnr(run_dir, step), newest_scores(run_dir, step)
    if psnr is None or file is None:
        return words
    scored = int(file.stem.removeprefix("step_"))
    return f"{words} · {psnr:.2f} dB" + (f" at step {scored:,}" if scored != step else "")


def saved_step(run_dir: Path) -> tuple[int | None, str]:
    """Return the step of the newest checkpoint that looks whole, None without one, and that in words.

    Looks at the sizes of its files alone, which takes no time. A newer one that is damaged is told of.
    """
    steps, damaged = _saved_steps(run_dir), ""
    for step, folder in steps:
        if _looks_whole(folder):
            return step, f"step {step:,}{damaged}"
        damaged = damaged or f" (step {step:,} is damaged)"
    return None, f"step {steps[0][0]:,} is damaged" if steps else "no step saved"


def _saved_steps(run_dir: Path) -> list[tuple[int, Path]]:
    """Return the steps and folders of a run's checkpoints, the newest first."""
    try:
        names = os.listdir(run_dir / "ckpts")
    except OSError:
        return []
    found = [(int(match[1]), name) for name in names if (match := STEP_FOLDER.fullmatch(name))]
    return [(step, run_dir / "ckpts" / name) for step, name in sorted(found, reverse=True)]


def _looks_whole(checkpoint: Path) -> bool:
    """Return whether the files of a checkpoint are there and have the sizes that it tells."""
    try:
        ranks = json.loads(read_input(checkpoint / "manifest.json"))["ranks"]
        return all(os.path.getsize(checkpoint / rank["file"]) == rank["bytes"] for rank in ranks)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run; a link whose target is gone is none."""
    return (folder / "run.json").exists()


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder is that of a checkpoint, also of a damaged one.

    Where poses are estimated there is a manifest, too: that of the photos beside it.
    """
    return (folder / "manifest.json").exists() and not (folder / "images").exists()


def scene_of(run_dir: Path) -> Path | None:
    """Return the scene that a run trains, None where its run.json cannot be read."""
    try:
        return Run.open(run_dir).scene_path.resolve()
    except (ValueError, OSError):
        return None


def run_name(scene_path: Path) -> str:
    """Return how runs of a scene are called: as its folder, and as its file where it is opened by that."""
    scene = Path(scene_path).resolve()
    return f"{scene.parent.name}-{scene.stem}" if scene.is_file() else scene.name or "scene"


def new_run_path(scene_path: Path, root: Path = Path("runs")) -> Path:
    """Return `root`/NAME for a new run of a scene, with -2, -3 ... when that is taken."""
    name = run_name(scene_path)
    path, number = root / name, 2
    while is_taken(path):
        path, number = root / f"{name}-{number}", number + 1
    return path


def is_taken(path: Path) -> bool:
    """Return whether `path` holds something, so that no new run can use it.

    Camera paths and a crop box, which may have been made before the first step, are no hindrance.
    """
    if not path.is_dir():
        return path.exists()
    return any(entry.name not in (PATHS_FOLDER, CROP_FILE) for entry in path.iterdir())


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step", 0), int) else None


@dataclass(frozen=True)
class Holder:
    """The process that wrote a lock file."""

    pid: int
    host: str
    since: str  # ISO time

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} (since {self.since})"


def lock_holder(run_dir: Path) -> Holder | None:
    """Return the process that trains a run, or has ended without releasing it; None where none is named.

    Raises OSError where the lock cannot be read, as on disks that keep others from reading what is locked.
    """
    try:
        return _holder(read_input(run_dir / "lock"))
    except FileNotFoundError:
        return None


class RunLock:
    """Holds `lock` in a run folder until `release`, or until the process ends.

    `left_by` is the process that had it and ended without releasing it, None in the usual case. `held` is
    False on a disk that knows no locks: then nothing keeps a second process out.
    """

    def __init__(self, run_dir: Path) -> None:
        """Take the lock.

        Raises ValueError, naming the other process, when the run is being trained already, OSError when the
        folder cannot be written.
        """
        self.path = Path(run_dir) / "lock"
        descriptor, self.held = _locked(self.path)
        self.left_by = _holder(content(descriptor, MOST_BYTES)) if self.held else None
        # A lock that nobody points to any more is let go with its descriptor.
        self._finalizer = weakref.finalize(self, _let_go, self.path, descriptor, os.getpid())
        self._descriptor = descriptor
        me = {"pid": os.getpid(), "host": socket.gethostname(), "since": _now()}
        rewrite(descriptor, (json.dumps(me) + "\n").encode())
        os.fsync(descriptor)  # other machines look for it

    @property
    def in_place(self) -> bool:
        """Return whether it still locks the run: its file has not been deleted, nor another one made."""
        return self._finalizer.alive and _is_at(self._descriptor, self.path)

    def release(self) -> None:
        """Let the run go; the file disappears."""
        self._finalizer()


def _locked(path: Path) -> tuple[int, bool]:
    """Return a descriptor of the lock file at `path`, and whether it is locked."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        descriptor = open_output(path, os.O_RDWR)
        try:
            take_lock(descriptor)
            # Between opening and locking its holder may have removed the file: then it locks nothing.
            if _is_at(descriptor, path):
                return descriptor, True
        except BlockingIOError as error:
            holder = _holder(content(descriptor, MOST_BYTES)) or "another process"
            os.close(descriptor)
            if time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            raise ValueError(
                f"the run {path.parent} is in use by {holder}: end that first, or take another run"
            ) from error
        except BaseException as error:
            if isinstance(error, OSError) and error.errno in NO_LOCKS:
                return descriptor, False
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _let_go(path: Path, descriptor: int, pid: int) -> None:
    remove_locked(path, descriptor, at_its_place=os.getpid() == pid and _is_at(descriptor, path))


def _holder(content: bytes) -> Holder | None:
    try:
        values: Any = json.loads(content)
        return Holder(int(values["pid"]), str(values["host"]), str(values["since"]))
    except (ValueError, KeyError, TypeError):
        return None


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
