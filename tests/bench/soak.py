"""Whether the memory of a studio and its worker grows while it trains for long and somebody looks.

    nice python tests/bench/soak.py --minutes 60 [--scene FOLDER] [--json]

`splatstudio open SCENE --train` runs in a folder of its own, with a fixed number of splats; a client speaks
the page's protocol and moves its camera once a second. Every ten seconds the private memory of each process
is noted. The slope is that of a line through what was noted after the first third, in MB in ten minutes;
below 1 is asked for.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import psutil
from latency import Client

from splatstudio.scene.demo import demo_scene

LIMIT = 1.0  # MB in ten minutes
LOOK_SECONDS = 10.0
MOVE_SECONDS = 1.0
OPTIONS = ("--no-browser", "--port", "0", "--train", "--steps", "100000000", "--densify.no-enabled")


def main() -> None:
    """Run, and print the slope of each process; exit code 1 where one grows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--scene", type=Path, default=demo_scene())
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        noted, steps = watch(asked.scene.resolve(), Path(folder), 60.0 * asked.minutes)
    slopes = {role: slope(rows) for role, rows in noted.items()}
    if asked.json:
        print(json.dumps({"minutes": asked.minutes, "steps": steps, "mb_in_ten_minutes": slopes}))
    else:
        for role, value in slopes.items():
            print(f"{role}: {noted[role][-1][1]:.0f} MB, {value:+.2f} MB in ten minutes")
    sys.exit(any(value > LIMIT for value in slopes.values()))


def watch(scene: Path, folder: Path, seconds: float) -> tuple[dict[str, list[tuple[float, float]]], int]:
    """Return the times (s) and private memories (MB) by process, and the steps that were trained."""
    program = str(Path(sys.executable).with_name("splatstudio"))
    studio = subprocess.Popen(
        [program, "open", str(scene), "--run", "run", *OPTIONS], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    assert studio.stdout is not None
    try:
        address = next(filter(None, (re.search(r":(\d+)/\?token=(\S+)", line) for line in studio.stdout)))
        client = Client(int(address[1]), address[2])
        noted: dict[str, list[tuple[float, float]]] = defaultdict(list)
        start = looked = time.monotonic()
        while (now := time.monotonic()) - start < seconds:
            client.move(0.1 * (now - start))
            if now - looked >= LOOK_SECONDS:
                looked = now
                for role, memory in memories(studio.pid).items():
                    noted[role].append((now - start, memory))
            time.sleep(MOVE_SECONDS)
    finally:
        studio.send_signal(signal.SIGINT)
        studio.wait(300)
    rows = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return dict(noted), json.loads(rows[-1])["step"]


def memories(pid: int) -> dict[str, float]:
    """Return the private memory, MB, of the studio and of what it has started, by what it is."""
    found: dict[str, float] = {}
    studio = psutil.Process(pid)
    for number, process in enumerate([studio, *studio.children(recursive=True)]):
        try:
            name = "studio" if process.pid == pid else f"{number} {process.name()}"
            found[name] = process.memory_full_info().uss / 1e6
        except psutil.NoSuchProcess:
            continue
    return found


def slope(rows: list[tuple[float, float]]) -> float:
    """Return how fast the memory grows after the first third, MB in ten minutes."""
    times, values = np.array(rows[len(rows) // 3 :]).T
    return float(np.polyfit(times, values, 1)[0] * 600.0)


if __name__ == "__main__":
    main()
