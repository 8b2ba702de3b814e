"""Which kernels and which torch are installed, and what is said of a torch that will not do."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import torch
from command_line import CommandLine

from splatstudio.kernels import installed
from splatstudio.kernels.installed import InstalledTorch, installed_torch, kernel_files, refuse_torch


def test_the_torch_that_is_told_is_the_one_that_is_loaded() -> None:
    found = installed_torch()
    assert found == InstalledTorch(str(torch.__version__), torch.version.cuda)
    refuse_torch(found)


@pytest.mark.parametrize("release", ["2.10.0+cu128", "1.13.1", "2.9.1"])
def test_an_old_torch_is_refused_in_one_sentence(release: str) -> None:
    with pytest.raises(
        ValueError, match=r"is too old, splatstudio needs 2\.11 or newer: pip install"
    ) as told:
        refuse_torch(InstalledTorch(release, None))
    assert release in str(told.value) and "\n" not in str(told.value)
    refuse_torch(InstalledTorch("3.0.0a0+git123", "13.0"))


def test_every_command_says_so_before_it_loads_it(
    tmp_path: Path, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version.py").write_text("__version__ = '2.4.1+cu121'\ncuda: Optional[str] = '12.1'\n")
    spec = ModuleSpec("torch", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    found = importlib.util.find_spec
    monkeypatch.setattr(
        installed.importlib.util, "find_spec", lambda name: spec if name == "torch" else found(name)
    )
    assert installed_torch() == InstalledTorch("2.4.1+cu121", "12.1")
    for words in (("info", tmp_path), ("doctor",), ("train", tmp_path)):
        code, told = command(*words)
        assert code == 2 and told.count("\n") == 1 and "torch 2.4.1+cu121 is too old" in told
    monkeypatch.setattr(installed.importlib.util, "find_spec", lambda name: None)
    assert "torch is not installed: pip install" in command("doctor")[1]


def test_why_there_are_no_kernels_for_gpus_is_told_with_where_the_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPLATSTUDIO_EXTENSION", str(tmp_path / "_C.so"))
    files = kernel_files()
    assert files is not None and files.cpu == tmp_path / "_C.so"
    assert files.without_cuda == "the kernels were built without CUDA"
    (tmp_path / "without_cuda.txt").write_text("this wheel was built without nvcc\n")
    assert (files := kernel_files()) is not None and files.without_cuda == "this wheel was built without nvcc"
    (tmp_path / "_cuda.so").write_bytes(b"")
    assert (files := kernel_files()) is not None and files.without_cuda is None


def test_the_overview_and_the_version_load_nothing_that_takes_long() -> None:
    script = (
        "import sys; from splatstudio.cli.overview import answer; answer(['--help']); answer(['--version']);"
        "print(sorted({'torch', 'numpy', 'tyro', 'viser', 'psutil', 'websockets'} & set(sys.modules)))"
    )
    # Not forked from a process that has all of it loaded.
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout in ("['psutil']\n", "[]\n")
