"""The standing table of picture quality: scenes by presets, means over seeds, and what fell since the last.

python tests/bench/quality_table.py     # trains what is missing of 2000 steps, then prints the table
python tests/bench/quality_table.py --scenes fox-colmap --presets fast mcmc --seeds 42 --steps 7000

Each training is a process of quality.py. What is measured is written to --results as it comes, so that a run
that was ended goes on where it was. The table is compared with tests/bench/quality.json, the last that was
kept: a mean that fell by more than the seeds' spread is told, and the exit status is 1. --keep writes the new
one there. CPU seconds are of the machine and its load: they are told, not compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

HERE = Path(__file__).parent
KEPT = HERE / "quality.json"
# Name and divisor of the photos; the last is the bundled one, whose photos are small.
SCENES = {"banana": 4, "fox-colmap": 4, "statue": 4, "drone": 4, "assets/demo": 2}
PRESETS = ("preview", "fast", "default", "mcmc", "quality", "surface")
SEEDS = (42, 43, 44)
# What is compared, whether more is better, and the least difference that counts.
COMPARED = {"psnr": (True, 0.05), "ssim": (True, 0.002), "flip": (False, 0.002)}


@dataclass(frozen=True)
class Score:
    """What one training came to."""

    scene: str
    preset: str
    steps: int
    seed: int
    psnr: float
    ssim: float
    flip: float | None
    num_gaussians: int
    cpu_s: float

    @property
    def kind(self) -> tuple[str, str, int]:
        """Return what is averaged over the seeds."""
        return self.scene, self.preset, self.steps


def read(file: Path) -> list[Score]:
    """Return the scores in a file, none where there is no file."""
    if not file.exists():
        return []
    return [Score(**row) for row in json.loads(file.read_text())]


def write(file: Path, scores: Iterable[Score]) -> None:
    """Write scores, a line each."""
    rows = [json.dumps(asdict(score)) for score in sorted(scores, key=lambda score: (score.kind, score.seed))]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("[\n" + ",\n".join(rows) + "\n]\n")


def measured(scene: str, preset: str, steps: int, seed: int) -> Score:
    """Train once, in a process of its own, and return the scores."""
    words = ["--scene", scene, "--preset", preset, "--steps", str(steps), "--seed", str(seed), "--json"]
    words += ["--downscale", str(SCENES[scene])]
    command = [sys.executable, HERE / "quality.py", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=HERE.parents[1])
    row = json.loads(done.stdout)
    known = {field.name for field in fields(Score)} - {"scene", "seed"}
    return Score(
        scene=scene, seed=seed, **{"flip": None, **{name: row[name] for name in known if name in row}}
    )


def by_kind(scores: Iterable[Score]) -> dict[tuple[str, str, int], list[Score]]:
    """Return the scores of each scene, preset and number of steps."""
    found: dict[tuple[str, str, int], list[Score]] = defaultdict(list)
    for score in scores:
        found[score.kind].append(score)
    return dict(found)


def mean(scores: Sequence[Score], name: str) -> float | None:
    """Return the mean of a figure, None where one has none."""
    values = [getattr(score, name) for score in scores]
    return None if None in values else statistics.fmean(values)


def spread(scores: Sequence[Score], name: str) -> float:
    """Return how far the seeds lie apart, 0 for one or for a figure that one has not."""
    values = [getattr(score, name) for score in scores]
    return 0.0 if None in values else max(values) - min(values)


def table(scores: Iterable[Score]) -> str:
    """Return Markdown: of each scene, preset and number of steps the means over the seeds."""
    lines = [
        "| scene | preset | steps | seeds | PSNR | +/- | SSIM | FLIP | splats | CPU s |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    order = {preset: number for number, preset in enumerate(PRESETS)}
    kinds = by_kind(scores)
    for kind in sorted(kinds, key=lambda kind: (kind[2], list(SCENES).index(kind[0]), order[kind[1]])):
        (scene, preset, steps), group = kind, kinds[kind]
        flip = mean(group, "flip")
        lines.append(
            f"| {scene} | {preset} | {steps:,} | {len(group)} | {mean(group, 'psnr'):.2f}"
            f" | {spread(group, 'psnr') / 2:.2f} | {mean(group, 'ssim'):.3f}"
            f" | {'' if flip is None else f'{flip:.3f}'} | {mean(group, 'num_gaussians'):,.0f}"
            f" | {mean(group, 'cpu_s'):.0f} |"
        )
    return "\n".join(lines)


def what_fell(kept: Iterable[Score], now: Iterable[Score]) -> list[str]:
    """Return a sentence for each mean that is worse than the kept one by more than the seeds' spread.

    Seeds that both have are compared alone: another seed is no change of the program.
    """
    found = []
    before, after = by_kind(kept), by_kind(now)
    for kind in sorted(before.keys() & after.keys()):
        seeds = {score.seed for score in before[kind]} & {score.seed for score in after[kind]}
        pair = [[score for score in group[kind] if score.seed in seeds] for group in (before, after)]
        for name, (more_is_better, least) in COMPARED.items():
            was, is_now = (mean(group, name) if group else None for group in pair)
            if was is None or is_now is None:
                continue
            loss = was - is_now if more_is_better else is_now - was
            if loss > max(least, *(spread(group, name) / 2 for group in pair)):
                scene, preset, steps = kind
                found.append(f"{scene}, {preset}, {steps:,} steps: {name} {was:.3f} -> {is_now:.3f}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scenes", nargs="+", default=list(SCENES), choices=list(SCENES))
    parser.add_argument("--presets", nargs="+", default=list(PRESETS), choices=PRESETS)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--steps", nargs="+", type=int, default=[2000])
    parser.add_argument("--results", type=Path, default=Path("runs/quality.json"))
    parser.add_argument(
        "--keep", action="store_true", help="keep what was measured as the table to compare with"
    )
    arguments = parser.parse_args()
    scores = read(arguments.results)
    done = {(score.kind, score.seed) for score in scores}
    # Seed by seed: what is ended early has all scenes and presets once.
    wanted = [
        (scene, preset, steps, seed)
        for seed in arguments.seeds
        for steps in arguments.steps
        for scene in arguments.scenes
        for preset in arguments.presets
        if ((scene, preset, steps), seed) not in done
    ]
    for number, (scene, preset, steps, seed) in enumerate(wanted, 1):
        scores.append(score := measured(scene, preset, steps, seed))
        write(arguments.results, scores)
        figures = f"{score.psnr:.2f} dB, {score.num_gaussians:,} splats, {score.cpu_s:.0f} CPU s"
        print(f"{number} of {len(wanted)}: {scene}, {preset}, {steps}, seed {seed}: {figures}", flush=True)
    print(table(scores))
    fell = what_fell(read(KEPT), scores)
    print("\n".join(f"Fell: {sentence}" for sentence in fell) or "Nothing fell.")
    if arguments.keep:
        write(KEPT, scores)
    return 1 if fell else 0


if __name__ == "__main__":
    sys.exit(main())
