"""What a process that takes a dead one's place is told, order by order."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from splatstudio.cameras.camera import Camera
from splatstudio.runtime.command_replay import CommandReplay
from splatstudio.runtime.messages import (
    CancelJob,
    Command,
    DropView,
    Evaluate,
    Event,
    Export,
    JobCancelled,
    Pause,
    PausesAt,
    Receipt,
    Resume,
    Save,
    SettingChanged,
    SetView,
    Start,
    StateChanged,
    Step,
    Stop,
    TrainJob,
    UpdateSettings,
    ViewJob,
    Warned,
)


def view(number: int, seq: int) -> SetView:
    return SetView(number, seq, Camera(np.eye(4), np.eye(3), 4, 3))


def obeyed(orders: CommandReplay, command: Command) -> None:
    """Send an order that the worker takes up and is done with."""
    number = orders.sent(command)
    orders.heard(Receipt(number, done=False))
    orders.heard(Receipt(number, done=True))


def after(*commands: Command) -> CommandReplay:
    orders = CommandReplay()
    for command in commands:
        obeyed(orders, command)
    return orders


def again(orders: CommandReplay) -> list[Command]:
    """Return the orders for a new process, which tell of the same when that one dies at once."""
    first, told = orders.again()
    second, nothing = orders.again()
    assert [command for _, command in first] == [command for _, command in second]
    assert not nothing and not told
    numbers = [number for number, _ in second if number]
    assert numbers == sorted(set(numbers)), "the receipts could not tell them apart"
    return [command for _, command in second]


def test_a_new_process_is_told_what_still_holds(tmp_path: Path) -> None:
    assert again(CommandReplay()) == []
    orders, newest = after(Start(), Save()), view(1, 2)
    for command in (view(1, 1), newest, view(2, 1), DropView(2)):
        orders.sent(command)
    assert again(orders) == [newest, Start()]
    assert again(after(Start(), Pause())) == [Start(), Pause()]
    assert again(after(Start(), Pause(), Resume())) == [Start()]
    assert again(after(Start(), Stop())) == [Start(), Stop()]
    assert again(after(Start(), Stop(), Resume())) == [Start()]
    orders = after(Start(), Stop())
    orders.heard(StateChanged("paused"))  # it could not save
    assert again(orders) == [Start(), Pause()]
    orders.heard(SettingChanged(3, "a", 1))
    orders.heard(SettingChanged(4, "a", 2))
    job = TrainJob(tmp_path, tmp_path / "run")
    later = orders.job_again(orders.job_again(job, None), tmp_path / "ckpt")
    assert isinstance(later, TrainJob)
    assert later.settings == (("a", 2),) and later.attempt == 2 and later.checkpoint == tmp_path / "ckpt"
    shown = ViewJob(tmp_path)
    assert orders.job_again(shown, None) is shown


def test_settings_from_before_the_start_hold_until_they_are_changed(tmp_path: Path) -> None:
    orders = after(Start())
    job = TrainJob(tmp_path, tmp_path / "run", settings=(("a", 1), ("b", 2)))
    again = orders.job_again(job, None)
    assert isinstance(again, TrainJob) and dict(again.settings) == {"a": 1, "b": 2}
    orders.heard(SettingChanged(4, "b", 3))
    again = orders.job_again(again, None)
    assert isinstance(again, TrainJob) and dict(again.settings) == {"a": 1, "b": 3}


def test_the_step_to_pause_at_holds() -> None:
    orders = after(Start(), Pause(), Step(5))
    orders.heard(PausesAt(12))
    orders.heard(StateChanged("training"))
    assert again(orders) == [Start(pause_at=12)]
    orders = after(Start(), Step(5))
    orders.heard(PausesAt(12))
    obeyed(orders, Resume())
    orders.heard(PausesAt(None))
    assert again(orders) == [Start()]
    orders = after(Start(), Step(5))
    orders.heard(StateChanged("paused"))  # by itself, after the last of the steps
    assert again(orders) == [Start(), Pause()]


def test_what_no_process_has_begun_with_is_given_to_the_next_in_order(tmp_path: Path) -> None:
    orders = after(Start())
    sent = [
        UpdateSettings((("a", 1),)),
        Pause(),
        Export(tmp_path / "a.ply", job=1),
        Step(3),
        UpdateSettings((("a", 2),)),
        Evaluate(),
    ]
    numbers = [orders.sent(command) for command in sent]
    assert orders.waiting_jobs == {1} and not orders.paused
    assert again(orders) == [Start(), *sent] and orders.started
    orders = after(Start())
    numbers = [orders.sent(command) for command in sent]
    orders.heard(Receipt(numbers[1], done=False))  # the order before it was replaced on its way
    assert again(orders) == [Start(), Pause(), *sent[2:]]


def test_a_state_told_before_an_order_arrived_does_not_undo_it() -> None:
    orders = after(Start())
    orders.sent(Pause())
    orders.heard(StateChanged("training"))
    assert orders.paused and again(orders) == [Start(), Pause()]
    orders = CommandReplay()
    orders.sent(Start())
    assert orders.started and again(orders) == [Start()]


def test_what_makes_no_sense_any_more_is_answered(tmp_path: Path) -> None:
    orders = after(Start())
    orders.heard(Receipt(orders.sent(Evaluate()), done=False))
    orders.sent(Save())
    orders.sent(Export(tmp_path / "a.ply", job=1))
    orders.sent(Export(tmp_path / "b.ply", job=2))
    orders.sent(CancelJob(1))
    left, told = orders.again()
    assert [command for _, command in left] == [Start(), Export(tmp_path / "b.ply", job=2)]
    sentences = [event.sentence for event in told if isinstance(event, Warned)]
    assert [words.partition(" ")[0] for words in sentences] == ["The", "Not"]
    assert "evaluation ended" in sentences[0] and sentences[1].startswith("Not saved")
    cancelled: list[Event] = [event for event in told if not isinstance(event, Warned)]
    assert cancelled == [JobCancelled(1)]
    assert again(orders) == [command for _, command in left], "it is said once"
