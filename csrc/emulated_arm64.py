"""Run splatstudio on an emulated arm64 Linux: `doctor`, the kernels' tests, a short training, and an export.

    make arm64-check                 (0.5 GB is fetched the first time)
    make arm64-check PART=tests      (the kernels' tests alone: three minutes on two cores)

qemu emulates the processor, and Debian's arm64 packages are unpacked beside the checkout: nothing of them is
installed on this machine. What splatstudio needs comes as wheels for arm64, in the versions that are here,
splatstudio as the wheel of `make experimental-wheels`. torch's wheel has CUDA, whose libraries would be 2 GB
more: NVIDIA's small runtime is fetched, and libraries that do nothing take the place of the others.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from manylinux.link_stubs import Symbol, write_stub
from packaging.requirements import Requirement
from portable import ROOT, SYSTEMS, compiled, experimental_wheel

BUILD = ROOT / "build" / "arm64"
SYSTEM = BUILD / "system"
PACKAGES = SYSTEM / "usr" / "lib" / "python3" / "dist-packages"
LIBRARIES = SYSTEM / "usr" / "lib" / "aarch64-linux-gnu"
PYTHON = SYSTEM / "usr" / "bin" / "python3"
COMPILER = "aarch64-linux-gnu-gcc"
TOOLS = {
    "qemu-aarch64-static": "qemu-user-static",
    COMPILER: "gcc-aarch64-linux-gnu",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "aarch64-linux-gnu-readelf": "binutils-aarch64-linux-gnu",
    "apt-get": "apt",
    "dpkg": "dpkg",
}
# What the emulated Linux says of its processor, as torch asks: without it torch ends, as the files of another
# processor are there.
PROCESSOR = "neoverse-n1"
MIDR = "0x00000000413fd0c1"
CPUINFO = """processor\t: {number}
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

