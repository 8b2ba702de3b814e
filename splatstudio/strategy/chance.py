"""What is random: generators and numbers that follow from a seed and a step."""

from __future__ import annotations

import hashlib

import torch


def generator_of(seed: int, step: int) -> torch.Generator:
    """Return a generator for a step's random numbers, on the CPU: the same on all ranks and when repeated."""
    # A hash of four bytes: torch's generators for the CPU look at 32 bits of a seed and at no more. The zero
    # stands for the first rank, whose numbers are those of all of them.
    number = int.from_bytes(hashlib.blake2b(f"{seed} {step} 0".encode(), digest_size=4).digest(), "little")
    return torch.Generator().manual_seed(number)


def seeds_of(seed: int, step: int, num: int) -> list[int]:
    """Return `num` seeds of a step for what is made by counting, 0 to below 2^62, the same on all ranks."""
    return torch.randint(2**62, (num,), generator=generator_of(seed, step), device="cpu").tolist()
