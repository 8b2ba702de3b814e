"""What Windows runs in place of what Linux has, tried on Linux by the rules of tests/support/as_windows.

Tests of the product run again where splatstudio finds no module and no name that Windows lacks, and where
open files are neither removed nor renamed: processes are started afresh, frames lie in memory of
multiprocessing, and locks are ranges of bytes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

ROOT = Path(__file__).parents[2]
RULES = ROOT / "tests" / "support" / "as_windows"

EVERY_MODULE = """
import importlib, pkgutil, splatstudio
names = [found.name for found in pkgutil.walk_packages(splatstudio.__path__, "splatstudio.")]
for name in names:
    if name not in ("splatstudio.__main__", "splatstudio._C", "splatstudio._cuda"):
        importlib.import_module(name)
from splatstudio.operating_system import WINDOWS
print(len(names), WINDOWS)
"""

HELD_TO_THE_RULES = """
import os as ours, sys
__name__ = "splatstudio.tried"
import os, signal, select, socket
for module in ("fcntl", "resource", "pwd"):
    try:
        exec(f"import {module}")
    except ModuleNotFoundError:
        continue
    raise SystemExit(f"there is {module}")
hidden = ((os, "fork"), (os, "O_NOFOLLOW"), (signal, "SIGHUP"), (signal, "SIGKILL"), (socket, "AF_UNIX"))
found = [name for module, name in (*hidden, (select, "poll")) if hasattr(module, name)]
assert not found and hasattr(ours, "fork"), f"there is {found}, and others see Linux"
with open(sys.argv[1], "w"):
    for act in (os.unlink, lambda path: os.replace(path, path + "2")):
        try:
            act(sys.argv[1])
        except PermissionError:
            continue
        raise SystemExit("an open file went")
os.unlink(sys.argv[1])
"""


def held_to_the_rules(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments as it would be on Windows."""
    path = os.pathsep.join([str(RULES), *filter(None, [os.environ.get("PYTHONPATH")])])
    # In the common folder programs on Linux, which do not see these locks, would take theirs for leftovers.
    with TemporaryDirectory(prefix="as-windows-") as temporary:
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": path, "TMPDIR": temporary},
            cwd=ROOT,
            capture_output=True,
            text=True,
        )


def test_the_rules_are_those_of_windows(tmp_path: Path) -> None:
    done = held_to_the_rules("-c", HELD_TO_THE_RULES, tmp_path / "file")
    assert done.returncode == 0 and done.stderr == "", done.stderr + done.stdout


def test_every_module_is_imported_where_nothing_of_unix_is() -> None:
    done = held_to_the_rules("-c", EVERY_MODULE)
    assert done.returncode == 0, done.stderr
    number, windows = done.stdout.split()
    assert int(number) > 200 and windows == "True"


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("info", "assets/demo"), ("doctor",)])
def test_commands_answer_there(arguments: tuple[str, ...]) -> None:
    done = held_to_the_rules("-m", "splatstudio", *arguments)
    assert "Traceback" not in done.stderr and done.stdout.strip(), done.stderr
    assert done.returncode == 0 or arguments == ("doctor",), done.stderr


# Those that are about what Windows does not have are left out: SIGHUP, the fork server, a synced folder.
TESTS = """
runtime/test_worker.py::test_a_training_from_start_to_finish
runtime/test_worker.py::test_pause_stops_the_steps_and_resume_goes_on
runtime/test_worker.py::test_a_saved_training_resumes_in_another_process
runtime/test_worker.py::test_frames_while_training_show_the_model_from_the_camera_asked_for
runtime/test_worker.py::test_the_worker_saves_and_leaves_when_its_parent_dies[9]
runtime/test_worker_faults.py::test_a_killed_rank_is_replaced_and_everything_goes_on
runtime/test_worker_faults.py::test_a_paused_training_is_paused_again
runtime/test_worker_file_tasks.py::test_a_task_can_be_cancelled_and_a_killed_one_is_told
runtime/test_worker_ranks.py::test_two_ranks_train_one_model_and_everything_about_it_is_of_the_whole
files/test_run_lock.py::test_a_second_one_is_refused_and_told_who_has_it
files/test_run_lock.py::test_another_process_holds_it_until_it_is_killed
files/test_run_lock.py::test_one_that_is_just_ending_is_waited_for
files/test_run_lock.py::test_a_lock_that_is_forgotten_is_let_go
files/test_leftovers.py::test_the_next_worker_clears_up_and_a_running_one_keeps_its_own
files/test_inputs.py
files/test_run.py
checkpoints/test_saver.py
training/test_run_from_elsewhere.py
runtime/channel/test_tls.py
runtime/channel/test_remote.py::test_a_view_of_a_training_elsewhere
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_product_works_by_these_rules(tmp_path: Path) -> None:
    places = [f"tests/{test}" for test in TESTS.split()]
    done = held_to_the_rules(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 't'}", *places
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout.splitlines()[-1]
