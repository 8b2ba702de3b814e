"""Between the memory of the host and that of a GPU without either of them waiting for the other."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from splatstudio.devices.accelerator import current_stream, is_accelerator, recorded_event


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on `device`; for a GPU it is only queued, behind the work it has.

    From ordinary memory the host would wait until the GPU has nothing left to do. On the CPU the tensor
    itself.
    """
    if not is_accelerator(device):
        return tensor.to(device)
    # Torch gives pinned memory to nobody else before the copy has been made.
    return tensor.pin_memory().to(device, non_blocking=True)


class ReadBack:
    """A few numbers of a device, on their way to the host while the device goes on with other work."""

    def __init__(self, *tensors: Tensor) -> None:
        """Queue the copy of all numbers of `tensors`, of 32 or 64 bits, in their order, on one device."""
        flat = [tensor.detach().reshape(-1) for tensor in tensors]
        self._arrived: torch.Event | None = None
        if not is_accelerator(flat[0].device):
            self._there = [tensor.clone() for tensor in flat]  # as they are now
            return
        # As bits, which takes no kernel for each of their types.
        bits = torch.cat([tensor.view(torch.int32) for tensor in flat])
        self._bits = torch.empty(bits.shape, dtype=bits.dtype, pin_memory=True)
        self._bits.copy_(bits, non_blocking=True)
        self._arrived = recorded_event(current_stream(bits.device))
        self._parts = [(tensor.numel() * tensor.element_size(), tensor.dtype) for tensor in flat]

    def read(self) -> tuple[float, ...]:
        """Return the numbers, with the precision of their types, as soon as they are there.

        The host waits for the work that was queued before them, not for what came after.
        """
        if self._arrived is None:
            return tuple(number for tensor in self._there for number in tensor.tolist())
        self._arrived.synchronize()
        return self._numbers()

    def _numbers(self) -> tuple[float, ...]:
        """Return what the bits that have arrived stand for."""
        numbers: list[float] = []
        begin, memory = 0, self._bits.numpy().tobytes()
        for num_bytes, dtype in self._parts:
            part = memory[begin : begin + num_bytes]
            numbers += np.frombuffer(part, str(dtype).removeprefix("torch.")).tolist()
            begin += num_bytes
        return tuple(numbers)
