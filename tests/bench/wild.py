"""Open, train, evaluate and export whatever is in folders of scenes and models, and print a table of it.

`python tests/bench/wild.py FOLDER...` tries each entry of the folders; `--derive SCENE` makes variants of a
COLMAP scene first (layouts, archives, picture formats, lenses, broken forms; formats of a model of it) and
tries those. Nobody knows what all of them should say: look at each row. What ends in anything but a sentence
is marked, and makes the program end with 1.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import splatstudio as ss

# isort: split
from wild_variants import Scenes, make_models

from splatstudio.error_text import in_words
from splatstudio.formats import format_of
from splatstudio.models.model import Model, own_orbit
from splatstudio.models.other_outputs import output_in
from splatstudio.scene.archives import is_archive
from splatstudio.scene.layout import pose_files

LONGEST = 230  # letters of a sentence in the table


@dataclass(frozen=True)
class Row:
    """What came of one entry; `fault` where that is no sentence."""

    name: str
    kind: str
    opened: str
    result: str
    seconds: float
    fault: bool = False

    def line(self) -> str:
        """Return the row of the table."""
        mark = " **fault**" if self.fault else ""
        cells = (self.name, self.kind, self.opened, self.result + mark, f"{self.seconds:.1f}")
        return "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |"


def tried(path: Path, root: Path, steps: int, downscale: int) -> Row:
    """Return what comes of opening a path, and of training or drawing and exporting it."""
    began = time.monotonic()
    name, kind, opened = str(path.relative_to(root)), "model" if is_model(path) else "scene", "-"
    try:
        with tempfile.TemporaryDirectory() as folder:
            if kind == "model":
                model = ss.load_model(path)
                opened = f"{len(model):,} splats" + told(model.notes)
                assert ss.render(model, own_orbit(model).cameras()[0].resized(64, 48)).any(), "all is black"
                result = exported(model, Path(folder))
            else:
                scene = ss.load_scene(path, downscale=downscale)
                opened = f"{scene.format}, {len(scene.views)} photos, {len(scene.points):,} points"
                opened += told(scene.notes)
                model = ss.train(scene, steps=steps, downscale=downscale, sh_degree=0)
                psnr = f"{model.evaluate(scene).psnr:.1f} dB" if scene.test_indices else "no test"
                result = f"{psnr}, {exported(model, Path(folder))}"
        return Row(name, kind, opened, result, time.monotonic() - began)
    except (ValueError, OSError) as error:
        sentence = in_words(error)
        fault = "\n" in sentence or len(sentence) < 20
        shown = sentence.replace(f"{root}/", "")
        return Row(name, kind, opened, shown[:LONGEST], time.monotonic() - began, fault)
    except Exception:
        last = traceback.format_exc().strip().splitlines()
        return Row(name, kind, opened, f"{last[-1]} ({last[-3].strip()})", time.monotonic() - began, True)


def is_model(path: Path) -> bool:
    """Return whether a path is to be opened as a model: what is no scene, and no folder of pictures."""
    if path.is_file():
        return not is_archive(path) and path.suffix != ".json"
    return pose_files(path) is None and (output_in(path) is not None or format_of(path) is not None)


def told(notes: tuple[str, ...]) -> str:
    return "".join(f"; {note[:LONGEST]}" for note in notes if "held out" not in note)


def exported(model: Model, folder: Path) -> str:
    """Write the model as a PLY and as SOG, and return how many splats came back."""
    counts = set()
    for ending in (".ply", ".sog"):
        model.save(folder / f"model{ending}")
        counts.add(len(ss.load_model(folder / f"model{ending}")))
    assert counts == {len(model)}, f"{len(model)} splats were written, {counts} came back"
    return f"{len(model):,} splats exported"


def entries(folders: list[Path]) -> Iterator[tuple[Path, Path]]:
    for folder in folders:
        if folder.is_file() or pose_files(folder) is not None:
            yield folder, folder.parent
            continue
        for entry in sorted(folder.iterdir()):
            if not entry.name.startswith("."):
                yield entry, folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--derive", type=Path, help="a COLMAP scene to make variants of")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--downscale", type=int, default=8)
    parser.add_argument("--only", default="", help="a part of the names to try")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="wild-") as made:
        folders = [folder.resolve() for folder in arguments.folders]
        if arguments.derive is not None:
            source = arguments.derive.resolve()
            Scenes(source, Path(made, "scenes")).all()
            scene = ss.load_scene(source, downscale=arguments.downscale)
            trained = ss.train(scene, steps=arguments.steps, downscale=arguments.downscale, sh_degree=1)
            make_models(trained, Path(made, "models"))
            folders += [Path(made, "scenes"), Path(made, "models")]
        print("| what | as | opened | result | s |\n| --- | --- | --- | --- | --- |")
        faults = 0
        for path, root in entries(folders):
            if arguments.only in path.name:
                row = tried(path, root, arguments.steps, arguments.downscale)
                faults += row.fault
                print(row.line(), flush=True)
    print(f"\n{faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
