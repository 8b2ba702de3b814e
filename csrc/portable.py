"""Compile the CPU kernels for systems that are not here, and make experimental wheels of some of them.

    make portable-check                  (compiles; minutes the first time)
    make experimental-wheels             (build/experimental: compiled, and that for Linux run emulated)

clang and zig (of the registry's ziglang) compile for Linux, Windows and macOS; Debian's cross compiler for
Linux on arm64. What needs a torch of the other system is linked against a list of the functions in C of which
torch's stable interface consists. `--torch FILE` takes a wheel of torch for that system and checks that its
library has them all.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "portable"
OF_TORCH = re.compile(r"\b(?:aoti_torch|torch)_[a-z0-9_]+\b")
ARM64 = "manylinux_2_35_aarch64"
# The newest versions of PEP 600's manylinux_2_35; an older one needs more than Debian's cross compiler does.
NEWEST = {"GLIBC": (2, 35), "GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (11,)}
ASKED_FOR = {"torch_exception_get_what_without_backtrace"}  # of newer torches alone: none is needed


@dataclass(frozen=True)
class System:
    """What is compiled for, by what: its name and processor in CMake, platform and proof of a wheel."""

    name: str
    compiler: tuple[str, ...]
    cmake: str
    processor: str
    wheel: str | None = None
    proof: str = "compiled, not run"

    @property
    def folder(self) -> Path:
        """Return where it is built."""
        return BUILD / self.name

    @property
    def is_here(self) -> bool:
        """Return whether its compiler is on this machine."""
        zig = self.compiler[1:3] == ("-m", "ziglang")
        command = [*self.compiler[:3], "version"] if zig else [*self.compiler, "--version"]
        if shutil.which(self.compiler[0]) is None:
            return False
        return subprocess.run(command, capture_output=True).returncode == 0


def _zig(target: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "ziglang", "c++", "-target", target)


SYSTEMS = (
    System("clang", ("clang++",), "Linux", "x86_64"),
    System("linux-arm64", ("aarch64-linux-gnu-g++",), "Linux", "aarch64", ARM64, "run under emulation alone"),
    System("windows-x86_64", _zig("x86_64-windows-gnu"), "Windows", "AMD64", "win_amd64"),
    System("macos-arm64", _zig("aarch64-macos.14.0"), "Darwin", "arm64", "macosx_14_0_arm64"),
)


def main() -> int:
    """Compile for all systems whose compiler is here, or make wheels; return the exit code."""
    parser = argparse.ArgumentParser(description="Compile the CPU kernels for other systems.")
    parser.add_argument("--wheels", action="store_true", help="make experimental wheels")
    parser.add_argument("--torch", type=Path, nargs="*", default=[], help="wheels of torch for other systems")
    options = parser.parse_args()
    missing: list[str] = []
    for system in SYSTEMS:
        if options.wheels and system.wheel is None:
            continue
        if not system.is_here:
            missing.append(system.name)
            print(f"{system.name}: not compiled, {' '.join(system.compiler[:4])} is not here", flush=True)
            continue
        begun = time.monotonic()
        library = compiled(system)
        size = library.stat().st_size / 1e6
        print(
            f"{system.name}: compiled and linked, {size:.1f} MB, {time.monotonic() - begun:.0f} s", flush=True
        )
        for torch in options.torch:
            if system.wheel is not None and torch.name.endswith(f"{system.wheel}.whl"):
                print(f"  {check_functions(system, torch)} functions of torch, all of them in {torch.name}")
        if options.wheels:
            wheel = experimental_wheel(system, library)
            print(f"  {wheel.relative_to(ROOT)}: {wheel.stat().st_size / 1e6:.1f} MB; {system.proof}")
    return 1 if len(missing) == len(SYSTEMS) else 0


def compiled(system: System) -> Path:
    """Return the library of the kernels for a system."""
    system.folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_CXX_COMPILER": str(_program(system)),
        "SPLAT_CUDA": "OFF",
        "SPLAT_WITHOUT_CUDA": f"these kernels are those for {system.name}",
        "Python3_EXECUTABLE": sys.executable,
        "CMAKE_SYSTEM_NAME": system.cmake,
        "CMAKE_SYSTEM_PROCESSOR": system.processor,
        "SPLAT_TORCH_FUNCTIONS": str(_torch_functions(system) or ""),
    }
    if system.name == "clang":  # this system, with another compiler
        del settings["CMAKE_SYSTEM_NAME"], settings["CMAKE_SYSTEM_PROCESSOR"]
    elif system.cmake == "Linux":
        settings["CMAKE_SKIP_RPATH"] = "ON"  # no place of this machine in it
    else:
        # zig is compiler and linker of any system; what it compiles cannot be tried here.
        settings |= {
            "CMAKE_CXX_COMPILER_WORKS": "ON",
            "CMAKE_OSX_SYSROOT": "",
            "CMAKE_OSX_DEPLOYMENT_TARGET": "",
        }
    defines = [f"-D{name}={value}" for name, value in settings.items()]
    cmake = [str(Path(sys.executable).with_name("cmake"))]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for command in (
        [*cmake, "-S", ROOT / "csrc", "-B", system.folder / "build", "-G", "Ninja", *defines],
        [*cmake, "--build", system.folder / "build", "-j", "2"],
    ):
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{system.name} was not compiled:\n{done.stdout[-6000:]}{done.stderr[-6000:]}")
    (library,) = [file for file in (system.folder / "build").glob("_C.*") if file.suffix in (".so", ".pyd")]
    return library


def _program(system: System) -> Path:
    """Return a program that calls the compiler with what it always needs, as CMake wants one."""
    if len(system.compiler) == 1:
        return Path(shutil.which(system.compiler[0]) or system.compiler[0])
    program = system.folder / "c++"
    program.write_text(f'#!/bin/sh\nexec {" ".join(system.compiler)} "$@"\n')
    program.chmod(0o755)
    return program


def functions_used() -> list[str]:
    """Return the functions of torch's stable interface that the kernels of this machine use."""
    library = next((ROOT / "build").glob("*linux*/_C.so"))
    told = subprocess.run(
        ["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True
    )
    return sorted(set(OF_TORCH.findall(told.stdout)) - ASKED_FOR)


def _torch_functions(system: System) -> Path | None:
    """Return a library that has torch's functions for the linker, and nothing in them."""
    names = functions_used()
    if system.cmake == "Windows":
        definitions, library = system.folder / "torch_cpu.def", system.folder / "libtorch_cpu.a"
        definitions.write_text("LIBRARY torch_cpu.dll\nEXPORTS\n" + "".join(f"  {name}\n" for name in names))
        zig = [sys.executable, "-m", "ziglang", "dlltool", "-m", "i386:x86-64"]
        subprocess.run([*zig, "-d", definitions, "-l", library], check=True)
        return library
    if system.name == "linux-arm64":
        source, library = system.folder / "torch_cpu.c", system.folder / "libtorch_cpu.so"
        source.write_text("".join(f"void {name}(void) {{}}\n" for name in names))
        command = [*system.compiler, "-x", "c", "-shared", "-fPIC", "-Wl,-soname,libtorch_cpu.so"]
        subprocess.run([*command, source, "-o", library], check=True)
        return library
    return None


def check_functions(system: System, torch: Path) -> int:
    """Return how many functions are used, all of which a wheel of torch for that system has; else exit."""
    names = {"Windows": "torch_cpu.dll", "Darwin": "libtorch_cpu.dylib", "Linux": "libtorch_cpu.so"}
    name = f"torch/lib/{names[system.cmake]}"
    data = zipfile.ZipFile(torch).read(name)
    # The names that a library offers lie in it between two zeros, Apple's with an underscore before.
    before = b"\0_" if system.cmake == "Darwin" else b"\0"
    lacking = [used for used in functions_used() if before + used.encode() + b"\0" not in data]
    if lacking:
        sys.exit(f"{torch.name} has not what the kernels use: {', '.join(lacking)}")
    return len(functions_used())


def newer_than_policy(library: Path) -> list[str]:
    """Return the versions of the C and C++ libraries that a library needs and the policy has not."""
    readelf = ["readelf", "--wide", "--version-info", library]
    told = subprocess.run(readelf, capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"Name: (\w+)_([0-9.]+)\s", told))
    numbers = {f"{name}_{number}": tuple(map(int, number.split("."))) for name, number in needed}
    return sorted(each for each, number in numbers.items() if number > NEWEST[each.partition("_")[0]])


