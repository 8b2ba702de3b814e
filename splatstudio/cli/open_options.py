"""What `splatstudio open` does without being asked in the page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AtOnce:
    """What `open` does without being asked in the page.

    Args:
        train: Start training at once.
        merge: Merge one rank's part of a model with the others beside it, and open the whole.
        browser: Open the default browser, where there is a display.
    """

    train: bool = False
    merge: bool = False
    browser: bool = True


WAIT_FOR_START = AtOnce()
