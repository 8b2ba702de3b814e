"""What the page offers while the background process is being started again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gui_parts import Steered

from splatstudio.gui.state.controller import Controller
from splatstudio.gui.state.status import Choice
from splatstudio.runtime.messages import Start, StateChanged, TrainJob


@pytest.fixture
def restarting(idle: Steered) -> Controller:
    """Return the controller of a training that was told to start, and whose process then died."""
    controller = idle.controller
    controller.send(Start())
    controller._worker.receive(StateChanged("restarting"))
    return controller


def test_a_training_that_comes_back_can_be_told_to_stand_still_and_to_go_on(restarting: Controller) -> None:
    assert restarting.choice() == Choice("Pause") and restarting.can_order
    restarting.press_primary()
    assert restarting.choice() == Choice("Resume") and restarting._worker.will_pause
    restarting.press_primary()
    assert restarting.choice() == Choice("Pause") and restarting._worker.will_pause is False
    restarting.stop()
    assert restarting._worker.will_pause


def test_the_same_holds_while_the_new_process_reads_the_scene(restarting: Controller) -> None:
    worker = restarting._worker
    worker.receive(StateChanged("loading"))
    assert not restarting.choice().enabled and not restarting.can_order, "the first start cannot be paused"
    assert isinstance(worker.job, TrainJob)
    worker._supervisor.job = replace(worker.job, attempt=1)
    assert restarting.choice() == Choice("Pause") and restarting.can_order


def test_what_was_not_started_has_nothing_to_pause(idle: Steered) -> None:
    controller = idle.controller
    controller._worker.receive(StateChanged("restarting"))
    assert controller.choice() == Choice("Restarting …", enabled=False) and not controller.can_order
