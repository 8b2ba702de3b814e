"""The head of the dock, and figures as people say them."""

from __future__ import annotations

import math

from splatstudio.gui.dock import header_html
from splatstudio.gui.state.status import Status
from splatstudio.gui.theme import duration, size


def test_names_and_messages_cannot_inject_html() -> None:
    text = header_html('<img src=x onerror="alert(1)">', Status(state="failed", message="<script>"), 2)
    assert "<img" not in text and "<script" not in text and "2 viewers" in text and "Failed" in text


def test_a_training_that_was_stopped_is_not_called_finished() -> None:
    def shown(step: int) -> str:
        return header_html("demo", Status(state="finished", step=step, total_steps=50), 1)

    assert ">Stopped<" in shown(49) and "Finished" not in shown(49)
    assert ">Finished<" in shown(50) and "Stopped" not in shown(50)


def test_numbers_are_said_as_people_say_them() -> None:
    assert [duration(s) for s in (None, 7, 65, 3700, math.inf)] == ["–", "7 s", "1:05 min", "1:01 h", "–"]
    assert [size(n) for n in (12, 45_000, 1_234_567, 2.5e9)] == ["12 B", "45 kB", "1.2 MB", "2.50 GB"]
