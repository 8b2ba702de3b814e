"""What this machine offers a training, and whether the installed parts work: `splatstudio doctor`."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
import psutil
import torch

from splatstudio import ops
from splatstudio.camera import Camera
from splatstudio.gaussians import Gaussians
from splatstudio.rendering import render, render_reference


@dataclass(frozen=True)
class Finding:
    """One line of the report: what was looked at, what was found, and whether it is as it should be."""

    subject: str
    text: str
    good: bool = True


def findings() -> Iterator[Finding]:
    """Look at the machine and the installation, cheapest first; nothing is changed."""
    yield Finding("splatstudio", f"{metadata.version('splatstudio')}, Python {platform.python_version()}")
    yield Finding("torch", f"{torch.__version__}, {torch.get_num_threads()} threads")
    yield _native()
    yield from _gpus()
    yield _memory()
    yield _shared_memory()
    yield _browser()
    yield _self_test()


def _native() -> Finding:
    try:
        return Finding("CPU kernels", ops.native_version())
    except RuntimeError as error:
        return Finding("CPU kernels", str(error), good=False)


def _gpus() -> Iterator[Finding]:
    import pynvml  # pyright: ignore[reportMissingImports]

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        yield Finding("GPUs", f"none seen ({error}); training runs on the CPU")
        return
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        name = pynvml.nvmlDeviceGetName(handle)
        free, total = float(memory.free) / 2**30, float(memory.total) / 2**30
        yield Finding(f"GPU {index}", f"{name}, {free:.1f} of {total:.1f} GiB free")
    yield _cuda_kernels()


def _cuda_kernels() -> Finding:
    if ops.has_cuda_kernels():
        return Finding("CUDA kernels", "built; training runs on the GPU")
    if not torch.cuda.is_available():
        reason = "torch sees no GPU (a build of torch for the CPU, or a driver that is too old)"
    else:
        reason = "the extension was built without them: install nvcc of torch's CUDA version and build again"
    return Finding("CUDA kernels", f"not in use: {reason}; training runs on the CPU", good=False)


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    text = f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB free"
    return Finding("memory", f"{text}, {os.cpu_count()} cores")


def _shared_memory() -> Finding:
    shared = Path("/dev/shm")
    if not shared.is_dir():
        return Finding("shared memory", "no /dev/shm; live frames go through a temporary file")
    free = shutil.disk_usage(shared).free
    # Two slots of a 4K frame; smaller ones still work for smaller windows.
    good = free >= 2 * 3840 * 2160 * 3
    advice = "" if good else "; too small for 4K windows, enlarge it (in Docker: --shm-size=1g)"
    return Finding("shared memory", f"{free / 2**20:.0f} MiB free{advice}", good)


def _browser() -> Finding:
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or platform.system() != "Linux":
        return Finding("display", "there; `splatstudio open` starts the browser")
    return Finding("display", "none; open the printed URL in a browser elsewhere")


def _self_test() -> Finding:
    generator = torch.Generator().manual_seed(1)
    num = 200
    gaussians = Gaussians(
        means=torch.randn(num, 3, generator=generator) * 0.5,
        quats=torch.randn(num, 4, generator=generator),
        scales=torch.randn(num, 3, generator=generator) * 0.3 - 3.0,
        opacities=torch.randn(num, generator=generator),
        sh0=torch.randn(num, 1, 3, generator=generator),
        shN=torch.randn(num, 15, 3, generator=generator) * 0.1,
    )
    viewmat = np.eye(4)
    viewmat[2, 3] = 3.0
    K = np.array([[90.0, 0.0, 48.0], [0.0, 90.0, 32.0], [0.0, 0.0, 1.0]])
    camera = Camera(viewmat=viewmat, K=K, width=96, height=64)
    try:
        native = render(gaussians, camera).rgb
    except RuntimeError as error:
        return Finding("self test", str(error), good=False)
    difference = float((native - render_reference(gaussians, camera).rgb).abs().max())
    # Rounding may move an alpha across 1/255 at single pixels: that much is legitimate.
    good = difference <= 5e-3
    return Finding("self test", f"the kernels agree with the reference to {difference:.1e}", good)
