"""What pip says where splatstudio cannot be built from source, and what the wheel is linked against."""

from __future__ import annotations

import importlib.util
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


def loaded(file: str) -> ModuleType:
    """Return a program of csrc/ as a module."""
    spec = importlib.util.spec_from_file_location(Path(file).stem, ROOT / "csrc" / file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def backend() -> ModuleType:
    return loaded("build_backend.py")


def test_here_it_can_be_built_with_torch_beside_it(backend: ModuleType) -> None:
    assert backend.why_not() is None
    assert "torch>=2.11" in backend.get_requires_for_build_wheel({})
    assert "torch>=2.11" in backend.get_requires_for_build_editable({})


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("windows", "splatstudio runs on Linux; on Windows install it inside of WSL 2"),
        ("32 bit", "32-bit one, for which there is no torch: install a 64-bit Python"),
        ("musl", "musl, as Alpine Linux, for which there is no torch: use one with glibc"),
        ("no compiler", "needs a C++ compiler: none was found. On Debian and Ubuntu: apt install g++"),
        ("CXX", "the compiler that CXX names, no-such-compiler, was not found"),
    ],
)
def test_one_sentence_says_why_not_and_nothing_is_fetched(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch, what: str, told: str
) -> None:
    if what == "windows":
        monkeypatch.setattr(sys, "platform", "win32")
    elif what == "32 bit":
        monkeypatch.setattr(struct, "calcsize", lambda kind: 4)
    elif what == "musl":
        monkeypatch.setattr(sysconfig, "get_config_var", lambda name: "cpython-312-x86_64-linux-musl")
    elif what == "no compiler":
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.setattr(shutil, "which", lambda *_: None)
    else:
        monkeypatch.setenv("CXX", "no-such-compiler -O2")
    for build in (
        lambda: backend.get_requires_for_build_wheel({}),
        lambda: backend.build_wheel("nowhere"),
        lambda: backend.build_editable("nowhere"),
    ):
        with pytest.raises(SystemExit) as stop:
            build()
        assert told in str(stop.value.code) and "\n" not in str(stop.value.code)


def test_what_is_linked_against_the_stubs_asks_for_no_newer_system(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++")
    program = [sys.executable, ROOT / "csrc" / "manylinux" / "link_stubs.py", tmp_path / "stubs", compiler]
    subprocess.run(program, check=True)
    source = tmp_path / "user.cpp"
    source.write_text(
        "#include <cmath>\n#include <condition_variable>\n#include <pthread.h>\n#include <dlfcn.h>\n"
        "double power(double x) { return std::pow(x, x); }\n"
        "void rest(std::condition_variable& c, std::unique_lock<std::mutex>& l) { c.wait(l); }\n"
        "int thread(pthread_t* t, void* (*f)(void*)) { return pthread_create(t, nullptr, f, dlsym(0, 0)); }\n"
        "thread_local int own = 0; int* mine() { return &own; }\n"
    )
    command = [compiler, "-shared", "-fPIC", source, "-o", tmp_path / "user.so", "-Wl,--no-undefined"]
    subprocess.run([*command, f"-L{tmp_path / 'stubs'}"], check=True)
    listed = subprocess.run(
        ["objdump", "-T", tmp_path / "user.so"], capture_output=True, text=True, check=True
    )
    asked = {
        (name, tuple(map(int, number.split("."))))
        for name, number in re.findall(r"\((GLIBC|GLIBCXX)_([0-9.]+)\)", listed.stdout)
    }
    assert asked and max(number for name, number in asked if name == "GLIBC") <= (2, 28)
    assert max(number for name, number in asked if name == "GLIBCXX") <= (3, 4, 24)
    # What manylinux_2_28 does not have ends the link.
    source.write_text(
        '#include <cstdlib>\nextern "C" unsigned arc4random(); unsigned any() { return arc4random(); }\n'
    )
    failed = subprocess.run([*command, f"-L{tmp_path / 'stubs'}"], capture_output=True, text=True)
    assert failed.returncode != 0 and "arc4random" in failed.stderr


def test_the_wheel_has_kernels_for_gpus_where_nvcc_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = loaded("manylinux/build_wheel.py")
    monkeypatch.setattr(builder, "TOOLKIT", str(tmp_path / "none"))
    monkeypatch.delenv("CUDACXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert builder.cuda_major() is None
    (tmp_path / "nvcc").write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.4, V12.4.131'\n")
    (tmp_path / "nvcc").chmod(0o755)
    assert builder.cuda_major() == 12
