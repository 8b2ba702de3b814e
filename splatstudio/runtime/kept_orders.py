"""What a training that its launcher starts again goes on with: that it stood still, and its live settings.

A studio remembers that itself, for the process that it puts in another one's place; a launcher knows nothing
of it. So rank 0 keeps it in the run's folder, with which start of the launcher it is of: another one begins
without.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec
import psutil

from splatstudio.checkpoints.manifest import step_of
from splatstudio.files.durable import write_durably
from splatstudio.files.inputs import read_input
from splatstudio.files.run import ORDERS_FILE
from splatstudio.runtime import messages
from splatstudio.settings.config import TrainConfig, value_of


class KeptOrders(msgspec.Struct, frozen=True):
    """What holds of the orders that were given while it trained; `launch` is whose training it is."""

    launch: str
    paused: bool = False
    pause_at: int | None = None
    settings: dict[str, messages.SettingValue] = {}

    def after(self, event: messages.Event) -> KeptOrders:
        """Return what holds after an event of the training."""
        if isinstance(event, messages.StateChanged) and event.state in ("paused", "training"):
            # One that stands still because it cannot be saved was not told to.
            paused = event.state == "paused" and (self.paused or not event.unsaved)
            return msgspec.structs.replace(self, paused=paused)
        if isinstance(event, messages.PausesAt):
            return msgspec.structs.replace(self, pause_at=event.step)
        if isinstance(event, messages.SettingChanged):
            return msgspec.structs.replace(self, settings={**self.settings, event.path: event.value})
        return self

    def orders(self, job: messages.TrainJob) -> tuple[messages.Command, ...]:
        """Return what brings a training that begins with `job` to where this one was."""
        now = dict(job.settings)
        values = {
            path: value for path, value in self.settings.items() if value != _now(job.config, now, path)
        }
        change = (messages.UpdateSettings(tuple(values.items())),) if values else ()
        pause = (messages.Pause(),) if self.paused else ()
        return (messages.Start(self.pause_at), *change, *pause)


def launch_of(environment: Mapping[str, str], *, named_once: bool) -> str:
    """Return which start of a launcher this process is of: what its restarts have in common, and no other.

    `named_once`: torchrun's id of the run is that of one start alone, as a studio's. One that a user names is
    that of all, and its restarts are known by the process that makes them. A job of Slurm that is queued
    again keeps its number, and counts its steps anew.
    """
    run = environment.get("TORCHELASTIC_RUN_ID")
    if run is None:
        return f"slurm {environment.get('SLURM_JOB_ID', '')}.{environment.get('SLURM_STEP_ID', '')}"
    by = "" if named_once else f" on {socket.gethostname()}, process {_agent()}"
    return f"torchrun {run}{by}"


def _agent() -> str:
    """Return the number of torchrun's process, above this one or above a script that starts it."""
    try:
        above = psutil.Process().parents()
        agents = [process for process in above if any(map(_is_torchrun, process.cmdline()))]
        return str((agents or above)[0].pid)
    except (psutil.Error, IndexError):  # in a world of its own: no restart is known again
        return f"unknown to {os.getpid()}"


def _is_torchrun(word: str) -> bool:
    return Path(word).name.startswith("torchrun") or word.startswith("torch.distributed.")


def keep_orders(run_dir: Path, orders: KeptOrders) -> None:
    """Keep orders in a run's folder; OSError where that is not possible."""
    write_durably(run_dir / ORDERS_FILE, msgspec.json.encode(orders))


def kept_orders(run_dir: Path, launch: str) -> KeptOrders:
    """Return what the ranks of the same launch kept; where there is none, as after another, no orders."""
    nothing = KeptOrders(launch)
    try:
        kept = msgspec.json.decode(read_input(run_dir / ORDERS_FILE), type=KeptOrders)
    except (OSError, ValueError):  # none were given, or the machine went down as they were kept
        return nothing
    return kept if kept.launch == launch else nothing


def forget_orders(run_dir: Path) -> None:
    """Remove what was kept: the training is over."""
    (run_dir / ORDERS_FILE).unlink(missing_ok=True)


def restarted(environment: Mapping[str, str]) -> bool:
    """Return whether a launcher says that it has started the training again."""
    counts = (environment.get(name, "") for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"))
    return any(count.isdigit() and int(count) > 0 for count in counts)


def going_on_sentence(
    checkpoint: Path | None, orders: tuple[messages.Command, ...], *, again: bool, why: str = ""
) -> str:
    """Return where a training goes on, and what holds; `again`: its launcher has started it again.

    `why` says why none of the checkpoints that are there is good.
    """
    start = "its beginning: nothing had been saved yet"
    if checkpoint is not None:
        start = f"the checkpoint of step {step_of(checkpoint):,}"
    elif why:
        start = f"its beginning: no checkpoint can be used ({why})"
    told = told_again(orders)
    begin = "Started again by its launcher, it" if again else "It"
    return f"{begin} goes on from {start}.{f' {told}' if told else ''}"


def told_again(orders: tuple[messages.Command, ...]) -> str | None:
    """Return a sentence on what holds again, None where nothing does."""
    told = [
        f"{path} is {value:,}" if type(value) is int else f"{path} is {value}"
        for order in orders
        if isinstance(order, messages.UpdateSettings)
        for path, value in order.values
    ]
    if any(isinstance(order, messages.Start) and order.pause_at is not None for order in orders):
        told.append("it pauses where it was told to")
    if any(isinstance(order, messages.Pause) for order in orders):
        told.append("it stands still, and Resume lets it go on")
    return f"As before it was started again: {'; '.join(told)}." if told else None


def _now(config: TrainConfig, changed: Mapping[str, messages.SettingValue], path: str) -> object:
    try:
        return changed[path] if path in changed else value_of(config, path)
    except AttributeError:  # of another release
        return None
