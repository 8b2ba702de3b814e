"""What a step would take on several GPUs, on paper: from the bytes and messages that are counted of one.

A photo on one GPU takes a stated time. On several each projects its part of the Gaussians for the
cameras of all, packs what each sees, sends it, composites one picture, sends the gradients back, and steps
its part. Nothing is overlapped but what the host does ahead of its GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

# Bytes of GPU memory that one process moves in a step, and a rank in its place. Of 3 M Gaussians or more each
# tensor is larger than any cache. Adam reads and writes a number and its two moments: 24 bytes.
NUMBERS, COEFFICIENTS = 14, 45  # of a Gaussian without shN, and of shN
# One process, of every Gaussian: 14 numbers step, and the rasterizer's way back writes 40 bytes of gradients;
# of what is seen, shN steps.
ALONE_EACH, ALONE_SEEN = 24 * NUMBERS + 40, 24 * COEFFICIENTS
# A rank, of its own Gaussians: all 59 numbers step, whoever is seen.
STEPPED_EACH = 24 * (NUMBERS + COEFFICIENTS)
# Of its own Gaussians for each camera: radii, and masks twice, and the places of rows twice.
PACKED_EACH = 8 + 2 + 2 * 4
# Of a row, to the exchange: 10 columns with their indices, put together for a camera and for all of them, the
# radii, the record. From it: the record, ten columns one by one. Its gradients: zeros, put together, copied;
# with the color, as the optimizer reads them.
PACKED_SEEN = (40 + 80 + 80 + 80 + 24 + 96) + (96 + 80) + (40 + 80 + 80 + 24 + 52)

# Short messages of a step whose answer the GPU waits for: how much is seen, room for it, losses. The cameras
# are told while the GPU steps.
SHORT_MESSAGES = 3
HOST_WAITS = 2  # for counts and for losses: until the GPU has new work
SHORT_SECONDS, WAIT_SECONDS = 50e-6, 20e-6


@dataclass(frozen=True)
class Link:
    """How GPUs of a node reach each other."""

    name: str
    bandwidth: float  # GB/s that each sends while it receives as many
    latency: float  # seconds until the first byte is there
    memory: float  # GB/s at which such a GPU copies in its own memory


LINKS = (
    Link("NVLink 4 (H100)", 450.0, 5e-6, 2800.0),
    Link("PCIe 5.0 x16", 50.0, 10e-6, 1700.0),
    Link("PCIe 4.0 x16", 25.0, 10e-6, 850.0),
)


@dataclass(frozen=True)
class Load:
    """A step of one photo a GPU."""

    num_gaussians: float
    shown: float  # of them, by a photo
    seconds: float  # that it takes on one GPU
    row_bytes: int  # of what is shown, there and back


def moved_more(load: Load, num: int) -> float:
    """Return the bytes of memory that each of `num` GPUs moves more in a step than one GPU alone."""
    own = load.num_gaussians / num
    alone = ALONE_EACH * load.num_gaussians + ALONE_SEEN * load.shown
    packed = PACKED_EACH * own * num + PACKED_SEEN * load.shown  # for `num` cameras, which see a share each
    return STEPPED_EACH * own + packed - alone


def step_seconds(load: Load, num: int, link: Link) -> float:
    """Return the seconds of a step of `num` GPUs of a node, of one photo each."""
    if num == 1:
        return load.seconds
    work = load.seconds + moved_more(load, num) / (link.memory * 1e9)
    sent = load.row_bytes * load.shown * (num - 1) / num / (link.bandwidth * 1e9)
    return work + sent + 2 * num * link.latency + SHORT_MESSAGES * SHORT_SECONDS + HOST_WAITS * WAIT_SECONDS


def efficiency(load: Load, num: int, link: Link) -> float:
    """Return the photos a second of `num` GPUs over those of one GPU times `num`."""
    return load.seconds / step_seconds(load, num, link)
