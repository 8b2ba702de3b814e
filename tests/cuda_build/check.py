"""Build the package against a torch with CUDA, on a machine without a GPU, and see what becomes of it.

    make gpu-build-check        (fetches 5 GB once, into build/gpu-build; then about 5 minutes on two cores)

The wheel is built with nvcc and installed in an environment of its own: both libraries must load, every
operator have its kernels, the demo train on the CPU. Then what users meet: nvcc off PATH, nvcc that comes
later, one of the wrong major version, a CUDA library that cannot be loaded, a torch without CUDA.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "build" / "gpu-build"
TORCH = "2.11.0"  # the oldest that the package allows; a CUDA 13.0 build
PYTHON = PLACE / "venv" / "bin" / "python"
PIP = [str(PYTHON), "-m", "pip", "--quiet", "--disable-pip-version-check"]

# Run in the new environment, away from the repository.
LIST_OPERATORS = """
import torch
from splatstudio.kernels import ops
print("cpu:", ops.native_version(), "cuda:", ops.without_cuda_kernels(), ops.cuda_architectures())
for name in sorted(torch._C._dispatch_get_all_op_names()):
    if name.startswith("splatstudio::"):
        keys = ("CPU", "CUDA", "CompositeExplicitAutograd")
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        print("op", name.split("::")[1], *(has(name, key) for key in keys))
"""
SAY_DEVICE = """
from splatstudio.kernels import ops
print("without:", ops.without_cuda_kernels())
from splatstudio.training.device_options import AS_FOUND
print("use:", AS_FOUND.use_of(AS_FOUND.chosen()).text)
"""

# Operators without a kernel for CPUs, and why; GPUs have all.
SELF_COUNTING = "the CPU knows how many intersections there are before it makes room for them"
CUDA_ALONE = {
    "bin_within": SELF_COUNTING,
    "adam_step_within": SELF_COUNTING,
    "project_adam_within": SELF_COUNTING,
    "count_seen_within": SELF_COUNTING,
    "inject_noise_within": SELF_COUNTING,
    "raster_picture": "the CPU's forward pass costs nothing more for what the backward pass needs",
    "raster_slab": "a slab is a GPU's way of adding up gradients",
    "gather_slab": "a slab is a GPU's way of adding up gradients",
}


def main() -> int:
    """Do all of it and return the exit code."""
    if shutil.which("nvcc") is None and not list(Path("/usr/local").glob("cuda*/bin/nvcc")):
        print("gpu-build-check: no nvcc on this machine, not run")
        return 0
    started = time.monotonic()
    failures: list[str] = []
    make_environment()
    check_configurations(failures)
    wheel = build_wheel()
    run(PIP, "install", "--force-reinstall", "--no-deps", str(wheel))
    check_operators(failures)
    check_training(failures)
    check_broken_library(failures)
    check_torch_without_cuda(failures)
    check_compiler_of_wheels(failures)
    for failure in failures:
        print(f"FAILED: {failure}")
    print(f"gpu-build-check: {len(failures)} failures, {time.monotonic() - started:.0f} s")
    return 1 if failures else 0


def run(command: list[str], *more: str, environment: dict[str, str] | None = None, cwd: Path = ROOT) -> str:
    """Run a command to its end and return what it printed; CalledProcessError with that printed, too."""
    done = subprocess.run(
        [*command, *more],
        env={**os.environ, **(environment or {})},
        cwd=cwd,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode != 0:
        print(done.stdout[-4000:])
        done.check_returncode()
    return done.stdout


def make_environment() -> None:
    """Make the environment with the torch that has CUDA; once."""
    stamp = PLACE / f"installed-{TORCH}"
    if stamp.exists():
        return
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    print(f"installing torch {TORCH} with CUDA, 5 GB ...", flush=True)
    run([sys.executable, "-m", "venv", str(PLACE / "venv")])
    wanted = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if line[:1].isalpha()]
    others = PLACE / "requirements.txt"
    others.write_text("\n".join(line for line in wanted if not re.match(r"torch\b", line)) + "\n")
    run(PIP, "install", f"torch==={TORCH}")
    run(PIP, "install", "-r", str(others))
    stamp.touch()


def configure(folder: str, *options: str, path: str) -> str:
    """Return what CMake says of CUDA when it configures the kernels with that PATH."""
    build = PLACE / folder
    tools = f"{PYTHON.parent}:{path}"
    command = [
        "cmake",
        "-S",
        "csrc",
        "-B",
        str(build),
        "-G",
        "Ninja",
        f"-DPython3_EXECUTABLE={PYTHON}",
        *options,
    ]
    told = run([str(PYTHON.parent / command[0]), *command[1:]], environment={"PATH": tools, "CUDACXX": ""})
    return next((line for line in told.splitlines() if "CUDA kernels: " in line), told)


def path_without_nvcc() -> str:
    """Return a PATH of this machine's programs but nvcc."""
    folder = PLACE / "programs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for place in reversed(os.environ["PATH"].split(":")):
        for program in Path(place).glob("*"):
            if program.name != "nvcc" and os.access(program, os.X_OK):
                (folder / program.name).unlink(missing_ok=True)
                (folder / program.name).symlink_to(program)
    return str(folder)