def experimental_wheel(system: System, library: Path) -> Path:
    """Return this version's wheel with the kernels for another system in place of those for this one."""
    if system.wheel == ARM64 and (newer := newer_than_policy(library)):
        needed = ", ".join(newer)
        sys.exit(f"{library.name} needs {needed}, which {ARM64} does not have: use an older cross compiler")
    folder = ROOT / "build" / "experimental"
    plain = folder / system.name
    shutil.rmtree(plain, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    build = ["--no-build-isolation", f"--config-settings=build-dir={BUILD / 'here'}"]
    define = "--config-settings=cmake.define.SPLAT_CUDA=OFF"
    subprocess.run([*pip, *build, define, "-w", str(plain), "."], cwd=ROOT, check=True)
    (wheel,) = plain.glob("*.whl")
    wheels = [sys.executable, "-m", "wheel"]
    subprocess.run([*wheels, "unpack", "--dest", plain, wheel], check=True, stdout=subprocess.DEVNULL)
    (unpacked,) = [entry for entry in plain.iterdir() if entry.is_dir()]
    (unpacked / "splatstudio" / "_C.so").unlink()
    shutil.copyfile(library, unpacked / "splatstudio" / library.name)
    (unpacked / "splatstudio" / "without_cuda.txt").write_text(
        f"this wheel is experimental: its kernels for {system.name} were {system.proof}"
    )
    (tags,) = unpacked.glob("*.dist-info/WHEEL")
    described = tags.read_text()
    tags.write_text(re.sub(r"^Tag: .*$", f"Tag: py3-none-{system.wheel}", described, flags=re.MULTILINE))
    pack = [*wheels, "pack", "--build-number", "0experimental", "--dest-dir", folder, unpacked]
    subprocess.run(pack, check=True, stdout=subprocess.DEVNULL)
    wheel.unlink()
    shutil.rmtree(plain)
    (made,) = folder.glob(f"*0experimental-py3-none-{system.wheel}.whl")
    return made


if __name__ == "__main__":
    sys.exit(main())
