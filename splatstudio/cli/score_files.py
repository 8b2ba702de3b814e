"""The files that the scores of an evaluation are written to beside the terminal."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from splatstudio.files.durable import refuse_existing, refuse_unwritable, write_durably


@dataclass(frozen=True)
class ScoreFiles:
    """Where the scores are written beside the terminal.

    Args:
        json: Write the result here as JSON.
        csv: Write the table of the images here, worst first.
        overwrite: Replace files that are there already.
    """

    json: Path | None = None
    csv: Path | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Raise ValueError for a file that could not be written, before there is work to lose."""
        files = [file for file in (self.json, self.csv) if file is not None]
        if len({os.path.abspath(file) for file in files}) < len(files):
            raise ValueError(f"--json and --csv cannot both be written to {self.csv}: name two files")
        for file in files:
            refuse_existing(file, self.overwrite)
            refuse_unwritable(file)

    def write(self, json: str, csv: str) -> tuple[Path, ...]:
        """Write what was asked for and return the files; ValueError when one failed, after all were tried."""
        written, failed = [], []
        for file, text in ((self.json, json), (self.csv, csv)):
            if file is None:
                continue
            try:
                write_durably(file, text.encode())
                written.append(file)
            except OSError as error:
                failed.append(f"{file} cannot be written: {error.strerror or error}")
        if failed:
            raise ValueError("; ".join(failed))
        return tuple(written)


TO_THE_TERMINAL = ScoreFiles()