def check_configurations(failures: list[str]) -> None:
    """See what is found where nvcc is off PATH, comes later, or is of another version."""
    path = path_without_nvcc()
    for folder in ("off-path", "later", "wrong"):
        shutil.rmtree(PLACE / folder, ignore_errors=True)
    expect(failures, "nvcc off PATH", configure("off-path", path=path), "CUDA kernels: with /usr/local/cuda")
    nowhere = f"-DSPLAT_TOOLKITS={PLACE}/none"
    missing = configure("later", nowhere, path=path)
    expect(failures, "no nvcc", missing, "Without CUDA kernels: nvcc of CUDA 13 was not found when")
    came = configure("later", "-DSPLAT_TOOLKITS=/usr/local", path=path)
    expect(failures, "nvcc installed later", came, "CUDA kernels: with /usr/local/cuda")
    old = PLACE / "old" / "bin"
    old.mkdir(parents=True, exist_ok=True)
    (old / "nvcc").write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.4, V12.4.131'\n")
    (old / "nvcc").chmod(0o755)
    wrong = configure("wrong", nowhere, path=f"{old}:{path}")
    expect(failures, "wrong major", wrong, f"torch needs an nvcc of CUDA 13, but {old}/nvcc is of CUDA 12.4")


def build_wheel() -> Path:
    """Build the wheel with both libraries."""
    print("building the wheel ...", flush=True)
    folder = PLACE / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    settings = (f"build-dir={PLACE}/cmake", "cmake.define.SPLAT_CUDA=ON")
    options = [f"--config-settings={setting}" for setting in settings]
    run(PIP, "wheel", "--no-deps", "--no-build-isolation", *options, "-w", str(folder), ".")
    (wheel,) = folder.glob("*.whl")
    print(f"{wheel.name}: {wheel.stat().st_size / 2**20:.1f} MiB")
    return wheel


def check_operators(failures: list[str]) -> None:
    """List every operator with its kernels; each must have both unless it is known why not."""
    told = run([str(PYTHON), "-c", LIST_OPERATORS], cwd=PLACE)
    print(told, end="")
    expect(failures, "both libraries", told, "cuda: None ('75-real'")
    rows = [line.split()[1:] for line in told.splitlines() if line.startswith("op ")]
    if not rows:
        failures.append("no operator is registered")
    for name, cpu, cuda, either in rows:
        if either == "True":
            continue
        if cuda != "True":
            failures.append(f"{name} has no CUDA kernel")
        if (cpu == "True") == (name in CUDA_ALONE):
            failures.append(f"{name}: a kernel for the CPU: {cpu}, but CUDA_ALONE says otherwise")


