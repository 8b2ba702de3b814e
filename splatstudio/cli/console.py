"""The terminal: what is printed there are also names of files and words of other programs' files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.segment import Segment

from splatstudio.cli.standard_output import leave_unread
from splatstudio.error_text import for_terminal


class PlainConsole(Console):
    """A console that only rich itself gives commands to: those in a text are shown, not carried out."""

    def render(self, *arguments: Any, **options: Any) -> Iterator[Segment]:
        """Yield what is to be printed, with what would steer the terminal written out."""
        for segment in super().render(*arguments, **options):
            yield segment if segment.control else segment._replace(text=for_terminal(segment.text))

    def on_broken_pipe(self) -> None:
        """End the command as SIGPIPE would: rich itself has it fail without a word.

        Where nobody reads its errors it ends as it would.
        """
        if not self.stderr:
            leave_unread()


def print_error(sentence: str) -> None:
    """Print what went wrong where errors go."""
    PlainConsole(stderr=True, highlight=False).print(f"[red]error:[/] {escape(sentence)}", soft_wrap=True)
