"""What a process that takes a dead one's place is told, order by order."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from splatstudio.cameras.camera import Camera
from splatstudio.runtime import messages
from splatstudio.runtime.command_replay import CommandReplay


def view(number: int, seq: int) -> messages.SetView:
    return messages.SetView(number, seq, Camera(np.eye(4), np.eye(3), 4, 3))


def obeyed(orders: CommandReplay, command: messages.Command) -> None:
    """Send an order that the worker takes up and is done with."""
    number = orders.sent(command)
    orders.heard(messages.Receipt(number, done=False))
    orders.heard(messages.Receipt(number, done=True))


def after(*commands: messages.Command) -> CommandReplay:
    orders = CommandReplay()
    for command in commands:
        obeyed(orders, command)
    return orders


def again(orders: CommandReplay) -> list[messages.Command]:
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
    orders, newest = after(messages.Start(), messages.Save()), view(1, 2)
    for command in (view(1, 1), newest, view(2, 1), messages.DropView(2)):
        orders.sent(command)
    assert again(orders) == [newest, messages.Start()]
    assert again(after(messages.Start(), messages.Pause())) == [messages.Start(), messages.Pause()]
    assert again(after(messages.Start(), messages.Pause(), messages.Resume())) == [messages.Start()]
    assert again(after(messages.Start(), messages.Stop())) == [messages.Start(), messages.Stop()]
    assert again(after(messages.Start(), messages.Stop(), messages.Resume())) == [messages.Start()]
    orders = after(messages.Start(), messages.Stop())
    orders.heard(messages.StateChanged("paused"))  # it could not save
    assert again(orders) == [messages.Start(), messages.Pause()]
    orders.heard(messages.SettingChanged(3, "a", 1))
    orders.heard(messages.SettingChanged(4, "a", 2))
    job = messages.TrainJob(tmp_path, tmp_path / "run")
    later = orders.job_again(orders.job_again(job, None), tmp_path / "ckpt")
    assert isinstance(later, messages.TrainJob)
    assert later.settings == (("a", 2),) and later.attempt == 2 and later.checkpoint == tmp_path / "ckpt"
    shown = messages.ViewJob(tmp_path)
    assert orders.job_again(shown, None) is shown


def test_settings_from_before_the_start_hold_until_they_are_changed(tmp_path: Path) -> None:
    orders = after(messages.Start())
    job = messages.TrainJob(tmp_path, tmp_path / "run", settings=(("a", 1), ("b", 2)))
    again = orders.job_again(job, None)
    assert isinstance(again, messages.TrainJob) and dict(again.settings) == {"a": 1, "b": 2}
    orders.heard(messages.SettingChanged(4, "b", 3))
    again = orders.job_again(again, None)
    assert isinstance(again, messages.TrainJob) and dict(again.settings) == {"a": 1, "b": 3}


def test_the_step_to_pause_at_holds() -> None:
    orders = after(messages.Start(), messages.Pause(), messages.Step(5))
    orders.heard(messages.PausesAt(12))
    orders.heard(messages.StateChanged("training"))
    assert again(orders) == [messages.Start(pause_at=12)]
    orders = after(messages.Start(), messages.Step(5))
    orders.heard(messages.PausesAt(12))
    obeyed(orders, messages.Resume())
    orders.heard(messages.PausesAt(None))
    assert again(orders) == [messages.Start()]
    orders = after(messages.Start(), messages.Step(5))
    orders.heard(messages.StateChanged("paused"))  # by itself, after the last of the steps
    assert again(orders) == [messages.Start(), messages.Pause()]


def test_what_no_process_has_begun_with_is_given_to_the_next_in_order(tmp_path: Path) -> None:
    orders = after(messages.Start())
    sent = [
        messages.UpdateSettings((("a", 1),)),
        messages.Pause(),
        messages.Export(tmp_path / "a.ply", job=1),
        messages.Step(3),
        messages.UpdateSettings((("a", 2),)),
        messages.Evaluate(),
    ]
    numbers = [orders.sent(command) for command in sent]
    assert orders.waiting_jobs == {1} and not orders.paused
    assert again(orders) == [messages.Start(), *sent] and orders.started
    orders = after(messages.Start())
    numbers = [orders.sent(command) for command in sent]
    orders.heard(messages.Receipt(numbers[1], done=False))  # the order before it was replaced on its way
    assert again(orders) == [messages.Start(), messages.Pause(), *sent[2:]]


def test_what_was_not_done_when_the_process_died_is_done_by_the_next() -> None:
    for order in (messages.UpdateSettings((("a", 1),)), messages.SetCap(7), messages.Step(3)):
        orders = after(messages.Start())
        number = orders.sent(order)
        orders.heard(messages.Receipt(number, done=False))
        assert again(orders) == [messages.Start(), order]
        assert again(after(messages.Start(), order)) == [messages.Start()]


def test_steps_whose_end_is_known_are_not_begun_again() -> None:
    orders = after(messages.Start())
    orders.heard(messages.Receipt(orders.sent(messages.Step(3)), done=False))
    orders.heard(messages.PausesAt(15))
    assert again(orders) == [messages.Start(pause_at=15)]


def test_a_state_told_before_an_order_arrived_does_not_undo_it() -> None:
    orders = after(messages.Start())
    orders.sent(messages.Pause())
    orders.heard(messages.StateChanged("training"))
    assert orders.paused and again(orders) == [messages.Start(), messages.Pause()]
    orders = CommandReplay()
    orders.sent(messages.Start())
    assert orders.started and again(orders) == [messages.Start()]


def test_what_makes_no_sense_any_more_is_answered(tmp_path: Path) -> None:
    orders = after(messages.Start())
    orders.heard(messages.Receipt(orders.sent(messages.Evaluate()), done=False))
    orders.sent(messages.Save())
    orders.sent(messages.Export(tmp_path / "a.ply", job=1))
    orders.sent(messages.Export(tmp_path / "b.ply", job=2))
    orders.sent(messages.CancelJob(1))
    left, told = orders.again()
    assert [command for _, command in left] == [messages.Start(), messages.Export(tmp_path / "b.ply", job=2)]
    sentences = [event.sentence for event in told if isinstance(event, messages.Warned)]
    assert [words.partition(" ")[0] for words in sentences] == ["The", "Not"]
    assert "evaluation ended" in sentences[0] and sentences[1].startswith("Not saved")
    cancelled: list[messages.Event] = [event for event in told if not isinstance(event, messages.Warned)]
    assert cancelled == [messages.JobCancelled(1)]
    assert again(orders) == [command for _, command in left], "it is said once"
