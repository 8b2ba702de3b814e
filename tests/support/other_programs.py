"""Programs of others for the formats that we write and read, of fixed versions, fetched when needed.

Each is kept in the user's cache. Where one is not available its tests are skipped, but never in CI.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SPLAT_TRANSFORM = (
    "@playcanvas/splat-transform@2.7.1"  # the last for Node.js 20; newer ones read no more of ours
)
GLTF_READERS = ("@gltf-transform/core@4.5.1", "property-graph@4.1.0", "gltf-validator@2.0.0-dev.3.10")
GSPLAT, LPIPS = "gsplat==1.5.3", "lpips==0.1.4"
CACHE = Path.home() / ".cache" / "splatstudio-tests"


def npm_packages(folder: Path, *packages: str) -> Path:
    """Install packages of npm into `folder`, whole or not at all, unless they are there; return it."""
    if (folder / "complete").exists():
        return folder
    npm = shutil.which("npm")
    if npm is None and not os.environ.get("CI"):
        pytest.skip("npm is not installed, with which independent readers are fetched")
    assert npm is not None, "CI needs node and npm for independent readers of the formats"
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder)]
    fetched_into(folder, [npm, "install", *options, *packages])
    return folder


def python_package(requirement: str) -> Path:
    """Install a package of Python, alone and apart from our own environment, unless it is there."""
    folder = CACHE / requirement.replace("==", "-")
    if not (folder / "complete").exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
        fetched_into(folder, [*pip, "--no-deps", "--target", str(folder), requirement])
    return folder


def fetched_into(folder: Path, command: list[str]) -> None:
    """Run what fetches a program into `folder`, and note that it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(f"{folder.name}.lock"), "w") as lock:
        # Tests in other processes may want it at the same time: the second one finds it complete.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / "complete").exists():
            return
        fetched = subprocess.run(command, capture_output=True, text=True, timeout=250)
        if fetched.returncode != 0 and not os.environ.get("CI"):
            pytest.skip(f"{folder.name} could not be fetched: {fetched.stderr[-200:]}")
        assert fetched.returncode == 0, fetched.stderr
        (folder / "complete").touch()


@pytest.fixture(scope="session")
def splat_transform() -> str:
    """Return the program of an independent reader and writer of most formats."""
    folder = npm_packages(CACHE / SPLAT_TRANSFORM.rpartition("@")[2], SPLAT_TRANSFORM)
    return str(folder / "node_modules" / ".bin" / "splat-transform")


@pytest.fixture(scope="session")
def gltf_readers() -> Path:
    """Return the folder of a well-kept reader of glTF and of Khronos' validator, which read_glb.mjs uses."""
    return npm_packages(CACHE / "gltf-4.5.1", *GLTF_READERS)


@pytest.fixture(scope="session")
def gsplat_exporter() -> ModuleType:
    """Return gsplat's own module that turns the tensors of its checkpoints into files; it needs no GPU."""
    folder = python_package(GSPLAT)
    # By its path: the package itself would look for CUDA.
    spec = importlib.util.spec_from_file_location("gsplat_exporter", folder / "gsplat" / "exporter.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def lpips_package(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let `import lpips` find the package of its authors, which no other test sees; return its folder."""
    folder = python_package(LPIPS)
    monkeypatch.syspath_prepend(str(folder))
    yield folder / "lpips"
    for name in [name for name in sys.modules if name.partition(".")[0] == "lpips"]:
        del sys.modules[name]


def read_by_others(packages: Path, path: Path) -> dict[str, Any]:
    """Return what a reader and a validator of glTF find in a file."""
    program = Path(__file__).with_name("read_glb.mjs")
    command = ["node", str(program), str(packages), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
