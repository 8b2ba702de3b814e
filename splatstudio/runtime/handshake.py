"""How a training that runs elsewhere and who watches it prove to each other that they know its token.

Lines of JSON. The training greets with its version and a random number, the caller answers with one of its
own and a proof, the training with another proof: HMAC-SHA256 of both numbers, keyed by the token, which
itself never crosses the network. Then it says what it trains. Nothing is encrypted.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

from splatstudio.error_text import printable
from splatstudio.runtime.plain_form import from_plain

PROTOCOL = 3  # both sides must speak the same
MAX_HELLO = 1 << 10  # bytes, of who may be anybody
MAX_ANSWER = 1 << 26  # bytes of a line of the training, which has shown that it knows the token
MAX_NUMBER = 1 << 53  # beyond it a step or a number of splats is none, and no float holds it exactly
CONNECT_SECONDS = 10.0
INTRODUCED_SECONDS = 60.0  # for all that is said first: the other end may be anybody
SEND_SECONDS = 5.0  # for the other end to read: who does not is let go
GONE_SECONDS = 15  # for the other machine to confirm what was sent to it
REDIAL_SECONDS = 1.0
PATIENCE_SECONDS = 600.0  # for the launcher to start the ranks again, on another machine perhaps
NONCE = re.compile("[0-9a-f]{32}")
WRONG_TOKEN = "the token is not that of this training"


class Unreachable(ValueError):
    """Nobody answers, which may be different in a moment."""


@dataclass(frozen=True)
class RunCard:
    """What a training says of itself to who has the token; `rows` are lines of its metrics, thinned out."""

    scene_path: Path
    run_dir: Path
    config: str  # JSON
    num_ranks: int
    rows: str = "[]"  # JSON


@dataclass(frozen=True)
class Caller:
    """What a caller wants: "frames" as well as events."""

    frames: bool


@dataclass(frozen=True, eq=False)
class Line:
    """A connection to a training that has shown that it knows the token."""

    socket: socket.socket
    answers: BinaryIO
    card: RunCard

    def close(self) -> None:
        """Leave; the training goes on."""
        shut(self.socket)  # wakes who reads there
        self.answers.close()
        self.socket.close()


def dial(address: str, token: str, *, frames: bool) -> Line:
    """Return a line to the training at `address`, HOST:PORT.

    Raises Unreachable where nobody answers, else ValueError, with one sentence.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{address} is no address: give HOST:PORT, as the training printed it")
    try:
        line = socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS)
    except OSError as error:
        raise Unreachable(f"no training answers at {address}: {error}") from error
    watch = threading.Timer(INTRODUCED_SECONDS, shut, (line,))
    watch.daemon = True
    watch.start()
    try:
        keep_alive(line)
        answers = line.makefile("rb")
        card = _introduced(line, answers, token, address, frames)
        line.settimeout(None)
        limit_sending(line)
    except OSError as error:
        line.close()
        raise Unreachable(f"the training at {address} has ended, or does not answer: {error}") from error
    except ValueError:
        line.close()
        raise
    finally:
        watch.cancel()
    return Line(line, answers, card)


