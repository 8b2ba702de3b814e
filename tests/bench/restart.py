"""How long a training that lost its process takes to train again: from kill -9 to the first new step.

    python tests/bench/restart.py [--scene FOLDER] [--repeat 5] [--json]

Each time: a fresh run of the scene (the demo by default) trains until it has a checkpoint, its process is
killed, and the time is taken until the supervisor says so, until the new process has loaded the scene and the
checkpoint, and until it has done a step.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path

from splatstudio.runtime.messages import Event, Progress, Save, Saved, Start, Started, StateChanged, TrainJob
from splatstudio.runtime.supervisor import WorkerClient
from splatstudio.settings.config import TrainConfig

DEMO = Path(__file__).parent.parent.parent / "assets" / "demo"
TIMEOUT = 120.0


class Told:
    """When a worker told what."""

    def __init__(self, client: WorkerClient):
        self.events: list[tuple[float, Event]] = []
        client.subscribe(lambda event: self.events.append((time.monotonic(), event)))

    def first(self, since: float, kind: type[Event], state: str = "") -> float:
        """Return when the first event of a kind came after `since`, waiting for it."""
        while time.monotonic() < since + TIMEOUT:
            for when, event in list(self.events):
                if when > since and isinstance(event, kind) and getattr(event, "state", "") == state:
                    return when
            time.sleep(0.001)
        raise SystemExit(f"no {kind.__name__} within {TIMEOUT:.0f} s")


def measure(scene: Path, steps: int) -> dict[str, float]:
    """Return the seconds from the kill to each of what follows."""
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(eval_steps=(), save_steps=())
        client = WorkerClient(TrainJob(scene, Path(folder) / "run", config))
        told = Told(client)
        begun = time.monotonic()
        client.start()
        client.send(Start())
        told.first(begun, Progress)
        while client.step < steps:
            time.sleep(0.01)
        asked = time.monotonic()
        client.send(Save())
        saved = told.first(asked, Saved)
        told.first(saved, Progress)
        killed = time.monotonic()
        os.kill(client.pid, signal.SIGKILL)
        marks = {
            "noticed_s": told.first(killed, StateChanged, "restarting"),
            "loaded_s": told.first(killed, Started),
        }
        marks["training_s"] = told.first(marks["loaded_s"], Progress)
        client.kill()
        return {name: when - killed for name, when in marks.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scene", type=Path, default=DEMO)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--steps", type=int, default=50, help="steps before the checkpoint")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    runs = [measure(arguments.scene, arguments.steps) for _ in range(arguments.repeat)]
    if arguments.json:
        print(json.dumps({name: [round(run[name], 3) for run in runs] for name in runs[0]}))
        return
    for name in runs[0]:
        times = sorted(run[name] for run in runs)
        print(f"{name:<12} median {statistics.median(times):.3f}  from {times[0]:.3f} to {times[-1]:.3f}")


if __name__ == "__main__":
    main()
