"""The CUDA kernels are a library of their own: whatever is wrong with it, those of the CPU serve."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from splatstudio.kernels import ops
from splatstudio.kernels.installed import kernel_files

pytestmark = [
    pytest.mark.cpu_kernels,
    pytest.mark.skipif(not ops.is_available(), reason="the native kernels are not built"),
]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a copy of the CPU's kernels, which are to be loaded anew by a torch with CUDA."""
    built = kernel_files()
    assert built is not None and ops.native_version()  # loaded
    shutil.copy(built.cpu, tmp_path / "_C.so")
    monkeypatch.setenv("SPLATSTUDIO_EXTENSION", str(tmp_path / "_C.so"))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    # A second copy of the operators would be refused.
    load = torch.ops.load_library
    monkeypatch.setattr(torch.ops, "load_library", lambda path: Path(path).name == "_C.so" or load(path))
    ops._native.cache_clear()
    yield tmp_path
    ops._native.cache_clear()


def test_without_a_cuda_library_the_build_says_why(installed: Path) -> None:
    assert ops.without_cuda_kernels() == "the kernels were built without CUDA"
    (installed / "without_cuda.txt").write_text("nvcc of CUDA 13 was not found when the kernels were built\n")
    ops._native.cache_clear()
    assert ops.without_cuda_kernels() == "nvcc of CUDA 13 was not found when the kernels were built"
    assert ops.cuda_architectures() == ()


def compiled(path: Path, source: str, *options: str) -> None:
    """Compile a library."""
    subprocess.run(
        ["g++", "-shared", "-fPIC", "-xc++", "-", "-o", path, *options], input=source, text=True, check=True
    )


@pytest.mark.parametrize("fault", ["no library", "a library is missing", "a symbol is missing"])
def test_a_cuda_library_that_cannot_be_loaded_leaves_the_others_working(installed: Path, fault: str) -> None:
    library = installed / "_cuda.so"
    if fault == "no library":
        library.write_bytes(b"no library")
    elif fault == "a library is missing":  # as libtorch_cuda is for a torch without CUDA
        compiled(installed / "libother.so", "void other() {}")
        compiled(library, "void other(); void call() { other(); }", f"-L{installed}", "-lother")
        (installed / "libother.so").unlink()
    else:
        compiled(
            library, 'extern "C" void cudaFunctionOfTomorrow(); void* used = (void*)&cudaFunctionOfTomorrow;'
        )
    told = ops.without_cuda_kernels()
    assert told is not None and told.startswith("the CUDA kernels cannot be loaded: ") and "\n" not in told
    named = {"no library": "_cuda.so", "a library is missing": "libother.so"}.get(
        fault, "cudaFunctionOfTomorrow"
    )
    assert named in told
    assert not ops.has_kernel("project_fwd", "cuda") and ops.cuda_architectures() == ()
    image = torch.rand(20, 20, 3)
    assert float(ops.ssim(image, image, padding="same")) == pytest.approx(1.0)


def test_a_torch_without_cuda_does_not_look_at_the_cuda_library(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (installed / "_cuda.so").write_bytes(b"no library")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert ops.without_cuda_kernels() == f"this torch, {torch.__version__}, has no CUDA"


def test_a_new_process_says_what_it_trains_on() -> None:
    script = (
        "from splatstudio.training.device_options import AS_FOUND;"
        "print(AS_FOUND.use_of(AS_FOUND.chosen()).for_terminal())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.startswith(("CPU: ", "GPU: ")) and done.stdout.count("\n") == 1, done.stderr
