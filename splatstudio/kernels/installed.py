"""Which native kernels came with the package, and which torch is beside them, told without loading torch."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

from splatstudio.files.inputs import read_input

OLDEST_TORCH = (2, 11)  # whose interface the kernels are compiled for; newer ones keep it


@dataclass(frozen=True)
class InstalledTorch:
    """The torch that is installed: its release as it names it, and that of its CUDA, None: without."""

    release: str
    cuda: str | None


@dataclass(frozen=True)
class KernelFiles:
    """The libraries of the kernels: the CPU's, and those for GPUs beside it, or why there are none."""

    cpu: Path
    without_cuda: str | None

    @property
    def cuda(self) -> Path:
        """Return where the library for GPUs is, or would be."""
        return self.cpu.with_name(f"_cuda{self.cpu.suffix}")


def kernel_files() -> KernelFiles | None:
    """Return what SPLATSTUDIO_EXTENSION names (another build), else our own; None where none are built."""
    spec = importlib.util.find_spec("splatstudio._C")
    named = os.environ.get("SPLATSTUDIO_EXTENSION") or (None if spec is None else spec.origin)
    if named is None:
        return None
    files = KernelFiles(Path(named), None)
    if files.cuda.exists():
        return files
    reason = files.cpu.with_name("without_cuda.txt")
    said = read_input(reason).decode().strip() if reason.exists() else ""
    return KernelFiles(files.cpu, said or "the kernels were built without CUDA")


def installed_torch() -> InstalledTorch | None:
    """Return what torch's own folder says of it; None where there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    text = read_input(Path(spec.submodule_search_locations[0]) / "version.py").decode()
    release = re.search(r"^__version__ = '(.+)'", text, re.MULTILINE)
    cuda = re.search(r"^cuda: .*= '([0-9.]+)'", text, re.MULTILINE)
    return InstalledTorch(release[1] if release else "", cuda[1] if cuda else None)


def refuse_torch(torch: InstalledTorch | None) -> None:
    """Raise ValueError with one sentence for a torch that the kernels cannot work with, or for none."""
    needed = ".".join(map(str, OLDEST_TORCH))
    if torch is None:
        raise ValueError(f"torch is not installed: pip install 'torch>={needed}'")
    number = re.match(r"(\d+)\.(\d+)", torch.release)
    if number is not None and (int(number[1]), int(number[2])) < OLDEST_TORCH:
        raise ValueError(
            f"torch {torch.release} is too old, splatstudio needs {needed} or newer: "
            f"pip install --upgrade 'torch>={needed}'"
        )
