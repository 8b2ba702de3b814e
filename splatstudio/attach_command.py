"""`splatstudio attach`: watches and steers, from a terminal, a training that a launcher started elsewhere."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from splatstudio.terminal import console
from splatstudio.worker.handshake import dial, shut

COMMANDS = "pause, resume, step N, save, evaluate, set NAME VALUE, cap N, stop, quit"


def attach(address: str, token: str, typed: Iterable[str]) -> int:
    """Print what a training tells until it ends, and hand on the lines of `typed`; return the exit code.

    `address` is HOST:PORT. Raises ValueError with one sentence for an address that is none, and where nobody
    answers or the token is wrong.
    """
    line = dial(address, token, frames=False)
    try:
        console.print(f"Type: {COMMANDS}")
        threading.Thread(target=_hand_over, args=(line.socket, typed), name="typed", daemon=True).start()
        for answer in _events(line.answers):
            if (text := described(answer)) is not None:
                console.print(text, markup=False, soft_wrap=True)
    finally:
        line.close()
    return 0


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
    if kind == "SettingChanged":
        return f"{event['path']} is {event['value']} from step {event['step'] + 1} on"
    texts = {"StateChanged": "state", "Saved": "path", "Warned": "sentence", "Failed": "sentence"}
    return f"{kind}: {event[texts[kind]]}" if kind in texts else None


def _events(answers: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    try:
        for answer in answers:
            yield json.loads(answer)
    except OSError:
        return  # the training has gone


def _hand_over(line: socket.socket, typed: Iterable[str]) -> None:
    for text in typed:
        if text.strip() == "quit":
            break
        if not text.strip():
            continue
        try:
            line.sendall(json.dumps(order_of(text)).encode() + b"\n")
        except ValueError as error:
            console.print(str(error), markup=False)
        except OSError:
            return
    else:
        return  # the end of a file is no wish to leave
    shut(line)
