"""How much one browser may ask of the studio."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GateLimits:
    """Bounds on what browsers may do, far above what the page itself needs."""

    max_clients: int = 32
    max_message_bytes: int = 4 * 2**20
    messages_per_second: float = 500.0  # a browser that sends faster is read more slowly, nothing is lost
    silent_seconds: float = 10.0  # a browser that takes nothing for so long is dropped (Linux only)
    max_pixels: int = 16384  # width and height of a browser's view
    max_text: int = 10_000  # characters in a text field
    max_upload_bytes: int = 16 * 2**20
    max_uploads: int = 4  # at the same time, of one browser
