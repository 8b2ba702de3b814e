"""What the studio says of ranks that have not told their own figures yet."""

from __future__ import annotations

from splatstudio.gui.state.status import Status
from splatstudio.gui.tabs.devices import rank_rows


def test_each_rank_counts_its_share_of_the_model() -> None:
    figures = rank_rows(Status(num_gaussians=100, steps_per_second=2.0), 2)
    assert [row.num_gaussians for row in figures] == [50, 50]
    assert [row.step_seconds for row in figures] == [0.5, 0.5]
