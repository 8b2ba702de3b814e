"""What the Log tab tells of a training in which all goes well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from splatstudio.gui.state.news import Milestones, News
from splatstudio.gui.state.status import Notice, Status
from splatstudio.runtime.messages import Densified, Evaluated, Event, Progress, Started, StateChanged
from splatstudio.settings.config import TrainConfig, changed
from splatstudio.strategy import Change

NO_PATH: Any = None


def told_of(config: TrainConfig, events: Sequence[Event], state: Any = "training") -> list[str]:
    """Return the lines for some events of a training."""
    lines: list[Notice] = []
    trained = SimpleNamespace(project=SimpleNamespace(config=config), status=Status(state=state, step=7))
    milestones = Milestones(cast(Any, trained), lines.append)
    for event in events:
        milestones.follow(event)
    return [line.title for line in lines]


def progress(step: int) -> Progress:
    return Progress(step, 4000, 0.1, 20.0, 100, 9.0, 1.0, 0.5)


def test_growth_scores_and_resets_are_told_and_small_changes_are_not() -> None:
    grown, reset = Change(cloned=5), Change(opacities_reset=True)
    events = [
        Started(0, 4000, 100, 42, 6),
        Densified(600, 140, grown),
        Densified(700, 160, grown),
        Densified(800, 200, grown),
        Densified(900, 90, reset),
        *(Densified(step, 95, replace(grown, capped=3)) for step in (1000, 1100)),
        Evaluated(2000, 24.314, 0.81234, 6, NO_PATH),
        StateChanged("paused"),
    ]
    assert told_of(TrainConfig(steps=4000), events) == [
        "Step 0: training begins with 100 splats; 42 photos to learn from, 6 for the test",
        "Step 700: grown from 100 to 160 splats",
        "Step 900: opacities lowered, so that what is not needed can go",
        "Step 900: thinned from 160 to 90 splats",
        "Step 1,000: the limit on the number of splats is reached, 95",
        "Step 2,000: test PSNR 24.31 dB, SSIM 0.8123",
        "Step 7: paused",
    ]
    evaluated = [Evaluated(2000, 24.314, 0.81234, 6, NO_PATH)]
    assert told_of(TrainConfig(), evaluated, "viewing") == [], "the Evaluate tab tells it"


def test_finer_photographs_and_colors_are_told_when_they_come() -> None:
    config = changed(changed(TrainConfig(steps=4000), "coarse.first", 4.0), "coarse.until", 0.5)
    events = [Started(0, 4000, 100, 42, 6), *(progress(step) for step in range(100, 3000, 100))]
    assert told_of(config, events)[1:] == [
        "Step 0: photos at about 1/4 of their size at first",
        "Step 500: photos at about 1/3 of their size from here on",
        "Step 1,000: photos at about 1/2 of their size from here on",
        "Step 1,000: colors depend more on the view from here on (SH degree 1)",
        "Step 2,000: photos in full size from here on",
        "Step 2,000: colors depend more on the view from here on (SH degree 2)",
    ]
    again = [Started(2500, 4000, 100, 42, 6), progress(2600)]
    assert told_of(config, again) == [
        "Step 2,500: training goes on with 100 splats; 42 photos to learn from, 6 for the test"
    ], "what has come is not told again"


def test_what_is_noted_is_in_the_log_and_covers_no_picture() -> None:
    clients: dict[int, Any] = {1: SimpleNamespace()}  # whoever is shown something fails
    server = SimpleNamespace(get_clients=lambda: clients, on_client_connect=lambda _: None)
    news = News(cast(Any, server))
    news.note(Notice("Step 7: paused", ""))
    assert [item.notice.title for item in news.items] == ["Step 7: paused"]
