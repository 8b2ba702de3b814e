"""What is asked of GPUs beside tensors: which there are, their memory, streams and events.

Streams and events are torch's own for every kind of accelerator, and all else is asked of the module that
torch has for a device's kind (torch.cuda), so that another maker's GPUs come to be served alike. What torch
has for NVIDIA's alone is asked for here, too, and nowhere else. On the CPU nothing is queued.
"""

from __future__ import annotations

import time
from typing import Any

import torch

CUDA = "cuda"  # the kind of NVIDIA's, and of AMD's in torch's builds for them


def kind() -> str | None:
    """Return torch's word for the accelerators that can be used here, None where there are none."""
    if torch.cuda.is_available():
        return CUDA
    found = torch.accelerator.current_accelerator(check_available=True)
    return None if found is None else found.type


def is_accelerator(device: torch.device) -> bool:
    """Return whether work for a device is queued there, in memory of its own."""
    return device.type != "cpu" and device.type == kind()


def _module(device_type: str | None = None) -> Any:
    return torch.get_device_module(device_type or kind() or CUDA)


def count() -> int:
    """Return how many accelerators can be used, of those that are not hidden."""
    return 0 if kind() is None else _module().device_count()


def current() -> torch.device:
    """Return the accelerator that this thread's work goes to; raises RuntimeError where there is none."""
    return torch.device(kind() or CUDA, _module().current_device())


def choose(index: int | torch.device) -> torch.device:
    """Let this thread's work go to an accelerator, and return it; each thread has its own choice."""
    device = index if isinstance(index, torch.device) else torch.device(kind() or CUDA, index)
    _module(device.type).set_device(device)
    return device


def is_initialized() -> bool:
    """Return whether this process has begun to use an accelerator."""
    return kind() is not None and _module().is_initialized()


def synchronize(device: torch.device) -> None:
    """Wait for all that was given to a device."""
    if is_accelerator(device):
        _module(device.type).synchronize(device)


def free_cached_memory() -> None:
    """Give back what torch keeps of the accelerators' memory for tensors to come."""
    if is_initialized():
        _module().empty_cache()


def current_stream(device: torch.device) -> torch.Stream:
    """Return the queue of a device that this thread's work goes to."""
    return torch.accelerator.current_stream(device)


def urgent_stream(device: torch.device) -> torch.Stream:
    """Return a queue of a device beside those that it has, whose work goes before theirs."""
    return torch.Stream(device, priority=-1)


def recorded_event(stream: torch.Stream, *, timing: bool = False) -> torch.Event:
    """Return an event that has come when all that was queued in a stream until now is done."""
    event = torch.Event(stream.device, enable_timing=timing)
    event.record(stream)
    return event


def done_within(device: torch.device, seconds: float) -> bool:
    """Wait for what was queued on a device; return whether it was done in time."""
    if not is_accelerator(device):
        return True
    done = recorded_event(current_stream(device))
    deadline = time.monotonic() + seconds
    while not done.query():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.005)
    return True


def capability(index: int) -> tuple[int, int]:
    """Return the compute capability of an NVIDIA GPU, as (9, 0)."""
    return torch.cuda.get_device_capability(index)


def full_name(index: int) -> str:
    """Return the name of an NVIDIA GPU with its architecture, as "NVIDIA H200 (sm_90)"."""
    major, minor = capability(index)
    return f"{torch.cuda.get_device_name(index)} (sm_{major}{minor})"


def identity(device: torch.device) -> str:
    """Return what tells an accelerator from all others, also those of other machines; "" for the CPU."""
    if not is_accelerator(device):
        return ""
    return str(getattr(_module(device.type).get_device_properties(device), "uuid", device))


def free_memory_of(index: int) -> int:
    """Return the bytes that nobody uses of an NVIDIA GPU's memory.

    As the driver tells it: no context of this process may take a part of it.
    """
    return torch.cuda.get_device_properties(index).total_memory - torch.cuda.device_memory_used(index)


def room_on(device: torch.device) -> int:
    """Return the bytes that new tensors can take on an accelerator: what is free, and what torch keeps."""
    module = _module(device.type)
    free, _ = module.mem_get_info(device)
    return free + module.memory_reserved(device) - module.memory_allocated(device)


def collectives() -> str:
    """Return the backend of torch.distributed by which accelerators of this kind talk to each other."""
    if kind() in (None, CUDA):
        return "nccl"
    return torch.distributed.get_default_backend_for_device(torch.device(kind() or CUDA))


def nccl_version() -> str | None:
    """Return the version of NCCL, as "2.27.5"; None where no NVIDIA GPU can be used."""
    if kind() != CUDA:
        return None
    from torch.cuda import nccl

    return ".".join(map(str, nccl.version()))
