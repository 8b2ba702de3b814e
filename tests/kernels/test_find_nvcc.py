"""The build finds the CUDA compiler wherever it is, takes none that is wrong, and says what it did."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

FIND_NVCC = Path(__file__).parents[2] / "csrc" / "cuda" / "find_nvcc.cmake"
QUESTION = """
include({find_nvcc})
set(TORCH_DIR {packages}/torch)
set(SPLAT_TOOLKITS {toolkits})
find_nvcc(13 nvcc why_not)
message(STATUS "nvcc=${{nvcc}}")
message(STATUS "why_not=${{why_not}}")
if(nvcc)
  cuda_architectures(${{nvcc}} architectures)
  message(STATUS "architectures=${{architectures}}")
endif()
"""


class Machine:
    """A made-up machine: programs on PATH, toolkits, Python packages."""

    def __init__(self, folder: Path):
        self.programs, self.toolkits, self.packages = (folder / n for n in ("bin", "usr local", "packages"))
        for each in (self.programs, self.toolkits, self.packages / "torch"):
            each.mkdir(parents=True)
        self.environment: dict[str, str] = {}
        self._question = folder / "question.cmake"

    def nvcc(self, place: Path, version: str = "13.0", known: str = "sm_75 sm_80 sm_90 sm_120") -> Path:
        """Install an nvcc."""
        told = f'echo "Cuda compilation tools, release {version}, V{version}.48"'
        return self.program(place / "nvcc", f'[ "$1" = --list-gpu-code ] && echo "{known} " || {told}')

    def program(self, path: Path, script: str) -> Path:
        """Install a program."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def found(self) -> dict[str, str]:
        """Return what a build finds."""
        cmake = shutil.which("cmake")
        assert cmake is not None, "CMake is among the tools of development"
        question = QUESTION.format(find_nvcc=FIND_NVCC, packages=self.packages, toolkits=f'"{self.toolkits}"')
        self._question.write_text(question)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("CUDA")}
        done = subprocess.run(
            [cmake, "-P", str(self._question)],
            env={**kept, "PATH": str(self.programs), **self.environment},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        lines = [line.removeprefix("-- ").partition("=") for line in done.stdout.splitlines()]
        return {name: value for name, _, value in lines}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_compiler_off_path_is_found_and_one_that_is_installed_later(machine: Machine) -> None:
    assert machine.found() == {
        "nvcc": "",
        "why_not": "nvcc of CUDA 13 was not found when the kernels were built",
    }
    for place in (machine.toolkits / "cuda-13.0" / "bin", machine.toolkits / "cuda" / "bin"):
        nvcc = machine.nvcc(place)
        assert machine.found()["nvcc"] == str(nvcc)


def test_the_places_are_asked_in_the_order_of_what_the_user_said(machine: Machine, tmp_path: Path) -> None:
    installed = machine.nvcc(machine.toolkits / "cuda" / "bin")
    assert machine.found()["nvcc"] == str(installed)
    in_wheel = machine.nvcc(machine.packages / "nvidia" / "cu13" / "bin")
    assert machine.found()["nvcc"] == str(in_wheel)
    on_path = machine.nvcc(machine.programs)
    assert machine.found()["nvcc"] == str(on_path)
    for name, place in (("CUDA_PATH", "path"), ("CUDA_HOME", "home")):
        nvcc = machine.nvcc(tmp_path / place / "bin")
        machine.environment[name] = str(tmp_path / place)
        assert machine.found()["nvcc"] == str(nvcc)
    named = machine.nvcc(tmp_path / "named")
    machine.environment["CUDACXX"] = str(named)
    assert machine.found()["nvcc"] == str(named)


def test_a_wrong_major_version_is_passed_over_and_named(machine: Machine) -> None:
    wrong = machine.nvcc(machine.programs, "12.4")
    broken = machine.program(machine.toolkits / "cuda" / "bin" / "nvcc", "exit 1")
    assert machine.found()["why_not"] == (
        f"torch needs an nvcc of CUDA 13, but {wrong} is of CUDA 12.4, {broken} does not run"
    )
    right = machine.nvcc(machine.toolkits / "cuda-13.2" / "bin", "13.2")
    assert machine.found()["nvcc"] == str(right)


def test_it_compiles_for_the_gpu_that_is_here_else_for_all_that_are_known(machine: Machine) -> None:
    machine.nvcc(machine.programs)
    # PTX of the newest alone; none that this compiler does not know.
    assert machine.found()["architectures"] == "75-real;80-real;90-real;120"
    smi = machine.program(machine.programs / "nvidia-smi", 'echo "GPU 0: RTX 4090 (UUID: GPU-1)"')
    assert machine.found()["architectures"] == "native"
    smi.write_text("#!/bin/sh\nexit 9\n")  # without a driver
    assert machine.found()["architectures"] == "75-real;80-real;90-real;120"