def dial_again(dialled: Callable[[], Line], left: threading.Event) -> Line:
    """Return what `dialled` gives as soon as somebody answers: the launcher starts ranks that died anew.

    Raises ValueError with one sentence where it may not be, where nobody does for long, or once it is `left`.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not left.wait(REDIAL_SECONDS):
        try:
            line = dialled()
            if not left.is_set():
                return line
            line.close()
        except Unreachable:
            if time.monotonic() >= deadline:
                raise
    raise ValueError("the training was left")


def _introduced(line: socket.socket, answers: BinaryIO, token: str, address: str, frames: bool) -> RunCard:
    greeting = answers.readline(MAX_HELLO)
    if not greeting:
        raise Unreachable(f"the training at {address} has ended, or too many watch it")
    other = f"what answers at {address} is no training of splatstudio"
    try:
        theirs = read_object(greeting)
        version, nonce = theirs["splatstudio"], theirs.get("nonce")
    except (ValueError, KeyError) as error:
        # A port that a training has left may belong to another program for a while.
        raise Unreachable(other) from error
    if version != PROTOCOL:
        raise ValueError(
            f"the training at {address} speaks version {version!r:.20}, this program version {PROTOCOL}: use"
            " the same release of splatstudio on both sides"
        )
    if not _is_nonce(nonce):
        raise Unreachable(other)
    own = secrets.token_hex(16)
    hello = {"version": PROTOCOL, "nonce": own, "proof": proof(token, "caller", nonce, own), "frames": frames}
    line.sendall(json.dumps(hello).encode() + b"\n")
    gone = f"the training at {address} has ended"
    try:
        # Whoever it is, until it has shown that it knows the token: no more is read of it.
        if not (answer := answers.readline(MAX_HELLO)):
            raise Unreachable(gone)
        values = read_object(answer)
        if "refused" in values:
            raise ValueError(printable(str(values["refused"])))
        if not same(values.get("proof"), proof(token, "training", nonce, own)):
            raise ValueError("what answers there does not know the token, so it is not your training")
        if not (card := answers.readline(MAX_ANSWER)):
            raise Unreachable(gone)
        return from_plain(RunCard, read_object(card))
    except Unreachable:
        raise
    except ValueError as error:
        raise ValueError(f"{address}: {error}") from error


def greeting() -> tuple[str, bytes]:
    """Return a new random number and the line with which a training greets by it."""
    nonce = secrets.token_hex(16)
    return nonce, json.dumps({"splatstudio": PROTOCOL, "nonce": nonce}).encode() + b"\n"


def checked(hello: bytes, token: str, nonce: str) -> tuple[Caller, str]:
    """Return what a caller wants, and the proof to answer with.

    Raises ValueError, with the sentence to refuse with, where the caller does not know the token.
    """
    values = read_object(hello)
    if values.get("version") != PROTOCOL:
        raise ValueError(f"the training speaks version {PROTOCOL}: use the same release on both sides")
    theirs = values.get("nonce")
    if not _is_nonce(theirs):
        raise ValueError("this is no greeting")
    if not same(values.get("proof"), proof(token, "caller", nonce, theirs)):
        raise ValueError(WRONG_TOKEN)
    return Caller(values.get("frames") is True), proof(token, "training", nonce, theirs)


def _is_nonce(said: object) -> TypeGuard[str]:
    return isinstance(said, str) and NONCE.fullmatch(said) is not None


def proof(token: str, role: str, training_nonce: str, caller_nonce: str) -> str:
    """Return what only one who knows the token can say in that role, of "caller" and "training"."""
    said = f"splatstudio {PROTOCOL} {role} {training_nonce} {caller_nonce}".encode()
    return hmac.new(token.encode(errors="surrogateescape"), said, "sha256").hexdigest()


def same(given: object, expected: str) -> bool:
    """Say whether a proof is the expected one, in the same time whichever it is."""
    return isinstance(given, str) and given.isascii() and hmac.compare_digest(given, expected)


def read_object(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a whole line; ValueError for all else that anybody may have sent."""
    if not line.endswith(b"\n"):
        raise ValueError("this is no whole line, or too long")
    try:
        values = json.loads(line, parse_int=_whole, parse_float=_finite, parse_constant=_refused)
    except RecursionError as error:
        raise ValueError("this is nested too deeply") from error
    if not isinstance(values, dict):
        raise ValueError("this is no JSON object")
    return values


def _whole(digits: str) -> int:
    if len(digits) > len(str(MAX_NUMBER)) + 1 or not abs(int(digits)) <= MAX_NUMBER:
        raise ValueError("this number is too large")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not abs(number) < float("inf"):
        raise ValueError("this number is too large")
    return number


def _refused(word: str) -> None:
    raise ValueError(f"{word} is no number")


def keep_alive(line: socket.socket) -> None:
    """Notice, within a quarter of a minute, that the machine at the other end is gone."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # else what was sent to it is sent again for a quarter of an hour
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * GONE_SECONDS)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def limit_sending(line: socket.socket) -> None:
    """Let sending fail with an OSError where the other end does not read."""
    # Not a timeout of the socket's: that would hold for the thread that reads, too.
    if sys.platform == "win32":
        timeout = struct.pack("@L", int(SEND_SECONDS * 1000))
    else:
        timeout = struct.pack("@ll", int(SEND_SECONDS), 0)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)


def shut(line: socket.socket) -> None:
    """Wake the thread that reads from `line`."""
    try:
        line.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has gone
