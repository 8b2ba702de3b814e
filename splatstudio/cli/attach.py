"""`splatstudio attach`: watches and steers, from a terminal, a training that a launcher started elsewhere."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable

from splatstudio.cli.terminal import LINE_SECONDS, console, event_line
from splatstudio.error_text import printable
from splatstudio.runtime import messages
from splatstudio.runtime.channel.codec import encode
from splatstudio.runtime.channel.remote_server import checked_remote_command
from splatstudio.runtime.remote_run import RemoteLine, dial, dial_again

COMMANDS = "pause, resume, step N, save, evaluate, set NAME VALUE, cap N, stop, quit"


def attach(address: str, token: str, typed: Iterable[str]) -> int:
    """Print what a training tells until it ends, and hand on the lines of `typed`; return the exit code.

    `address` is HOST:PORT. A line that breaks is dialed again: the launcher starts the ranks again. Raises
    ValueError with one sentence for an address that is none, and where nobody answers or the token is wrong.
    """
    terminal = _Terminal(dial(address, token, frames=False))
    console.print(f"Type: {COMMANDS}")
    threading.Thread(target=terminal.hand_over, args=(typed,), name="typed", daemon=True).start()
    while not terminal.follow():
        console.print(f"The connection to {address} broke; it is tried again.")
        try:
            terminal.line = dial_again(lambda: dial(address, token, frames=False), terminal.left)
        except ValueError:
            if not terminal.left.is_set():
                raise
            break
        if terminal.left.is_set():  # it was too late to shut this one
            terminal.line.shut()
    return 0


class _Terminal:
    """The line to a training, from a terminal."""

    def __init__(self, line: RemoteLine):
        self.line = line
        self.left = threading.Event()

    def follow(self) -> bool:
        """Print what is told until the line breaks, and return whether that is the end."""
        ended, due = False, 0.0
        try:
            while True:
                event = self.line.receive()
                ended = ended or isinstance(event, messages.Finished)
                if isinstance(event, messages.Progress) and not console.is_terminal:
                    if time.monotonic() < due:
                        continue  # where lines are kept, one now and then is enough
                    due = time.monotonic() + LINE_SECONDS
                if (text := event_line(event, "To stop here, type: stop")) is not None:
                    console.print(printable(text), soft_wrap=True)
        except (OSError, ValueError):
            return ended or self.left.is_set()
        finally:
            self.line.close()

    def hand_over(self, typed: Iterable[str]) -> None:
        """Send what is typed; "quit" leaves, the end of a file does not."""
        for text in typed:
            if text.strip() == "quit":
                self.left.set()
                self.line.shut()
                return
            if not text.strip():
                continue
            try:
                self.line.send(command_of(text))
            except ValueError as error:
                console.print(str(error))
            except OSError:
                console.print("There is no connection to the training just now.")


def command_of(text: str) -> messages.Command:
    """Return the command that a typed line gives; ValueError with one sentence where it is none."""
    command = _typed(text)
    try:
        checked_remote_command(encode(command))  # what the training does not take would cut the line
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text.strip()!r} has a value that cannot be sent") from error
    return command


def _typed(text: str) -> messages.Command:
    word, *rest = text.split()
    plain: dict[str, messages.Command] = {
        "pause": messages.Pause(),
        "resume": messages.Resume(),
        "save": messages.Save(),
        "evaluate": messages.Evaluate(),
        "stop": messages.Stop(),
    }
    if word in plain and not rest:
        return plain[word]
    if word == "step" and len(rest) <= 1 and all(number.isdigit() for number in rest):
        return messages.Step(int(rest[0]) if rest else 1)
    if word == "cap" and len(rest) == 1 and rest[0].isdigit():
        return messages.SetCap(int(rest[0]))
    if word == "set" and len(rest) == 2:
        try:
            value = json.loads(rest[1].lower())
        except ValueError:
            value = rest[1]
        if isinstance(value, list):
            value = tuple(value)
        return messages.UpdateSettings(((rest[0], value),))
    raise ValueError(f"{text.strip()!r} is none of: {COMMANDS}")
