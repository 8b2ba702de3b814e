"""How a training that runs elsewhere and who watches it prove to each other that they know its token.

The training greets with its version and a random number, the caller answers with one of its own and a proof,
the training with another proof: HMAC-SHA256 of both numbers, keyed by the token, which itself never crosses
the network. Then it says what it trains. Nothing is encrypted.
"""

from __future__ import annotations

import hmac
import re
import secrets
import socket
import struct
import sys
from pathlib import Path

from msgspec import Struct

from splatstudio.runtime.channel.codec import decode

PROTOCOL = 4  # both sides must speak the same
MAX_HELLO = 1 << 10  # bytes, of who may be anybody
SEND_SECONDS = 5.0  # for the other end to read: who does not is let go
GONE_SECONDS = 15  # for the other machine to confirm what was sent to it
PING_SECONDS = 5.0  # between two questions whether it is there
NONCE = re.compile("[0-9a-f]{32}")
WRONG_TOKEN = "the token is not that of this training"


class Greeting(Struct, frozen=True):
    """What a training says first."""

    splatstudio: int  # the protocol's version
    nonce: str


class Hello(Struct, frozen=True, forbid_unknown_fields=True):
    """What a caller answers. `frames`: it wants pictures as well as events."""

    version: int
    nonce: str
    proof: str
    frames: bool = False


class RunCard(Struct, frozen=True):
    """What a training says of itself to who has the token; `rows` are lines of its metrics, thinned out."""

    scene_path: Path
    run_dir: Path
    config: str  # JSON
    num_ranks: int
    rows: str = "[]"  # JSON


class Ready(Struct, frozen=True):
    """What a caller says who has seen the training's proof: long messages may come."""


class Welcome(Struct, frozen=True):
    """What a caller gets who knows the token, or why not."""

    proof: str = ""
    refused: str = ""  # a sentence


def new_greeting() -> Greeting:
    """Return a greeting with a new random number."""
    return Greeting(PROTOCOL, secrets.token_hex(16))


def checked(data: bytes, token: str, greeting: Greeting) -> tuple[Hello, Welcome]:
    """Return what a caller wants, and what to answer.

    Raises ValueError, with the sentence to refuse with, where the caller does not know the token.
    """
    hello = decode(data, Hello)
    if hello.version != PROTOCOL:
        raise ValueError(f"the training speaks version {PROTOCOL}: use the same release on both sides")
    if not is_nonce(hello.nonce):
        raise ValueError("this is no greeting")
    if not same(hello.proof, proof(token, "caller", greeting.nonce, hello.nonce)):
        raise ValueError(WRONG_TOKEN)
    return hello, Welcome(proof(token, "training", greeting.nonce, hello.nonce))


def is_nonce(said: str) -> bool:
    """Return whether a random number looks like one."""
    return NONCE.fullmatch(said) is not None


def proof(token: str, role: str, training_nonce: str, caller_nonce: str) -> str:
    """Return what only one who knows the token can say in that role, of "caller" and "training"."""
    said = f"splatstudio {PROTOCOL} {role} {training_nonce} {caller_nonce}".encode()
    return hmac.new(token.encode(errors="surrogateescape"), said, "sha256").hexdigest()


def same(given: str, expected: str) -> bool:
    """Return whether a proof is the expected one, in the same time whichever it is."""
    return given.isascii() and hmac.compare_digest(given, expected)


def limit_waiting(line: socket.socket) -> None:
    """Let sending fail with an OSError where the other end does not read, or its machine is gone."""
    # Not a timeout of the socket's: that would hold for the thread that reads, too.
    if sys.platform == "win32":
        timeout = struct.pack("@L", int(SEND_SECONDS * 1000))
    else:
        timeout = struct.pack("@ll", int(SEND_SECONDS), 0)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # else what was sent to it is sent again for a quarter of an hour
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * GONE_SECONDS)


def shut(line: socket.socket) -> None:
    """Wake the thread that reads from `line`."""
    try:
        line.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has gone
