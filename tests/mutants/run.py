"""Plants faults into a copy of the source, one at a time, and runs the tests that must find them.

    python tests/mutants/run.py                 all mutants, a quarter of an hour and more on two cores
    python tests/mutants/run.py ply quaternion  those whose names hold one of these words
    python tests/mutants/run.py --list

A mutant is killed where its tests fail, survives where they pass, and is stale where its text does not stand
exactly once in its file. The exit code is 1 where one survives or is stale.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
TEST_SECONDS = 30  # of one test: one that hangs is a failure
RUN_SECONDS = 300  # of all tests of one mutant, which is killed then
TESTS_FAILED = 1  # pytest's exit codes
# Imported once and not for each mutant: what the tests take most of their time for.
LIBRARIES = ("torch", "torch.distributed", "cv2", "hypothesis", "msgspec", "PIL.Image", "viser", "imageio")
# An editable installation imports the checkout, whatever stands first on the path; the copy is to be tested.
HOOK = """import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
"""


class Copy:
    """The repository's tracked files in a folder of their own, with the tools to build and to test them."""

    def __init__(self, folder: Path) -> None:
        """Copy into `folder`; what is there already and the same keeps its date, and is not built again."""
        self.source = folder / "source"
        self._hook = folder / "hook"
        self._built = folder / "extension"
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
        )
        for name in filter(None, listed.stdout.split("\0")):
            _copy_if_changed(ROOT / name, self.source / name)
        self._hook.mkdir(exist_ok=True)
        (self._hook / "sitecustomize.py").write_text(HOOK)
        extension = _installed_extension()
        shutil.copy2(extension, self.source / "splatstudio" / extension.name)

    def build(self) -> str:
        """Build the CPU extension of the copy; return what the compiler says where that fails."""
        configured = self._built / "CMakeCache.txt"
        commands = [["cmake", "--build", str(self._built), "-j", "2"]]
        if not configured.exists():
            options = ["-DCMAKE_BUILD_TYPE=Release", "-DSPLAT_CUDA=OFF"]
            commands.insert(0, ["cmake", "-S", str(self.source / "csrc"), "-B", str(self._built), *options])
        for command in commands:
            done = subprocess.run(command, env=self._environment(), capture_output=True, text=True)
            if done.returncode != 0:
                return done.stdout + done.stderr
        return ""

    def test(self, tests: Sequence[str], *, native: bool, seconds: float = RUN_SECONDS) -> tuple[int, str]:
        """Run tests until one fails; return pytest's exit code (0: all pass) and what it says."""
        environment = self._environment()
        if native:
            environment["SPLATSTUDIO_EXTENSION"] = str(self._built / "_C.so")
        with tempfile.TemporaryFile() as said:
            code = _in_a_fork(lambda: self._pytest(tests, environment), said.fileno(), seconds)
            said.seek(0)
            return code, said.read().decode(errors="replace")

    def _pytest(self, tests: Sequence[str], environment: dict[str, str]) -> int:
        os.chdir(self.source)
        os.environ.update(environment)
        sys.path[:0] = [str(self._hook), str(self.source)]
        exec(HOOK, {})
        sys.modules["__main__"] = types.ModuleType("__main__")  # tests start processes that would import ours
        options = ["-x", "-q", f"--timeout={TEST_SECONDS}", "-p", "no:cacheprovider"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of what was imported before
        return int(pytest.main([*options, *tests]))

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(self._hook), str(self.source)])
        programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        return {**os.environ, "PYTHONPATH": path, "PATH": programs}


def _in_a_fork(run: Callable[[], int], output: int, seconds: float) -> int:
    """Return what `run` returns in a process of its own; what it prints goes to the file `output`."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = pytest.ExitCode.INTERNAL_ERROR
        try:
            os.setsid()
            os.dup2(output, 1)
            os.dup2(output, 2)
            code = run()
        finally:
            sys.stdout.flush()
            os._exit(code)
    deadline = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return TESTS_FAILED
        time.sleep(0.05)


def _copy_if_changed(source: Path, target: Path) -> None:
    if source.is_dir() or (target.exists() and target.read_bytes() == source.read_bytes()):
        return  # of a link to a folder nothing is needed
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def _installed_extension() -> Path:
    """Return the file of the extension that the checkout uses."""
    question = "import importlib.util as u; print(u.find_spec('splatstudio._C').origin)"
    asked = subprocess.run([sys.executable, "-c", question], cwd=ROOT, capture_output=True, text=True)
    if asked.returncode != 0:
        sys.exit("The native kernels are not there: run `make setup` first.")
    return Path(asked.stdout.strip())


def verdict_on(mutant: Mutant, copy: Copy) -> tuple[str, str]:
    """Return "killed", "survived", "stale" or "broken", and what pytest or the compiler says."""
    file = copy.source / mutant.file
    original = file.read_text()
    if original.count(mutant.old) != 1:
        return "stale", f"{mutant.file} holds the text {original.count(mutant.old)} times"
    native = mutant.file.startswith("csrc/")
    try:
        file.write_text(original.replace(mutant.old, mutant.new))
        if native and (problem := copy.build()):
            return "broken", problem  # it does not compile: it says nothing of the tests
        code, output = copy.test(mutant.tests, native=native)
    finally:
        file.write_text(original)
    if code == 0:
        return "survived", output
    return ("killed" if code == TESTS_FAILED else "broken"), output


def main() -> int:
    """Try the mutants that were asked for; return 1 where one was not killed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="a part of a mutant's name or file; all by default"
    )
    parser.add_argument("--list", action="store_true", help="print the mutants and their tests")
    parser.add_argument("--build-dir", type=Path, help="keep copy and extension there, for the next time")
    parser.add_argument("--verbose", action="store_true", help="print what pytest says of each")
    asked = parser.parse_args()
    chosen = [m for m in MUTANTS if not asked.names or any(n in f"{m.name} {m.file}" for n in asked.names)]
    if asked.list:
        for mutant in chosen:
            print(f"{mutant.name}\n    {mutant.file}: {' '.join(mutant.tests)}")
        return 0
    if not chosen:
        parser.error("no mutant has such a name: see --list")
    with tempfile.TemporaryDirectory(prefix="splatstudio-mutants-") as temporary:
        folder = Path(temporary) if asked.build_dir is None else asked.build_dir.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        return _try_all(chosen, Copy(folder), verbose=asked.verbose)


def _try_all(chosen: list[Mutant], copy: Copy, *, verbose: bool) -> int:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the package does, before torch is there
    for library in LIBRARIES:
        importlib.import_module(library)
    began, not_killed = time.monotonic(), 0
    # A test that fails by itself would kill every mutant.
    tests = sorted({test for mutant in chosen for test in mutant.tests})
    code, output = copy.test(tests, native=False, seconds=10 * RUN_SECONDS)
    if code != 0:
        print(f"{output}\nThe tests fail without any fault: mend that first.")
        return 1
    for mutant in chosen:
        started = time.monotonic()
        verdict, output = verdict_on(mutant, copy)
        not_killed += verdict != "killed"
        print(f"{verdict:9}{time.monotonic() - started:6.1f} s  {mutant.name}", flush=True)
        if verbose or verdict in ("stale", "broken"):
            print("\n".join(f"    {line}" for line in output.splitlines()[-12:]), flush=True)
    print(f"{len(chosen) - not_killed} of {len(chosen)} killed in {time.monotonic() - began:.0f} s")
    return int(not_killed > 0)


if __name__ == "__main__":
    sys.exit(main())
