"""Where the ranks of a training run: which GPUs, or how many processes on the CPU with how many threads."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Literal

import torch

from splatstudio.devices import accelerator
from splatstudio.devices.monitor import Driver, has_nvidia_card, read_driver
from splatstudio.kernels import ops

# The oldest driver that serves a major version of CUDA.
OLDEST_DRIVER = {12: 525, 13: 580}
OTHER_TORCH = "take one that has (pip install --force-reinstall torch) and build again"
BUILD_AGAIN = "install the CUDA toolkit of torch's version and build again (make setup, or pip install)"
# The allocator can then grow a segment: tensors that grow at every densification leave no holes behind.
ALLOCATOR = "expandable_segments:True"


@dataclass(frozen=True)
class RankDevices:
    """One entry a rank: the index of its GPU, as torch counts the visible ones, or None for the CPU."""

    gpus: tuple[int | None, ...] = (None,)

    @property
    def num_ranks(self) -> int:
        """Return the number of ranks."""
        return len(self.gpus)

    @property
    def num_threads(self) -> int | None:
        """Return how many threads each rank's kernels take; None: as many as there are cores."""
        if self.num_ranks == 1:
            return None
        return max(1, torch.get_num_threads() // self.num_ranks)

    def alone(self) -> RankDevices:
        """Return the place of a job that one process does, such as looking at a finished model."""
        return RankDevices(self.gpus[:1])


ONE_PROCESS = RankDevices()


def usable_gpus() -> tuple[int, ...]:
    """Return the indices, as torch counts, of the GPUs for which there are kernels; empty: none."""
    if not ops.has_cuda_kernels():
        return ()
    built = ops.cuda_architectures()
    return tuple(
        gpu for gpu in range(accelerator.count()) if ops.compiled_for(accelerator.capability(gpu), built)
    )


def choose_devices(
    gpus: tuple[int, ...] | Literal["all"] | None = None, ranks: int | None = None
) -> RankDevices:
    """Return where to train: on the GPUs named, else on `ranks` processes of the CPU, else on one GPU.

    GPUs are counted among those that CUDA_VISIBLE_DEVICES leaves. Without any that can be used: one process
    on the CPU. Raises ValueError with one sentence for what is not there or contradicts itself.
    """
    if gpus is not None and ranks is not None:
        raise ValueError(
            "--gpus names the GPUs, --ranks the number of processes on the CPU: give one of them"
        )
    if ranks is not None:
        if not ranks >= 1:
            raise ValueError(f"--ranks must be at least 1, not {ranks}")
        return RankDevices((None,) * ranks)
    usable = usable_gpus()
    if gpus is None:
        return RankDevices(usable[:1] or (None,))
    if gpus == "all":
        gpus = usable or (0,)  # none: said below
    if len(gpus) == 0 or len(set(gpus)) != len(gpus):
        raise ValueError("--gpus needs the number of each GPU once, as in --gpus 0,1")
    missing = [gpu for gpu in gpus if gpu not in usable]
    if missing:
        numbers = ", ".join(map(str, usable))
        there = f"{numbers} can be used" if usable else f"none can be used, as {_why_unused()}"
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        chosen = "" if visible is None else f" with CUDA_VISIBLE_DEVICES={visible}"
        advice = "" if usable else "; without --gpus the CPU trains"
        raise ValueError(f"there is no GPU {missing[0]}: {there}{chosen}{advice}")
    return RankDevices(tuple(gpus))


@dataclass(frozen=True)
class DeviceUse:
    """One line on what trains and why; `idle_gpu`: a GPU of this machine goes unused, unasked."""

    text: str
    idle_gpu: bool = False

    def for_terminal(self) -> str:
        """Return the line as it is printed: a warning in yellow where the output is a terminal."""
        colored = self.idle_gpu and sys.stdout.isatty() and "NO_COLOR" not in os.environ
        return f"\033[33m{self.text}\033[0m" if colored else self.text


UNSAID = DeviceUse("")


def device_use(chosen: RankDevices, *, asked: bool) -> DeviceUse:
    """Return what is said of the devices chosen; `asked`: the user named them."""
    gpus = [gpu for gpu in chosen.gpus if gpu is not None]
    if gpus:
        names = dict.fromkeys(accelerator.full_name(gpu) for gpu in gpus)
        numbers = f"GPU{'s' * (len(gpus) > 1)} {', '.join(map(str, gpus))}" if len(gpus) > 1 else "GPU"
        others = len(usable_gpus()) - len(gpus)
        more = f"; {others} more can be used: --gpus all" if others > 0 and not asked else ""
        return DeviceUse(f"{numbers}: {', '.join(names)}{more}")
    if asked:
        return DeviceUse(f"CPU: {chosen.num_ranks} {'processes' if chosen.num_ranks > 1 else 'process'}")
    idle = not _hides_all() and (has_nvidia_card() or _driver_with_gpus() is not None)
    return DeviceUse(f"CPU: {_why_unused()}", idle)


def _hides_all() -> bool:
    """Return whether the user leaves no GPU to this program."""
    return os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")


def _driver_with_gpus() -> Driver | None:
    try:
        driver = read_driver()
    except ValueError:
        return None
    return driver if driver.num_gpus else None


def _why_unused() -> str:
    """Return why no GPU can be used, and what to do about it."""
    if _hides_all():
        return f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']} hides all GPUs"
    driver = _driver_with_gpus()
    if driver is None and has_nvidia_card():
        return (
            "an NVIDIA card is built in, but its driver does not answer; install the driver, or start the"
            " container with its GPUs (docker run --gpus all)"
        )
    if driver is None:
        return "no NVIDIA GPU is here"
    if torch.version.cuda is None:
        return f"this torch, {torch.__version__}, has no CUDA; {OTHER_TORCH}"
    major = int(torch.version.cuda.split(".")[0])
    if driver.cuda is not None and driver.cuda[0] < major:
        oldest = OLDEST_DRIVER.get(major)
        newer = "a newer one" if oldest is None else f"{oldest} or newer"
        return f"driver {driver.version} is too old for CUDA {major} of this torch; install {newer}"
    if accelerator.kind() is None:
        return (
            f"torch sees no GPU although driver {driver.version} does; restart after an update of the driver"
        )
    try:
        without = ops.without_cuda_kernels()
    except RuntimeError as error:
        return str(error)
    if without is not None:
        return f"{without}; {BUILD_AGAIN}"
    built = ", ".join(f"sm_{name.split('-')[0]}" for name in ops.cuda_architectures())
    return f"the kernels were compiled for {built} and not for {accelerator.full_name(0)}; {BUILD_AGAIN}"


def settle_device(gpu: int | None, num_threads: int | None) -> None:
    """Make this process a rank of that GPU, or of the CPU; before anything else that could touch a GPU."""
    # Read when the first tensor goes to the GPU; what the user has set stays.
    os.environ.setdefault("PYTORCH_ALLOC_CONF", ALLOCATOR)
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", ALLOCATOR)
    # Read when NCCL's group is made: rows that travel while the optimizer steps do not wait for its blocks.
    os.environ.setdefault("TORCH_NCCL_HIGH_PRIORITY", "1")
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    if gpu is None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    else:
        accelerator.choose(gpu)
