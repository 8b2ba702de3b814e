"""Fixtures of all tests, and how hypothesis tries examples."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

# Before torch, as everywhere: with it, threads that wait for work sleep; else they take the time of others.
import splatstudio  # noqa: F401

if "PYTEST_XDIST_WORKER" in os.environ:
    # Beside other tests more threads would wait for one another. Read as torch loads, here and in programs.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# isort: split
import pytest
from blob_models import FOCAL, HEIGHT, NUM_VIEWS, WIDTH, blobs, ring_of_cameras  # noqa: F401 - for tests
from blob_scenes import blob_folder, blob_scene, tracked, write_blob_scene  # noqa: F401 - fixtures of most tests
from certificates import certificate  # noqa: F401 - a fixture of the tests of TLS
from command_line import command, command_streams  # noqa: F401 - of the tests of the command line
from fake_nvml import nvml  # noqa: F401 - a fixture of the tests of devices
from gui_fixtures import (  # noqa: F401 - fixtures of the tests of the page without a browser
    flat_run,
    idle,
    notices,
    own_folder,
    own_list,
    page,
    run,
    sent,
    server,
    steered,
)
from hypothesis import HealthCheck, settings
from model_parts import part, parts, shard  # noqa: F401 - fixtures of the tests of parts of models
from rank_pool import pool  # noqa: F401 - a fixture of the tests on ranks
from studio_page import browser, chromium, open_page, saved_run  # noqa: F401 - of the tests of the page
from worker_watcher import launch  # noqa: F401 - a fixture of the tests of the background process

# The folders of tests that take longest: what waits for the background process, and what calculates.
WAIT, CALCULATE = {"runtime"}, {"portable", "poses", "kernels"}

# These load an extension of their own in place of the real one: see the Makefile.
collect_ignore = [] if "SPLATSTUDIO_EXTENSION" in os.environ else ["cuda_on_cpu"]


def pytest_configure(config: pytest.Config) -> None:
    """Let hypothesis try the same examples on every machine, however slow, and tests hear every signal.

    A GPU is seen by tests only where those of the mark `cuda` are asked for: others know the bits of a CPU.

    `pytest --hypothesis-profile=long FILES` tries others each time, and many more of them.
    """
    gc.disable()  # until all tests are found: they stay, and to look for garbage takes half a second
    asked = config.option.markexpr
    if Path("/dev/nvidiactl").exists() and ("cuda" not in asked or "not cuda" in asked):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    same = {"derandomize": True, "database": None, "deadline": None}
    settings.register_profile("same", max_examples=40, suppress_health_check=[HealthCheck.too_slow], **same)
    longer = {"max_examples": 3000, "derandomize": False}
    settings.register_profile("long", settings.get_profile("same"), **longer)
    settings.load_profile("same")
    # What tests open is not on the list of what their user opened last.
    os.environ["XDG_STATE_HOME"] = str(Path(__file__).parents[1] / "build" / "state_of_tests")
    # Tests close terminals: what `nohup` has all programs ignore is heard again by those that they start.
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    # Nor is Ctrl-C ignored, as a shell has it of what it starts in the background.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let files that calculate, that wait for processes, and of the page take turns, then all others come.

    The long ones are begun early that way, and two processors are busy to the end.
    """
    files = dict.fromkeys(item.path for item in items)
    of_the_page = {item.path for item in items if item.get_closest_marker("gui") is not None}
    turns: dict[Path, int] = {}
    for folders in (CALCULATE, WAIT):
        turns |= {file: turn for turn, file in enumerate(one for one in files if folders & {*one.parts})}
    turns |= {file: turn for turn, file in enumerate(one for one in files if one in of_the_page)}
    order = {file: (turns.get(file, len(files)), number) for number, file in enumerate(files)}
    items.sort(key=lambda item: order[item.path])


def pytest_collection_finish() -> None:
    """Let no collection of garbage look at what is there for all tests, which takes a third of a second.

    These are the modules and thousands of tests; what a test leaves is collected as ever.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
