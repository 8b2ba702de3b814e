"""In how many bits ranks tell each other of the Gaussians that their photos show."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from splatstudio.distributed.exchange import RADII_WORDS, Fp16Packing, Packing
from splatstudio.distributed.ranks import Ranks
from splatstudio.rendering.sharded_view import COLUMNS, PROBE_COLUMNS
from splatstudio.settings.config import Precision

# Where a Gaussian lies, of what shape and how opaque it is travels exactly: alpha, depth and the order of
# what is drawn are those of 32 bits, and only its color is rounded. Of the gradients those of the conics
# travel exactly: of a long thin Gaussian large terms cancel, and rounding is as large as what is left.
HALVES = Fp16Packing(
    rows=Packing(exact=(0, 1, 2, 3, 4, 5, 6), dtype=torch.float16),
    gradients=Packing(exact=(2, 3, 4), dtype=torch.bfloat16),
)
WORD_BYTES = 4
_KERNEL = Path("/proc/sys/kernel/random/boot_id")


def fp16_packing_for(precision: Precision, ranks: Ranks) -> Fp16Packing | None:
    """Return what travels in 16 bits between these ranks, which all call this; None: nothing.

    "auto" is "mixed" where they are on several machines: within one the line is no bottleneck.
    """
    if ranks.num_ranks == 1 or precision == "fp32":
        return None
    if precision == "mixed":
        return HALVES
    return HALVES if len(set(ranks.all_gather_bytes(machine().encode()))) > 1 else None


def machine() -> str:
    """Return what tells this machine from others; its containers, whatever their names, are the same one."""
    return _KERNEL.read_text().strip() if _KERNEL.exists() else platform.node()


def note_on_precision(precision: Precision, num_ranks: int) -> str | None:
    """Return a sentence where a user asks one rank to send less to others, else None."""
    if precision != "mixed" or num_ranks > 1:
        return None
    return (
        "--precision mixed has no effect here: it is about what ranks send each other, and this training has"
        " one rank."
    )


def row_bytes(packing: Fp16Packing | None, *, probe: bool = False) -> tuple[int, int]:
    """Return the bytes of a visible Gaussian in the exchange, and of its gradients on the way back.

    `probe`: with the absolute gradients that some strategies look at.
    """
    num, num_back = sum(COLUMNS), sum(COLUMNS) + PROBE_COLUMNS * probe
    if packing is None:
        return WORD_BYTES * (num + 2), WORD_BYTES * num_back
    there, back = packing.rows.num_words(num) + RADII_WORDS, packing.gradients.num_words(num_back)
    return WORD_BYTES * there, WORD_BYTES * back