def check_training(failures: list[str], steps: int = 100) -> None:
    """Train the demo on the CPU with the torch that has CUDA."""
    run_dir = PLACE / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    command = [str(PYTHON.parent / "splatstudio"), "train", str(ROOT / "assets" / "demo")]
    told = run(command, "--run", str(run_dir), "--steps", str(steps), cwd=PLACE)
    expect(failures, "the device is said", told, "CPU: no NVIDIA GPU is here")
    if not (run_dir / "ckpts" / f"step_{steps:08d}" / "manifest.json").exists():
        failures.append(f"no checkpoint of step {steps}: {sorted(run_dir.rglob('manifest.json'))}")


def check_broken_library(failures: list[str]) -> None:
    """Spoil the CUDA library: the CPU's kernels must serve, and the cause be said."""
    library = installed("_cuda.so")
    kept = library.with_suffix(".kept")
    library.rename(kept)
    try:
        library.write_bytes(kept.read_bytes().replace(b"\x7fELF", b"LOST", 1))
        told = run([str(PYTHON), "-c", SAY_DEVICE], cwd=PLACE)
        expect(failures, "broken CUDA library", told, "without: the CUDA kernels cannot be loaded: ")
        check_training(failures, steps=5)
    finally:
        kept.replace(library)


def check_torch_without_cuda(failures: list[str]) -> None:
    """Load the wheel's kernels in the project's own environment, whose torch may have no CUDA."""
    own = ROOT / ".venv" / "bin" / "python"
    told = run([str(own), "-c", SAY_DEVICE], environment={"SPLATSTUDIO_EXTENSION": str(installed("_C.so"))})
    version = run([str(own), "-c", "import torch; print(torch.__version__, torch.version.cuda)"]).split()
    wanted = f"without: this torch, {version[0]}, has no CUDA" if version[1] == "None" else "without: None"
    expect(failures, f"the wheel in torch {version[0]}", told, wanted)


def check_compiler_of_wheels(failures: list[str]) -> None:
    """Install NVIDIA's compiler as wheels, as `make setup` does beside a GPU, and build with it."""
    script = "import install_toolkit as it; it.install(it.cuda_of_torch()); print(it.has_compiler(13))"
    path, nowhere = path_without_nvcc(), f"-DSPLAT_TOOLKITS={PLACE}/none"
    shutil.rmtree(PLACE / "of-wheels", ignore_errors=True)
    try:
        told = run([str(PYTHON), "-c", script], environment={"PATH": path}, cwd=ROOT / "csrc" / "cuda")
        expect(failures, "the compiler of the wheels is found", told, "True")
        one = "-DCMAKE_CUDA_ARCHITECTURES=90"
        found = configure("of-wheels", nowhere, one, path=path)
        expect(failures, "the compiler of the wheels is taken", found, "/nvidia/cu13/bin/nvcc")
        built = run([str(PYTHON.parent / "cmake"), "--build", str(PLACE / "of-wheels"), "-j", "2"])
        expect(failures, "it builds", built, "_cuda.so")
    finally:
        run(PIP, "uninstall", "--yes", "nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm")


def installed(name: str) -> Path:
    """Return a file of the installed package."""
    (found,) = (PLACE / "venv").glob(f"lib/python*/site-packages/splatstudio/{name}")
    return found


def expect(failures: list[str], what: str, told: str, wanted: str) -> None:
    """Note a failure where the wanted words are missing; tell both."""
    print(
        f"{what}: {'ok' if wanted in told else 'FAILED'}: {told.strip().splitlines()[-1][:160]}", flush=True
    )
    if wanted not in told:
        failures.append(f"{what}: {wanted!r} is not in {told[-600:]!r}")


if __name__ == "__main__":
    sys.exit(main())
