"""The save before a studio closes: where the disk has no room for the model it waits for some."""

from __future__ import annotations

import queue

from splatstudio.gui.state.controller import Controller
from splatstudio.runtime.messages import Event, StateChanged, Stop, Warned
from splatstudio.runtime.save_retries import SaveRetries, retry_sentence

POLL_SECONDS = 0.1


def save_before_closing(controller: Controller) -> None:
    """Let a training save and end; while there is no room, say so and try it again.

    Returns when it has ended, has been told often enough, or has died over it.
    """
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    controller.listen(events.put)
    controller.send(Stop())
    retries, warned = SaveRetries(), ""
    # The state is asked for, too: it may have ended by itself before it was told to.
    while controller.status.state in ("training", "paused") or not events.empty():
        if retries.take_due():
            controller.send(Stop())
        try:
            event = events.get(timeout=POLL_SECONDS)
        except queue.Empty:
            continue
        if isinstance(event, Warned):
            warned = event.sentence
        elif isinstance(event, StateChanged) and event.state == "restarting":
            controller.kill()  # it died while it saved; another one in its place has nothing more to save
            return
        elif isinstance(event, StateChanged) and event.unsaved:
            if not retries.fail():
                return
            if retries.num_failed == 1:
                print(warned, retry_sentence(told=True), sep="\n", flush=True)
