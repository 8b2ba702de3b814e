"""Which native kernels came with the package, told without loading torch."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from splatstudio.files.inputs import read_input


@dataclass(frozen=True)
class KernelFiles:
    """The libraries of the kernels: the CPU's, and those for GPUs beside it, or why there are none."""

    cpu: Path
    without_cuda: str | None

    @property
    def cuda(self) -> Path:
        """Return where the library for GPUs is, or would be."""
        return self.cpu.with_name("_cuda.so")


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
