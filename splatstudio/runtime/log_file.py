"""Where a rank prints: a temporary file before its run has a folder, then the run's own log."""

from __future__ import annotations

import os
from pathlib import Path


def log_of(run_dir: Path) -> Path:
    """Return the file that all ranks of a run print into, once its folder is there."""
    return run_dir / "logs" / "worker.log"


def redirect_output(log_path: Path) -> None:
    """Send everything that this process prints, native code included, to the log file."""
    log_path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
