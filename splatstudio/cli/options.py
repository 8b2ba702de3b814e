"""Groups of options that commands take. Nothing here needs torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from splatstudio.files.durable import refuse_existing, refuse_unwritable, write_durably
from splatstudio.files.inputs import read_input


@dataclass(frozen=True)
class Against:
    """What a model is compared with.

    Args:
        scene: The scene; a run and a checkpoint remember theirs.
        images: The scene's folder of photos, where it is another one.
        downscale: Divide the photos' size by this; as in training by default, 1 for a file.
        test_every: Every n-th photo by name is a test photo (for a file; a run remembers its own).
        test_images: Names of the photos to compare with, by commas, in place of the others.
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
        color_correct: Also PSNR after the affine map of colors that fits each photo best.
        flip: FLIP, which tells how strongly an observer sees the difference; about a second a megapixel.
    """

    lpips: tuple[Literal["alex", "vgg"], ...] = ("alex", "vgg")
    fetch_lpips: bool = False
    color_correct: bool = False
    flip: bool = True


@dataclass(frozen=True)
class PartChoice:
    """What is judged where the path is one rank's part of a model, whose scores would be low for that reason.

    Args:
        merge: Merge the part with the others before.
        alone: Judge the part alone, although it is not the scene.
        strict: Refuse a file with splats that would be left out, as a value of them is not finite.
    """

    merge: bool = False
    alone: bool = False
    strict: bool = False

    def check(self, path: Path) -> None:
        """Raise ValueError, which says what to do, where the path is a part and nothing was chosen."""
        if self.merge and self.alone:
            raise ValueError("--merge judges the whole model and --alone one part of it: omit one")
        if self.merge and self.strict:
            raise ValueError("--strict is for one file, and --merge joins several: omit one")
        if self.merge or self.alone:
            return
        from splatstudio.checkpoints.rank_parts import part_of

        part = part_of(path)
        if part is not None:
            whole = (
                " Add --merge to judge the whole," if part.complete else ": copy it there and add --merge,"
            )
            raise ValueError(f"{part}{whole} or --alone to judge this part.")


@dataclass(frozen=True)
class RunOptions:
    """Which run is trained, and for how long.

    Args:
        run: Folder of the run; a new one below runs/ by default.
        resume: Go on from the newest good checkpoint of the run, with its settings, to --steps if given.
        minutes: Choose preset, size of the photos (--downscale at least) and steps for the best picture
            in about so many minutes on this machine.
    """

    run: Path | None = None
    resume: bool = False
    minutes: float | None = None

    def check(self, preset: str | None) -> None:
        """Raise ValueError for what does not go together."""
        if preset and self.resume:
            raise ValueError("a run goes on with its own settings: omit --preset, or start a new training")
        if self.minutes is not None and (preset or self.resume):
            raise ValueError("--minutes plans a new training and its preset: omit --preset and --resume")


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


@dataclass(frozen=True)
class Route:
    """Where the camera of a video goes: one of --path, --orbit, --spiral, --through-photos.

    Args:
        path: A camera_path.json of the studio, nerfstudio or nerfview.
        path_scale: Multiply that file's positions by this; 10 for files that nerfview saved.
        orbit: Once around what the photos look at, at the distance of their cameras; where the scene is
            not known, around the middle of the splats.
        spiral: Wind through the room that the photos' cameras took.
        through_photos: Along the photos' cameras in the order of their names, at an even pace.
        scene: The scene, for all but --path; a run and a checkpoint remember theirs.
        images: The scene's folder of photos, where it is another one.
        strict: Refuse a file with splats that would be left out, as a value of them is not finite.
    """

    path: Path | None = None
    path_scale: float = 1.0
    orbit: bool = False
    spiral: bool = False
    through_photos: bool = False
    scene: Path | None = None
    images: str = ""
    strict: bool = False

    def check(self) -> None:
        """Raise ValueError unless just one way is chosen."""
        if (self.path is not None) + self.orbit + self.spiral + self.through_photos != 1:
            ways = "--path FILE, --orbit, --spiral, --through-photos"
            raise ValueError(f"say where the camera goes: one of {ways}")
        if self.path is None and self.path_scale != 1:
            raise ValueError("--path-scale is for the positions of a file: give --path FILE, too")


@dataclass(frozen=True)
class ScoreFiles:
    """Where the scores, and what was compared, are written beside the terminal.

    Args:
        json_file: Write the result here as JSON.
        csv: Write the table of the images here, worst first.
        pictures: A new folder for the renders and the photos that they are compared with, of the same size:
            renders/NAME.png and photos/NAME.png.
        overwrite: Replace files that are there already.
    """

    json_file: Path | None = None
    csv: Path | None = None
    pictures: Path | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Raise ValueError for a file that could not be written, before there is work to lose."""
        files = [file for file in (self.json_file, self.csv) if file is not None]
        taken = [os.path.abspath(file) for file in (*files, self.pictures) if file is not None]
        if twice := next((file for file in taken if taken.count(file) > 1), None):
            raise ValueError(f"--json-file, --csv and --pictures cannot both be written to {twice}: name two")
        for file in files:
            refuse_existing(file, self.overwrite)
            refuse_unwritable(file)
        if self.pictures is None:
            return
        if not os.path.isdir(self.pictures):
            refuse_existing(self.pictures, overwrite=False)
            refuse_unwritable(self.pictures)
        elif any(self.pictures.iterdir()):
            refuse_existing(self.pictures, self.overwrite)
        elif not os.access(self.pictures, os.W_OK):
            raise ValueError(f"{self.pictures} cannot be written: the folder may not be written to")

    def write(self, json: str, csv: str) -> tuple[Path, ...]:
        """Write what was asked for and return the files; ValueError when one failed, after all were tried."""
        written, failed = [], []
        for file, text in ((self.json_file, json), (self.csv, csv)):
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


@dataclass(frozen=True)
class MeshPlace:
    """Where a mesh lies, and what it is compared with.

    Args:
        upright: Let it stand upright, z up, centered and scaled as in the studio; by default it lies in the
            coordinates of the scene's files.
        scene: The scene whose photos look at it; a run and a checkpoint remember theirs.
        images: The scene's folder of photos, where it is another one.
    """

    upright: bool = False
    scene: Path | None = None
    images: str = ""


@dataclass(frozen=True)
class MeshRanks:
    """Which processes make a mesh together, each with its own blocks of it.

    Args:
        gpus: Numbers of the GPUs that draw, one process each, as 0,1, or all; one by default.
        ranks: Make it on the CPU, in this many processes, which share its cores.
    """

    gpus: str | None = None
    ranks: int | None = None


TOKEN_VARIABLE = "SPLATSTUDIO_TOKEN"


def attach_token(token: str | None, file: Path | None) -> str:
    """Return the secret of a training: as it was typed, else that of the file, else of the environment.

    Raises ValueError, a sentence, where there is none, and OSError where the file cannot be read.
    """
    if token is not None and file is not None:
        raise ValueError("--token and --token-file are two secrets: omit one")
    if token is None:
        token = (
            os.environ.get(TOKEN_VARIABLE, "") if file is None else read_input(file).decode(errors="replace")
        )
        token = token.strip()
    if not token and file is not None:
        raise ValueError(f"{file} holds no secret: write into it what the training printed behind --token")
    if not token:
        raise ValueError(
            "a secret is needed, which the training printed: give it with --token, or where others use this"
            f" machine with --token-file or the variable {TOKEN_VARIABLE}"
        )
    return token