"""
FOR_TESTS = ("pytest", "pytest-timeout", "hypothesis", "iniconfig", "pluggy", "sortedcontainers")
# Small and needed, of all that torch's wheel for arm64 asks of NVIDIA.
RUNTIME = ("nvidia-cuda-runtime==13.*", "nvidia-cuda-cupti==13.*")
# Of torch on a machine with CUDA; it is what the libraries without functions take the place of.
OF_GPUS = re.compile("(nvidia-(cu|nccl|nv)|cuda-|triton)")
TESTS = (
    "tests/kernels/test_area_means.py",
    "tests/kernels/test_mcmc_kernels.py",
    "tests/kernels/test_pose_kernels.py",
    "tests/kernels/test_depth_ties.py",
    "tests/kernels/test_ops_errors.py",
    "tests/kernels/test_modes.py",
    "tests/kernels/test_fuzz.py",
    "tests/kernels/test_ops.py",
)
STEPS = 30
TRAINING = ("--steps", str(STEPS), "--downscale", "8", "--json")
MOST_APART = 0.05  # dB: two compilers, and two libraries of mathematics, do not round alike


class Missing(Exception):
    """What this machine lacks to emulate another; its text says what to do."""


@dataclass(frozen=True)
class Times:
    """Prints what was done and how long it took."""

    begun: float

    def told(self, what: str) -> Times:
        """Print what was done since the last, and return a new start."""
        now = time.monotonic()
        print(f"{what}: {now - self.begun:.0f} s", flush=True)
        return Times(now)


def main() -> int:
    """Set the emulated system up, run what is asked for, and return the exit code."""
    parser = argparse.ArgumentParser(description="Run splatstudio on an emulated arm64 Linux.")
    parser.add_argument("--only", choices=["tests", "doctor", "training"], help="one part of it")
    options = parser.parse_args()
    try:
        look_for_tools()
        times = Times(time.monotonic())
        make_system()
        times = times.told("Debian's Python for arm64")
        version = python_version()
        install_packages(version)
        times = times.told("packages for arm64")
        stub_libraries_of_gpus()
        install_splatstudio(version)
        times = times.told("the kernels for arm64")
    except Missing as missing:
        print(f"arm64-check: nothing was run. {missing}")
        return 1
    parts = {"doctor": check_doctor, "tests": check_kernels, "training": check_training}
    for name, part in parts.items():
        if options.only in (None, name):
            part()
            times = times.told(name)
    print("arm64-check: ok, under emulation")
    return 0


def look_for_tools() -> None:
    """Raise Missing, with what to install, where a program is not here."""
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    if {"apt-get", "dpkg"} & {*lacking}:
        raise Missing(
            "It needs Debian or Ubuntu, whose packages for arm64 it unpacks: apt-get was not found."
        )
    if lacking:
        packages = sorted({TOOLS[tool] for tool in lacking})
        raise Missing(
            f"Not found: {', '.join(lacking)}. On Debian and Ubuntu: apt install {' '.join(packages)}."
        )


def make_system() -> None:
    """Unpack Python for arm64 and what it needs into a folder; apt works in a folder of its own."""
    if (BUILD / "system-is-complete").exists():
        return
    shutil.rmtree(SYSTEM, ignore_errors=True)
    apt = BUILD / "apt"
    for folder in ("lists/partial", "cache/archives/partial"):
        (apt / folder).mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    places = {
        "Dir::State::Lists": apt / "lists",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache",
    }
    settings = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "root",
        **places,
    }
    command = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in settings.items())]
    run(*command, "update", check=False)  # a source without packages for arm64 does no harm
    wanted = ["python3", "libstdc++6", "libgomp1"]
    told = run(
        *command, "install", "--yes", "--download-only", "--no-install-recommends", *wanted, check=False
    )
    files = sorted((apt / "cache" / "archives").glob("*_*.deb"))
    if not any(file.name.startswith("python3_") for file in files):
        raise Missing(f"apt-get did not fetch Python for arm64:\n{told[-1000:]}")
    SYSTEM.mkdir(parents=True)
    for file in files:
        run("dpkg", "-x", file, SYSTEM)
    describe_processor()
    write_python()
    shutil.rmtree(apt)
    (BUILD / "system-is-complete").touch()


def describe_processor() -> None:
    """Write what Linux would say of the processor: the emulator looks here before this machine."""
    number = os.cpu_count() or 1
    (SYSTEM / "proc").mkdir(exist_ok=True)
    (SYSTEM / "proc" / "cpuinfo").write_text("".join(CPUINFO.format(number=each) for each in range(number)))
    for each in range(number):
        folder = SYSTEM / "sys" / "devices" / "system" / "cpu" / f"cpu{each}" / "regs" / "identification"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "midr_el1").write_text(MIDR + "\n")


def write_python() -> None:
    """Put a program in place of python3 that starts the emulator: what Python starts is emulated, too."""
    (program,) = PYTHON.parent.glob("python3.*[0-9]")
    PYTHON.unlink()
    PYTHON.write_text(
        f'#!/bin/sh\nexec qemu-aarch64-static -cpu {PROCESSOR} -L {SYSTEM} -0 "$0" {program} "$@"\n'
    )
    PYTHON.chmod(0o755)


def python_version() -> str:
    """Return the version of the emulated Python, as 3.11, after it has said what it runs on."""
    asked = "import platform, sys; print(platform.machine(), *sys.version_info[:2], sys.executable)"
    machine, major, minor, program = emulated("-c", asked).split()
    if (machine, program) != ("aarch64", str(PYTHON)):
        sys.exit(f"the emulated Python says that it is {program} on {machine}")
    return f"{major}.{minor}"


def install_packages(version: str) -> None:
    """Install the wheels for arm64 of what splatstudio and its tests need."""
    wanted = {*requirements("splatstudio"), *FOR_TESTS} - {"splatstudio"}
    lines = [pinned(name) for name in sorted(wanted)]
    made_for = BUILD / "packages-are-complete"
    if made_for.exists() and made_for.read_text() == "\n".join([version, *lines]):
        return
    made_for.unlink(missing_ok=True)
    shutil.rmtree(PACKAGES, ignore_errors=True)
    pip(version, "install", "--target", PACKAGES, *lines)
    pip(version, "download", "--dest", BUILD / "nvidia", *RUNTIME)
    for wheel in (BUILD / "nvidia").glob("*.whl"):
        with zipfile.ZipFile(wheel) as files:
            for name in files.namelist():
                if re.search(r"/lib(cudart|cupti)\.so\.\d+$", name):
                    (LIBRARIES / Path(name).name).write_bytes(files.read(name))
    shutil.rmtree(BUILD / "nvidia")
    made_for.write_text("\n".join([version, *lines]))


def requirements(name: str) -> Iterator[str]:
    """Yield the name of a package that is installed here, and of all that it needs."""
    waiting, seen = [name], set()
    while waiting:
        key = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if key in seen or OF_GPUS.match(key):
            continue
        seen.add(key)
        yield key
        needed = map(Requirement, metadata.distribution(key).requires or ())
        there = {"extra": "", "platform_machine": "aarch64"}
        waiting += [each.name for each in needed if each.marker is None or each.marker.evaluate(there)]


def pinned(name: str) -> str:
    """Return a package with the version that is installed here; of a build for the CPU the number alone."""
    return f"{name}=={metadata.version(name).partition('+')[0]}"


def pip(version: str, *arguments: object) -> None:
    """Let pip work as on arm64, with wheels alone and no more than what is named."""
    glibc = [f"manylinux_2_{number}_aarch64" for number in range(36, 16, -1)]
    platforms = [f"--platform={name}" for name in (*glibc, "manylinux2014_aarch64")]
    python = ["--implementation=cp", f"--python-version={version}"]
    abis = [f"--abi={abi}" for abi in (f"cp{version.replace('.', '')}", "abi3", "none")]
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, arguments)]
    told = run(*command, "--no-deps", "--only-binary=:all:", *platforms, *python, *abis, check=False)
    if (found := re.findall(r"^ERROR: .*", told, re.MULTILINE)) and "dependency conflicts" not in told:
        raise Missing(f"pip did not fetch the packages for arm64: {found[0]}")


def stub_libraries_of_gpus() -> None:
    """Give torch the libraries for GPUs that it is linked to, with all functions and nothing in them."""
    stub = LIBRARIES / "libwithout_gpu.so"
    for earlier in [file for file in LIBRARIES.glob("*.so*") if file.resolve().name == stub.name]:
        earlier.unlink()
    folder = PACKAGES / "torch" / "lib"
    here = [*folder.glob("*.so*"), *LIBRARIES.glob("*.so*"), *SYSTEM.glob("lib/**/*.so*")]
    offered = {path.name for path in here}
    symbols, libraries = set(), set()
    for library in folder.glob("*.so*"):
        libraries |= {*re.findall(r"\(NEEDED\).*\[(.+)\]", read_elf("-d", library))}
        symbols |= {
            *re.findall(r" (?:FUNC|NOTYPE) +GLOBAL +DEFAULT +UND (\S+)", read_elf("--dyn-syms", library))
        }
    had = re.compile(r" (?:GLOBAL|WEAK|UNIQUE) +DEFAULT +(?!UND)\S+ ([^\s@]+)")
    present = {name for file in here for name in had.findall(read_elf("--dyn-syms", file))}
    wanted = sorted({tuple(symbol.partition("@")[::2]) for symbol in symbols})
    of_gpus = [
        Symbol(name, version or "NONE", "FUNC", 0)
        for name, version in wanted
        if name not in present and not name.startswith(("Py", "_Py"))
    ]
    write_stub(stub, of_gpus, COMPILER)
    for name in libraries - offered:
        (LIBRARIES / name).symlink_to(stub.name)


def read_elf(option: str, library: Path) -> str:
    """Return what readelf says of a library."""
    return run("aarch64-linux-gnu-readelf", "--wide", option, library, check=False)


def install_splatstudio(version: str) -> None:
    """Compile the kernels, make the wheel, and install it."""
    (system,) = [system for system in SYSTEMS if system.name == "linux-arm64"]
    library = compiled(system)
    for old in PACKAGES.glob("splatstudio*"):
        shutil.rmtree(old)
    pip(version, "install", "--target", PACKAGES, experimental_wheel(system, library))


def check_doctor() -> None:
    """See that `doctor` finds nothing wrong: its self test, and two processes that exchange tensors."""
    print(emulated("-m", "splatstudio", "--version"), end="")
    told = emulated("-m", "splatstudio", "doctor")
    print(told.split("\n\n")[0])
    if not re.search(r"ok +self test +the kernels agree", told) or "two processes agree" not in told:
        sys.exit("doctor is not content")


def check_kernels() -> None:
    """Run the kernels' tests, which compare them with the same in plain torch."""
    places = ["tests/support", "tests/cuda_build"]
    # Without the fixtures of all tests, among which are browsers, and without the checkout's own package.
    options = ["-q", "--noconftest", "-p", "no:cacheprovider", "-o", f"pythonpath={' '.join(places)}"]
    # Three are about clocks, AVX2 and the text of the CUDA sources.
    left_out = "not interpreter and not portable_kernels and not in_these_words"
    told = emulated("-P", "-m", "pytest", *options, "--timeout=1800", "-k", left_out, *TESTS, cwd=ROOT)
    print(told.strip().splitlines()[-1])


