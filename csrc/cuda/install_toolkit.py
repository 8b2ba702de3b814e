"""Put NVIDIA's CUDA compiler beside torch where a GPU is there, torch has CUDA, and no compiler is found.

    python csrc/cuda/install_toolkit.py

For CUDA 13 and newer, whose wheels on PyPI hold all of it: 105 MB to fetch. Does nothing, and says nothing,
where there is nothing to do. An installation that fails is told in one line: the CPU's kernels are built.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

WHEELS = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-cccl", "nvidia-cuda-runtime")
FIRST_WITH_COMPILER = 13  # before, the wheels had no nvcc
QUESTION = """
include("{find_nvcc}")
set(TORCH_DIR "{torch}")
find_nvcc({major} nvcc why_not)
message(STATUS nvcc=${{nvcc}})
"""


def cuda_of_torch() -> tuple[int, int] | None:
    """Return the version of CUDA, major and minor, that torch was built with; None: without."""
    text = (torch_folder() / "version.py").read_text()
    found = re.search(r"^cuda: .*= '(\d+)\.(\d+)", text, re.MULTILINE)
    return None if found is None else (int(found[1]), int(found[2]))


def torch_folder() -> Path:
    """Return where torch is, without loading it."""
    spec = find_spec("torch")
    assert spec is not None and spec.submodule_search_locations, "torch is installed before this runs"
    return Path(spec.submodule_search_locations[0])


def has_driver() -> bool:
    """Return whether NVIDIA's driver shows a GPU."""
    smi = shutil.which("nvidia-smi")
    return smi is not None and "GPU 0" in subprocess.run([smi, "-L"], capture_output=True, text=True).stdout


def has_compiler(major: int) -> bool:
    """Return whether the build will find an nvcc of that major version."""
    cmake = shutil.which("cmake", path=str(Path(sys.executable).parent)) or shutil.which("cmake")
    assert cmake is not None, "CMake is installed before this runs"
    find_nvcc = Path(__file__).with_name("find_nvcc.cmake")
    question = QUESTION.format(find_nvcc=find_nvcc, torch=torch_folder(), major=major)
    asked = subprocess.run(
        [cmake, "-P", "/dev/stdin"], input=question, capture_output=True, text=True, check=True
    )
    return "-- nvcc=\n" not in asked.stdout


def install(cuda: tuple[int, int]) -> None:
    """Install the wheels of that version of CUDA; CalledProcessError where one cannot be had."""
    wanted = [f"{name}=={cuda[0]}.{cuda[1]}.*" for name in WHEELS]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, *wanted], check=True)
    link_runtime(torch_folder().parent / "nvidia" / f"cu{cuda[0]}", cuda[0])


def link_runtime(folder: Path, major: int) -> None:
    """Give the runtime the names under which nvcc and CMake look for it."""
    for link, file in ((folder / "lib64", "lib"), (folder / "lib" / "libcudart.so", f"libcudart.so.{major}")):
        if not link.exists():
            link.symlink_to(file)


def main() -> None:
    """Install what is missing."""
    cuda = cuda_of_torch()
    if cuda is None or not has_driver() or has_compiler(cuda[0]):
        return
    version = f"{cuda[0]}.{cuda[1]}"
    if cuda[0] < FIRST_WITH_COMPILER:
        print(f"A GPU is here, but nvcc of CUDA {version} is not: install NVIDIA's CUDA toolkit {version}.")
        return
    print(f"A GPU is here, but no CUDA compiler: fetching that of CUDA {version} ...", flush=True)
    try:
        install(cuda)
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"The CUDA compiler could not be installed ({error}); install NVIDIA's CUDA toolkit {version}.")


if __name__ == "__main__":
    main()
