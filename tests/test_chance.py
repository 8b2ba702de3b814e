"""Random numbers of the strategies: the same when repeated, others for each seed and step."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from splatstudio.strategy import chance
from splatstudio.strategy.chance import drawn, generator_of

STATUS, FORGET_PEAK = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def first_numbers(seed: int, step: int) -> tuple[float, ...]:
    return tuple(torch.randn(4, generator=generator_of(seed, step)).tolist())


def test_random_numbers_are_of_a_seed_and_a_step_and_of_no_other() -> None:
    steps = (0, 1, 2, 4096, 4097, 8192, 2**32, 2**32 + 1)  # powers of two: torch reads 32 bits of a seed
    drawn = {first_numbers(seed, step) for seed in (0, 1, 42, 2**32) for step in steps}
    assert len(drawn) == 4 * len(steps)
    assert first_numbers(42, 4096) == first_numbers(42, 4096)


@pytest.mark.parametrize("end", [7, 21, 40])
def test_rows_are_drawn_by_their_masses_and_none_beyond_the_last(
    monkeypatch: pytest.MonkeyPatch, end: int
) -> None:
    monkeypatch.setattr(chance, "_BLOCK", 10)
    masses = torch.zeros(45)
    masses[2], masses[end] = 1.0, 3.0
    rows = drawn(masses, 4000, generator_of(1, 2))
    assert set(rows.tolist()) == {2, end}
    assert 0.72 < float((rows == end).float().mean()) < 0.78
    monkeypatch.setattr(torch, "rand", lambda *size, **_: torch.ones(*size, dtype=torch.float64))
    assert drawn(masses, 1, generator_of(1, 2)).item() == end, "rounding leads no farther"


def kilobytes(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", STATUS.read_text())
    assert found is not None
    return int(found[1])


@pytest.mark.skipif(not FORGET_PEAK.exists(), reason="Linux alone tells the most memory that was taken")
def test_drawing_from_millions_takes_one_list_of_their_sums() -> None:
    num = 10_000_000
    masses = torch.rand(num)
    FORGET_PEAK.write_text("5")
    before = kilobytes("VmRSS")
    drawn(masses, 1000, generator_of(1, 2))
    assert 1024 * (kilobytes("VmHWM") - before) < 1.3 * 8 * num
