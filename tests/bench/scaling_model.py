"""What a step would take on several GPUs, on paper: from the bytes and messages that are counted of one.

A photo on one GPU takes a stated time. On several each projects its part of the Gaussians for the cameras of
all, packs what each sees, sends it, composites one picture, sends the gradients back, and steps its part. The
gradients come back in two messages, each of a run of the Gaussians: the first run steps while those of the
second are under way. The hosts agree on the losses while gradients are under way, too.
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
# Of a row, to the exchange: 10 columns and the radii, with their indices, straight into the record. From it:
# into columns. Its gradients: into what is sent, with its place there. For the optimizer: its color and its
# place there. As that reads them.
STEPPED_SEEN = 40 + 12
PACKED_SEEN = (40 + 80 + 24) + 96 + (24 + 40 + 80) + 24 + 16 + STEPPED_SEEN
# To and from 16 bits, where some of it travels in those: rows, and gradients.
CONVERTED_SEEN = (48 + 40 + 80) + (40 + 28 + 28 + 40)

SHORT_SECONDS = 50e-6  # of a short message of the host
WAIT_SECONDS = 20e-6  # of the host for its GPU: until that has new work
# The GPU waits for: counts of what is seen, which the host tells the others, and room for it. For losses it
# waits only where gradients arrive sooner. The cameras are told while the GPU steps.
COUNTED_SECONDS, AGREED_SECONDS = WAIT_SECONDS + 2 * SHORT_SECONDS, WAIT_SECONDS + SHORT_SECONDS


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
    row_bytes: tuple[int, int]  # of what is shown, there and back
    mixed: bool = False  # whether some of it travels in 16 bits


def moved_more(load: Load, num: int) -> float:
    """Return the bytes of memory that each of `num` GPUs moves more in a step than one GPU alone."""
    own = load.num_gaussians / num
    alone = ALONE_EACH * load.num_gaussians + ALONE_SEEN * load.shown
    seen = PACKED_SEEN + CONVERTED_SEEN * load.mixed
    packed = PACKED_EACH * own * num + seen * load.shown  # for `num` cameras, which see a share each
    return STEPPED_EACH * own + packed - alone


def step_seconds(load: Load, num: int, link: Link) -> float:
    """Return the seconds of a step of `num` GPUs of a node, of one photo each."""
    if num == 1:
        return load.seconds
    memory = link.memory * 1e9
    stepped = (STEPPED_EACH * load.num_gaussians / num + STEPPED_SEEN * load.shown) / memory
    before = load.seconds + moved_more(load, num) / memory - stepped + COUNTED_SECONDS
    there = num * link.latency + sent_bytes(load, num, load.row_bytes[0]) / (link.bandwidth * 1e9)
    return before + there + beside_return(load, num, link, stepped)


def sent_bytes(load: Load, num: int, row_bytes: int) -> float:
    """Return what each of `num` GPUs sends to the others of rows of so many bytes."""
    return row_bytes * load.shown * (num - 1) / num


def beside_return(load: Load, num: int, link: Link, stepped: float) -> float:
    """Return the seconds in which gradients come back in two messages, and Gaussians are stepped.

    That takes `stepped` seconds, and half of it needs the first message alone, and that the hosts have
    agreed. This half shares the memory with the second message, whose rows are read and written there.
    """
    sent = sent_bytes(load, num, load.row_bytes[1])
    first, second = ((num * link.latency + sent / 2 / (link.bandwidth * 1e9)) * part for part in (1, 2))
    shared = stepped / 2 + sent / (link.memory * 1e9)
    return max(max(first, AGREED_SECONDS) + shared, second) + stepped / 2


def efficiency(load: Load, num: int, link: Link) -> float:
    """Return the photos a second of `num` GPUs over those of one GPU times `num`."""
    return load.seconds / step_seconds(load, num, link)
