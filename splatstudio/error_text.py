"""What an exception says, in one line."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's text, or its class where it has none."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
