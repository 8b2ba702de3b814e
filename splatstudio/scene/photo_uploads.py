"""Photographs on their way to a GPU: those of the next step are copied while the step before is computed.

All the others stay in the machine's memory. On the CPU they are there already, and nothing is copied ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from splatstudio.devices.accelerator import current_stream, is_accelerator, recorded_event
from splatstudio.distributed.failures import unless_out_of_memory
from splatstudio.scene.photo import Photo


@dataclass(frozen=True, eq=False)
class Pixels:
    """A photograph as it was decoded, on a device."""

    rgb: Tensor  # [H, W, 3] uint8, not multiplied by alpha
    mask: Tensor | None  # [H, W] bool
    alpha: Tensor | None  # [H, W] uint8

    def map(self, function: Callable[[Tensor], Tensor]) -> Pixels:
        """Return pixels made of `function` of each tensor."""
        mask = None if self.mask is None else function(self.mask)
        return Pixels(function(self.rgb), mask, None if self.alpha is None else function(self.alpha))


def pixels_of(photo: Photo, device: torch.device) -> Pixels:
    """Return a copy of a photograph on `device`, complete when this returns."""
    mask = None if photo.mask is None else torch.tensor(photo.mask, device=device)
    alpha = None if photo.alpha is None else torch.tensor(photo.alpha, device=device)
    return Pixels(torch.tensor(photo.rgb, device=device), mask, alpha)


@dataclass(frozen=True, eq=False)
class _Copy:
    """A photograph that is being copied."""

    pixels: Pixels
    done: torch.Event | None = None  # None: it is there

    def taken(self) -> Pixels:
        """Return the pixels for work that is given to the device from now on."""
        if self.done is None:
            return self.pixels
        stream = current_stream(self.pixels.rgb.device)
        stream.wait_event(self.done)

        def used_here(tensor: Tensor) -> Tensor:
            tensor.record_stream(stream)  # its memory is not given away before that work is done
            return tensor

        return self.pixels.map(used_here)


class PhotoUploads:
    """The photographs of a step and of the next one on a device, and no others.

    `ahead`: whether those of the next one are copied before they are asked for; None: on a GPU.
    """

    def __init__(self, device: torch.device, *, ahead: bool | None = None) -> None:
        self._device = device
        self._ahead = is_accelerator(device) if ahead is None else ahead
        self._copies: dict[int, _Copy] = {}
        self._stream: torch.Stream | None = None

    def take(self, index: int, photo: Photo) -> Pixels:
        """Return the photograph of view `index` on the device; it is not kept here any longer."""
        copy = self._copies.pop(index, None)
        if copy is None and not self._ahead:
            return pixels_of(photo, self._device)
        return (copy or self._begun(photo)).taken()

    def send(self, photos: Mapping[int, Photo]) -> None:
        """Begin to copy the photographs of the next step, by view; what was copied in vain goes.

        Where there is no memory for one it is copied when it is its turn, as all others.
        """
        if not self._ahead:
            return
        kept, self._copies = self._copies, {}
        self._copies = {index: kept[index] for index in photos if index in kept}
        del kept
        for index, photo in photos.items():
            if index not in self._copies:
                begun = unless_out_of_memory(lambda photo=photo: self._begun(photo))
                if begun is None:
                    return
                self._copies[index] = begun

    def _begun(self, photo: Photo) -> _Copy:
        if not is_accelerator(self._device):
            return _Copy(pixels_of(photo, self._device))
        if self._stream is None:
            self._stream = torch.Stream(self._device)
        # Only from pinned memory does a copy run beside the kernels; torch keeps it until the copy is done.
        pinned = pixels_of(photo, torch.device("cpu")).map(Tensor.pin_memory)
        with self._stream:
            pixels = pinned.map(lambda tensor: tensor.to(self._device, non_blocking=True))
        return _Copy(pixels, recorded_event(self._stream))
