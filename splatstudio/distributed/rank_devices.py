"""Where the ranks of a training run: which GPUs, or how many processes on the CPU with how many threads."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from splatstudio.kernels import ops

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


def choose_devices(gpus: tuple[int, ...] | None = None, ranks: int | None = None) -> RankDevices:
    """Return where to train: on the GPUs named, else on `ranks` processes of the CPU, else on all GPUs.

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
    usable = torch.cuda.device_count() if ops.has_cuda_kernels() else 0
    if gpus is None:
        return RankDevices(tuple(range(usable)) or (None,))
    if len(gpus) == 0 or len(set(gpus)) != len(gpus):
        raise ValueError("--gpus needs the number of each GPU once, as in --gpus 0,1")
    missing = [gpu for gpu in gpus if not 0 <= gpu < usable]
    if missing:
        there = (
            f"0 to {usable - 1} can be used" if usable else "none can be used (splatstudio doctor says why)"
        )
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        chosen = "" if visible is None else f" with CUDA_VISIBLE_DEVICES={visible}"
        advice = "" if usable else "; without --gpus the CPU trains"
        raise ValueError(f"there is no GPU {missing[0]}: {there}{chosen}{advice}")
    return RankDevices(tuple(gpus))


def settle_device(gpu: int | None, num_threads: int | None) -> None:
    """Make this process a rank of that GPU, or of the CPU; before anything else that could touch a GPU."""
    # Read when the first tensor goes to the GPU; what the user has set stays.
    os.environ.setdefault("PYTORCH_ALLOC_CONF", ALLOCATOR)
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", ALLOCATOR)
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    if gpu is None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    else:
        torch.cuda.set_device(gpu)
