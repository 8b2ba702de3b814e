"""The model on paper of several GPUs: what it follows from, and in which direction."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench.scaling_model import LINKS, Link, Load, efficiency, moved_more, step_seconds

LOAD = Load(num_gaussians=3e6, shown=0.9e6, seconds=0.005, row_bytes=88)


@pytest.mark.parametrize("num", [2, 4, 8])
def test_a_faster_link_smaller_rows_and_longer_photos_scale_better(num: int) -> None:
    nvlink, pcie5, pcie4 = (efficiency(LOAD, num, link) for link in LINKS)
    assert 0.0 < pcie4 < pcie5 < nvlink < 1.0
    for easier in (replace(LOAD, row_bytes=68), replace(LOAD, shown=0.5e6), replace(LOAD, seconds=0.01)):
        assert all(efficiency(easier, num, link) > efficiency(LOAD, num, link) for link in LINKS)


def test_more_ranks_share_the_optimizer() -> None:
    assert moved_more(LOAD, 8) < moved_more(LOAD, 4) < moved_more(LOAD, 2)


def test_one_gpu_takes_what_is_stated_and_the_bytes_take_their_time() -> None:
    assert step_seconds(LOAD, 1, LINKS[0]) == LOAD.seconds and efficiency(LOAD, 1, LINKS[0]) == 1.0
    slow = Link("slow", 1.0, 0.0, 2800.0)
    fast = replace(slow, bandwidth=2.0)
    sent = LOAD.row_bytes * LOAD.shown * 3 / 4
    assert step_seconds(LOAD, 4, slow) - step_seconds(LOAD, 4, fast) == pytest.approx(sent / 2e9)
