"""Three devices that no machine has, "madeup:0" to "madeup:2": `import made_up_device` makes torch know them.

With the emulated CUDA kernels (SPLATSTUDIO_EXTENSION) the product takes the ways of a GPU on them. They are
for a process of their own: torch takes them for the accelerators of this machine from then on.
"""

from __future__ import annotations

import ctypes
import hashlib
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.backend_registration import (
    generate_methods_for_privateuse1_backend,
    rename_privateuse1_backend,
)
from torch.utils.cpp_extension import load

from splatstudio.kernels import ops

KIND = "madeup"
DEVICES = tuple(torch.device("privateuseone", index) for index in range(3))
SOURCE = Path(__file__).with_name("device.cpp")
BUILD = Path(__file__).parents[2] / "build" / "made_up_device"
INT64 = ctypes.c_int64


def _library() -> ctypes.CDLL:
    """Build the devices where their source, or torch, has changed, and load them into torch."""
    told = SOURCE.read_bytes() + torch.__version__.encode()
    folder = BUILD / hashlib.sha256(told).hexdigest()[:12]
    folder.mkdir(parents=True, exist_ok=True)
    load(
        "made_up_device",
        [str(SOURCE)],
        is_python_module=False,
        extra_cflags=["-O1", "-w"],
        build_directory=str(folder),
    )
    library = ctypes.CDLL(str(folder / "made_up_device.so"))
    for name in ("live_bytes", "num_allocations", "num_late"):
        getattr(library, f"made_up_{name}").restype = INT64
    library.made_up_fail_allocation.argtypes = library.made_up_set_capacity.argtypes = [INT64]
    return library


_made_up = _library()


def _index_of(device: torch.device | int | None) -> int:
    if device is None:
        return _made_up.made_up_current_device()
    index = device if isinstance(device, int) else torch.device(device).index
    return _made_up.made_up_current_device() if index is None else index


def live_bytes() -> int:
    """Return how much of the devices' memory tensors hold."""
    return _made_up.made_up_live_bytes()


def num_allocations() -> int:
    """Return how often memory was taken."""
    return _made_up.made_up_num_allocations()


def num_late_copies() -> int:
    """Return how many copies were given that are done only when something waits for them."""
    return _made_up.made_up_num_late()


def fail_allocation(number: int) -> None:
    """Let the allocation after `number` others from now on fail, once; -1: none."""
    _made_up.made_up_fail_allocation(number)


MEMORY = 1 << 34  # bytes that each device says it has, and has free
_room = [MEMORY]


@contextmanager
def told_room(num_bytes: int) -> Iterator[None]:
    """Let the devices say that no more is free."""
    _room[0] = num_bytes
    try:
        yield
    finally:
        _room[0] = MEMORY


@contextmanager
def capacity(num_bytes: int) -> Iterator[None]:
    """Let all devices together have no more memory than that."""
    _made_up.made_up_set_capacity(num_bytes)
    try:
        yield
    finally:
        _made_up.made_up_set_capacity(2**62)


@dataclass(frozen=True, eq=False)
class _Late:
    """An exchange of rows that is made when something waits for it, as late as may be."""

    make: Callable[[], object]

    def wait(self) -> None:
        self.make()


def _exchange_late() -> None:
    """Let exchanges of the devices' rows that need not be waited for be late."""
    exchange = dist.all_to_all_single

    def late(output: torch.Tensor, *given: Any, async_op: bool = False, **named: Any) -> Any:
        if not async_op or output.device.type != KIND:
            return exchange(output, *given, async_op=async_op, **named)
        output.fill_(float("nan"))
        return _Late(lambda: exchange(output, *given, **named))

    dist.all_to_all_single = late


def _register() -> None:
    module = types.ModuleType(f"torch.{KIND}")
    functions = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: len(DEVICES),
        "current_device": _made_up.made_up_current_device,
        "set_device": lambda device: _made_up.made_up_set_device(_index_of(device)),
        "synchronize": lambda device=None: _made_up.made_up_synchronize(_index_of(device)),
        "empty_cache": lambda: None,
        "get_device_properties": lambda device=None: types.SimpleNamespace(
            uuid=f"made-up-{_index_of(device)}"
        ),
        "mem_get_info": lambda device=None: (_room[0], MEMORY),
        "memory_reserved": lambda device=None: 0,
        "memory_allocated": lambda device=None: 0,
        "_is_in_bad_fork": lambda: False,
        "_lazy_init": lambda: None,
        "manual_seed_all": lambda seed: None,
        "get_amp_supported_dtype": lambda: [torch.float16],
    }
    for name, function in functions.items():
        setattr(module, name, function)
    rename_privateuse1_backend(KIND)
    torch._register_device_module(KIND, module)
    # Gloo, which is asked on the host's side of the devices' memory.
    dist.Backend.register_backend(f"{KIND}_gloo", dist.ProcessGroupGloo, devices=[KIND, "cpu"])
    dist.Backend.default_device_backend_map.update({KIND: f"{KIND}_gloo", "cpu": "gloo"})
    generate_methods_for_privateuse1_backend()
    # The fallback serves every operator; for the product a kernel is there where the CPU has one.
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    torch._C._dispatch_has_kernel_for_dispatch_key = lambda operator, key: has_kernel(  # type: ignore
        operator, "CPU" if key == "PrivateUse1" and operator.startswith("splatstudio::") else key
    )
    assert ops.has_kernels_for(KIND), (
        "the emulated kernels are loaded, and torch takes this for its accelerator"
    )


_register()
_exchange_late()
