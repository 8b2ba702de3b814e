"""The model on paper of several GPUs: what it follows from, and in which direction."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench.scaling_model import LINKS, Link, Load, beside_return, efficiency, moved_more, step_seconds

LOAD = Load(num_gaussians=3e6, shown=0.9e6, seconds=0.005, row_bytes=(48, 40))


@pytest.mark.parametrize("num", [2, 4, 8])
def test_a_faster_link_smaller_rows_and_longer_photos_scale_better(num: int) -> None:
    nvlink, pcie5, pcie4 = (efficiency(LOAD, num, link) for link in LINKS)
    # A step of several photos steps the Gaussians once: on a fast link they may take less than one by one.
    assert 0.0 < pcie4 < pcie5 < nvlink < 1.05 and pcie5 < 1.0
    longer = replace(LOAD, seconds=0.01)
    for easier in (replace(LOAD, row_bytes=(40, 28)), replace(LOAD, shown=0.5e6), longer):
        assert all(efficiency(easier, num, link) > efficiency(LOAD, num, link) for link in LINKS[1:])
    assert efficiency(replace(LOAD, mixed=True), num, LINKS[2]) < pcie4


def test_more_ranks_share_the_optimizer() -> None:
    assert moved_more(LOAD, 8) < moved_more(LOAD, 4) < moved_more(LOAD, 2)


def test_one_gpu_takes_what_is_stated_and_the_bytes_take_their_time() -> None:
    assert step_seconds(LOAD, 1, LINKS[0]) == LOAD.seconds and efficiency(LOAD, 1, LINKS[0]) == 1.0
    slow = Link("slow", 1.0, 0.0, 2800.0)
    fast = replace(slow, bandwidth=2.0)
    sent = sum(LOAD.row_bytes) * LOAD.shown * 3 / 4
    assert step_seconds(LOAD, 4, slow) - step_seconds(LOAD, 4, fast) == pytest.approx(sent / 2e9)


def test_the_aims_are_met_on_paper() -> None:
    nvlink, _, pcie4 = LINKS
    assert efficiency(LOAD, 4, nvlink) > 0.90 and efficiency(LOAD, 8, nvlink) > 0.85
    assert efficiency(LOAD, 4, pcie4) > 0.75


def test_half_of_the_step_hides_behind_the_second_message() -> None:
    link = Link("no memory's time", 1.0, 0.0, 1e9)
    sent = 40 * LOAD.shown * 3 / 4 / 1e9
    nothing, little, much = (beside_return(LOAD, 4, link, stepped) for stepped in (0.0, sent, 3.0 * sent))
    assert nothing == pytest.approx(sent) and little == pytest.approx(1.5 * sent)
    assert much == pytest.approx(3.5 * sent)
