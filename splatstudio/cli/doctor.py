"""What this machine offers a training, and whether the installed parts work: `splatstudio doctor`."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import Any, Literal

import numpy as np
import psutil
import torch
import torch.distributed as dist

from splatstudio.cameras.camera import Camera
from splatstudio.devices import accelerator
from splatstudio.devices.monitor import SLOW_PATHS, read_gpus
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels import ops
from splatstudio.operating_system import memory_folder, open_files
from splatstudio.rendering.render import render, render_reference
from splatstudio.runtime.self_test import try_two_ranks
from splatstudio.training.device_options import AS_FOUND


@dataclass(frozen=True)
class Finding:
    """One line of the report: what was looked at, what was found, and whether it is as it should be."""

    subject: str
    text: str
    good: bool = True
    values: Mapping[str, Any] = field(
        default_factory=dict
    )  # the numbers in the text, as `--json` prints them


# What to look at when a training is slower than it should be, or ends.
ADVICE = (
    "A GPU below 80 % in the Devices panel: photos are decoded too slowly (use more cores, a faster disk"
    " or --downscale), or ranks wait for each other (the panel shows their waiting time).",
    "Out of memory: --max-splats auto plans with the free memory; a smaller --batch-size with more"
    " accumulation, or --downscale, needs less. Close other programs that use the GPU.",
    "More GPUs gain too little: without NVLink the exchange of splats is the limit, see the bandwidth"
    " measured above. Larger photos and more photos per step scale better.",
    "A crash inside a kernel: run once with CUDA_LAUNCH_BLOCKING=1, so that the log shows the right call.",
    "Ranks that do not connect: NCCL_DEBUG=INFO shows why; GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME"
    " choose the network between machines.",
)
PORTABLE = (
    "which run on any processor, because this one has no AVX2 and FMA or SPLATSTUDIO_CPU asks for them; they"
    " train about five times slower"
)
MIN_FILES = 1024  # of one process: pipes, sockets of 32 browsers, photos, shards
MIN_EXCHANGE = 1e9  # bytes a second between two GPUs, below which several are hardly worth it


def findings() -> Iterator[Finding]:
    """Look at the machine and the installation, cheapest first; nothing is changed."""
    versions = {"version": metadata.version("splatstudio"), "python": platform.python_version()}
    yield Finding("splatstudio", "{version}, Python {python}".format(**versions), values=versions)
    threads = {"version": str(torch.__version__), "threads": torch.get_num_threads()}
    yield Finding("torch", "{version}, {threads} threads".format(**threads), values=threads)
    yield _native()
    yield from _gpus()
    yield _training()
    yield _memory()
    yield _shared_memory()
    yield _files()
    yield _browser()
    yield _collectives()
    yield _self_test()
    yield _two_ranks("gloo")
    if ops.has_cuda_kernels() and accelerator.count() > 1 and dist.is_nccl_available():
        yield _two_ranks("nccl")


def findings_values() -> dict[str, Any]:
    """Return everything that is found as plain values: all of `Finding`, and whether all of it is good."""
    found = [asdict(finding) for finding in findings()]
    return {"good": all(row["good"] for row in found), "findings": found}


def _native() -> Finding:
    try:
        instructions = ops.native_version()
        # Other processors have one set alone: that of their compiler, as NEON on arm64.
        has_avx2_kernels = platform.machine() in ("x86_64", "AMD64")
        slower = f", {PORTABLE}" if instructions == "portable" and has_avx2_kernels else ""
        return Finding("CPU kernels", instructions + slower, values={"instructions": instructions})
    except RuntimeError as error:
        return Finding("CPU kernels", str(error), good=False)


def _gpus() -> Iterator[Finding]:
    try:
        found = read_gpus()
    except ValueError as error:
        yield Finding("GPUs", str(error))
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    chosen = "" if visible is None else f"; CUDA_VISIBLE_DEVICES={visible} hides the others"
    values = {"version": found.driver, "gpus": len(found.gpus), "visible": visible}
    yield Finding("driver", f"{found.driver}, {len(found.gpus)} GPUs{chosen}", values=values)
    for gpu in found.gpus:
        nvlinks = f", {gpu.num_nvlinks} NVLinks" if gpu.num_nvlinks else ""
        text = f"{gpu.name}, {gpu.free / 2**30:.1f} of {gpu.total / 2**30:.1f} GiB free{nvlinks}"
        sizes = {"free_bytes": gpu.free, "total_bytes": gpu.total, "nvlinks": gpu.num_nvlinks}
        yield Finding(f"GPU {gpu.index}", text, values={"name": gpu.name, **sizes})
    if found.links:
        slow = any(link.path in SLOW_PATHS for link in found.links)
        advice = "; slow: several GPUs will gain less than their number" if slow else ""
        yield Finding("GPU links", f"{'; '.join(found.describe_links())}{advice}", good=not slow)


def _training() -> Finding:
    use = AS_FOUND.use_of(AS_FOUND.chosen())
    return Finding("trains on", use.text, good=not use.idle_gpu)


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    text = f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB free"
    values = {"free_bytes": memory.available, "total_bytes": memory.total, "cores": os.cpu_count()}
    return Finding("memory", f"{text}, {os.cpu_count()} cores", values=values)


def _shared_memory() -> Finding:
    shared = memory_folder()
    if shared is None:
        return Finding("shared memory", "no folder in memory; live frames go through a temporary file")
    free = shutil.disk_usage(shared).free
    # Two slots of a 4K frame; smaller ones still work for smaller windows.
    good = free >= 2 * 3840 * 2160 * 3
    advice = "" if good else "; too small for 4K windows, enlarge it (in Docker: --shm-size=1g)"
    text = f"{free / 2**20:.0f} MiB free{advice}"
    return Finding("shared memory", text, good, {"free_bytes": free})


def _files() -> Finding:
    limits = open_files()
    if limits is None:
        return Finding("open files", "not limited by the system")
    soft, hard = limits
    good = soft >= MIN_FILES
    text = f"{soft:,} for one process"
    advice = "" if good else f"; raise it with `ulimit -n {MIN_FILES}` (the limit of that is {hard:,})"
    return Finding("open files", text + advice, good, {"soft": soft, "hard": hard})


def _collectives() -> Finding:
    gloo = "gloo" if dist.is_gloo_available() else "no gloo"
    nccl = "no NCCL (needed only for several GPUs)"
    if dist.is_nccl_available() and (version := accelerator.nccl_version()) is not None:
        nccl = f"NCCL {version}"
    good = dist.is_gloo_available() and (dist.is_nccl_available() or accelerator.count() < 2)
    return Finding("collectives", f"{gloo}, {nccl}", good)


def _two_ranks(backend: Literal["gloo", "nccl"]) -> Finding:
    where = "two processes" if backend == "gloo" else "GPU 0 and GPU 1"
    try:
        test = try_two_ranks(backend)
    except RuntimeError as error:
        return Finding(f"ranks, {backend}", f"{where} cannot work together: {error}", good=False)
    speed = test.bytes_per_second
    good = backend == "gloo" or speed >= MIN_EXCHANGE
    text = (
        f"{where} agree: met after {test.start_seconds:.1f} s, a message takes"
        f" {test.broadcast_seconds * 1e3:.2f} ms, {speed / 1e9:.1f} GB/s each way"
    )
    return Finding(
        f"ranks, {backend}", text + ("" if good else "; slow for several GPUs"), good, asdict(test)
    )


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
    text = f"the kernels agree with the reference to {difference:.1e}"
    return Finding("self test", text, good, {"difference": difference})
