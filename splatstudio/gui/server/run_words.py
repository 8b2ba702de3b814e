"""What the start page says of a run: how far it is, how good, and of which scene."""

from __future__ import annotations

from pathlib import Path

from splatstudio.files.run import newest_psnr, newest_step


def figures(run_dir: Path) -> str:
    """Return the last saved step and the test PSNR of a run, as far as they are known."""
    step = newest_step(run_dir)
    if step is None:
        return "no step saved"
    psnr = newest_psnr(run_dir, step)
    return f"step {step:,}" + ("" if psnr is None else f" · {psnr:.2f} dB")
