"""Photos on a GPU: as many as fit stay there, and those of the next step come while one is computed.

The others stay in the machine's memory. On the CPU they are there already, and nothing is copied ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from splatstudio.devices.accelerator import current_stream, is_accelerator, recorded_event
from splatstudio.distributed.failures import unless_out_of_memory
from splatstudio.scene.photo import Photo


@dataclass(frozen=True, eq=False)
class Pixels:
    """A photo as it was decoded, on a device; nobody writes to it."""

    rgb: Tensor  # [H, W, 3] uint8, not multiplied by alpha
    mask: Tensor | None  # [H, W] bool
    alpha: Tensor | None  # [H, W] uint8

    def map(self, function: Callable[[Tensor], Tensor]) -> Pixels:
        """Return pixels made of `function` of each tensor."""
        mask = None if self.mask is None else function(self.mask)
        return Pixels(function(self.rgb), mask, None if self.alpha is None else function(self.alpha))


def pixels_of(photo: Photo, device: torch.device) -> Pixels:
    """Return a photo on `device`, complete when this returns; on the CPU it is the photo's own memory."""

    def there(array: np.ndarray) -> Tensor:
        # Torch warns of memory that it may not write, which it will not.
        shared = array.flags.writeable and device.type == "cpu"
        return torch.from_numpy(array) if shared else torch.tensor(array, device=device)

    mask, alpha = (None if array is None else there(array) for array in (photo.mask, photo.alpha))
    return Pixels(there(photo.rgb), mask, alpha)


@dataclass(frozen=True, eq=False)
class _Copy:
    """A photo that is being copied."""

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


def _pinned(photo: Photo) -> Pixels:
    """Return a copy from which a device copies beside its kernels; torch keeps it until that is done."""
    arrays = (photo.rgb, photo.mask, photo.alpha)
    rgb, mask, alpha = (None if array is None else torch.from_numpy(array).pin_memory() for array in arrays)
    assert rgb is not None
    return Pixels(rgb, mask, alpha)


class PhotoUploads:
    """The photos of a training on a device: those of a step and of the next one, and what fits of all.

    The first that come are kept until `keep_bytes` are full, and nothing is evicted: training visits every
    photo once an epoch, and there the oldest is the next one needed. `ahead`: whether those of the next
    step are copied before they are asked for; None: on a GPU. For the thread that trains, which waits for no
    copy within the machine's memory: another thread makes that.
    """

    def __init__(self, device: torch.device, *, ahead: bool | None = None, keep_bytes: int = 0) -> None:
        self._device = device
        self._ahead = is_accelerator(device) if ahead is None else ahead
        self._kept: dict[int, Pixels] = {}
        self._room = keep_bytes
        self._copies: dict[int, _Copy] = {}
        self._pinned: dict[int, Future[Pixels]] = {}
        self._pinning: ThreadPoolExecutor | None = None
        self._stream: torch.Stream | None = None

    def take(self, index: int, photo: Photo) -> Pixels:
        """Return the photo of view `index` on the device."""
        if index in self._kept:
            return self._kept[index]
        copy = self._copies.pop(index, None)
        if copy is None and not self._ahead:
            pixels = pixels_of(photo, self._device)
        else:
            pixels = (copy or self._begun(index, photo)).taken()
        if photo.num_bytes <= self._room:
            self._room -= photo.num_bytes
            self._kept[index] = pixels
        return pixels

    def send(self, photos: Mapping[int, Photo], later: Mapping[int, Photo] | None = None) -> None:
        """Begin to copy the photos of the next step, by view; what was copied in vain goes.

        `later`: those of the step after that, made ready to be sent. Where there is no memory for one it is
        copied when it is its turn, as all others.
        """
        if not self._ahead:
            return
        later = later or {}
        kept, self._copies = self._copies, {}
        self._copies = {index: kept[index] for index in photos if index in kept}
        del kept
        self._pinned = {i: pixels for i, pixels in self._pinned.items() if i in photos or i in later}
        for index, photo in photos.items():
            if index not in self._copies and index not in self._kept:
                begun = unless_out_of_memory(lambda index=index, photo=photo: self._begun(index, photo))
                if begun is None:
                    return
                self._copies[index] = begun
        for index, photo in later.items():
            known = index in self._copies or index in self._kept or index in self._pinned
            if not known and is_accelerator(self._device):
                self._pinning = self._pinning or ThreadPoolExecutor(1, thread_name_prefix="pinning")
                self._pinned[index] = self._pinning.submit(_pinned, photo)

    def keep_none(self) -> None:
        """Let what is kept go, and keep nothing from now on: its memory is needed."""
        self._kept, self._room = {}, 0

    def close(self) -> None:
        """Let all photos go."""
        self.keep_none()
        self._copies, self._pinned = {}, {}
        if self._pinning is not None:
            self._pinning.shutdown(wait=True, cancel_futures=True)

    def _begun(self, index: int, photo: Photo) -> _Copy:
        if not is_accelerator(self._device):
            return _Copy(pixels_of(photo, self._device))
        if self._stream is None:
            self._stream = torch.Stream(self._device)
        ready = self._pinned.pop(index, None)
        pinned = _pinned(photo) if ready is None else ready.result()
        with self._stream:
            pixels = pinned.map(lambda tensor: tensor.to(self._device, non_blocking=True))
        return _Copy(pixels, recorded_event(self._stream))
