"""Between the memory of the host and that of a GPU without either of them waiting for the other."""

from __future__ import annotations

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
        """Queue the copy of all numbers of `tensors`, in their order, on one device."""
        numbers = torch.cat([tensor.detach().reshape(-1).double() for tensor in tensors])
        self._arrived: torch.Event | None = None
        if is_accelerator(numbers.device):
            self._numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._numbers.copy_(numbers, non_blocking=True)
            self._arrived = recorded_event(current_stream(numbers.device))
        else:
            self._numbers = numbers

    def read(self) -> tuple[float, ...]:
        """Return the numbers, of float64's precision, as soon as they are there.

        The host waits for the work that was queued before them, not for what came after.
        """
        if self._arrived is not None:
            self._arrived.synchronize()
        return tuple(self._numbers.tolist())
