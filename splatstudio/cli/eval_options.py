"""What the command line asks of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Against:
    """What a model is compared with.

    Args:
        scene: The scene; a run and a checkpoint remember theirs.
        images: The scene's folder of photographs, where it is another one.
        downscale: Divide the photographs' size by this; as in training by default, 1 for a file.
        test_every: Every n-th photograph by name is a test photograph (for a file; a run remembers its own).
        test_images: Names of the photographs to compare with, by commas, in place of the others.
    """

    scene: Path | None = None
    images: str = ""
    downscale: int | None = None
    test_every: int = 8
    test_images: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scores:
    """What is measured beside PSNR and SSIM.

    Args:
        lpips: Networks of LPIPS, where their weights are on this machine; nothing behind it: none.
        fetch_lpips: Download weights that are missing.
        color_correct: Also PSNR after the affine map of colours that fits each photograph best.
    """

    lpips: tuple[Literal["alex", "vgg"], ...] = ("alex", "vgg")
    fetch_lpips: bool = False
    color_correct: bool = False


@dataclass(frozen=True)
class PartChoice:
    """What is judged where the path is one rank's part of a model, whose scores would be low for that reason.

    Args:
        merge: Merge the part with the others before.
        alone: Judge the part alone, although it is not the scene.
    """

    merge: bool = False
    alone: bool = False

    def check(self, path: Path) -> None:
        """Raise ValueError, which says what to do, where the path is a part and nothing was chosen."""
        if self.merge and self.alone:
            raise ValueError("--merge judges the whole model and --alone one part of it: leave one away")
        if self.merge or self.alone:
            return
        from splatstudio.checkpoints.rank_parts import part_of

        part = part_of(path)
        if part is not None:
            whole = (
                " Add --merge to judge the whole," if part.complete else ": copy it there and add --merge,"
            )
            raise ValueError(f"{part}{whole} or --alone to judge this part.")


ITS_OWN_SCENE = Against()
ALL_SCORES = Scores()
NO_PART = PartChoice()
