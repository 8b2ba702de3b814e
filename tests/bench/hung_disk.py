"""What a training says and does when the disk of its run hangs during a save, as a network drive may.

    sudo python tests/bench/hung_disk.py [--seconds 45]

A file system of its own, in a file, is mounted for the run and frozen (FIFREEZE): whoever writes to it stands
still, uninterruptibly, as with a server that is gone. The page has to answer meanwhile and to say what it
waits for; when the disk is back the training has to go on, and nothing may be lost. Needs root and loop
devices.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

from splatstudio.checkpoints.checkpoint import load_checkpoint, newest_checkpoint
from splatstudio.gui.app import Studio
from splatstudio.gui.server.access import Listen
from splatstudio.runtime.messages import Save
from splatstudio.scene.demo import demo_scene
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import DensifyConfig

PATIENCE = 5.0  # seconds for the page to answer
FREEZE, THAW = 0xC0045877, 0xC0045878  # of linux/fs.h
CONFIG = TrainConfig(steps=1_000_000, eval_steps=(), save_steps=(), densify=DensifyConfig(enabled=False))


@contextmanager
def disk(folder: Path) -> Iterator[Path]:
    """Mount a file system in a file."""
    image, place = folder / "image", folder / "disk"
    place.mkdir()
    subprocess.run(["truncate", "-s", "300M", str(image)], check=True)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@contextmanager
def frozen(place: Path) -> Iterator[None]:
    """Let everybody who writes there stand still."""
    descriptor = os.open(place, os.O_RDONLY)
    fcntl.ioctl(descriptor, FREEZE, 0)
    try:
        yield
    finally:
        fcntl.ioctl(descriptor, THAW, 0)
        os.close(descriptor)


def wait(reached: Callable[[], object], what: str, seconds: float = 240.0) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            sys.exit(f"never: {what}")
        time.sleep(0.05)


def slowest_answer(studio: Studio, seconds: float) -> float:
    """Ask for the page again and again, and return how long the slowest answer took."""
    token, slowest = studio.url.partition("token=")[2], 0.0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        asked = time.monotonic()
        page = Request(f"http://127.0.0.1:{studio.port}/", headers={"Authorization": f"Bearer {token}"})
        with urlopen(page, timeout=30) as answer:
            assert answer.status == 200
        slowest = max(slowest, time.monotonic() - asked)
        time.sleep(0.2)
    return slowest


def main() -> None:
    """Hang the disk once, and print what came of it as JSON; exit code 1 where it does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=45.0, help="for which the disk hangs")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, disk(Path(folder)) as place:
        run = place / "run"
        studio = Studio(demo_scene(), network=Listen(port=0), config=CONFIG, run_dir=run)
        controller = studio.controller
        try:
            wait(lambda: controller.status.state == "ready", "the worker is there")
            studio.start_training()
            wait(lambda: controller.status.step > 20, "it trains")
            with frozen(place):
                before, pids = controller.status.step, controller.pids
                controller.send(Save())
                slowest = slowest_answer(studio, asked.seconds)
                meanwhile = controller.status.step
                told = [item.notice.text for item in studio._news.items if "disk" in item.notice.text]
            wait(lambda: controller.last_saved is not None, "it is saved after all")
            saved = controller.status.step
            wait(lambda: controller.status.step > saved + 20, "it goes on")
            newest = newest_checkpoint(run)
            kept = newest is not None and load_checkpoint(newest).step >= before and controller.pids == pids
        finally:
            studio.close()
    found = {"steps meanwhile": meanwhile - before, "slowest answer (s)": round(slowest, 2), "told": told}
    print(json.dumps({**found, "nothing lost": kept}))
    sys.exit(not (kept and told and slowest < PATIENCE))


if __name__ == "__main__":
    main()
