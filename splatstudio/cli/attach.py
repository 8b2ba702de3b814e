"""`splatstudio attach`: watches and steers, from a terminal, a training that a launcher started elsewhere."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from typing import Any

from splatstudio.cli.terminal import console
from splatstudio.error_text import printable
from splatstudio.runtime.handshake import MAX_ANSWER, Line, dial, dial_again, shut
from splatstudio.runtime.plain_form import from_plain
from splatstudio.runtime.plateau_report import PlateauReached, plateau_sentence

COMMANDS = "pause, resume, step N, save, evaluate, set NAME VALUE, cap N, stop, quit"


def attach(address: str, token: str, typed: Iterable[str]) -> int:
    """Print what a training tells until it ends, and hand on the lines of `typed`; return the exit code.

    `address` is HOST:PORT. A line that breaks is dialled again: the launcher starts the ranks anew. Raises
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
            shut(terminal.line.socket)
    return 0


class _Terminal:
    """The line to a training, from a terminal."""

    def __init__(self, line: Line):
        self.line = line
        self.left = threading.Event()

    def follow(self) -> bool:
        """Print what is told until the line breaks, and return whether that is the end."""
        ended = False
        try:
            while answer := self.line.answers.readline(MAX_ANSWER):
                event = json.loads(answer)
                ended = ended or event["event"] == "Finished"
                if (text := described(event)) is not None:
                    console.print(printable(text), markup=False, soft_wrap=True)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass  # as where it ends: the last line may be half of one, or no event at all
        finally:
            self.line.close()
        return ended or self.left.is_set()

    def hand_over(self, typed: Iterable[str]) -> None:
        """Send what is typed; "quit" leaves, the end of a file does not."""
        for text in typed:
            if text.strip() == "quit":
                self.left.set()
                shut(self.line.socket)
                return
            if not text.strip():
                continue
            try:
                self.line.socket.sendall(json.dumps(order_of(text)).encode() + b"\n")
            except ValueError as error:
                console.print(str(error), markup=False)
            except OSError:
                console.print("There is no connection to the training just now.")


def order_of(text: str) -> dict[str, Any]:
    """Return the order that a typed line gives; ValueError with one sentence where it is none."""
    word, *rest = text.split()
    plain = {"pause": "Pause", "resume": "Resume", "save": "Save", "evaluate": "Evaluate", "stop": "Stop"}
    if word in plain and not rest:
        return {"order": plain[word]}
    if word == "step" and len(rest) <= 1 and all(number.isdigit() for number in rest):
        return {"order": "Step", "count": int(rest[0]) if rest else 1}
    if word == "cap" and len(rest) == 1 and rest[0].isdigit():
        return {"order": "SetCap", "max_gaussians": int(rest[0])}
    if word == "set" and len(rest) == 2:
        try:
            value = json.loads(rest[1].lower())
        except ValueError:
            value = rest[1]
        return {"order": "UpdateSettings", "values": [[rest[0], value]]}
    raise ValueError(f"{text.strip()!r} is none of: {COMMANDS}")


def described(event: dict[str, Any]) -> str | None:
    """Return the line that tells an event, None for one that is not told."""
    kind = event["event"]
    if kind == "Progress":
        rate, num = event["steps_per_second"], event["num_gaussians"]
        where = f"step {event['step']:,} of {event['total_steps']:,}"
        return f"{where}, loss {event['loss']:.4f}, {num:,} splats, {rate:.1f}/s"
    if kind == "RanksReport":
        rows = (
            f"rank {row['rank']}: {row['num_gaussians']:,} splats, {1e3 * row['step_seconds']:.0f} ms a step,"
            f" {1e3 * row['wait_seconds']:.0f} ms of it waiting"
            for row in event["ranks"]
        )
        return "; ".join(rows)
    if kind == "Evaluated":
        return f"step {event['step']}: PSNR {event['psnr']:.2f} dB, SSIM {event['ssim']:.4f}"
    if kind == "PlateauReached":
        values = {name: value for name, value in event.items() if name != "event"}
        return plateau_sentence(from_plain(PlateauReached, values), "To stop here, type: stop")
    if kind == "SettingChanged":
        return f"{event['path']} is {event['value']} from step {event['step'] + 1} on"
    texts = {"StateChanged": "state", "Saved": "path", "Warned": "sentence", "Failed": "sentence"}
    return f"{kind}: {event[texts[kind]]}" if kind in texts else None