def check_training() -> None:
    """Train the demo with the same settings emulated and here, compare what came of it, and export it."""
    scene = ROOT / "assets" / "demo"
    work = BUILD / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    command = ("-m", "splatstudio", "train", str(scene), *TRAINING, "--run")
    there = json.loads(emulated(*command, "there", cwd=work))
    here = json.loads(run(sys.executable, *command, "here", cwd=work))
    scores = [found["scores"]["psnr"] for found in (there, here)]
    print(f"  test PSNR after {STEPS} steps: {scores[0]:.4f} dB emulated, {scores[1]:.4f} dB here")
    if abs(scores[0] - scores[1]) > MOST_APART or there["splats"] != here["splats"]:
        sys.exit(f"the trainings differ:\n{there}\n{here}")
    emulated("-m", "splatstudio", "export", "there", "-o", "model.ply", cwd=work)
    read = "import splatstudio as ss; model = ss.load_model('model.ply'); print(len(model.gaussians))"
    print(f"  exported there and read here: {run(sys.executable, '-c', read, cwd=work).strip()} splats")


def emulated(*arguments: str, cwd: Path = BUILD) -> str:
    """Run the emulated Python and return what it printed; exit with all of it where it fails."""
    return run(PYTHON, *arguments, cwd=cwd)


def run(*command: object, cwd: Path = ROOT, check: bool = True) -> str:
    """Run a program and return what it printed; with `check`, exit with the rest, too, where it fails."""
    # Nothing that this machine's Python is told goes to the other, nor does a run learn of others.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment = {**kept, "XDG_STATE_HOME": str(BUILD / "state"), "LC_ALL": "C.UTF-8"}
    called = [str(word) for word in command]
    done = subprocess.run(called, cwd=cwd, env=environment, capture_output=True, text=True)
    if check and done.returncode != 0:
        told = f"{done.stdout[-6000:]}{done.stderr[-6000:]}"
        sys.exit(f"{' '.join(called)[:300]}: exit code {done.returncode}\n{told}")
    return done.stdout if check else done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
